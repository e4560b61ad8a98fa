"""The schedule policies as a library: orders, execution in time, and what bounds it.

Everything is asked of `_schedule`, the headers that the kernels are compiled from.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from . import _schedule, dag

TileGrid = _schedule.TileGrid
Costs = _schedule.Costs
simulate_progress = _schedule.simulate_progress

# (left, right): keys that a query sees besides its own, as the operators take it; -1 is no limit.
Window = tuple[int, int]

# Tuning: cycles of one Q tile on an H200, from clocks inside a kernel of this kind: (compute, drain
# of dQ, completion + release + acquire), by (head_dim, block_m). A model of them, not a promise.
_CYCLES = {
    (64, 128): (4000.0, 1700.0, 2100.0),
    (128, 64): (4000.0, 1720.0, 2100.0),
}
_PROLOGUE_CYCLES, _EPILOGUE_CYCLES = 1500.0, 2500.0
CYCLES_PER_SECOND = 1.7e9


def fold_causal(causal: bool, window: Window) -> Window:
    """The window of a call with both: a causal mask is no key to the right."""
    return (window[0], 0) if causal else window


def mask_name(window: Window) -> str:
    """The mask in messages: "full", "causal" or "window (left, right)"."""
    left, right = (max(limit, -1) for limit in window)
    return {(-1, -1): "full", (-1, 0): "causal"}.get((left, right), f"window ({left}, {right})")


def dispatch(grid: TileGrid) -> list[tuple[int, int, int]]:
    """Work tiles (n_block, KV head, batch entry) in the order in which CTAs take them."""
    return [tile for item in items(grid) for tile in item]


def items(grid: TileGrid) -> list[list[tuple[int, int, int]]]:
    """The work tiles of each ticket, in ticket order; one CTA runs them one after the other."""
    return [_schedule.item(grid, ticket) for ticket in range(_schedule.num_tickets(grid))]


def walks(grid: TileGrid, bidh: int = 0) -> list[list[tuple[int, int]]]:
    """For each n_block of KV head `bidh` its (m_block, turn), in visiting order."""
    return [_schedule.walk(grid, n_block, bidh) for n_block in range(grid.num_n_blocks())]


def sequence_grids(grid: TileGrid, lengths: Sequence[tuple[int, int]]) -> list[TileGrid]:
    """The sequences of a packed problem in the order in which the backward's CTAs take them: those
    of most KV tiles first.

    Args:
        grid: of `_schedule.make_grid(..., packed=True)`.
        lengths: (seqlen_q, seqlen_k) of each sequence.
    """
    grids = [_schedule.sequence_grid(grid, *pair) for pair in lengths]
    return sorted(grids, key=TileGrid.num_n_blocks, reverse=True)


def square_grid(
    policy: str,
    *,
    causal: bool = False,
    window: Window = (-1, -1),
    q_tiles: int,
    kv_tiles: int,
    heads: int = 1,
    section: int = 0,
) -> TileGrid:
    """A problem of one batch entry with as many queries as keys, cut into the given tiles.

    Args:
        policy: one of `dash.schedules()`.
        window: (left, right) of a problem with lcm(q_tiles, kv_tiles) queries; -1 is no limit.
        section: heads per section; 0 is half of the heads, at least one.

    Raises:
        ValueError: the policy is unknown or not legal for such a grid; the message names those
            that are.
    """
    if min(q_tiles, kv_tiles, heads) < 1 or section < 0:
        raise ValueError(
            f"q_tiles={q_tiles}, kv_tiles={kv_tiles}, heads={heads} must be at least 1, and "
            f"section={section} at least 0"
        )
    length = math.lcm(q_tiles, kv_tiles)
    window = fold_causal(causal, window)
    section = section or max(heads // 2, 1)

    def grid_of(name: str) -> TileGrid:
        tiles = (length // q_tiles, length // kv_tiles)
        return TileGrid(length, length, *tiles, heads, 1, window, name, section)

    legal = [name for name in _schedule.schedules() if _schedule.is_legal(grid_of(name))]
    if policy not in legal:
        known = policy in _schedule.schedules()
        problem = f"is legal for {_schedule.legal_for(policy)}" if known else "is not known"
        raise ValueError(
            f"policy={policy!r} {problem}; legal for a {mask_name(window)} mask with "
            f"{q_tiles} Q tiles and {kv_tiles} KV tiles are {legal}"
        )
    return grid_of(policy)


def h200_costs(
    head_dim: int, causal: bool = False, group_size: int = 1, *, window: Window = (-1, -1)
) -> Costs:
    """Costs of this library's backward kernel on an H200, in SM clocks.

    Measured for head dims 64 and 128; others in proportion to the tiles' products and sizes.

    Args:
        group_size: query heads per KV head; a Q tile stands for all of them.
    """
    window = fold_causal(causal, window)
    config = _schedule.bwd_config("bf16", head_dim, window)
    compiled, _ = _schedule.kernel_name_words(head_dim, window)
    measured = (compiled, config.block_m)
    scale = 1.0
    if measured not in _CYCLES:
        scale, measured = config.block_m * compiled / (64 * 128), (128, 64)
    compute, reduce, lag = _CYCLES[measured]
    compute *= scale * config.block_n / 128
    reduce *= scale
    return Costs(
        compute=compute * group_size,
        reduce=reduce,
        lag=lag,
        prologue=_PROLOGUE_CYCLES,
        epilogue=_EPILOGUE_CYCLES,
        writers=2,
        buffers=config.stages_dq,
    )


@dataclass(frozen=True)
class Execution:
    """A schedule on a number of SMs: what happened when. Times are in the costs' unit."""

    grid: TileGrid
    sms: int
    costs: Costs
    timeline: _schedule.Timeline

    @property
    def makespan(self) -> float:
        """Time until the last SM is done."""
        return self.timeline.makespan

    @property
    def bubble_fraction(self) -> float:
        """Share of the SMs' time in which nothing is computed: start-up, waiting, end."""
        return 1.0 - self.timeline.work / max(self.sms * self.makespan, 1e-30)

    @cached_property
    def steps(self) -> list[_schedule.Step]:
        """Every visit of a Q tile."""
        return self.timeline.steps

    @cached_property
    def rows(self) -> list[list[_schedule.Step]]:
        """The steps of each SM, in time."""
        by_slot = defaultdict(list)
        for step in self.steps:
            by_slot[step.slot].append(step)
        return [by_slot[slot] for slot in range(self.sms)]

    @cached_property
    def graph(self) -> tuple[dag.Dag, list[dag.StepNodes]]:
        """The execution as a graph; the nodes of each of `steps`."""
        return dag.build(self.grid, self.steps, self.costs)

    @cached_property
    def critical_path(self) -> list[tuple[str, _schedule.Step]]:
        """("compute" or "add", step) along the longest path: to shorten others is in vain."""
        graph, nodes = self.graph
        owner = {}
        for step, node in zip(self.steps, nodes):
            owner[node.compute] = ("compute", step)
            owner[node.add] = ("add", step)
        return [owner[node] for node in dag.longest_path(graph)[1] if node in owner]


def execute(grid: TileGrid, sms: int, costs: Costs | None = None) -> Execution:
    """Simulates the schedule on `sms` SMs.

    Args:
        costs: default: compute 1, everything else 0.

    Raises:
        ValueError: fewer SMs than the schedule must have at once: it would wait for ever.
    """
    costs = Costs() if costs is None else costs
    timeline = _schedule.simulate(grid, sms, costs)
    if not timeline.is_finished:
        raise ValueError(
            f"schedule {grid.schedule!r} needs {_schedule.gang_size(grid)} SMs at once for this "
            f"grid; {sms} is too few: it waits for ever"
        )
    return Execution(grid, sms, costs, timeline)


def render(
    name: str = "band",
    *,
    causal: bool = False,
    window: Window = (-1, -1),
    seqlen_q: int = 512,
    seqlen_k: int = 512,
    head_dim: int = 128,
    dtype: str = "bf16",
) -> str:
    """One head's order as text: a row per KV tile in dispatch order, "m:turn" per visited Q tile.

    Args:
        name: one of `dash.schedules()`, legal for the mask and the lengths.
        window: (left, right) as in `flash_attn_func`; -1 is no limit.
        seqlen_q, seqlen_k: rows. head_dim: of q, k, v; at most the largest that is supported.

    Raises:
        ValueError: an unsupported name or head_dim.
    """
    window = fold_causal(causal, window)
    grid = _schedule.make_grid(dtype, head_dim, window, 1, seqlen_q, seqlen_k, 1, 1, name)
    if not _schedule.is_legal(grid):
        raise ValueError(
            f"schedule={name!r} is legal for {_schedule.legal_for(name)}; the mask is "
            f"{mask_name(window)}, seqlen_q={seqlen_q} has {grid.num_m_blocks()} Q tiles, "
            f"seqlen_k={seqlen_k} {grid.num_n_blocks()} KV tiles"
        )
    lines = [
        f"{name}, {mask_name(window)}, seqlen {seqlen_q} x {seqlen_k}, "
        f"tiles {grid.block_m} x {grid.block_n}: m_block:turn in visiting order"
    ]
    ordered = _schedule.is_ordered(grid)
    for n_block, _, _ in dispatch(grid):
        visits = (f"{m}:{turn if ordered else '-'}" for m, turn in _schedule.walk(grid, n_block))
        lines.append(f"  n_block {n_block:3}  " + "  ".join(f"{visit:>6}" for visit in visits))
    return "\n".join(lines)
