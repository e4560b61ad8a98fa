"""Every kernel variant at every compiled head dim: accuracy, and the same bits over repeats, under
load, on dirty memory and with another section size."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import product

import torch

import dash

from ..compare import assert_bitwise_equal, assert_results_equal
from . import registry
from .dirt import HUGE_BYTE, NAN_BYTE, busy_second_stream, keep_busy, poison_freed_memory
from .problem import Problem, check_close, dense, legal, mask_of, packed, run

COMPILED_HEAD_DIMS = (64, 96, 128, 192, 256)
CAUSAL, WINDOW = (-1, 0), (70, 40)
RAGGED_Q, RAGGED_K = [300, 0, 1, 513, 128, 64], [300, 7, 200, 129, 0, 257]
REPEATS = 10

# What each kind of call is, by the options that choose its kernel.
KINDS: dict[str, list[Problem]] = {
    "full": [dense(2, 500, 500), dense(2, 257, 700), dense(1, 700, 257)],
    "causal": [
        dense(2, 512, 512, window=CAUSAL),
        dense(2, 257, 700, window=CAUSAL),
        dense(1, 700, 257, window=CAUSAL),
    ],
    "packed-full": [packed(RAGGED_Q), packed(RAGGED_Q, RAGGED_K)],
    "packed-causal": [
        packed(RAGGED_Q, window=CAUSAL),
        packed(RAGGED_Q, RAGGED_K, window=CAUSAL),
    ],
    "window": [
        dense(2, 500, 500, window=WINDOW),
        dense(2, 300, 700, window=(100, 0)),
        dense(1, 700, 300, window=(-1, 60)),
    ],
    "packed-window": [
        packed(RAGGED_Q, window=(90, 0)),
        packed(RAGGED_Q, RAGGED_K, window=WINDOW),
    ],
    "softcap": [
        dense(2, 400, 400, softcap=15.0),
        dense(2, 300, 500, softcap=5.0, window=CAUSAL),
        dense(1, 300, 300, softcap=1e-2),
        dense(1, 300, 300, softcap=1e5, window=CAUSAL),
    ],
    "packed-softcap": [packed(RAGGED_Q, RAGGED_K, softcap=20.0, window=CAUSAL)],
}


# Above this the gradient of softcap * tanh(x / softcap) overflows fp16 in plain PyTorch.
LARGEST_SOFTCAP = {"bf16": math.inf, "fp16": 1e3}


def with_key(problem: Problem, head_dim: int, dtype: str) -> Problem:
    softcap = min(problem.softcap, LARGEST_SOFTCAP[dtype])
    return replace(problem, head_dim=head_dim, dtype=dtype, softcap=softcap)


def skip_if_not_built(problem: Problem) -> None:
    """A build with a DASH_KERNELS filter has only some kernels."""
    supported, reason = dash.is_supported(**mask_of(problem), device="cuda")
    if not supported and "was built" in reason:
        raise registry.SkippedError(reason)


def check_accuracy(kind: str, head_dim: int, dtype: str) -> None:
    for base in KINDS[kind]:
        problem = with_key(base, head_dim, dtype)
        skip_if_not_built(problem)
        inputs = problem.make_inputs()
        for schedule in (*legal(problem), "unordered"):
            check_close(problem, inputs, run(problem, inputs, schedule), schedule)


def longer(problem: Problem) -> Problem:
    """With enough heads and rows for several waves."""
    return replace(
        problem,
        heads=16,
        heads_k=8,
        lengths_q=tuple(3 * n for n in problem.lengths_q),
        lengths_k=tuple(3 * n for n in problem.lengths_k),
    )


def check_bits(kind: str, head_dim: int, dtype: str) -> None:
    problem = longer(with_key(KINDS[kind][-1], head_dim, dtype))
    skip_if_not_built(problem)
    inputs = problem.make_inputs()
    for schedule in legal(problem):
        first = run(problem, inputs, schedule)
        for repeat in range(REPEATS):
            again = run(problem, inputs, schedule)
            assert_results_equal(again, first, f"{problem} {schedule}, idle, repeat {repeat}")
        with busy_second_stream():
            for repeat in range(REPEATS):
                keep_busy()
                again = run(problem, inputs, schedule)
                assert_results_equal(again, first, f"{problem} {schedule}, loaded, {repeat}")
        for byte in (NAN_BYTE, HUGE_BYTE):
            poison_freed_memory(byte, 256 << 20)
            again = run(problem, inputs, schedule)
            assert_results_equal(again, first, f"{problem} {schedule}, memory full of {byte:#x}")


def check_sections(kind: str, head_dim: int) -> None:
    """The section size orders the dispatch and changes no bit."""
    problem = longer(with_key(KINDS[kind][-1], head_dim, "bf16"))
    skip_if_not_built(problem)
    inputs = problem.make_inputs()
    for schedule in ("band", "mirrored", "comb", "shortest_first"):
        if schedule in legal(problem):
            want = run(problem, inputs, schedule)
            for section in (1, 3, 16):
                got = run(problem, inputs, f"{schedule}@{section}")
                assert_results_equal(got, want, f"{problem} {schedule}, sections of {section}")


def check_group_parts(kind: str, head_dim: int, dtype: str) -> None:
    """Query groups in 1, 2 and 4 parts: right, repeatable on dirty memory and with another section
    size; dq has the same bits, but for mirrored, whose direction is the parity of the list's index,
    and dk and dv have others. Packed sequences with slack behind them and padding in them."""
    for base in KINDS[kind]:
        problem = replace(with_key(base, head_dim, dtype), heads=8, heads_k=2)
        if problem.packed:
            used_q, used_k = (
                tuple(max(length - 3, 0) for length in side)
                for side in (problem.lengths_q, problem.lengths_k)
            )
            problem = replace(problem, slack=7, used_q=used_q, used_k=used_k)
        skip_if_not_built(problem)
        inputs = problem.make_inputs()
        for schedule in legal(problem):
            whole = run(problem, inputs, schedule)
            for parts in (2, 4):
                name = f"{schedule}/{parts}"
                poison_freed_memory(NAN_BYTE, 256 << 20)
                got = run(problem, inputs, name)
                check_close(problem, inputs, got, name)
                if schedule != "mirrored":
                    assert_bitwise_equal(got.dq, whole.dq, f"{problem} {name}: dq")
                assert not torch.equal(got.dk, whole.dk), f"{problem} {name}: dk of other sums"
                with busy_second_stream():
                    keep_busy()
                    again = [run(problem, inputs, text) for text in (name, f"{name}@3")]
                for other in again:
                    assert_results_equal(other, got, f"{problem} {name}")
        assert_results_equal(
            run(problem, inputs, "band/1"), run(problem, inputs, "band"), f"{problem} band/1"
        )


def check_head_dims(head_dims: list[int]) -> None:
    for head_dim in head_dims:
        for kind in ("full", "causal", "packed-window"):
            problem = replace(KINDS[kind][-1], head_dim=head_dim)
            skip_if_not_built(problem)
            inputs = problem.make_inputs()
            for schedule in ("auto", "band"):  # query groups in parts, and whole
                got = run(problem, inputs, schedule)
                check_close(problem, inputs, got, schedule)
                assert_results_equal(run(problem, inputs, schedule), got, f"{problem} {schedule}")


def check_head_dims_differ(head_dim: int, head_dim_v: int) -> None:
    for kind, (base, *_) in KINDS.items():
        problem = replace(base, head_dim=head_dim, head_dim_v=head_dim_v)
        skip_if_not_built(problem)
        inputs = problem.make_inputs()
        for schedule in (*legal(problem), "band/2", "unordered"):
            got = run(problem, inputs, schedule)
            check_close(problem, inputs, got, f"{kind} {schedule}")
            if schedule != "unordered":
                assert_results_equal(run(problem, inputs, schedule), got, str(problem))


for _kind, _head_dim, _dtype in product(KINDS, COMPILED_HEAD_DIMS, ("bf16", "fp16")):
    _name = f"{_kind}-hdim{_head_dim}-{_dtype}"
    registry.add(f"kernels/accuracy-{_name}", partial(check_accuracy, _kind, _head_dim, _dtype))
for _index, (_kind, _head_dim) in enumerate(product(KINDS, COMPILED_HEAD_DIMS)):
    _dtype, _other = ("bf16", "fp16") if _index % 2 == 0 else ("fp16", "bf16")
    _name = f"{_kind}-hdim{_head_dim}"
    registry.add(f"kernels/bits-{_name}", partial(check_bits, _kind, _head_dim, _dtype), 60)
    registry.add(
        f"kernels/group-parts-{_name}", partial(check_group_parts, _kind, _head_dim, _other), 60
    )
for _kind, _head_dim in product(("causal", "packed-causal", "window"), (64, 128, 256)):
    registry.add(
        f"kernels/sections-{_kind}-hdim{_head_dim}", partial(check_sections, _kind, _head_dim)
    )
for _first in range(8, 257, 64):
    _head_dims = list(range(_first, _first + 64, 8))
    registry.add(
        f"head-dims/{_head_dims[0]}-to-{_head_dims[-1]}", partial(check_head_dims, _head_dims), 60
    )
for _pair in [(192, 128), (128, 64), (96, 256), (8, 128), (72, 40)]:
    registry.add(f"head-dims/{_pair[0]}-and-{_pair[1]}", partial(check_head_dims_differ, *_pair))
