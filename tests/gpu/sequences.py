"""Packed sequences: the bits of each alone, rows that no sequence owns, many and random ones."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import numpy
import torch

import dash

from ..compare import assert_bitwise_equal, assert_results_equal
from . import registry
from .dirt import NAN_BYTE, poison_freed_memory
from .problem import Inputs, Problem, check_close, legal, packed, resolve, run

CAUSAL = (-1, 0)
MASKS = {
    "full": (-1, -1),
    "causal": CAUSAL,
    "window": (100, 30),
    "window-left": (64, 0),
    "wide-window": (600, 600),  # no limit for most of LENGTHS: alone they have a full mask
}
LENGTHS = [(300, 300), (77, 130), (513, 400), (0, 50), (128, 128), (1, 1), (64, 0), (900, 700)]


def make_parts(problem: Problem) -> list[Inputs]:
    """Inputs of each sequence by itself."""
    return [problem.only(i).make_inputs(seed=i) for i in range(problem.batch)]


def join(parts: list[Inputs]) -> Inputs:
    q, k, v, dout = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    return q, k, v, dout


def is_legal(problem: Problem, schedule: str) -> bool:
    return schedule.partition("/")[0] in legal(problem)


def check_alone_equals_packed(mask: str, head_dim: int, softcap: float = 0.0) -> None:
    """Batches of 1, 3 and 8, any slot: the bits of the dense call of the sequence alone."""
    lengths_q, lengths_k = (list(side) for side in zip(*LENGTHS, strict=True))
    problem = packed(
        lengths_q, lengths_k, head_dim=head_dim, window=MASKS[mask], softcap=softcap, heads=6
    )
    parts = make_parts(problem)
    schedules = legal(problem)
    for schedule in (*schedules, *(f"{name}/3" for name in schedules)):
        if not resolve(problem, schedule).batch_invariant:
            continue
        # A window that is no limit for a short sequence alone is a full mask there, which not
        # every schedule of windows is legal for.
        want = {
            i: run(problem.only(i), parts[i], schedule)
            for i in range(problem.batch)
            if is_legal(problem.only(i), schedule)
        }
        for order in ([0], [7], [2, 0, 5], [3, 7, 6], [7, 6, 5, 4, 3, 2, 1, 0], list(range(8))):
            pack = replace(
                problem,
                lengths_q=tuple(lengths_q[i] for i in order),
                lengths_k=tuple(lengths_k[i] for i in order),
            )
            if not is_legal(pack, schedule):
                continue
            got = run(pack, join([parts[i] for i in order]), schedule)
            for slot, index in enumerate(order):
                what = f"{schedule}, sequence {index} in slot {slot} of {len(order)}"
                if index not in want:
                    continue
                results = pack.results_of(got, slot)
                if mask == "wide-window":
                    # Alone under a full mask, the schedule may walk the other way through the Q
                    # tiles (docs/determinism.md).
                    assert_bitwise_equal(results.out, want[index].out, f"{what}: out")
                    assert_bitwise_equal(results.lse, want[index].lse, f"{what}: lse")
                else:
                    assert_results_equal(results, want[index], what)


def check_unowned_rows(problem: Problem, fill: float) -> None:
    """Slack and padding hold `fill`: exact zeros there, and the used rows keep their bits."""
    inputs = problem.make_inputs()
    owned = [torch.zeros(rows, dtype=torch.bool, device="cuda") for rows in problem.rows]
    for index in range(problem.batch):
        one = problem.only(index)
        for side, rows in enumerate((one.lengths_q[0], one.lengths_k[0])):
            begin = problem.begins[side][index]
            owned[side][begin : begin + rows] = True
    for tensor, side in zip(inputs, (0, 1, 1, 0), strict=True):
        tensor[~owned[side]] = fill
    compact = replace(
        problem,
        lengths_q=problem.used_q or problem.lengths_q,
        lengths_k=problem.used_k or problem.lengths_k,
        used_q=None,
        used_k=None,
        slack=0,
    )
    used: Inputs = tuple(x[owned[s]] for x, s in zip(inputs, (0, 1, 1, 0), strict=True))
    for schedule in (*legal(problem), "unordered"):
        poison_freed_memory(NAN_BYTE, 128 << 20)
        got = run(problem, inputs, schedule)
        assert torch.isneginf(got.lse[:, ~owned[0]]).all(), schedule
        for name, tensor, side in (
            *(("out", got.out, 0), ("dq", got.dq, 0)),
            *(("dk", got.dk, 1), ("dv", got.dv, 1)),
        ):
            assert (tensor[~owned[side]] == 0).all(), f"{problem} {schedule} {name} {fill}"
        if schedule == "unordered":
            check_close(problem, inputs, got, schedule)
            continue
        want = run(compact, used, schedule)
        for index in range(problem.batch):
            part = problem.results_of(got, index)
            what = f"{problem} {schedule} filled with {fill}, sequence {index}"
            assert_results_equal(part, compact.results_of(want, index), what)


@registry.check("sequences/unowned-rows", 60)
def unowned_rows() -> None:
    for fill in (1e4, float("nan"), float("inf")):
        for window in MASKS.values():
            for head_dim in (64, 128):
                base = packed([3, 4, 2], head_dim=head_dim, window=window)
                check_unowned_rows(replace(base, used_q=(2, 3, 1), used_k=(2, 3, 1)), fill)
                base = packed([300, 0, 150, 200], [200, 9, 300, 130], window=window)
                base = replace(base, head_dim=head_dim, slack=70)
                check_unowned_rows(base, fill)
                used = {"used_q": (129, 0, 150, 1), "used_k": (200, 3, 17, 0)}
                check_unowned_rows(replace(base, **used), fill)


@registry.check("sequences/varlen-70000-sequences", 60)
def many_sequences() -> None:
    """More sequences than a grid dimension has room for: those of a pack of 70 repeat."""
    for window in (MASKS["full"], CAUSAL):
        small = packed([16] * 70, heads=2, heads_k=2, window=window)
        inputs = small.make_inputs()
        large = packed([16] * 70_000, heads=2, heads_k=2, window=window)
        repeated: Inputs = tuple(x.repeat(1000, 1, 1) for x in inputs)
        for schedule in ("auto", "band", "unordered"):
            want = run(small, inputs, schedule)
            check_close(small, inputs, want, schedule)
            got = run(large, repeated, schedule)
            if schedule == "unordered":  # one KV tile a sequence: nothing to be unordered
                continue
            for (name, a), (_, b) in zip(got.items(), want.items(), strict=True):
                repeat = (1, 1000) if name == "lse" else (1000, 1, 1)
                assert torch.equal(a, b.repeat(repeat)), f"{schedule} {name}"


def check_random_packs(seeds: range) -> None:
    for seed in seeds:
        choice = random.Random(seed)
        count = choice.randint(1, 64)
        lengths_q = [choice.choice((0, choice.randint(1, 40), choice.randint(1, 3000)))
                     for _ in range(count)]  # fmt: skip
        lengths_k = list(lengths_q)
        if seed % 2:
            choice.shuffle(lengths_k)
        problem = packed(
            lengths_q,
            lengths_k,
            heads=8,
            head_dim=choice.choice((64, 128)),
            window=choice.choice([*MASKS.values()]),
            softcap=choice.choice((0.0, 0.0, 30.0)),
        )
        inputs = problem.make_inputs(seed=seed)
        first = run(problem, inputs)
        check_close(problem, inputs, first, f"seed {seed}")
        # check_alone_equals_packed ties the other schedules to dense calls.
        for schedule in legal(problem):
            got = run(problem, inputs, schedule)
            again = run(problem, inputs, schedule)
            assert_results_equal(again, got, f"seed {seed} {schedule}")
            if seed % 8 == 0:
                check_close(problem, inputs, got, f"seed {seed} {schedule}")


@registry.check("sequences/only-empty-ones")
def only_empty() -> None:
    for lengths_q, lengths_k in [([0, 0], [0, 0]), ([5, 0], [0, 0]), ([0, 0], [0, 7]), ([0], [3])]:
        for window in MASKS.values():
            problem = packed(lengths_q, lengths_k, window=window, slack=2)
            got = run(problem, problem.make_inputs())
            assert torch.isneginf(got.lse).all(), problem
            assert all((x == 0).all() for x in (got.out, got.dq, got.dk, got.dv)), problem


@registry.check("sequences/public-function")
def public_function() -> None:
    """max_seqlen as int, NumPy int and tensor, and larger than any sequence: the same bits."""
    for causal in (False, True):
        window = CAUSAL if causal else MASKS["full"]
        problem = packed([300, 0, 77, 128], [200, 9, 77, 300], head_dim=128, window=window)
        inputs = problem.make_inputs()
        want = run(problem, inputs, "band")
        cu_q, cu_k, _, _, max_q, max_k = problem.packing("cuda")
        for kind in (int, numpy.int64, torch.tensor, lambda n: 1000 * n):
            leaves = [x.detach().requires_grad_() for x in inputs[:3]]
            out, lse = dash.flash_attn_varlen_func(
                *leaves,
                *(cu_q, cu_k, kind(max_q), kind(max_k)),
                causal=causal,
                schedule="band",
                return_lse=True,
            )
            grads = torch.autograd.grad(out, leaves, inputs[3])
            got = type(want)(out.detach(), lse.detach(), *grads)
            assert_results_equal(got, want, f"max_seqlen through {kind}")


@registry.check("sequences/cuda-graph", 60)
def cuda_graph() -> None:
    """Lengths live on the device: a replay may have others, up to max_seqlen."""
    capacity = packed([512] * 4, heads=8, head_dim=128, window=CAUSAL)
    static = capacity.make_inputs()
    packing = capacity.packing("cuda")
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        run(capacity, static, packing=packing)
    torch.cuda.current_stream().wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(capacity, static, packing=packing)
    for replay in range(30):
        lengths = [random.Random(4 * replay + i).randint(0, 512) for i in range(4)]
        fresh = replace(
            capacity, lengths_q=tuple(lengths), lengths_k=tuple(lengths), slack=2048 - sum(lengths)
        )
        inputs = fresh.make_inputs(seed=replay)
        for target, source in zip(static, inputs, strict=True):
            target.copy_(source)
        begins = torch.tensor(fresh.begins[0], dtype=torch.int32, device="cuda")
        packing[0].copy_(begins)
        packing[1].copy_(begins)
        graph.replay()
        want = run(fresh, inputs, packing=(begins, begins, None, None, 512, 512))
        assert_results_equal(captured, want, f"replay {replay}, lengths {lengths}")


for _mask in MASKS:
    for _head_dim in (64, 128, 192, 256):
        registry.add(
            f"sequences/alone-equals-packed-{_mask}-hdim{_head_dim}",
            partial(check_alone_equals_packed, _mask, _head_dim),
            60,
        )
registry.add(
    "sequences/alone-equals-packed-softcap",
    partial(check_alone_equals_packed, "causal", 128, 15.0),
    60,
)
for _first in range(0, 24, 8):
    registry.add(
        f"sequences/random-packs-{_first}",
        partial(check_random_packs, range(_first, _first + 8)),
        90,
    )
