"""torch.func and torch.compile on the GPU."""

from __future__ import annotations

import torch

import dash

from ..compare import assert_bitwise_equal
from . import registry
from .problem import dense, packed, run

CAUSAL = (-1, 0)


@registry.check("transforms/func-grad")
def func_grad() -> None:
    problem = dense(2, 300, 300, head_dim=128, window=CAUSAL)
    inputs = problem.make_inputs()
    want = run(problem, inputs)
    q, k, v, dout = (x.unflatten(0, (2, -1)) for x in inputs)

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (dash.flash_attn_func(q, k, v, causal=True) * dout).sum()

    grads = torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v)
    for name, got in zip(("dq", "dk", "dv"), grads, strict=True):
        assert_bitwise_equal(got.flatten(0, 1), getattr(want, name), f"torch.func.grad {name}")


@registry.check("transforms/func-grad-packed")
def func_grad_packed() -> None:
    problem = packed([300, 0, 129], head_dim=64, window=CAUSAL)
    q, k, v, dout = problem.make_inputs()
    want = run(problem, (q, k, v, dout))
    cu_q, cu_k, _, _, max_q, max_k = problem.packing("cuda")

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = dash.flash_attn_varlen_func(q, k, v, cu_q, cu_k, max_q, max_k, causal=True)
        return (out * dout).sum()

    grads = torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v)
    for name, got in zip(("dq", "dk", "dv"), grads, strict=True):
        assert_bitwise_equal(got, getattr(want, name), f"torch.func.grad {name}")


@registry.check("transforms/compile-packed", 90)
def compile_packed() -> None:
    """Forward and backward under torch.compile(fullgraph=True), lengths that change."""
    for options in ({"causal": True}, {"window_size": (40, 10)}, {"softcap": 15.0}):
        torch._dynamo.reset()
        compiled = torch.compile(dash.flash_attn_varlen_func, fullgraph=True, backend="aot_eager")
        for lengths in ([300, 0, 129], [1, 2, 3], [64, 64], [777]):
            problem = packed(lengths, head_dim=128)
            q, k, v, dout = problem.make_inputs()
            cu_q, cu_k, _, _, max_q, max_k = problem.packing("cuda")
            results = []
            for function in (dash.flash_attn_varlen_func, compiled):
                leaves = [x.detach().requires_grad_() for x in (q, k, v)]
                out = function(*leaves, cu_q, cu_k, max_q, max_k, **options)
                results.append((out.detach(), *torch.autograd.grad(out, leaves, dout)))
            for name, want, got in zip(("out", "dq", "dk", "dv"), *results, strict=True):
                assert_bitwise_equal(got, want, f"{lengths} {options} {name}")


@registry.check("transforms/compile-with-inductor", 120)
def compile_with_inductor() -> None:
    """Inductor's own code before and after changes roundings there, not in the operator."""
    torch._dynamo.reset()
    problem = dense(2, 300, 300, head_dim=128, window=CAUSAL)
    q, k, v, dout = (x.unflatten(0, (2, -1)) for x in problem.make_inputs())
    try:
        compiled = torch.compile(dash.flash_attn_func, fullgraph=True)
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = compiled(*leaves, causal=True)
        grads = torch.autograd.grad(out, leaves, dout)
    except Exception as error:
        if "Triton" in str(error) or "C compiler" in str(error):
            raise registry.SkippedError(f"inductor cannot run here: {error}") from error
        raise
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    want = dash.flash_attn_func(*leaves, causal=True)
    for name, a, b in zip(
        ("dq", "dk", "dv"), grads, torch.autograd.grad(want, leaves, dout), strict=True
    ):
        assert_bitwise_equal(a, b, name)
    assert_bitwise_equal(out.detach(), want.detach(), "out")
