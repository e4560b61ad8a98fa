"""Offsets beyond 32 bits, and how memory grows."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import torch

from ..compare import assert_bitwise_equal, assert_results_equal
from ..reference import Results
from . import registry
from .problem import Inputs, Problem, check_close, dense, packed, resolve, run


def check_slices(problem: Problem, inputs: Inputs, indices: tuple[int, ...]) -> Results:
    """A few sequences of a large call: their reference, and the bits that each has alone."""
    schedule = resolve(problem).name
    got = run(problem, inputs, schedule)
    for index in indices:
        one, part = problem.only(index), problem.sequence(inputs, index)
        alone = run(one, part, schedule)
        assert_results_equal(problem.results_of(got, index), alone, f"sequence {index}")
        check_close(one, part, alone, f"sequence {index}")
    return got


@registry.check("sizes/batch-12000", 120, alone=True)
def large_batch() -> None:
    """12,000 x 128 x 16 heads x 128: offsets beyond 2^31 elements."""
    for window in ((-1, -1), (-1, 0)):
        problem = dense(12_000, 128, 128, heads=16, heads_k=16, head_dim=128, window=window)
        check_slices(problem, problem.make_inputs(), (0, 5_461, 8_191, 8_192, 11_999))


@registry.check("sizes/batch-28800", 60, alone=True)
def many_short() -> None:
    for window in ((-1, -1), (-1, 0), (3, 2)):
        problem = dense(28_800, 15, 15, heads=4, heads_k=4, window=window)
        check_slices(problem, problem.make_inputs(), (0, 1, 16_383, 28_799))
    problem = packed([15] * 28_800, heads=4, heads_k=4)
    check_slices(problem, problem.make_inputs(), (0, 16_383, 28_799))


@registry.check("sizes/wide-rows", 90, alone=True)
def wide_rows() -> None:
    """dout as a view with 9,728 elements a row over 230,000 tokens: offsets beyond 2^31."""
    for problem in (
        dense(23, 10_000, 10_000, heads=2, heads_k=2, head_dim=128, window=(-1, 0)),
        packed([1_000] * 230, heads=2, heads_k=2, head_dim=128),
        dense(1, 230_000, 230_000, heads=1, heads_k=1, head_dim=128, window=(512, 0)),
    ):
        q, k, v, dout = problem.make_inputs()
        wide = torch.empty(230_000, 9_728, dtype=dout.dtype, device="cuda")
        view = wide[:, : problem.heads * 128].unflatten(1, (problem.heads, 128))
        view.copy_(dout)
        got = run(problem, (q, k, v, view))
        assert_results_equal(got, run(problem, (q, k, v, dout)), f"{problem} wide rows")
        if problem.batch > 1:
            check_slices(problem, (q, k, v, view), (0, problem.batch - 1))


def extra_bytes(problem: Problem, schedule: str) -> int:
    """Peak of the backward beyond its inputs and results."""
    q, k, v, dout = problem.make_inputs()
    if not problem.packed:
        q, k, v, dout = (x.unflatten(0, (problem.batch, -1)) for x in (q, k, v, dout))
    options = (
        *problem.packing("cuda"),
        *(problem.head_dim**-0.5, *problem.window, problem.softcap, schedule, 0),
    )
    with torch.no_grad():
        out, lse = torch.ops.dash_attn.fwd(q, k, v, *options)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.ops.dash_attn.bwd(dout, q, k, v, out, lse, None, *options)
        results = sum(x.numel() * x.element_size() for x in (q, k, v))
        return torch.cuda.max_memory_allocated() - before - results


@registry.check("sizes/memory-linear", 60, alone=True)
def memory() -> None:
    base = dense(1, 4096, 4096, heads=16, heads_k=16, head_dim=128, window=(-1, 0))
    variants = {
        "causal": base,
        "full": replace(base, window=(-1, -1)),
        "window": replace(base, window=(1024, 0)),
        "packed": replace(base, packed=True),
    }
    for name, problem in variants.items():
        per_token = []
        for seqlen in (4096, 8192, 16_384, 32_768):
            one = replace(problem, lengths_q=(seqlen,), lengths_k=(seqlen,))
            ordered, unordered = (extra_bytes(one, s) for s in ("auto", "unordered"))
            assert ordered <= 1.01 * unordered, (name, seqlen, ordered, unordered)
            per_token.append(ordered / seqlen)
        assert max(per_token) <= 1.05 * min(per_token), (name, per_token)
        fp32_dq = 16 * 128 * 4
        assert per_token[-1] <= 1.1 * fp32_dq, (name, per_token, fp32_dq)
        registry.note(f"extra memory of the backward, {name}: {per_token[-1]:.0f} bytes a token")


@registry.check("sizes/long-sequence", 90, alone=True)
def long_sequence() -> None:
    """131,072 tokens, one head: ordered repeats agree, and the last rows are right."""
    problem = dense(1, 131_072, 131_072, heads=1, heads_k=1, head_dim=128, window=(-1, 0))
    inputs = problem.make_inputs()
    got = run(problem, inputs)
    assert_results_equal(run(problem, inputs), got, str(problem))
    q, k, v, _ = (x[:, 0].float() for x in inputs)
    scores = q[-64:] @ k.T * problem.head_dim**-0.5
    keys = torch.arange(131_072, device="cuda")
    hidden = keys > keys[-64:, None]
    want = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v
    assert (got.out[-64:, 0].float() - want).abs().max() < 1e-3 + 0.01 * want.abs().max()
    assert_bitwise_equal(run(problem, inputs, "band").dq, run(problem, inputs, "band").dq, "dq")


# Without torch's cache each tensor has a mapping of its own; 2 MiB fill theirs to the end, and what
# follows is let go of, so that a read past the last column finds no memory.
_END_OF_MAPPING = """
import torch, dash

def at_the_end(*shape):
    tensor = torch.randn(shape, device="cuda").bfloat16()
    follower = torch.empty(1 << 20, dtype=torch.bfloat16, device="cuda")
    assert tensor.numel() * 2 % (1 << 21) == 0
    del follower
    return tensor

for columns in (128, 192):
    q, k = (torch.randn(1, 16384, 1, columns, device="cuda").bfloat16() for _ in range(2))
    v, dout = at_the_end(1, 16384, 1, 64), at_the_end(1, 16384, 1, 64)
    for causal in (False, True):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out = dash.flash_attn_func(*leaves, causal=causal)
        grads = torch.autograd.grad(out, leaves, dout)
        torch.cuda.synchronize()
        assert all(torch.isfinite(x).all() for x in (out, *grads))
"""


@registry.check("sizes/columns-that-end-with-their-mapping", 60)
def columns_at_the_end() -> None:
    """v has a box of columns less than its kernel: docs/notes/2026-11-30-tma-boxes.md."""
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = [sys.executable, "-c", _END_OF_MAPPING]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=55)
    assert child.returncode == 0, child.stderr[-2000:]
