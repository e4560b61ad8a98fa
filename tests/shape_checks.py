"""Entries of the case library about windows, softcap, head dims and packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import dash

from . import reference
from .case_checks import (
    Inputs,
    call,
    check_close,
    check_reference_and_bits,
    legal_schedules,
    run,
    run_autograd,
)
from .cases import HEAD_DIMS, AttentionCase, packed_case, random_lengths
from .compare import assert_bitwise_equal, assert_results_equal
from .reference import Packing, Results


def sequence_of(tensors: Results | Inputs, packing: Packing, index: int) -> tuple[Tensor, ...]:
    """One sequence's part as (batch 1, seqlen) tensors: of results in their order, or of q, k, v,
    dout."""
    rows, keys = packing.spans[index]
    if isinstance(tensors, Results):
        x = tensors
        return (
            x.out[None, rows],
            x.lse[None, :, rows],
            x.dq[None, rows],
            x.dk[None, keys],
            x.dv[None, keys],
        )
    q, k, v, dout = tensors
    return q[None, rows], k[None, keys], v[None, keys], dout[None, rows]


def check_sequences_alone(case: AttentionCase, device: str, schedule: str = "band") -> None:
    """Every sequence has the bits in the pack that it has alone."""
    inputs = case.make_inputs(device)
    together = run(inputs, case.causal, schedule, **case.extras)
    for index, (rows, keys) in enumerate(case.packing.spans):
        if rows.start == rows.stop or keys.start == keys.stop:
            continue
        one = sequence_of(inputs, case.packing, index)
        alone = run(one, case.causal, schedule, window=case.window, softcap=case.softcap)
        part = Results(*sequence_of(together, case.packing, index))
        assert_results_equal(part, alone, f"{case} {schedule}: sequence {index} alone")


def owned_rows(case: AttentionCase) -> tuple[Tensor, Tensor]:
    """Bool: which rows of q, and of k, some sequence has."""
    owned = torch.zeros(case.seqlen_q, dtype=bool), torch.zeros(case.seqlen_k, dtype=bool)
    for spans in case.packing.spans:
        for side, span in zip(owned, spans):
            side[span] = True
    return owned


def check_unowned_rows(case: AttentionCase, device: str) -> None:
    """Rows that no sequence has get zero and change nothing, whatever they hold."""
    rows, keys = (owned.to(device) for owned in owned_rows(case))
    inputs = case.make_inputs(device)
    want = run(inputs, case.causal, **case.extras)
    for filling in (1e4, torch.nan):
        q, k, v, dout = (x.clone() for x in inputs)
        for tensor, owned in ((q, rows), (k, keys), (v, keys), (dout, rows)):
            tensor[~owned] = filling
        got = run((q, k, v, dout), case.causal, **case.extras)
        assert_results_equal(got, want, f"{case}: unowned rows hold {filling}")
    for name, owned in (("out", rows), ("dq", rows), ("dk", keys), ("dv", keys)):
        assert (getattr(want, name)[~owned] == 0).all(), name
    assert torch.isneginf(want.lse[:, ~rows]).all()
    assert not torch.isnan(want.lse).any()


def _window_edge(case: AttentionCase, device: str) -> None:
    check_reference_and_bits(case, device)
    left, right = case.window
    q, k, v, dout = case.make_inputs(device)
    base = run((q, k, v, dout), False, window=case.window).out
    for row in (100, 155):
        for distance, is_seen in ((-left, 1), (-left - 1, 0), (right, 1), (right + 1, 0)):
            moved = v.clone()
            moved[:, row + distance] += 100.0
            out = run((q, k, moved, dout), False, window=case.window).out
            assert bool((out[:, row] != base[:, row]).any()) == is_seen, (row, distance)
    one = case.with_lengths(100, 300)  # the first query is at key 200
    got = run(one.make_inputs(device), False, window=case.window)
    for gradient in (got.dk, got.dv):
        assert (gradient[:, : 200 - left] == 0).all() and (gradient[:, 200 - left] != 0).any()


def _no_window(case: AttentionCase, device: str) -> None:
    size = case.seqlen_q
    inputs = case.make_inputs(device)
    for causal in (False, True):
        want = run_autograd(inputs, causal)
        for window in [(None, None), (size, size), (size - 1, size - 1), (10**12, -1)]:
            got = run_autograd(inputs, causal, window_size=window)
            assert_results_equal(got, want, f"causal {causal}, window {window}")
    for window in ((-1, 0), (None, 0)):
        got = run_autograd(inputs, False, window_size=window)
        assert_results_equal(got, want, f"window {window} is causal")


def _head_dims(case: AttentionCase, device: str) -> None:
    case = case if device == "cuda" else case.with_lengths(70, 90)
    for head_dim in range(8, 257, 8):
        one = replace(case, head_dim=head_dim, head_dim_v=head_dim)
        check_reference_and_bits(one, device, schedules=["auto"])


def _head_dim_v(case: AttentionCase, device: str) -> None:
    check_reference_and_bits(case, device)
    short = case if device == "cuda" else case.with_lengths(100, 130)
    for dims in [(64, 128), (128, 64), (96, 256), (8, 16), (256, 8), (72, 40)]:
        one = replace(short, head_dim=dims[0], head_dim_v=dims[1])
        check_reference_and_bits(one, device, schedules=["auto"])


def _refused_head_dim(case: AttentionCase, device: str) -> None:
    words = "supported are the multiples of 8 up to the maximum 256"
    for dims in [(case.head_dim, case.head_dim), (64, case.head_dim), (case.head_dim, 64)]:
        one = replace(case, head_dim=dims[0], head_dim_v=dims[1])
        inputs = one.make_inputs(device)
        with pytest.raises(ValueError, match=words):
            dash.flash_attn_func(*inputs[:3])
        with pytest.raises((ValueError, RuntimeError), match="multiples of 8 up to"):
            run(inputs, False)
        ok, reason = dash.is_supported(*one.shapes)
        assert not ok and words in reason
    padded = (x for x in case.make_inputs(device)[:3])
    if case.head_dim < 256:  # the way out that the message names
        with pytest.raises(ValueError, match="pad with zeros to 56"):
            dash.flash_attn_func(*padded)
        inputs = case.make_inputs(device)
        wide = [torch.nn.functional.pad(x, (0, 6)) for x in inputs]
        got = run(wide, False, softmax_scale=case.softmax_scale)
        cut = Results(*(x if name == "lse" else x[..., :50] for name, x in got.items()))
        check_close(inputs, False, cut, "padded by hand")


def _softcap_turns(case: AttentionCase, device: str) -> None:
    case = case if device == "cuda" else replace(case, batch=1, heads=2, heads_k=2)
    case = case if device == "cuda" else case.with_lengths(300, 300)
    inputs = case.make_inputs(device)
    firsts: dict[float, Results] = {}
    for softcap in (15.0, 30.0, 0.0, 15.0, 10.0, 50.0, 0.5):
        got = run(inputs, case.causal, softcap=softcap)
        check_close(inputs, case.causal, got, f"{case} softcap {softcap}", softcap=softcap)
        assert_results_equal(got, firsts.setdefault(softcap, got), f"softcap {softcap} again")
    check_reference_and_bits(case, device)


def _no_queries(case: AttentionCase, device: str) -> None:
    check_reference_and_bits(case, device)
    got = run(case.make_inputs(device), case.causal, **case.extras)
    for gradient in (got.dk, got.dv):
        assert (gradient[100:200] == 0).all() and (gradient[:100] != 0).any()


def _many_tiny(case: AttentionCase, device: str) -> None:
    lengths = [rows.stop - rows.start for rows, _ in case.packing.spans]
    for head_dim in HEAD_DIMS:
        for causal, window in [(False, (-1, -1)), (True, (-1, -1)), (False, (1, 0))]:
            fields = {"heads": 4, "heads_k": 2, "head_dim": head_dim, "causal": causal}
            kept = lengths if device == "cuda" else lengths[:20]
            one = packed_case(case.name, kept, **fields, window=window)
            check_reference_and_bits(one, device, schedules=["auto"])
    if device == "cpu":
        case = packed_case(case.name, lengths[:60], heads=4, heads_k=2, head_dim=64)
    check_reference_and_bits(case, device)


def _slack(case: AttentionCase, device: str) -> None:
    if device == "cpu":
        case = replace(case, heads=2, heads_k=2)
    check_unowned_rows(case, device)
    check_reference_and_bits(case, device, schedules=["auto"])


def _seqused(case: AttentionCase, device: str) -> None:
    check_unowned_rows(case, device)
    check_reference_and_bits(case, device)
    inputs = case.make_inputs(device)
    got = run(inputs, case.causal, **case.extras)
    rows, keys = (owned.to(device) for owned in owned_rows(case))
    q, k, v, dout = inputs
    compact = (q[rows], k[keys], v[keys], dout[rows])
    lengths = list(case.packing.seqused_q)
    packing = packed_case("compact", lengths).packing
    want = run(compact, case.causal, packing=packing)
    cut = (got.out[rows], got.lse[:, rows], got.dq[rows], got.dk[keys], got.dv[keys])
    assert_results_equal(Results(*cut), want, "the compact pack")


def _random_packs(case: AttentionCase, device: str) -> None:
    seeds, most, longest = (100, 64, 3000) if device == "cuda" else (6, 4, 200)
    for seed in range(seeds):
        lengths_q = random_lengths(2 * seed, most, longest)
        chosen = random_lengths(2 * seed + 1, most, longest)
        lengths_k = [chosen[i % len(chosen)] for i in range(len(lengths_q))]
        one = packed_case(
            f"{case.name}-{seed}",
            lengths_q,
            lengths_q if seed % 2 else lengths_k,
            slack=seed % 3,
            heads=8 if device == "cuda" else 2,
            heads_k=2 if device == "cuda" else 1,
            head_dim=128,
            causal=seed % 3 == 1,
            window=(100, 30) if seed % 3 == 2 else (-1, -1),
        )
        names = legal_schedules(one, device)
        check_reference_and_bits(one, device, schedules=names if seed < 10 else ["auto"])
        check_sequences_alone(one, device)


def _many_sequences(case: AttentionCase, device: str) -> None:
    """All are alike: as (batch, seqlen) tensors they must get the same bits."""
    count = len(case.packing.spans) if device == "cuda" else 300
    packed = packed_case(
        case.name, [16] * count, heads=case.heads, heads_k=case.heads_k, head_dim=case.head_dim
    )
    inputs = packed.make_inputs(device)
    got = run(inputs, False, "band", packing=packed.packing)
    dense = tuple(x.unflatten(0, (count, 16)) for x in inputs)
    want = run(dense, False, "band")
    for name in ("out", "dq", "dk", "dv"):
        assert_bitwise_equal(getattr(got, name), getattr(want, name).flatten(0, 1), name)
    lse = want.lse.transpose(0, 1).flatten(1)
    assert_bitwise_equal(got.lse, lse.contiguous(), "lse")
    few = torch.linspace(0, count - 1, 20).long().tolist()
    cut = Results(*(x[few] for _, x in want.items()))
    check_close(tuple(x[few] for x in dense), False, cut, f"{case.name}: some of them")


SPECIAL: dict[str, Callable[[AttentionCase, str], None]] = {
    "window-edge": _window_edge,
    "minus-one-and-none": _no_window,
    "head-dims": _head_dims,
    "head-dim-v": _head_dim_v,
    "head-dim-too-large": _refused_head_dim,
    "head-dim-not-multiple-of-8": _refused_head_dim,
    "softcap-turns": _softcap_turns,
    "varlen-no-queries-middle": _no_queries,
    "varlen-many-tiny": _many_tiny,
    "varlen-slack-tokens": _slack,
    "seqused-padding": _seqused,
    "varlen-random-packs": _random_packs,
    "varlen-70000-sequences": _many_sequences,
}


def lse_gradient(case: AttentionCase, device: str) -> None:
    """Through the public function: a gradient through out and lse, and through lse alone."""
    inputs = case.make_inputs(device)
    rows = run(inputs, case.causal, **case.extras).lse
    weight = torch.randn_like(rows)
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    keywords = {"window_size": case.window, "softcap": case.softcap, "return_lse": True}
    out, lse = call(leaves, case.causal, case.packing, **keywords)
    grads = torch.autograd.grad([out, lse], leaves, [inputs[3], weight])
    got = Results(out.detach(), lse.detach(), *grads)
    exact = reference.oracle(inputs, case.causal, dlse=weight, **case.extras)
    assert not torch.allclose(exact.dq, reference.oracle(inputs, case.causal, **case.extras).dq)
    check_close(inputs, case.causal, got, f"{case} dlse", dlse=weight, **case.extras)
