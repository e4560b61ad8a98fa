"""The CPU path against a float64 reference, under every schedule; and its bits over repeats."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from dash import _schedule

from . import reference
from .case_checks import check_reference_and_bits, legal_schedules, run
from .cases import AttentionCase
from .compare import assert_bitwise_equal, assert_close_to_reference, assert_results_equal
from .reference import Results

SHAPES = [(200, 200), (129, 257), (257, 129), (64, 64), (300, 1)]


@pytest.mark.parametrize(
    "head_dim, dtype, causal", list(product((64, 128), ("bf16", "fp16"), (False, True)))
)
def test_error_is_at_most_twice_plain_pytorchs(head_dim: int, dtype: str, causal: bool) -> None:
    for seqlen_q, seqlen_k in SHAPES:
        case = AttentionCase(
            "cpu", 1, seqlen_q, seqlen_k, 4, 2, head_dim, dtype=dtype, causal=causal
        )
        check_reference_and_bits(case, "cpu")


@pytest.mark.parametrize("causal", [False, True])
def test_query_groups_in_parts(causal: bool) -> None:
    """Right and repeatable; band's dq does not know of parts, dk and dv are other sums."""
    case = AttentionCase("parts", 2, 200, 257, 12, 2, 64, dtype="fp16", causal=causal)
    inputs = case.make_inputs("cpu")
    exact = reference.oracle(inputs, causal)
    plain = reference.attention(inputs, causal, case.torch_dtype)
    whole = run(inputs, causal, "band")
    for parts in (1, 2, 3, 6):
        got = run(inputs, causal, f"band/{parts}")
        assert_close_to_reference(got, exact, plain, f"{parts} parts")
        assert_bitwise_equal(got.dq, whole.dq, "dq")
        assert torch.equal(got.dk, whole.dk) == torch.equal(got.dv, whole.dv) == (parts == 1)
        assert_results_equal(run(inputs, causal, f"band/{parts}@1"), got, "sections")


def test_the_rule_finds_a_wrong_result() -> None:
    """The comparison rejects a forgotten scale, a wrong alignment and one wrong row."""
    case = AttentionCase("wrong", 1, 150, 200, 2, 2, 64, causal=True)
    inputs = case.make_inputs("cpu")
    exact = reference.oracle(inputs, True)
    plain = reference.attention(inputs, True, case.torch_dtype)
    good = run(inputs, True)
    assert_close_to_reference(good, exact, plain, "right")
    wrong_row = good.dv.clone()
    wrong_row[0, 77, 1] *= 1.5
    wrong = [
        run(inputs, True, softmax_scale=0.12),
        run(inputs, False),
        Results(good.out, good.lse, good.dq * 1.02, good.dk, good.dv),
        Results(good.out, good.lse + 1e-3, good.dq, good.dk, good.dv),
        Results(good.out, good.lse, good.dq, good.dk, wrong_row),
        Results(good.out * torch.nan, good.lse, good.dq, good.dk, good.dv),
    ]
    for results in wrong:
        with pytest.raises(AssertionError):
            assert_close_to_reference(results, exact, plain, "wrong")


def test_schedules_round_differently_and_band_as_ascending() -> None:
    """The turn order is real: opposite orders give other bits of dq, equal orders the same.

    fp16, because bf16 rounds most of the float32 differences away.
    """
    case = AttentionCase("order", 1, 512, 512, 4, 4, 64, dtype="fp16", causal=True)
    inputs = case.make_inputs("cpu")
    results = {name: run(inputs, True, name) for name in legal_schedules(case)}
    assert not torch.equal(results["ascending"].dq, results["shortest_first"].dq)
    assert_bitwise_equal(results["band"].dq, results["ascending"].dq, "dq")
    assert not torch.equal(results["band"].dk, results["ascending"].dk)


TURNS = AttentionCase("turns", 1, 128, 512, 8, 8, 64, dtype="fp16", causal=True)


@pytest.mark.parametrize("name", legal_schedules(TURNS))
def test_dq_is_added_in_turn_order(name: str) -> None:
    """dq of the last Q tile, added by hand in float32 in the order of the turns; and the opposite
    order would show (fp16: bf16 rounds most of the float32 differences away)."""
    q, k, v, dout = TURNS.make_inputs("cpu")
    got = run((q, k, v, dout), True, name)
    grid = _schedule.make_grid("fp16", 64, (-1, 0), 1, 128, 512, 8, 8, name)
    assert grid.num_m_blocks() == 1 and grid.num_n_blocks() == 4
    visible = reference.visible_keys(128, 512, True, q.device)
    right, wrong = [], []
    for head in range(8):
        by_turn = sorted(range(4), key=lambda n: _schedule.turn(grid, n, 0, head))
        qf, kf, vf, dof, of = (x[0, :, head].float() for x in (q, k, v, dout, got.out))
        lse, dpsum = got.lse[0, head].unsqueeze(1), (dof * of).sum(-1, keepdim=True)
        parts = []
        for keys in (slice(n * 128, (n + 1) * 128) for n in range(4)):
            p = torch.exp(qf @ kf[keys].T * 0.125 - lse) * visible[:, keys]
            ds = (p * (dof @ vf[keys].T - dpsum)).half().float()
            parts.append(ds @ kf[keys])
        for order, sums in ((by_turn, right), (by_turn[::-1], wrong)):
            total = parts[order[0]]
            for n in order[1:]:
                total = total + parts[n]
            sums.append((total * 0.125).half())
    assert_bitwise_equal(got.dq[0], torch.stack(right, dim=1), "dq")
    assert not torch.equal(got.dq[0], torch.stack(wrong, dim=1))


def test_a_batch_entry_has_the_bits_that_it_has_alone() -> None:
    case = AttentionCase("batch", 3, 200, 260, 4, 2, 64, causal=True)
    inputs = case.make_inputs("cpu")
    together = run(inputs, True)
    for b in range(3):
        alone = run(tuple(x[b : b + 1] for x in inputs), True)
        for (name, a), (_, whole) in zip(alone.items(), together.items(), strict=True):
            if name in ("dq", "dk", "dv"):
                assert_bitwise_equal(a, whole[b : b + 1], f"{name} of entry {b}")


def test_rows_without_keys_get_zero_and_give_nothing() -> None:
    case = AttentionCase("blind", 1, 300, 100, 2, 1, 64, causal=True)
    q, k, v, dout = case.make_inputs("cpu")
    got = run((q, k, v, dout), True)
    assert (got.out[:, :200] == 0).all() and (got.dq[:, :200] == 0).all()
    assert torch.isneginf(got.lse[..., :200]).all()
    dout[:, :200] = 1e4  # rows that see no key pass nothing on
    again = run((q, k, v, dout), True)
    assert_bitwise_equal(again.dk, got.dk, "dk")
    assert_bitwise_equal(again.dv, got.dv, "dv")


def test_a_group_is_the_sum_over_its_heads() -> None:
    case = AttentionCase("group", 1, 150, 150, 6, 2, 64)
    q, k, v, dout = case.make_inputs("cpu")
    got = run((q, k, v, dout), False)
    repeated = run((q, k.repeat_interleave(3, 2), v.repeat_interleave(3, 2), dout), False)
    assert_bitwise_equal(got.out, repeated.out, "out")
    assert_bitwise_equal(got.dq, repeated.dq, "dq")
    summed = repeated.dk.float().unflatten(2, (2, 3)).sum(3)
    assert torch.allclose(got.dk.float(), summed, atol=0.05)
