"""A view of the schedule policies: who visits which Q tile when, and whose turn it is.

Everything is asked of `_schedule`, the headers that the kernels are compiled from.
"""

from __future__ import annotations

from . import _arguments, _schedule

TileGrid = _schedule.TileGrid
simulate_progress = _schedule.simulate_progress


def dispatch(grid: TileGrid) -> list[tuple[int, int, int]]:
    """Work tiles (n_block, KV head, batch entry) in the order in which CTAs take them."""
    return [tile for item in items(grid) for tile in item]


def items(grid: TileGrid) -> list[list[tuple[int, int, int]]]:
    """The work tiles of each ticket, in ticket order; one CTA runs them one after the other."""
    return [_schedule.item(grid, ticket) for ticket in range(_schedule.num_tickets(grid))]


def walks(grid: TileGrid, bidh: int = 0) -> list[list[tuple[int, int]]]:
    """For each n_block of KV head `bidh` its (m_block, turn), in visiting order."""
    return [_schedule.walk(grid, n_block, bidh) for n_block in range(grid.num_n_blocks())]


def render(
    name: str = "band",
    *,
    causal: bool = False,
    seqlen_q: int = 512,
    seqlen_k: int = 512,
    head_dim: int = 128,
    dtype: str = "bf16",
) -> str:
    """One head's order as text: a row per KV tile in dispatch order, "m:turn" per visited Q tile.

    Args:
        name: one of `dash.schedules()`, legal for the mask.
        seqlen_q, seqlen_k: rows. head_dim: one of `dash.supported_head_dims()`.

    Raises:
        ValueError: an unsupported name or head_dim.
    """
    _arguments.resolve_schedule_name(name != "unordered", name, causal)
    if head_dim not in _arguments.HEAD_DIMS:
        raise ValueError(f"head_dim={head_dim} is not supported; {_arguments.HEAD_DIMS} are")
    grid = _schedule.make_grid(dtype, head_dim, causal, 1, seqlen_q, seqlen_k, 1, 1, name)
    lines = [
        f"{name}, {'causal' if causal else 'full'}, seqlen {seqlen_q} x {seqlen_k}, "
        f"tiles {grid.block_m} x {grid.block_n}: m_block:turn in visiting order"
    ]
    ordered = _schedule.is_ordered(grid)
    for n_block, _, _ in dispatch(grid):
        visits = (f"{m}:{turn if ordered else '-'}" for m, turn in _schedule.walk(grid, n_block))
        lines.append(f"  n_block {n_block:3}  " + "  ".join(f"{visit:>6}" for visit in visits))
    return "\n".join(lines)
