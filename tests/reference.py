"""Textbook attention in plain PyTorch, as oracle (float32 or float64) and as yardstick (the inputs'
own dtype). One (batch entry, KV head) at a time, so that score matrices stay small."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Results:
    """out (b, sq, h, dv), lse (b, h, sq), dq like q, dk like k and dv like v; packed: without b."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor

    def items(self) -> list[tuple[str, Tensor]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


@dataclass(frozen=True)
class Packing:
    """Where the sequences of packed tensors lie, as numbers; seqused None is all of each."""

    cu_seqlens_q: tuple[int, ...]
    cu_seqlens_k: tuple[int, ...]
    seqused_q: tuple[int, ...] | None = None
    seqused_k: tuple[int, ...] | None = None

    @property
    def spans(self) -> list[tuple[slice, slice]]:
        """The rows of q and those of k that each sequence has."""
        sides = []
        for bounds, used in (
            (self.cu_seqlens_q, self.seqused_q),
            (self.cu_seqlens_k, self.seqused_k),
        ):
            lengths = used or [b - a for a, b in itertools.pairwise(bounds)]
            sides.append([slice(a, a + n) for a, n in zip(bounds, lengths)])
        return list(zip(*sides))

    @property
    def max_seqlens(self) -> tuple[int, int]:
        lengths = [(q.stop - q.start, k.stop - k.start) for q, k in self.spans]
        return max((n for n, _ in lengths), default=0), max((n for _, n in lengths), default=0)

    def tensors(self, device: torch.device | str) -> list[Tensor | None]:
        """cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k."""
        given = (self.cu_seqlens_q, self.cu_seqlens_k, self.seqused_q, self.seqused_k)
        return [
            None if x is None else torch.tensor(x, dtype=torch.int32, device=device) for x in given
        ]

    def arguments(self, device: torch.device | str) -> tuple[Tensor | int | None, ...]:
        """The operators' six arguments."""
        return (*self.tensors(device), *self.max_seqlens)


@dataclass(frozen=True)
class Scoring:
    """Which keys a query sees and what a score is."""

    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    softmax_scale: float | None = None  # None: 1 / sqrt(head_dim)

    @property
    def bounds(self) -> tuple[int, int]:
        """(left, right) with the causal mask in them."""
        return self.window[0], 0 if self.causal else self.window[1]

    def scale(self, head_dim: int) -> float:
        return head_dim**-0.5 if self.softmax_scale is None else self.softmax_scale


def visible_keys(
    seqlen_q: int,
    seqlen_k: int,
    causal: bool,
    device: torch.device,
    window: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Bool (seqlen_q, seqlen_k), bottom-right aligned, both bounds inclusive."""
    left, right = Scoring(causal, window).bounds
    mask = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=device)
    if right >= 0:
        mask = mask.tril(seqlen_k - seqlen_q + right)
    return mask.triu(seqlen_k - seqlen_q - left) if left >= 0 else mask


def _one_head(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """q (group, sq, d), k (sk, d), v (sk, dv): out (group, sq, dv) and lse (group, sq)."""
    if k.shape[0] == 0:
        zero = (q * 0).sum(-1) + (k.sum() + v.sum()) * 0
        return zero.unsqueeze(-1).expand(*q.shape[:2], v.shape[1]), zero.float() - torch.inf
    blind = ~mask.any(-1, keepdim=True)  # rows that see no key
    scores = (q * scoring.scale(q.shape[-1])) @ k.T
    if scoring.softcap:
        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
    scores = scores.masked_fill(~mask, -torch.inf).masked_fill(blind, 0.0)
    p = torch.softmax(scores, dim=-1).masked_fill(blind, 0.0)
    lse = torch.logsumexp(scores.to(torch.promote_types(q.dtype, torch.float32)), dim=-1)
    return p @ v, lse.masked_fill(blind.squeeze(-1), -torch.inf)


def attention(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    causal: bool,
    dtype: torch.dtype,
    *,
    dlse: Tensor | None = None,
    packing: Packing | None = None,
    **scoring: object,
) -> Results:
    """Forward and gradients of q, k, v, dout computed in `dtype`, by autograd.

    Args:
        inputs: q, dout (b, sq, h, d); k, v (b, sk, hk, d); with packing without b.
        dlse: (b, h, sq), the gradient that comes through lse; None is zero.
        scoring: other fields of `Scoring`.
    """
    how = Scoring(causal, **scoring)
    if packing is not None:
        return _packed(inputs, dtype, dlse, packing, how)
    return _dense(inputs, dtype, dlse, how)


def _zeros(inputs: tuple[Tensor, ...], dtype: torch.dtype) -> Results:
    """What no row and no key gives."""
    q, k, v, dout = inputs
    rows = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    lse_dtype = torch.promote_types(dtype, torch.float32)
    return Results(
        torch.zeros_like(dout, dtype=dtype),
        torch.full(rows, -torch.inf, dtype=lse_dtype, device=q.device),
        *(torch.zeros_like(x, dtype=dtype) for x in (q, k, v)),
    )


def _packed(
    inputs: tuple[Tensor, ...],
    dtype: torch.dtype,
    dlse: Tensor | None,
    packing: Packing,
    scoring: Scoring,
) -> Results:
    q, k, v, dout = inputs
    results = _zeros(inputs, dtype)
    for rows, keys in packing.spans:
        one = _dense(
            (q[None, rows], k[None, keys], v[None, keys], dout[None, rows]),
            dtype,
            None if dlse is None else dlse[None, :, rows],
            scoring,
        )
        results.out[rows], results.lse[:, rows], results.dq[rows] = (
            one.out[0],
            one.lse[0],
            one.dq[0],
        )
        results.dk[keys], results.dv[keys] = one.dk[0], one.dv[0]
    return results


def _dense(
    inputs: tuple[Tensor, ...], dtype: torch.dtype, dlse: Tensor | None, scoring: Scoring
) -> Results:
    q, k, v, dout = (x.detach() for x in inputs)
    group = q.shape[2] // k.shape[2]
    mask = visible_keys(q.shape[1], k.shape[1], scoring.causal, q.device, scoring.window)
    results = _zeros((q, k, v, dout), dtype)
    for b in range(q.shape[0]):
        for head_k in range(k.shape[2]):
            heads = slice(head_k * group, (head_k + 1) * group)
            leaves = [
                x.to(dtype).requires_grad_()
                for x in (q[b, :, heads].transpose(0, 1), k[b, :, head_k], v[b, :, head_k])
            ]
            o, o_lse = _one_head(*leaves, mask, scoring)
            targets, grads = [o], [dout[b, :, heads].transpose(0, 1).to(dtype)]
            if dlse is not None:
                targets.append(torch.where(torch.isinf(o_lse), 0.0, o_lse))
                grads.append(dlse[b, heads].to(results.lse.dtype))
            gq, gk, gv = torch.autograd.grad(targets, leaves, grads)
            results.out[b, :, heads] = o.detach().transpose(0, 1)
            results.lse[b, heads], results.dq[b, :, heads] = o_lse.detach(), gq.transpose(0, 1)
            results.dk[b, :, head_k], results.dv[b, :, head_k] = gk, gv
    return results


def oracle(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor], causal: bool, **keywords: object
) -> Results:
    """`attention` in float64 on the CPU, in float32 (without TF32) on a GPU."""
    dtype = torch.float64 if inputs[0].device.type == "cpu" else torch.float32
    return attention(inputs, causal, dtype, **keywords)
