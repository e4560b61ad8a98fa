"""What a schedule claims, on the CPU path: a sequence's bits depend on no other sequence, slot or
batch size, nor on the section size. fp16, because bf16 rounds most differences of order away."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import dash
from dash import _schedule, reference

from .case_checks import legal_schedules, run
from .cases import AttentionCase
from .compare import assert_bitwise_equal, assert_results_equal
from .reference import Results

CASES = [
    AttentionCase("batch", 8, 520, 520, 3, 3, 64, dtype="fp16", causal=causal)
    for causal in (False, True)
]
NAMED = [(case, name) for case in CASES for name in legal_schedules(case)]
IDS = [f"{'causal' if case.causal else 'full'}-{name}" for case, name in NAMED]


def entries(inputs: tuple[Tensor, ...], indices: list[int]) -> tuple[Tensor, ...]:
    return tuple(x[indices] for x in inputs)


def slot(results: Results, index: int) -> Results:
    return Results(*(x[index : index + 1] for _, x in results.items()))


@pytest.mark.parametrize("case, name", NAMED, ids=IDS)
def test_a_sequence_has_the_same_bits_alone_and_in_any_slot(case: AttentionCase, name: str) -> None:
    q_shape = (case.batch, case.seqlen_q, case.heads, case.head_dim)
    info = dash.resolve_schedule(q_shape, q_shape, case.causal, dtype=torch.float16, schedule=name)
    assert info.batch_invariant and info.repeatable and info.device_invariant
    inputs = case.make_inputs("cpu")
    alone = run(entries(inputs, [4]), case.causal, name)
    for others in ([4, 0, 1], [2, 4, 3], [1, 0, 4], [0, 1, 2, 3, 4, 5, 6, 7], [4] * 8):
        together = run(entries(inputs, others), case.causal, name)
        for index in (i for i, entry in enumerate(others) if entry == 4):
            assert_results_equal(slot(together, index), alone, f"{name}: slot {index} of {others}")


@pytest.mark.parametrize("case", CASES, ids=["full", "causal"])
def test_the_order_shows_in_these_inputs(case: AttentionCase) -> None:
    """Otherwise equal bits would prove nothing: two opposite orders differ in every entry."""
    inputs = entries(case.make_inputs("cpu"), [4, 0])
    a, b = ("shortest_first", "ascending") if case.causal else ("shift", "band")
    first, second = (run(inputs, case.causal, name) for name in (a, b))
    for index in (0, 1):
        assert not torch.equal(first.dq[index], second.dq[index])
    if case.causal:
        # mirrored: even heads as shortest_first, odd ones as band.
        mirrored, band = (run(inputs, True, name) for name in ("mirrored", "band"))
        for head, like in [(0, first), (1, band), (2, first)]:
            for name in ("dq", "dk", "dv"):
                got, want = getattr(mirrored, name)[:, :, head], getattr(like, name)[:, :, head]
                assert_bitwise_equal(got, want, f"{name} of head {head}")


@pytest.mark.parametrize("case, name", NAMED, ids=IDS)
def test_the_section_size_changes_no_bit(
    case: AttentionCase, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = entries(case.make_inputs("cpu"), [0, 1])
    want = run(inputs, case.causal, name)
    window = (-1, 0 if case.causal else -1)
    grid = _schedule.make_grid("fp16", 64, window, 2, 520, 520, 3, 3, name)
    for section in {1, 2, 4, 6} - {grid.section}:
        other = _schedule.TileGrid(
            *(520, 520, grid.block_m, grid.block_n, 3, 2, window, name, section)
        )
        with monkeypatch.context() as patch:
            patch.setattr(reference._schedule, "make_grid", lambda *_, other=other, **__: other)
            assert_results_equal(run(inputs, case.causal, name), want, f"{name} S={section}")


def test_schedules_with_one_order_give_equal_bits() -> None:
    """Full: ascending and band are one order; causal: descending and band."""
    for case, pair in zip(CASES, [("ascending", "band"), ("descending", "band")], strict=True):
        inputs = entries(case.make_inputs("cpu"), [0])
        a, b = (run(inputs, case.causal, name) for name in pair)
        assert_results_equal(a, b, f"{case}: {pair}")
