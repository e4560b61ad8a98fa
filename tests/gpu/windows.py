"""Sliding windows and softcap: edges, keys that nobody sees, equal calls with equal bits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

import dash

from ..compare import assert_bitwise_equal, assert_results_equal
from . import registry
from .dirt import NAN_BYTE, poison_freed_memory
from .problem import check_close, dense, legal, run, visible

WINDOWS = [
    *((0, 0), (17, 5), (64, 64), (128, 0), (-1, 64), (64, -1), (0, 200), (127, 128), (1, 0)),
    *((300, 0), (-1, 1)),
]


def check_windows(head_dim: int) -> None:
    lengths = [(129, 129), (500, 500), (300, 611), (611, 300), (1, 400), (400, 1), (64, 2049)]
    for window in WINDOWS:
        for seqlen_q, seqlen_k in lengths:
            problem = dense(2, seqlen_q, seqlen_k, head_dim=head_dim, window=window)
            inputs = problem.make_inputs()
            poison_freed_memory(NAN_BYTE, 64 << 20)
            got = run(problem, inputs)
            check_close(problem, inputs, got)
            mask = visible(problem, torch.device("cuda"))
            unseen = (~mask.any(0)).repeat(2)
            assert (got.dk[unseen] == 0).all() and (got.dv[unseen] == 0).all(), str(problem)
            blind = (~mask.any(1)).repeat(2)
            assert (got.dq[blind] == 0).all() and (got.out[blind] == 0).all(), str(problem)


def check_window_schedules(head_dim: int) -> None:
    for window in WINDOWS:
        problem = dense(2, 900, 1030, head_dim=head_dim, heads=6, window=window)
        inputs = problem.make_inputs()
        for schedule in (*legal(problem), "unordered"):
            got = run(problem, inputs, schedule)
            check_close(problem, inputs, got, schedule)
            if schedule != "unordered":
                again = run(problem, inputs, schedule)
                assert_results_equal(again, got, f"{problem} {schedule}")


@registry.check("windows/edge", 60)
def edge() -> None:
    """The key at distance `left` is seen and the next is not: v there decides alone."""
    for left, right in [(17, 5), (0, 0), (128, 63), (64, 0)]:
        problem = dense(1, 300, 300, heads=2, window=(left, right))
        q, k, _, dout = problem.make_inputs()
        for row in (150, 299, 130):
            for key in (row - left - 1, row - left, row + right, row + right + 1):
                if not 0 <= key < 300:
                    continue
                v = torch.zeros_like(k)
                v[key] = 1.0
                out = run(problem, (q, k, v, dout)).out
                is_seen = row - left <= key <= row + right
                assert bool((out[row] != 0).all()) == is_seen, (left, right, row, key)
                assert is_seen or (out[row] == 0).all()


@registry.check("windows/no-limit-is-none")
def no_limit() -> None:
    """A bound beyond every key is none; (-1, 0) is causal. The public function, by bits."""
    problem = dense(1, 512, 512, head_dim=128, heads=4)
    q, k, v, dout = (x[None] for x in problem.make_inputs())

    def grads(**options: object) -> tuple[torch.Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = dash.flash_attn_func(*leaves, **options)
        return (out.detach(), *torch.autograd.grad(out, leaves, dout))

    same: list[list[dict[str, object]]] = [
        [{"window_size": w} for w in ((-1, -1), (None, None), (512, 512), (10**6, 10**6))],
        [{"causal": True}, {"window_size": (-1, 0)}, {"window_size": (600, 0)},
         {"causal": True, "window_size": (-1, 5)}],
        [{"causal": True, "window_size": (64, 0)}, {"window_size": (64, 0)}],
    ]  # fmt: skip
    for group in same:
        want = grads(**group[0])
        for options in group[1:]:
            for name, a, b in zip(("out", "dq", "dk", "dv"), grads(**options), want, strict=True):
                assert_bitwise_equal(a, b, f"{options} {name}")


@registry.check("windows/softcap-in-turns", 60)
def softcap_in_turns() -> None:
    for head_dim in (64, 128, 256):
        base = dense(2, 512, 512, head_dim=head_dim, heads=4, window=(-1, 0))
        inputs = base.make_inputs()
        large = tuple(3 * x for x in inputs)
        for softcap in (15.0, 30.0, 0.0, 15.0, 10.0, 50.0, 1.0):
            problem = replace(base, softcap=softcap)
            for given in (inputs, large):
                got = run(problem, given)
                check_close(problem, given, got)
                assert_results_equal(run(problem, given), got, str(problem))


for _head_dim in (64, 96, 128, 192, 256):
    registry.add(f"windows/shapes-hdim{_head_dim}", partial(check_windows, _head_dim), 60)
    registry.add(
        f"windows/schedules-hdim{_head_dim}", partial(check_window_schedules, _head_dim), 60
    )
