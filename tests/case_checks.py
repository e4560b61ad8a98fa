"""What each entry of the case library must fulfil, on the CPU path and on the GPU alike.

`check(name, device)` runs one entry. Most are "reference and bits"; the others have a function of
their own, named in SPECIAL.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dash
from dash import _arguments, _problem

from . import reference
from .cases import CASES, AttentionCase
from .compare import assert_bitwise_equal, assert_close_to_reference, assert_results_equal
from .reference import Packing, Results

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v, dout


def legal_schedules(
    case: AttentionCase, device: str = "cpu", *, ordered_only: bool = True, sm_margin: int = 0
) -> list[str]:
    """Schedules that the case can have on the device with sm_margin SMs left free."""
    packed = None
    if case.packing is not None:
        packed = _problem.Packed(len(case.packing.spans), *case.packing.max_seqlens)
    options = _problem.options(case.causal, case.window, case.softcap, True, "auto")
    problem = _problem.check_problem(case.shapes, {"q": case.torch_dtype}, packed, options)
    num_sms = _arguments.free_sms(torch.device(device), sm_margin)
    names = _problem.legal_schedules(problem, num_sms)
    return names if ordered_only else [*names, "unordered"]


def operator_options(
    inputs: Inputs,
    causal: bool,
    schedule: str = "auto",
    *,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    packing: Packing | None = None,
    softmax_scale: float | None = None,
    sm_margin: int = 0,
) -> tuple[Any, ...]:
    """The operators' arguments behind the tensors."""
    scoring = reference.Scoring(causal, window, softcap, softmax_scale)
    indices = (None,) * 4 + (0, 0) if packing is None else packing.arguments(inputs[0].device)
    scale = scoring.scale(inputs[0].shape[-1])
    return (*indices, scale, *scoring.bounds, softcap, schedule, sm_margin)


def run(
    inputs: Inputs,
    causal: bool,
    schedule: str = "auto",
    *,
    dlse: Tensor | None = None,
    **keywords: Any,
) -> Results:
    """One forward and backward straight through the operators.

    Args:
        keywords: those of `operator_options`.
    """
    q, k, v, dout = inputs
    options = operator_options(inputs, causal, schedule, **keywords)
    with torch.no_grad():
        out, lse = torch.ops.dash_attn.fwd(q, k, v, *options)
        return Results(out, lse, *torch.ops.dash_attn.bwd(dout, q, k, v, out, lse, dlse, *options))


def call(
    tensors: tuple[Tensor, ...], causal: bool, packing: Packing | None = None, **keywords: Any
) -> Any:
    """The public function for these tensors."""
    if packing is None:
        return dash.flash_attn_func(*tensors, causal=causal, **keywords)
    cu_q, cu_k, used_q, used_k = packing.tensors(tensors[0].device)
    return dash.flash_attn_varlen_func(
        *(*tensors, cu_q, cu_k, *packing.max_seqlens),
        seqused_q=used_q,
        seqused_k=used_k,
        causal=causal,
        **keywords,
    )


def run_autograd(inputs: Inputs, causal: bool, **keywords: Any) -> Results:
    """One forward and backward through the public function and autograd."""
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    out, lse = call(leaves, causal, return_lse=True, **keywords)
    return Results(out.detach(), lse.detach(), *torch.autograd.grad(out, leaves, inputs[3]))


def check_close(inputs: Inputs, causal: bool, got: Results, what: str, **keywords: Any) -> None:
    """`keywords`: those of the reference."""
    exact = reference.oracle(inputs, causal, **keywords)
    plain = reference.attention(inputs, causal, inputs[0].dtype, **keywords)
    assert_close_to_reference(got, exact, plain, what)


def check_reference_and_bits(
    case: AttentionCase,
    device: str,
    repeats: int = 2,
    between: Callable[[], None] | None = None,
    schedules: list[str] | None = None,
) -> None:
    """Every legal schedule against the reference, and equal bits over repeats of the ordered ones.

    Args:
        between: called before each repeat, for instance to dirty freed memory.
        schedules: these instead of all legal ones.
    """
    inputs = case.make_inputs(device)
    exact = reference.oracle(inputs, case.causal, **case.extras)
    plain = reference.attention(inputs, case.causal, case.torch_dtype, **case.extras)
    for schedule in schedules or legal_schedules(case, device, ordered_only=False):
        first = run(inputs, case.causal, schedule, **case.extras)
        assert_close_to_reference(first, exact, plain, f"{case} {schedule}")
        if schedule == "unordered":
            continue
        for repeat in range(1, repeats):
            if between is not None:
                between()
            again = run(inputs, case.causal, schedule, **case.extras)
            assert_results_equal(again, first, f"{case} {schedule} repeat {repeat}")


def check_lengths(case: AttentionCase, device: str, lengths: list[int]) -> None:
    """Every length in turn, self-attention, the default schedule."""
    for length in lengths:
        one = case.with_lengths(length, length)
        inputs = one.make_inputs(device, seed=length)
        first = run(inputs, one.causal)
        check_close(inputs, one.causal, first, str(one))
        assert_results_equal(run(inputs, one.causal), first, str(one))


def _length_sweep(case: AttentionCase, device: str) -> None:
    lengths = range(1, 301, 43) if device == "cpu" else range(1, 301)
    check_lengths(case, device, list(lengths))


def _long_q_short_k(case: AttentionCase, device: str) -> None:
    check_reference_and_bits(case, device)
    got = run(case.make_inputs(device), case.causal)
    blind = case.seqlen_q - case.seqlen_k
    assert (got.out[:, :blind] == 0).all() and (got.dq[:, :blind] == 0).all()
    assert torch.isneginf(got.lse[:, :, :blind]).all()


def _one_token(case: AttentionCase, device: str) -> None:
    inputs = case.make_inputs(device)
    got = run(inputs, case.causal)
    # dP - dPsum cancels up to float32 rounding of a sum of 64 products.
    assert got.dq.abs().max() <= 1e-4 and got.dk.abs().max() <= 1e-4
    assert_bitwise_equal(got.dv, inputs[3], "dv")
    assert_bitwise_equal(got.out, inputs[2], "out")
    assert_results_equal(run(inputs, case.causal), got, str(case))


def _empty(case: AttentionCase, device: str) -> None:
    for batch, seqlen_q, seqlen_k in itertools.product((0, 5), repeat=3):
        for causal in (False, True):
            one = replace(case, batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen_k, causal=causal)
            inputs = one.make_inputs(device)
            got = run_autograd(inputs, causal)
            for tensor, like in zip((got.dq, got.dk, got.dv), inputs[:3], strict=True):
                assert tensor.shape == like.shape, str(one)
            if 0 in (batch, seqlen_q, seqlen_k):
                assert all((x == 0).all() for x in (got.out, got.dq, got.dk, got.dv)), str(one)
                assert torch.isneginf(got.lse).all(), str(one)
            else:
                check_close(inputs, causal, got, str(one))


def _uneven(case: AttentionCase, device: str) -> None:
    pairs = [(1024, 1023), (113, 203), (384, 256), (640, 128), (239, 1), (64, 128)]
    if device == "cpu":
        case = replace(case, batch=2)
    else:
        check_reference_and_bits(case, device)
    for seqlen_q, seqlen_k in pairs[1:] if device == "cpu" else pairs:
        check_reference_and_bits(case.with_lengths(seqlen_q, seqlen_k), device)


def _peaked(case: AttentionCase, device: str) -> None:
    for length in (192, 64, 832, 1088):
        one = case.with_lengths(length, length)
        check_reference_and_bits(one, device)
        lse = run(one.make_inputs(device), one.causal).lse
        assert lse.max() < -88.7, f"the inputs are not what they claim: lse up to {lse.max()}"


def _scaled(case: AttentionCase, device: str) -> None:
    for factor in (3, 10, 30):
        check_reference_and_bits(replace(case, inputs=f"randn*{factor}"), device)


def _gqa_ratios(case: AttentionCase, device: str) -> None:
    for heads, heads_k in [(12, 4), (6, 2), (24, 3), (40, 8), (9, 3), (8, 1), (4, 4)]:
        if device == "cpu" and heads > 12:
            continue
        check_reference_and_bits(case.with_heads(heads, heads_k), device)


def _expanded_do(case: AttentionCase, device: str) -> None:
    losses: list[Callable[[Tensor], Tensor]] = [
        lambda out: out.sum(),
        lambda out: out.mean(),
        lambda out: out[:, :1].sum(),
    ]
    q, k, v, _ = case.make_inputs(device)
    for loss in losses:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = dash.flash_attn_func(*leaves, causal=case.causal)
        loss(out).backward()
        proxy = torch.zeros_like(out).requires_grad_()
        (dout,) = torch.autograd.grad(loss(proxy), proxy)
        want = run((q, k, v, dout.contiguous()), case.causal)
        for leaf, name in zip(leaves, ("dq", "dk", "dv"), strict=True):
            assert_bitwise_equal(leaf.grad, getattr(want, name), name)


def _same_as_contiguous(strided: Inputs, case: AttentionCase, what: str) -> None:
    contiguous = tuple(x.contiguous() for x in strided)
    assert any(a.stride() != b.stride() for a, b in zip(strided, contiguous, strict=True)) or any(
        x.storage_offset() for x in strided
    ), "the inputs are not strided"
    want = run(contiguous, case.causal)
    assert_results_equal(run(strided, case.causal), want, what)


def _transposed_do(case: AttentionCase, device: str) -> None:
    q, k, v, dout = case.make_inputs(device)
    view = dout.transpose(0, 1).contiguous().transpose(0, 1)  # (b, s, h, d) over (s, b, h, d)
    _same_as_contiguous((q, k, v, view), case, "dout over (s, b, h, d)")
    view = dout.transpose(1, 2).contiguous().transpose(1, 2)
    _same_as_contiguous((q, k, v, view), case, "dout over (b, h, s, d)")
    check_reference_and_bits(case, device)


def _fused_qkv(case: AttentionCase, device: str) -> None:
    q, k, v, dout = case.make_inputs(device)
    blocked = torch.cat([q, k, v], dim=2)
    parts = blocked.split([case.heads, case.heads_k, case.heads_k], dim=2)
    _same_as_contiguous((*parts, dout), case, "q, k, v blocked")
    group = case.heads // case.heads_k
    interleaved = torch.cat(
        [q.unflatten(2, (case.heads_k, group)), k.unsqueeze(3), v.unsqueeze(3)], dim=3
    )
    parts = (interleaved[..., :group, :], interleaved[..., group, :], interleaved[..., -1, :])
    got = run((parts[0].flatten(2, 3), *parts[1:], dout), case.causal)
    assert_results_equal(got, run((q, k, v, dout), case.causal), "q, k, v interleaved")
    packed = blocked.detach().requires_grad_()
    out = dash.flash_attn_qkvpacked_func(packed, causal=case.causal, num_heads_q=case.heads)
    (dqkv,) = torch.autograd.grad(out, packed, dout)
    want = run((q, k, v, dout), case.causal)
    assert_bitwise_equal(dqkv, torch.cat([want.dq, want.dk, want.dv], dim=2), "dqkv")


def _last_dim(case: AttentionCase, device: str) -> None:
    inputs = case.make_inputs(device)
    views = tuple(x.transpose(1, 3).contiguous().transpose(1, 3) for x in inputs)
    assert all(x.stride(-1) != 1 for x in views)
    for index in range(4):
        mixed = tuple(views[i] if i == index else x for i, x in enumerate(inputs))
        _same_as_contiguous(mixed, case, f"last dim of input {index} not contiguous")
    _same_as_contiguous(views, case, "no last dim contiguous")


def _misaligned(case: AttentionCase, device: str) -> None:
    inputs = case.make_inputs(device)

    def shifted(x: Tensor, offset: int, padding: int) -> Tensor:
        """The same values, `offset` elements into a storage, heads `padding` elements apart."""
        b, s, h, d = x.shape
        strides = (s * h * (d + padding), h * (d + padding), d + padding, 1)
        storage = torch.full((offset + b * strides[0],), 7.0, dtype=x.dtype, device=x.device)
        view = storage.as_strided(x.shape, strides, offset)
        return view.copy_(x)

    for offset, padding in [(1, 0), (0, 3), (1, 3), (8, 8)]:
        views = tuple(shifted(x, offset, padding) for x in inputs)
        _same_as_contiguous(views, case, f"offset {offset}, padding {padding}")


def _size_one_strides(case: AttentionCase, device: str) -> None:
    q, k, v, dout = case.make_inputs(device)
    want = run((q, k, v, dout), case.causal)
    odd_k, odd_v = (
        x.as_strided(x.shape, (x.stride(0), x.stride(1), 1, 1)) for x in (k, v)
    )  # one head: its stride is never used
    assert_results_equal(run((q, odd_k, odd_v, dout), case.causal), want, "head stride 1")
    odd = tuple(x.as_strided(x.shape, (3, *x.stride()[1:])) for x in (q, k, v, dout))
    assert_results_equal(run(odd, case.causal), want, "batch stride 3")
    one = case.with_lengths(1, 1)
    inputs = one.make_inputs(device)
    odd = tuple(x.as_strided(x.shape, (5, 7, *x.stride()[2:])) for x in inputs)
    assert_results_equal(run(odd, one.causal), run(inputs, one.causal), "row stride 7")


def _checkpointing(case: AttentionCase, device: str) -> None:
    inputs = case.make_inputs(device)
    want = run_autograd(inputs, case.causal)
    for use_reentrant in (False, True):
        leaves = [x.detach().requires_grad_() for x in inputs[:3]]
        out = checkpoint(
            lambda q, k, v: dash.flash_attn_func(q, k, v, causal=case.causal),
            *leaves,
            use_reentrant=use_reentrant,
        )
        out.backward(inputs[3])
        for leaf, name in zip(leaves, ("dq", "dk", "dv"), strict=True):
            assert_bitwise_equal(leaf.grad, getattr(want, name), f"{name} {use_reentrant=}")


def _lse_gradient(case: AttentionCase, device: str) -> None:
    inputs = case.make_inputs(device)
    weight = torch.randn(case.batch, case.heads, case.seqlen_q, device=device)
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    out, lse = dash.flash_attn_func(*leaves, causal=case.causal, return_lse=True)
    grads = torch.autograd.grad([out, lse], leaves, [inputs[3], weight])
    got = Results(out.detach(), lse.detach(), *grads)
    exact = reference.oracle(inputs, case.causal, dlse=weight)
    plain = reference.attention(inputs, case.causal, case.torch_dtype, dlse=weight)
    assert_close_to_reference(got, exact, plain, f"{case} with a gradient through lse")
    # lse alone: nothing comes through out, and v gets none.
    _, lse = dash.flash_attn_func(*leaves, causal=case.causal, return_lse=True)
    dq, dk, dv = torch.autograd.grad(lse, leaves, weight)
    no_dout = (*inputs[:3], torch.zeros_like(inputs[3]))
    exact = reference.oracle(no_dout, case.causal, dlse=weight)
    plain = reference.attention(no_dout, case.causal, case.torch_dtype, dlse=weight)
    got = Results(out.detach(), lse.detach(), dq, dk, dv)
    assert_close_to_reference(got, exact, plain, f"{case} with a gradient through lse only")
    assert dq.abs().max() > 0 and (dv == 0).all()


def _double_backward(case: AttentionCase, device: str) -> None:
    q, k, v, _ = (x.requires_grad_() for x in case.make_inputs(device))
    out = dash.flash_attn_func(q, k, v)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(out.float().square().sum(), q, create_graph=True)
    options = operator_options((q, k, v, q), case.causal)
    out, lse = torch.ops.dash_attn.fwd(q, k, v, *options)
    out, lse = out.detach(), lse.detach()
    dq, _, _ = torch.ops.dash_attn.bwd(out, q, k, v, out, lse, None, *options)
    with pytest.raises(RuntimeError, match="double backward"):
        dq.sum().backward()


def _compile_lengths(case: AttentionCase, device: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(dash.flash_attn_func, fullgraph=True, backend="aot_eager")
    for length in (1, 63, 128, 196, 256, 257):
        inputs = case.with_lengths(length, length).make_inputs(device)
        leaves = [x.detach().requires_grad_() for x in inputs[:3]]
        out, lse = compiled(*leaves, causal=case.causal, return_lse=True)
        grads = torch.autograd.grad(out, leaves, inputs[3])
        got = Results(out.detach(), lse.detach(), *grads)
        assert_results_equal(got, run_autograd(inputs, case.causal), f"compiled, length {length}")


def _autocast(case: AttentionCase, device: str) -> None:
    inputs = case.make_inputs(device)
    q, k, v = (x.float() if name != "k" else x for name, x in zip("qkv", inputs, strict=False))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with pytest.raises(ValueError, match=r"^q has dtype torch\.float32"):
        dash.flash_attn_func(*leaves)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = dash.flash_attn_func(*leaves)
    assert out.dtype == torch.bfloat16
    grads = torch.autograd.grad(out, leaves, inputs[3])
    assert [g.dtype for g in grads] == [torch.float32, torch.bfloat16, torch.float32]
    want = run(inputs, case.causal)
    for grad, name in zip(grads, ("dq", "dk", "dv"), strict=True):
        assert_bitwise_equal(grad.bfloat16(), getattr(want, name), name)


SPECIAL: dict[str, Callable[[AttentionCase, str], None]] = {
    "length-sweep": _length_sweep,
    "long-q-short-k-causal": _long_q_short_k,
    "one-token": _one_token,
    "empty-dense": _empty,
    "uneven-lengths-grid": _uneven,
    "peaked-rows": _peaked,
    "scaled-inputs": _scaled,
    "gqa-ratios": _gqa_ratios,
    "expanded-do": _expanded_do,
    "transposed-do": _transposed_do,
    "fused-qkv-views": _fused_qkv,
    "last-dim-not-contiguous": _last_dim,
    "misaligned-storage": _misaligned,
    "size-one-head-stride": _size_one_strides,
    "checkpointing": _checkpointing,
    "lse-gradient": _lse_gradient,
    "double-backward": _double_backward,
    "compile-lengths": _compile_lengths,
    "autocast": _autocast,
}

# Only a GPU has what these are about; tests/gpu has a function for each.
GPU_ONLY = frozenset(
    {
        *("gqa-dirty-memory", "dq-order-fp16-d64", "many-waves", "flag-off-control"),
        *("fewer-sms", "cuda-graph", "side-stream-producer", "memory-linear"),
    }
)


def check(name: str, device: str) -> None:
    """Runs the library's entry `name`."""
    from . import shape_checks  # which imports this module

    special = SPECIAL | shape_checks.SPECIAL
    special.get(name, check_reference_and_bits)(CASES[name], device)
