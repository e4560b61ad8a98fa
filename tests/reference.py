"""Textbook attention in plain PyTorch, as oracle (float32 or float64) and as yardstick (the inputs'
own dtype). One (batch entry, KV head) at a time, so that score matrices stay small."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Results:
    """out (b, sq, h, d), lse (b, h, sq), dq like q, dk and dv like k."""

    out: Tensor
    lse: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor

    def items(self) -> list[tuple[str, Tensor]]:
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


def visible_keys(seqlen_q: int, seqlen_k: int, causal: bool, device: torch.device) -> Tensor:
    """Bool (seqlen_q, seqlen_k); causal is bottom-right aligned."""
    mask = torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=device)
    return mask.tril(seqlen_k - seqlen_q) if causal else mask


def _one_head(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q (group, sq, d), k and v (sk, d): out (group, sq, d) and lse (group, sq)."""
    if k.shape[0] == 0:
        zero = (q * 0).sum(-1) + (k.sum() + v.sum()) * 0
        return q * 0, zero.float() - torch.inf
    blind = ~mask.any(-1, keepdim=True)  # rows that see no key
    scores = ((q * scale) @ k.T).masked_fill(~mask, -torch.inf).masked_fill(blind, 0.0)
    p = torch.softmax(scores, dim=-1).masked_fill(blind, 0.0)
    lse = torch.logsumexp(scores.to(torch.promote_types(q.dtype, torch.float32)), dim=-1)
    return p @ v, lse.masked_fill(blind.squeeze(-1), -torch.inf)


def attention(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    causal: bool,
    dtype: torch.dtype,
    softmax_scale: float | None = None,
    dlse: Tensor | None = None,
) -> Results:
    """Forward and gradients of q, k, v, dout computed in `dtype`, by autograd.

    Args:
        inputs: q, dout (b, sq, h, d); k, v (b, sk, hk, d).
        dlse: (b, h, sq), the gradient that comes through lse; None is zero.
    """
    q, k, v, dout = (x.detach() for x in inputs)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    group = q.shape[2] // k.shape[2]
    mask = visible_keys(q.shape[1], k.shape[1], causal, q.device)
    out, dq = (torch.zeros(q.shape, dtype=dtype, device=q.device) for _ in range(2))
    dk, dv = (torch.zeros(k.shape, dtype=dtype, device=q.device) for _ in range(2))
    lse_dtype = torch.promote_types(dtype, torch.float32)
    lse = torch.full(
        (q.shape[0], q.shape[2], q.shape[1]), -torch.inf, dtype=lse_dtype, device=q.device
    )
    for b in range(q.shape[0]):
        for head_k in range(k.shape[2]):
            heads = slice(head_k * group, (head_k + 1) * group)
            leaves = [
                x.to(dtype).requires_grad_()
                for x in (q[b, :, heads].transpose(0, 1), k[b, :, head_k], v[b, :, head_k])
            ]
            o, o_lse = _one_head(*leaves, mask, scale)
            targets, grads = [o], [dout[b, :, heads].transpose(0, 1).to(dtype)]
            if dlse is not None:
                targets.append(torch.where(torch.isinf(o_lse), 0.0, o_lse))
                grads.append(dlse[b, heads].to(lse_dtype))
            gq, gk, gv = torch.autograd.grad(targets, leaves, grads)
            out[b, :, heads], lse[b, heads] = o.detach().transpose(0, 1), o_lse.detach()
            dq[b, :, heads], dk[b, :, head_k], dv[b, :, head_k] = gq.transpose(0, 1), gk, gv
    return Results(out, lse, dq, dk, dv)


def oracle(
    inputs: tuple[Tensor, Tensor, Tensor, Tensor], causal: bool, **keywords: Tensor | float | None
) -> Results:
    """`attention` in float64 on the CPU, in float32 (without TF32) on a GPU."""
    dtype = torch.float64 if inputs[0].device.type == "cpu" else torch.float32
    return attention(inputs, causal, dtype, **keywords)
