"""Is a timed kernel right? A coarse check in the same process as the timing.

One (sequence, KV head) group is compared with attention in fp32; the fine comparison, against
PyTorch's own error in the same dtype, is the tests' business. A kernel that fails is reported as
wrong, and no ratio is formed with its time.
"""

from __future__ import annotations

import torch

from bench.providers import Inputs
from bench.shapes import AttentionShape

MAX_RELATIVE_ERROR = 0.02  # of the norm; right bf16 and fp16 kernels stay below 0.006
_ROWS_AT_A_TIME = 2_048  # bounds the memory of the fp32 score matrix


def first_sequence(tensor: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
    """(seqlen, heads, head_dim) of batch entry 0 or of the first packed sequence."""
    return tensor[: shape.sequences[0]] if shape.sequences else tensor[0]


def fp32_attention(
    shape: AttentionShape, inputs: Inputs
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """out, dq (seqlen_q, group, head_dim) and dk, dv (seqlen_k, 1, head_dim) of the first sequence
    and KV head 0, in fp32, from the textbook formulas."""
    group = shape.num_heads // shape.num_heads_k
    q, dout = (first_sequence(x, shape)[:, :group].float() for x in (inputs.q, inputs.dout))
    k, v = (first_sequence(x, shape)[:, 0].float() for x in (inputs.k, inputs.v))
    out, dq = torch.zeros_like(dout), torch.zeros_like(q)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    keys = torch.arange(len(k), device=k.device)
    for start in range(0, len(q), _ROWS_AT_A_TIME):
        rows = slice(start, start + _ROWS_AT_A_TIME)
        for head in range(group):
            q_rows, dout_rows = q[rows, head], dout[rows, head]
            scores = q_rows @ k.T * inputs.softmax_scale
            diagonal = torch.arange(start, start + len(q_rows), device=k.device)
            diagonal = (diagonal + len(k) - len(q))[:, None]
            if shape.causal:
                scores.masked_fill_(keys > diagonal, float("-inf"))
            if shape.window_left >= 0:
                scores.masked_fill_(keys < diagonal - shape.window_left, float("-inf"))
            p = torch.softmax(scores, dim=-1).nan_to_num_(0.0)  # a row that sees no key
            dp = dout_rows @ v.T
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * inputs.softmax_scale
            out[rows, head] = p @ v
            dq[rows, head] = ds @ k
            dk += ds.T @ q_rows
            dv += p.T @ dout_rows
    return out, dq, dk[:, None], dv[:, None]


def relative_error(value: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of `expected`; NaN and inf count as inf."""
    difference = (value.detach().float() - expected).norm() / expected.norm().clamp_min(1e-20)
    return float(torch.nan_to_num(difference, nan=float("inf")))


def check_output(shape: AttentionShape, out: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative error of a forward result."""
    return relative_error(first_sequence(out, shape)[:, : expected.shape[1]], expected)


def check_gradients(
    shape: AttentionShape,
    gradients: tuple[torch.Tensor, ...],
    expected: tuple[torch.Tensor, ...],
) -> float:
    """Largest relative error among dq, dk, dv."""
    return max(
        relative_error(first_sequence(grad, shape)[:, : want.shape[1]], want)
        for grad, want in zip(gradients, expected, strict=True)
    )
