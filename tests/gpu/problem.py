"""Any call that the operators take: dense or packed, windows, softcap, two head dims; with its
inputs, its results and its reference. The sequences' rows lie behind each other in either layout,
so that one sequence can be cut out of both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

import dash

from ..cases import DTYPES
from ..compare import assert_close_to_reference
from ..reference import Results

Inputs = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v, dout: (rows, heads, head dim)


@dataclass(frozen=True)
class Problem:
    """`lengths_q` and `lengths_k`: rows of each sequence, all equal if not `packed`."""

    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    heads: int = 4
    heads_k: int = 2
    head_dim: int = 64
    head_dim_v: int = 0  # 0: head_dim
    dtype: str = "bf16"
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    packed: bool = False
    slack: int = 0  # rows behind the last sequence that none owns
    used_q: tuple[int, ...] | None = None
    used_k: tuple[int, ...] | None = None

    def __str__(self) -> str:
        def short(lengths: tuple[int, ...]) -> str:
            return f"{len(lengths)} sequences" if len(lengths) > 8 else str(list(lengths))

        return (
            f"{'packed' if self.packed else 'dense'} q {short(self.lengths_q)} k "
            f"{short(self.lengths_k)} heads {self.heads}/{self.heads_k} head dims "
            f"{self.head_dim}/{self.dim_v} {self.dtype} window {self.window} softcap {self.softcap}"
        )

    @property
    def dim_v(self) -> int:
        return self.head_dim_v or self.head_dim

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def batch(self) -> int:
        return len(self.lengths_q)

    @property
    def rows(self) -> tuple[int, int]:
        return sum(self.lengths_q) + self.slack, sum(self.lengths_k) + self.slack

    @property
    def begins(self) -> tuple[list[int], list[int]]:
        """cu_seqlens of q and k."""
        return [0, *accumulate(self.lengths_q)], [0, *accumulate(self.lengths_k)]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of q, k and v as the public functions take them."""
        rows_q, rows_k = self.rows
        lead_q: tuple[int, ...] = (rows_q,)
        lead_k: tuple[int, ...] = (rows_k,)
        if not self.packed:
            lead_q, lead_k = (self.batch, self.lengths_q[0]), (self.batch, self.lengths_k[0])
        return (
            (*lead_q, self.heads, self.head_dim),
            (*lead_k, self.heads_k, self.head_dim),
            (*lead_k, self.heads_k, self.dim_v),
        )

    def only(self, index: int) -> Problem:
        """One sequence by itself, dense, without what seqused leaves out."""
        used_q = (self.used_q or self.lengths_q)[index]
        used_k = (self.used_k or self.lengths_k)[index]
        one = replace(self, packed=False, slack=0, used_q=None, used_k=None)
        return replace(one, lengths_q=(used_q,), lengths_k=(used_k,))

    def make_inputs(self, device: str = "cuda", seed: int = 0) -> Inputs:
        generator = torch.Generator(device=device).manual_seed(seed)

        def randn(*shape: int) -> Tensor:
            x = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
            return x.to(self.torch_dtype)

        rows_q, rows_k = self.rows
        return (
            randn(rows_q, self.heads, self.head_dim),
            randn(rows_k, self.heads_k, self.head_dim),
            randn(rows_k, self.heads_k, self.dim_v),
            randn(rows_q, self.heads, self.dim_v),
        )

    def packing(self, device: torch.device | str) -> tuple[Any, ...]:
        """The operators' six arguments from cu_seqlens_q to max_seqlen_k."""
        if not self.packed:
            return None, None, None, None, 0, 0

        def index(values: Any) -> Tensor | None:
            return None if values is None else torch.tensor(values, dtype=torch.int32).to(device)

        longest = max(self.lengths_q, default=0), max(self.lengths_k, default=0)
        return (*map(index, (*self.begins, self.used_q, self.used_k)), *longest)

    def sequence(self, tensors: Inputs, index: int) -> Inputs:
        """q, k, v, dout of one sequence, as far as it is used."""
        begins_q, begins_k = self.begins
        one = self.only(index)
        rows_q = slice(begins_q[index], begins_q[index] + one.lengths_q[0])
        rows_k = slice(begins_k[index], begins_k[index] + one.lengths_k[0])
        q, k, v, dout = tensors
        return q[rows_q], k[rows_k], v[rows_k], dout[rows_q]

    def results_of(self, results: Results, index: int) -> Results:
        """One sequence's part of results, in the rows' layout with lse (heads, rows)."""
        q, k, v, out = self.sequence((results.dq, results.dk, results.dv, results.out), index)
        begin = self.begins[0][index]
        lse = results.lse[:, begin : begin + q.shape[0]]
        return Results(out, lse.contiguous(), q, k, v)


def mask_of(problem: Problem) -> dict[str, Any]:
    """The keywords of dash.resolve_schedule and is_supported."""
    q_shape, k_shape, v_shape = problem.shapes
    given: dict[str, Any] = {
        "q_shape": q_shape,
        "k_shape": k_shape,
        "v_shape": v_shape,
        "dtype": problem.torch_dtype,
        "window_size": problem.window,
        "softcap": problem.softcap,
    }
    if problem.packed:
        given["num_sequences"] = problem.batch
        given["max_seqlen_q"] = max(problem.lengths_q, default=0)
        given["max_seqlen_k"] = max(problem.lengths_k, default=0)
    return given


def resolve(problem: Problem, schedule: str = "auto", device: str = "cuda", sm_margin: int = 0):
    return dash.resolve_schedule(
        **mask_of(problem), schedule=schedule, device=device, sm_margin=sm_margin
    )


def legal(problem: Problem, device: str = "cuda", sm_margin: int = 0) -> list[str]:
    """Ordered schedules that the problem can have with sm_margin SMs left free."""
    names = []
    for name in dash.schedules():
        if name == "unordered":
            continue
        try:
            resolve(problem, name, device, sm_margin)
        except ValueError:
            continue
        names.append(name)
    return names


def run(
    problem: Problem,
    inputs: Inputs,
    schedule: str = "auto",
    *,
    sm_margin: int = 0,
    packing: tuple[Any, ...] | None = None,
) -> Results:
    """Forward and backward through the operators; results in the rows' layout."""
    q, k, v, dout = inputs
    if not problem.packed:
        q, k, v, dout = (x.unflatten(0, (problem.batch, -1)) for x in (q, k, v, dout))
    options = (
        *(problem.packing(q.device) if packing is None else packing),
        problem.head_dim**-0.5,
        *problem.window,
        problem.softcap,
        schedule,
        sm_margin,
    )
    with torch.no_grad():
        out, lse = torch.ops.dash_attn.fwd(q, k, v, *options)
        grads = torch.ops.dash_attn.bwd(dout, q, k, v, out, lse, None, *options)
    if problem.packed:
        return Results(out, lse, *grads)
    lse = lse.transpose(0, 1).flatten(1)
    return Results(out.flatten(0, 1), lse, *(x.flatten(0, 1) for x in grads))


def visible(problem: Problem, device: torch.device) -> Tensor:
    """Bool (seqlen_q, seqlen_k) of a single sequence."""
    seqlen_q, seqlen_k = problem.lengths_q[0], problem.lengths_k[0]
    row = torch.arange(seqlen_q, device=device)[:, None] + seqlen_k - seqlen_q
    key = torch.arange(seqlen_k, device=device)
    left, right = problem.window
    mask = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=device)
    if left >= 0:
        mask &= key >= row - left
    if right >= 0:
        mask &= key <= row + right
    return mask


def attention(problem: Problem, inputs: Inputs, dtype: torch.dtype) -> Results:
    """The textbook's results of a single sequence, all heads at once, in `dtype`."""
    group = problem.heads // problem.heads_k
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs[:3]]
    q, k, v = (x.transpose(0, 1) for x in leaves)
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    mask = visible(problem, q.device)
    blind = ~mask.any(-1, keepdim=True)
    scores = (q * problem.head_dim**-0.5) @ k.transpose(1, 2)
    if problem.softcap:
        scores = problem.softcap * torch.tanh(scores / problem.softcap)
    scores = scores.masked_fill(~mask, -torch.inf).masked_fill(blind, 0.0)
    if problem.lengths_k[0]:
        p = torch.softmax(scores, dim=-1).masked_fill(blind, 0.0)
        lse = torch.logsumexp(scores.to(torch.promote_types(dtype, torch.float32)), dim=-1)
    else:
        p, lse = scores, scores.new_zeros(scores.shape[:2], dtype=torch.float32)
    out = (p @ v).transpose(0, 1)
    grads = torch.autograd.grad(out, leaves, inputs[3].to(dtype))
    lse = lse.masked_fill(blind.squeeze(-1), -torch.inf)
    return Results(out.detach(), lse.detach(), *grads)


def check_close(problem: Problem, inputs: Inputs, got: Results, what: str = "") -> None:
    """Every sequence against its reference."""
    exact_dtype = torch.float64 if inputs[0].device.type == "cpu" else torch.float32
    for index in range(problem.batch):
        one = problem.only(index)
        if not one.lengths_q[0] and not one.lengths_k[0]:
            continue
        part = problem.sequence(inputs, index)
        exact = attention(one, part, exact_dtype)
        plain = attention(one, part, problem.torch_dtype)
        name = f"{problem} {what} sequence {index}"
        assert_close_to_reference(problem.results_of(got, index), exact, plain, name)


def dense(batch: int, seqlen_q: int, seqlen_k: int, **others: Any) -> Problem:
    return Problem((seqlen_q,) * batch, (seqlen_k,) * batch, **others)


def packed(lengths_q: list[int], lengths_k: list[int] | None = None, **others: Any) -> Problem:
    lengths_k = lengths_q if lengths_k is None else lengths_k
    return Problem(tuple(lengths_q), tuple(lengths_k), packed=True, **others)
