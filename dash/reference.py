"""The CPU kernels: the algorithm of the CUDA kernels in blocks of plain torch.

Tile sizes come from the kernels' own table, and the backward walks the kernels' own schedule policy
through ``_schedule``: work tiles in ticket order, Q tiles in traversal order, dQ added in turn
order in fp32. P and dS are rounded to the input's dtype before their second product, as the tensor
cores need them. Written to be read; nothing is tuned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from . import _schedule

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def check_operands(
    q: Tensor, k: Tensor, v: Tensor, window: tuple[int, int], softcap: float
) -> bool:
    """What the operators, called directly, refuse. Returns whether the mask is causal."""
    if q.dtype not in DTYPE_NAMES or k.dtype != q.dtype or v.dtype != q.dtype:
        raise ValueError(
            f"dash: q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; "
            "all three must be torch.bfloat16 or torch.float16"
        )
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"dash: q, k, v have shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}; "
            "expected (batch, seqlen_q, heads, d) and twice (batch, seqlen_k, heads_k, d)"
        )
    if window not in ((-1, -1), (-1, 0)) or softcap != 0.0:
        raise ValueError(
            f"dash: window {window} with softcap {softcap} is not yet supported; "
            "(-1, -1) and (-1, 0) with softcap 0.0 are"
        )
    if q.shape[2] % max(k.shape[2], 1) != 0:
        raise ValueError(f"dash: {k.shape[2]} heads of k do not divide the {q.shape[2]} of q")
    return window == (-1, 0)


def _blocks(length: int, block: int) -> Iterator[slice]:
    """The slices of `length` rows that tiles of `block` rows cover; the last may be shorter."""
    for start in range(0, length, block):
        yield slice(start, min(start + block, length))


def _float(x: Tensor) -> Tensor:
    """A float32 copy in the default layout: no product may see the input's strides."""
    return x.to(torch.float32, memory_format=torch.contiguous_format)


def _visible(rows: slice, keys: slice, diagonal: int, causal: bool) -> Tensor:
    """Bool (rows, keys): whether the key is visible to the row, bottom-right aligned."""
    if not causal:
        return torch.ones(rows.stop - rows.start, keys.stop - keys.start, dtype=torch.bool)
    row = torch.arange(rows.start, rows.stop).unsqueeze(1)
    return torch.arange(keys.start, keys.stop) <= row + diagonal


# Under torch.autocast the float32 products below would be rounded.
@torch.autocast("cpu", enabled=False)
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    schedule: str,
    sm_margin: int,
) -> tuple[Tensor, Tensor]:
    """``dash_attn::fwd`` on the CPU: out (b, sq, h, d) in q's dtype and lse (b, h, sq) fp32."""
    del schedule, sm_margin
    causal = check_operands(q, k, v, (window_size_left, window_size_right), softcap)
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_heads_k = k.shape[1:3]
    config = _schedule.fwd_config(DTYPE_NAMES[q.dtype], head_dim, causal)
    out = q.new_zeros((batch, seqlen_q, num_heads, head_dim))
    lse = q.new_full((batch, num_heads, seqlen_q), -math.inf, dtype=torch.float32)
    # Heads first, the query heads of one KV head together: (b, hk, group, rows, d).
    qs = _float(q.permute(0, 2, 1, 3)).unflatten(1, (num_heads_k, -1))
    ks, vs = (_float(x.permute(0, 2, 1, 3)).unsqueeze(2) for x in (k, v))
    for rows in _blocks(seqlen_q, config.block_m):
        size = rows.stop - rows.start
        top = torch.full((*qs.shape[:3], size, 1), -math.inf)
        total = torch.zeros_like(top)
        acc = torch.zeros((*qs.shape[:3], size, head_dim))
        for keys in _blocks(seqlen_k, config.block_n):
            visible = _visible(rows, keys, seqlen_k - seqlen_q, causal)
            if not visible.any():
                continue
            s = (qs[..., rows, :] @ ks[..., keys, :].transpose(-1, -2)) * softmax_scale
            s = s.masked_fill(~visible, -math.inf)
            top_before, top = top, torch.maximum(top, s.amax(-1, keepdim=True))
            # A row that has seen no key yet would subtract -inf from -inf.
            shift = torch.where(top == -math.inf, 0.0, top)
            p = torch.exp(s - shift)
            rescale = torch.exp(top_before - shift)
            total = total * rescale + p.sum(-1, keepdim=True)
            acc = acc * rescale + p.to(q.dtype).float() @ vs[..., keys, :]
        seen = total != 0  # NaN counts as seen, and shows
        tile = torch.where(seen, acc / torch.where(seen, total, 1.0), 0.0)
        out[:, rows] = tile.flatten(1, 2).transpose(1, 2).to(q.dtype)
        lse[:, :, rows] = (top + torch.log(total)).flatten(1, 2).squeeze(-1)
    return out, lse


class _OrderedSum:
    """One Q tile's dQ: adds contributions in turn order, whatever order they arrive in."""

    def __init__(self) -> None:
        self.value: Tensor | None = None
        self._turn = 0
        self._waiting: dict[int, Tensor] = {}

    def add(self, turn: int, part: Tensor) -> None:
        self._waiting[turn] = part
        while self._turn in self._waiting:
            part = self._waiting.pop(self._turn)
            self.value = part if self.value is None else self.value + part
            self._turn += 1

    def add_now(self, part: Tensor) -> None:
        self.value = part if self.value is None else self.value + part


def _work_tiles(grid: _schedule.TileGrid) -> Iterator[tuple[int, int, int]]:
    """(n_block, KV head, batch entry) as one CTA that takes every ticket would run them."""
    for ticket in range(_schedule.num_tickets(grid)):
        yield from _schedule.item(grid, ticket)


@torch.autocast("cpu", enabled=False)
def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dlse: Tensor | None,
    softmax_scale: float,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    schedule: str,
    sm_margin: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """``dash_attn::bwd`` on the CPU: dq, dk, dv in the shapes and dtype of q, k, v."""
    del sm_margin
    causal = check_operands(q, k, v, (window_size_left, window_size_right), softcap)
    batch, seqlen_q, num_heads, head_dim = q.shape
    seqlen_k, num_heads_k = k.shape[1:3]
    group = num_heads // max(num_heads_k, 1)
    shape = (DTYPE_NAMES[q.dtype], head_dim, causal)
    shape += (batch, seqlen_q, seqlen_k, num_heads, num_heads_k)
    name = _schedule.choose(*shape)[0] if schedule == "auto" else schedule
    grid = _schedule.make_grid(*shape, name)
    if not _schedule.is_legal(grid):
        raise ValueError(
            f"dash: schedule {name!r} is legal for {_schedule.legal_for(name)}; here are "
            f"{grid.num_m_blocks()} Q tiles and {grid.num_n_blocks()} KV tiles"
        )
    dq, dk, dv = (x.new_zeros(x.shape) for x in (q, k, v))
    # (b, h, rows): what dP is compared with. A gradient through lse adds P times it to dS.
    dpsum = (_float(dout) * _float(out)).sum(-1).transpose(1, 2)
    if dlse is not None:
        dpsum = dpsum - dlse.float()
    m_tiles = list(_blocks(seqlen_q, grid.block_m))
    n_tiles = list(_blocks(seqlen_k, grid.block_n))
    sums: dict[tuple[int, int, int], _OrderedSum] = {}
    for n_block, bidh_kv, bidb in _work_tiles(grid) if batch else ():
        keys = n_tiles[n_block]
        k_tile, v_tile = (_float(x[bidb, keys, bidh_kv]) for x in (k, v))
        dk_tile, dv_tile = torch.zeros_like(k_tile), torch.zeros_like(v_tile)
        for m_block, turn in _schedule.walk(grid, n_block, bidh_kv):
            rows = m_tiles[m_block]
            visible = _visible(rows, keys, seqlen_k - seqlen_q, causal)
            for bidh in range(bidh_kv * group, (bidh_kv + 1) * group):
                q_tile, do_tile = (_float(x[bidb, rows, bidh]) for x in (q, dout))
                lse_rows = lse[bidb, bidh, rows].unsqueeze(1)
                p = torch.exp(q_tile @ k_tile.T * softmax_scale - lse_rows)
                # Exactly 0 where masked: a row that sees no key has lse -inf, and p would be inf.
                p = torch.where(visible, p, 0.0)
                dp = do_tile @ v_tile.T
                ds = torch.where(visible, p * (dp - dpsum[bidb, bidh, rows].unsqueeze(1)), 0.0)
                p, ds = (x.to(q.dtype).float() for x in (p, ds))
                dv_tile += p.T @ do_tile
                dk_tile += ds.T @ q_tile
                dq_sum = sums.setdefault((bidb, bidh, m_block), _OrderedSum())
                if _schedule.is_ordered(grid):
                    dq_sum.add(turn, ds @ k_tile)
                else:
                    dq_sum.add_now(ds @ k_tile)
        dk[bidb, keys, bidh_kv] = (dk_tile * softmax_scale).to(k.dtype)
        dv[bidb, keys, bidh_kv] = dv_tile.to(v.dtype)
    for (bidb, bidh, m_block), dq_sum in sums.items():
        dq[bidb, m_tiles[m_block], bidh] = (dq_sum.value * softmax_scale).to(q.dtype)
    return dq, dk, dv
