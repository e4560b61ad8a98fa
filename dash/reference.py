"""The CPU kernels: the algorithm of the CUDA kernels in blocks of plain torch.

Tile sizes come from the kernels' own table, and the backward walks the kernels' own schedule policy
through ``_schedule``: work tiles in ticket order, Q tiles in traversal order, dQ added in turn
order in fp32. P and dS are rounded to the input's dtype before their second product, as the tensor
cores need them. A packed call is its sequences one after the other, each a problem of its own,
those of most KV tiles first. Written to be read; nothing is tuned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import _operands, _schedule
from ._operands import Call
from ._problem import Problem, Window


def _blocks(length: int, block: int) -> Iterator[slice]:
    """The slices of `length` rows that tiles of `block` rows cover; the last may be shorter."""
    for start in range(0, length, block):
        yield slice(start, min(start + block, length))


def _float(x: Tensor) -> Tensor:
    """A float32 copy in the default layout: no product may see the input's strides."""
    return x.to(torch.float32, memory_format=torch.contiguous_format)


def _visible(rows: slice, keys: slice, diagonal: int, window: Window) -> Tensor:
    """Bool (rows, keys): whether the key is visible to the row, bottom-right aligned."""
    row = torch.arange(rows.start, rows.stop).unsqueeze(1) + diagonal
    key = torch.arange(keys.start, keys.stop)
    left, right = window
    visible = torch.ones(row.shape[0], key.shape[0], dtype=torch.bool)
    if left >= 0:
        visible &= key >= row - left
    if right >= 0:
        visible &= key <= row + right
    return visible


@dataclass(frozen=True)
class _Scores:
    """How a product of q and k becomes a score."""

    scale: float
    softcap: float
    window: Window

    def of(self, products: Tensor) -> Tensor:
        """The scores; products is q k^T."""
        if self.softcap == 0.0:
            return products * self.scale
        return self.softcap * torch.tanh(products * (self.scale / self.softcap))

    def slope(self, scores: Tensor) -> Tensor | float:
        """Derivative of a score by product * scale."""
        return 1.0 - (scores / self.softcap).square() if self.softcap != 0.0 else 1.0


def _scores(problem: Problem, call: Call) -> _Scores:
    return _Scores(call.softmax_scale, call.softcap, problem.window)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, scores: _Scores, config: _schedule.FwdConfig
) -> tuple[Tensor, Tensor]:
    """(batch, seqlen) tensors: out and lse."""
    batch, seqlen_q, num_heads, _ = q.shape
    seqlen_k, num_heads_k, head_dim_v = v.shape[1:]
    out = q.new_zeros((batch, seqlen_q, num_heads, head_dim_v))
    lse = q.new_full((batch, num_heads, seqlen_q), -math.inf, dtype=torch.float32)
    # Heads first, the query heads of one KV head together: (b, hk, group, rows, d).
    qs = _float(q.permute(0, 2, 1, 3)).unflatten(1, (num_heads_k, -1))
    ks, vs = (_float(x.permute(0, 2, 1, 3)).unsqueeze(2) for x in (k, v))
    for rows in _blocks(seqlen_q, config.block_m):
        size = rows.stop - rows.start
        top = torch.full((*qs.shape[:3], size, 1), -math.inf)
        total = torch.zeros_like(top)
        acc = torch.zeros((*qs.shape[:3], size, head_dim_v))
        for keys in _blocks(seqlen_k, config.block_n):
            visible = _visible(rows, keys, seqlen_k - seqlen_q, scores.window)
            if not visible.any():
                continue
            s = scores.of(qs[..., rows, :] @ ks[..., keys, :].transpose(-1, -2))
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


# Under torch.autocast the float32 products would be rounded.
@torch.autocast("cpu", enabled=False)
def forward(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """``dash_attn::fwd`` on the CPU: out like q with v's head dim, and lse (b, h, sq) fp32; packed
    (h, total_q)."""
    call = Call(*options)
    problem = _operands.check_forward(q, k, v, call)
    scores = _scores(problem, call)
    config = _schedule.fwd_config(*problem.config, **problem.features)
    if not call.is_packed:
        return _forward(q, k, v, scores, config)
    out = q.new_zeros((*q.shape[:2], v.shape[2]))
    lse = q.new_full((q.shape[1], q.shape[0]), -math.inf, dtype=torch.float32)
    for sequence in _operands.sequences(q, k, call):
        rows, keys = sequence.rows, sequence.keys
        if 0 not in sequence.lengths:
            one = _forward(q[None, rows], k[None, keys], v[None, keys], scores, config)
            out[rows], lse[:, rows] = one[0][0], one[1][0]
    return out, lse


class _OrderedSum:
    """One tile's gradient: adds contributions in turn order, whatever order they arrive in."""

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
    """(n_block, TileGrid's head, batch entry) as one CTA that takes every ticket would run them."""
    for ticket in range(_schedule.num_tickets(grid)):
        yield from _schedule.item(grid, ticket)


@dataclass(frozen=True)
class _Operands:
    """(batch, seqlen) tensors that the backward reads; dpsum (b, h, rows) is what dP is compared
    with: a gradient through lse adds P times it to dS."""

    dout: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    lse: Tensor
    dpsum: Tensor

    def of(self, sequence: _operands.Sequence) -> _Operands:
        """Those of one sequence, if these are packed ones."""
        rows, keys = sequence.rows, sequence.keys
        return _Operands(
            *(x[None, rows] for x in (self.dout, self.q)),
            *(x[None, keys] for x in (self.k, self.v)),
            *(x[None, :, rows] for x in (self.lse, self.dpsum)),
        )


def _backward(
    x: _Operands, scores: _Scores, grid: _schedule.TileGrid
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv of (batch, seqlen) tensors."""
    seqlen_q, seqlen_k = x.q.shape[1], x.k.shape[1]
    dtype = x.q.dtype
    # The grid's heads are lists of query heads that share a KV head: its group, or parts of it.
    parts, part_size = grid.num_heads // x.k.shape[2], x.q.shape[2] // grid.num_heads
    dq, dk, dv = (tensor.new_zeros(tensor.shape) for tensor in (x.q, x.k, x.v))
    m_tiles = list(_blocks(seqlen_q, grid.block_m))
    n_tiles = list(_blocks(seqlen_k, grid.block_n))
    sums: dict[tuple[int, int, int], _OrderedSum] = {}
    dkv_sums: dict[tuple[int, int, int], _OrderedSum] = {}
    for n_block, list_index, bidb in _work_tiles(grid) if x.q.shape[0] else ():
        bidh_kv, part = divmod(list_index, parts)
        keys = n_tiles[n_block]
        k_tile, v_tile = (_float(tensor[bidb, keys, bidh_kv]) for tensor in (x.k, x.v))
        dk_tile, dv_tile = torch.zeros_like(k_tile), torch.zeros_like(v_tile)
        for m_block, turn in _schedule.walk(grid, n_block, list_index):
            rows = m_tiles[m_block]
            visible = _visible(rows, keys, seqlen_k - seqlen_q, scores.window)
            for bidh in range(list_index * part_size, (list_index + 1) * part_size):
                q_tile, do_tile = (_float(tensor[bidb, rows, bidh]) for tensor in (x.q, x.dout))
                s = scores.of(q_tile @ k_tile.T)
                p = torch.exp(s - x.lse[bidb, bidh, rows].unsqueeze(1))
                # Exactly 0 where masked: a row that sees no key has lse -inf, and p would be inf.
                p = torch.where(visible, p, 0.0)
                dp = do_tile @ v_tile.T - x.dpsum[bidb, bidh, rows].unsqueeze(1)
                ds = torch.where(visible, p * dp * scores.slope(s), 0.0)
                p, ds = (tensor.to(dtype).float() for tensor in (p, ds))
                dv_tile += p.T @ do_tile
                dk_tile += ds.T @ q_tile
                dq_sum = sums.setdefault((bidb, bidh, m_block), _OrderedSum())
                if _schedule.is_ordered(grid):
                    dq_sum.add(turn, ds @ k_tile)
                else:
                    dq_sum.add_now(ds @ k_tile)
        dkv_sum = dkv_sums.setdefault((bidb, bidh_kv, n_block), _OrderedSum())
        dkv_sum.add(part, torch.cat([dk_tile, dv_tile], -1))
    for (bidb, bidh_kv, n_block), dkv_sum in dkv_sums.items():
        dk_tile, dv_tile = dkv_sum.value.split([x.k.shape[3], x.v.shape[3]], -1)
        dk[bidb, n_tiles[n_block], bidh_kv] = (dk_tile * scores.scale).to(dtype)
        dv[bidb, n_tiles[n_block], bidh_kv] = dv_tile.to(dtype)
    for (bidb, bidh, m_block), dq_sum in sums.items():
        dq[bidb, m_tiles[m_block], bidh] = (dq_sum.value * scores.scale).to(dtype)
    return dq, dk, dv


def _row_sums(a: Tensor, b: Tensor) -> Tensor:
    """(b, h, rows) or (h, rows): the sum over the head dim of a * b."""
    return (_float(a) * _float(b)).sum(-1).transpose(-1, -2)


@torch.autocast("cpu", enabled=False)
def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dlse: Tensor | None,
    *options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """``dash_attn::bwd`` on the CPU: dq, dk, dv in the shapes and dtype of q, k, v."""
    call = Call(*options)
    results = {"dout": dout, "out": out, "lse": lse, "dlse": dlse}
    problem = _operands.check_backward(results, q, k, v, call)
    scores = _scores(problem, call)
    name = problem.choose()[0] if call.schedule == "auto" else call.schedule
    grid = problem.grid(name)
    dpsum = _row_sums(dout, out)
    if dlse is not None:
        dpsum = dpsum - dlse
    operands = _Operands(dout, q, k, v, lse, dpsum)
    if not call.is_packed:
        return _backward(operands, scores, grid)
    dq, dk, dv = (tensor.new_zeros(tensor.shape) for tensor in (q, k, v))
    taken = [
        (_schedule.sequence_grid(grid, *sequence.lengths), sequence)
        for sequence in _operands.sequences(q, k, call)
        if 0 not in sequence.lengths
    ]
    taken.sort(key=lambda pair: -pair[0].num_n_blocks())
    for sequence_grid, sequence in taken:
        rows, keys = sequence.rows, sequence.keys
        one = _backward(operands.of(sequence), scores, sequence_grid)
        dq[rows], dk[keys], dv[keys] = (tensor[0] for tensor in one)
    return dq, dk, dv
