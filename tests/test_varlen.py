"""Packed sequences, windows and softcap through the public functions and torch, on the CPU path."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
import torch
from torch import Tensor

import dash

from . import reference
from .case_checks import call, check_close, legal_schedules, operator_options, run, run_autograd
from .cases import AttentionCase, packed_case
from .compare import assert_bitwise_equal, assert_close_to_reference, assert_results_equal
from .reference import Packing, Results
from .shape_checks import check_sequences_alone, check_unowned_rows, lse_gradient

FIELDS = {"heads": 4, "heads_k": 2, "head_dim": 64}
PACKED = packed_case("packed", [0, 150, 3, 0, 70], [20, 150, 0, 9, 200], slack=5, **FIELDS)
WINDOW = AttentionCase("window", 2, 70, 150, 4, 2, 64, window=(40, 10), softcap=8.0)
BOTH = replace(PACKED, window=(40, 10), softcap=8.0, head_dim=72, head_dim_v=40)
CASES = [PACKED, replace(PACKED, causal=True), WINDOW, BOTH]
IDS = ["packed", "packed causal", "window", "both"]


def keywords(case: AttentionCase) -> dict[str, object]:
    return {"window_size": case.window, "softcap": case.softcap}


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck(case: AttentionCase, requires_grad: bool) -> None:
    inputs = case.make_inputs("cpu")
    options = operator_options(inputs, case.causal, **case.extras)
    got = run(inputs, case.causal, **case.extras)
    q, k, v = (x.requires_grad_(requires_grad) for x in inputs[:3])
    torch.library.opcheck(torch.ops.dash_attn.fwd.default, (q, k, v, *options))
    if not requires_grad:
        arguments = (inputs[3], q, k, v, got.out, got.lse, torch.randn_like(got.lse), *options)
        torch.library.opcheck(torch.ops.dash_attn.bwd.default, arguments)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_compile_and_export(case: AttentionCase) -> None:
    torch._dynamo.reset()
    inputs = case.make_inputs("cpu")
    q, k, v, dout = inputs
    indices = case.packing.tensors("cpu")[:2] if case.packing else ()
    longest = case.packing.max_seqlens if case.packing else ()

    class Layer(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, *indices: Tensor) -> tuple[Tensor, ...]:
            function = dash.flash_attn_varlen_func if indices else dash.flash_attn_func
            rest = {"causal": case.causal, "return_lse": True, **keywords(case)}
            return function(q, k, v, *indices, *longest, **rest)

    want = run_autograd(inputs, case.causal, packing=case.packing, **keywords(case))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = torch.compile(Layer(), fullgraph=True, backend="aot_eager")(*leaves, *indices)
    got = Results(out.detach(), lse.detach(), *torch.autograd.grad(out, leaves, dout))
    assert_results_equal(got, want, "compiled")
    program = torch.export.export(Layer(), (q, k, v, *indices))
    assert_bitwise_equal(program.module()(q, k, v, *indices)[0], want.out, "exported")


def test_a_schedule_that_known_lengths_forbid_is_refused_while_compiling() -> None:
    torch._dynamo.reset()
    q, k, v = AttentionCase("op", 1, 64, 640, 2, 2, 64).make_inputs("cpu")[:3]
    compiled = torch.compile(
        lambda q, k, v: dash.flash_attn_func(q, k, v, schedule="ring"), backend="eager"
    )
    with pytest.raises(Exception, match="schedule='ring' is legal for"):
        compiled(q, k, v)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_torch_func(case: AttentionCase) -> None:
    inputs = case.make_inputs("cpu")
    want = run_autograd(inputs, case.causal, packing=case.packing, **keywords(case))

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = call((q, k, v), case.causal, case.packing, **keywords(case))
        return (out.float() * inputs[3].float()).sum()

    got = torch.func.grad(loss, argnums=(0, 1, 2))(*inputs[:3])
    for name, gradient in zip(("dq", "dk", "dv"), got):
        assert_bitwise_equal(gradient, getattr(want, name), name)
    _, pull = torch.func.vjp(loss, *inputs[:3])
    assert_bitwise_equal(pull(torch.ones(()))[0], want.dq, "dq of vjp")
    with pytest.raises(RuntimeError, match="double backward"):
        torch.func.grad(lambda q: torch.func.grad(loss)(q, *inputs[1:3]).float().sum())(inputs[0])


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_lse_gradient(case: AttentionCase) -> None:
    lse_gradient(case, "cpu")


@pytest.mark.parametrize("case", [case for case in CASES if case.packing], ids=IDS[:2] + IDS[3:])
def test_sequences_alone_and_rows_that_none_has(case: AttentionCase) -> None:
    fp16 = replace(case, dtype="fp16")
    for schedule in legal_schedules(fp16):
        check_sequences_alone(fp16, "cpu", schedule)
    check_unowned_rows(case, "cpu")


def test_the_lengths_do_matter() -> None:
    """What the test above compares would differ for other sequences."""
    inputs = PACKED.make_inputs("cpu")
    got = run(inputs, False, packing=PACKED.packing)
    moved = Packing((0, 0, 149, 153, 153, 223), PACKED.packing.cu_seqlens_k)
    other = run(inputs, False, packing=moved)
    assert not torch.equal(got.out[149:153], other.out[149:153])
    with pytest.raises(AssertionError):
        check_close(inputs, False, other, "moved", packing=PACKED.packing)


def test_the_rule_finds_wrong_windows_and_softcaps() -> None:
    inputs = WINDOW.make_inputs("cpu")
    exact = reference.oracle(inputs, False, window=(40, 10), softcap=8.0)
    plain = reference.attention(inputs, False, torch.bfloat16, window=(40, 10), softcap=8.0)
    for window, softcap in [((41, 10), 8.0), ((39, 10), 8.0), ((40, 11), 8.0), ((40, 10), 7.0)]:
        got = run(inputs, False, window=window, softcap=softcap)
        with pytest.raises(AssertionError):
            assert_close_to_reference(got, exact, plain, "wrong")


def varlen(**changes: object) -> Tensor:
    """The public function on PACKED with some arguments changed."""
    q, k, v, _ = PACKED.make_inputs("cpu")
    cu_q, cu_k, _, _ = PACKED.packing.tensors("cpu")
    arguments = {
        **{"q": q, "k": k, "v": v, "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k},
        **{"max_seqlen_q": 150, "max_seqlen_k": 200},
    }
    return dash.flash_attn_varlen_func(**{**arguments, **changes})


def test_max_seqlen_in_every_form() -> None:
    want = varlen()
    for length in (numpy.int64(200), numpy.int32(200), torch.tensor(200), torch.tensor([200])):
        assert_bitwise_equal(varlen(max_seqlen_q=length, max_seqlen_k=length), want, "out")
    assert_bitwise_equal(varlen(max_seqlen_q=10**6, max_seqlen_k=10**6), want, "out")


def ints(*values: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


WRONG = [
    ({"cu_seqlens_q": [0, 3]}, "^cu_seqlens_q must be a torch.Tensor"),
    ({"cu_seqlens_q": ints(0, 223, dtype=torch.int64)}, "^cu_seqlens_q has dtype torch.int64"),
    ({"cu_seqlens_q": ints()}, r"^cu_seqlens_q has shape \(0,\)"),
    ({"cu_seqlens_k": ints(0, 223)}, r"^cu_seqlens_k has shape \(2,\); expected \(6,\)"),
    ({"cu_seqlens_q": ints(*[0, 7] * 6)[::2]}, "^cu_seqlens_q must be contiguous"),
    ({"cu_seqlens_q": ints(0, 0, 150, 153, 153, 223).to("meta")}, "^cu_seqlens_q is on meta"),
    ({"seqused_q": ints(0, 1)}, r"^seqused_q has shape \(2,\); expected \(5,\)"),
    ({"seqused_k": ints(1, 1, 1, 1, 201)}, r"seqused_k\[2\] is 1; the sequence has 0 rows"),
    ({"cu_seqlens_q": ints(0, 5, 4, 6, 7, 8)}, "cu_seqlens_q must not decrease"),
    ({"cu_seqlens_q": ints(0, 5, 6, 7, 8, 999)}, "must lie in 0 .. 228"),
    ({"max_seqlen_k": 199}, "max_seqlen_k=199, but the longest sequence has 200 rows"),
    ({"max_seqlen_q": -1}, "max_seqlen_q=-1 must be at least 0"),
    ({"max_seqlen_q": 1.5}, "max_seqlen_q must be an int"),
    ({"q": torch.zeros(1, 2, 4, 64).bfloat16()}, "^q has 4 dimensions.*flash_attn_func takes"),
    ({"schedule": "symmetric_shift", "causal": True}, "not legal for a causal mask and packed"),
]


@pytest.mark.parametrize("changes, message", WRONG, ids=[m for _, m in WRONG])
def test_a_wrong_argument_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        varlen(**changes)


def test_no_sequence_and_no_row() -> None:
    for rows_q, rows_k, bounds in [(0, 0, (0,)), (7, 5, (0,)), (0, 5, (0, 0)), (7, 0, (0, 0, 0))]:
        case = AttentionCase("none", seqlen_q=rows_q, seqlen_k=rows_k, **FIELDS)
        case = replace(case, packing=Packing(bounds, bounds))
        got = run_autograd(case.make_inputs("cpu"), False, packing=case.packing)
        assert all((x == 0).all() for x in (got.out, got.dq, got.dk, got.dv))
        assert torch.isneginf(got.lse).all() and got.lse.shape == (4, rows_q)


def test_resolve_schedule_of_packed_calls() -> None:
    shape = (1000, 8, 128)
    info = dash.resolve_schedule(shape, shape, True, num_sequences=9)
    assert (info.name, info.batch_invariant, info.device_invariant) == ("band", True, True)
    grouped = dash.resolve_schedule(
        *((4_224, 32, 128), (4_224, 8, 128), True), num_sequences=2, max_seqlen_k=4_096
    )
    assert grouped.name == "band" and not grouped.batch_invariant
    assert "among other sequences" in grouped.reason
    assert "packed" in info.reason
    assert dash.is_supported(shape, shape, num_sequences=9) == (True, "")
    assert not dash.is_supported(shape, shape)[0]
