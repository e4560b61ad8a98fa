"""The operators as torch sees them: opcheck, compile, export, autocast, gradients."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from torch._dynamo import compiled_autograd
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dash

from .case_checks import run, run_autograd
from .cases import AttentionCase
from .compare import assert_bitwise_equal, assert_results_equal
from .reference import Results

CASE = AttentionCase("op", 2, 70, 150, 4, 2, 64, causal=True)
OPTIONS = (None, None, None, None, 0, 0, 0.125, -1, 0, 0.0, "auto", 0)


def operands(*, requires_grad: bool) -> tuple[Tensor, ...]:
    return tuple(x.requires_grad_(requires_grad) for x in CASE.make_inputs("cpu")[:3])


@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck_forward(requires_grad: bool) -> None:
    arguments = (*operands(requires_grad=requires_grad), *OPTIONS)
    torch.library.opcheck(torch.ops.dash_attn.fwd.default, arguments)


@pytest.mark.parametrize("has_dlse", [False, True])
def test_opcheck_backward(has_dlse: bool) -> None:
    inputs = CASE.make_inputs("cpu")
    got = run(inputs, CASE.causal)
    dlse = torch.randn_like(got.lse) if has_dlse else None
    arguments = (inputs[3], *inputs[:3], got.out, got.lse, dlse, *OPTIONS)
    torch.library.opcheck(torch.ops.dash_attn.bwd.default, arguments)


def test_opcheck_strided() -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in CASE.make_inputs("cpu")[:3])
    torch.library.opcheck(torch.ops.dash_attn.fwd.default, (q, k, v, *OPTIONS))


@pytest.mark.parametrize(
    "backend, schedule",
    [("aot_eager", "auto"), ("aot_eager", "shortest_first"), ("inductor", "auto")],
)
@torch._inductor.config.patch("cpp_cache_precompile_headers", False)
def test_compile_full_graph(backend: str, schedule: str) -> None:
    torch._dynamo.reset()
    inputs = CASE.make_inputs("cpu")

    def layer(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = dash.flash_attn_func(q, k, v, causal=True, schedule=schedule, return_lse=True)
        return out * 2, lse

    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    leaves = [x.detach().requires_grad_() for x in inputs[:3]]
    out, lse = compiled(*leaves)
    got = Results(out.detach(), lse.detach(), *torch.autograd.grad(out, leaves, inputs[3] / 2))
    want = run(inputs, True, schedule)
    assert_results_equal(got, Results(want.out * 2, *[x for _, x in want.items()][1:]), backend)


def test_compile_dynamic_lengths() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        dash.flash_attn_func, fullgraph=True, backend="aot_eager", dynamic=True
    )
    for seqlen_q, seqlen_k in [(70, 150), (71, 40), (130, 200)]:
        q, k, v = CASE.with_lengths(seqlen_q, seqlen_k).make_inputs("cpu")[:3]
        out = compiled(q, k, v, causal=True)
        assert_bitwise_equal(out, dash.flash_attn_func(q, k, v, causal=True), "out")


def test_compile_keeps_deterministic_false() -> None:
    """The flag reaches the operator: it is in the schema, not in a closure."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _example: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    q, k, v = operands(requires_grad=False)
    compiled = torch.compile(dash.flash_attn_func, fullgraph=True, backend=backend)
    compiled(q, k, v, deterministic=False)
    calls = [node for node in graphs[0].graph.nodes if "dash_attn" in str(node.target)]
    assert len(calls) == 1 and "unordered" in calls[0].args


class Layer(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dash.flash_attn_func(q, k, v, causal=True, schedule="ascending")


def test_the_schedule_reaches_the_backward() -> None:
    """fp16 and enough rows for the schedules to differ in bits."""
    case = AttentionCase("schedule", 1, 512, 512, 4, 4, 64, dtype="fp16", causal=True)
    inputs = case.make_inputs("cpu")
    results = {}
    for name in ("ascending", "shortest_first", "band"):
        results[name] = run_autograd(inputs, True, schedule=name)
        assert_results_equal(results[name], run(inputs, True, name), name)
    assert not torch.equal(results["ascending"].dq, results["shortest_first"].dq)
    assert not torch.equal(results["ascending"].dk, results["band"].dk)


def test_export() -> None:
    q, k, v = operands(requires_grad=False)
    program = torch.export.export(Layer(), (q, k, v))
    calls = [node for node in program.graph.nodes if "dash_attn.fwd" in str(node.target)]
    assert len(calls) == 1 and "ascending" in calls[0].args
    assert_bitwise_equal(program.module()(q, k, v), Layer()(q, k, v), "out")


def test_export_with_dynamic_lengths() -> None:
    q, k, v = operands(requires_grad=False)
    rows, keys = (
        torch.export.Dim("rows", min=2, max=4096),
        torch.export.Dim("keys", min=2, max=4096),
    )
    shapes = {"q": {1: rows}, "k": {1: keys}, "v": {1: keys}}
    program = torch.export.export(Layer(), (q, k, v), dynamic_shapes=shapes)
    q, k, v = CASE.with_lengths(33, 77).make_inputs("cpu")[:3]
    assert_bitwise_equal(program.module()(q, k, v), Layer()(q, k, v), "out")


def test_meta_tensors_give_shapes() -> None:
    q, k, v = (x.to("meta") for x in operands(requires_grad=False))
    out, lse = dash.flash_attn_func(q, k, v, return_lse=True)
    assert out.shape == q.shape and out.device.type == "meta" and lse.shape == (2, 4, 70)


def test_gradients_come_only_where_they_are_asked_for() -> None:
    q, k, v = operands(requires_grad=False)
    assert not dash.flash_attn_func(q, k, v).requires_grad
    k.requires_grad_()
    out = dash.flash_attn_func(q, k, v)
    out.sum().backward()
    assert k.grad is not None and q.grad is None and v.grad is None


def test_unused_results_need_no_gradient() -> None:
    """out unused, lse unused, both used: never a wrong or a missing gradient."""
    leaves = list(operands(requires_grad=True))
    out, lse = dash.flash_attn_func(*leaves, causal=True, return_lse=True)
    both = torch.autograd.grad(out.sum() + lse.sum(), leaves, retain_graph=True)
    of_out = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    of_lse = torch.autograd.grad(lse.sum(), leaves)
    assert_bitwise_equal(both[2], of_out[2], "dv")
    assert (of_lse[2] == 0).all()
    for a, b, c in zip(both[:2], of_out[:2], of_lse[:2], strict=True):
        assert c.abs().max() > 0
        assert torch.allclose(a.float(), b.float() + c.float(), atol=0.02, rtol=0.02)


def test_autocast_inside_a_compiled_function() -> None:
    torch._dynamo.reset()
    q, k, v = (x.float() for x in operands(requires_grad=False))
    compiled = torch.compile(dash.flash_attn_func, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = compiled(q, k, v)
    assert_bitwise_equal(out, dash.flash_attn_func(*(x.bfloat16() for x in (q, k, v))), "out")


def test_expanded_and_strided_dout() -> None:
    q, k, v, dout = CASE.make_inputs("cpu")
    ones = torch.ones(1, 1, 1, 1, dtype=dout.dtype).expand_as(dout)
    views = [ones, dout.transpose(1, 2).contiguous().transpose(1, 2), dout[:, :1].expand_as(dout)]
    for view in views:
        want = run_autograd((q, k, v, view.contiguous()), True)
        assert_results_equal(run_autograd((q, k, v, view), True), want, f"strides {view.stride()}")


class _Operators(TorchDispatchMode):
    """Collects the names of dash's operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func.namespace == "dash_attn":
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_see_the_operators() -> None:
    """Also where they are called past their autograd kernels: no gradient is wanted."""
    q, k, v, dout = CASE.make_inputs("cpu")
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with _Operators() as seen:
        dash.flash_attn_func(q, k, v)
        out = dash.flash_attn_func(*leaves)
        torch.autograd.grad(out, leaves, dout)
        with torch.no_grad():
            assert not dash.flash_attn_func(*leaves).requires_grad
    fwd, bwd = "dash_attn.fwd.default", "dash_attn.bwd.default"
    assert seen.names == [fwd, fwd, bwd, fwd]


class _Scaled(TorchFunctionMode):
    """Multiplies the arguments of the operators by a number with a gradient."""

    def __init__(self, scale: torch.Tensor) -> None:
        super().__init__()
        self.scale = scale

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func is torch.ops.dash_attn.fwd:
            args = (*(x * self.scale for x in args[:3]), *args[3:])
        return func(*args, **(kwargs or {}))


def test_function_modes_see_the_operator_with_autograd_on() -> None:
    q, k, v, _ = CASE.make_inputs("cpu")
    scale = torch.ones((), dtype=q.dtype, requires_grad=True)
    with _Scaled(scale):
        out = dash.flash_attn_func(q, k, v)
    (gradient,) = torch.autograd.grad(out.sum(), scale)
    assert gradient.isfinite()


def test_compiled_autograd() -> None:
    q, k, v, dout = CASE.make_inputs("cpu")
    gradients = []
    compiler = torch.compile(backend="eager", fullgraph=True)
    for context in (nullcontext(), compiled_autograd._enable(compiler)):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        with context:
            dash.flash_attn_func(*leaves).backward(dout)
        gradients.append([x.grad for x in leaves])
    for want, got in zip(*gradients, strict=True):
        assert torch.equal(want, got)


def test_semaphore_fold_is_a_cuda_operator() -> None:
    chains, semaphore = torch.zeros(1, 256), torch.zeros(8, dtype=torch.int32)
    with pytest.raises(NotImplementedError):
        torch.ops.dash_attn.semaphore_fold(chains, semaphore, 3, 0)
