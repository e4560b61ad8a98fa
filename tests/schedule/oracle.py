"""What a schedule must fulfil, stated without the code under test: from the mask's definition."""

from __future__ import annotations

from collections import defaultdict

from dash import _schedule
from dash.schedule import dispatch, walks

ORDERED = [name for name in _schedule.schedules() if name != "unordered"]


def legal_schedules(causal: bool) -> list[str]:
    return [name for name in _schedule.schedules() if _schedule.supports(name, causal)]


def describe(grid: _schedule.TileGrid) -> str:
    mask = "causal" if grid.causal else "full"
    return (
        f"{grid.schedule} {mask} {grid.seqlen_q}x{grid.seqlen_k} tiles {grid.block_m}x"
        f"{grid.block_n} heads {grid.num_heads} batch {grid.batch} section {grid.section}"
    )


def is_visible(grid: _schedule.TileGrid, row: int, key: int) -> bool:
    """The mask, element by element: bottom-right aligned."""
    return not grid.causal or key <= row + grid.seqlen_k - grid.seqlen_q


def tiles_by_elements(grid: _schedule.TileGrid) -> set[tuple[int, int]]:
    """(m_block, n_block) of every visible element, by looking at each of them."""
    return {
        (row // grid.block_m, key // grid.block_n)
        for row in range(grid.seqlen_q)
        for key in range(grid.seqlen_k)
        if is_visible(grid, row, key)
    }


def tiles_by_corner(grid: _schedule.TileGrid) -> set[tuple[int, int]]:
    """The same, from each tile's last row and first key: the pair that is visible if any is."""
    tiles = set()
    for m in range(-(-grid.seqlen_q // grid.block_m)):
        last_row = min((m + 1) * grid.block_m, grid.seqlen_q) - 1
        for n in range(-(-grid.seqlen_k // grid.block_n)):
            if is_visible(grid, last_row, n * grid.block_n):
                tiles.add((m, n))
    return tiles


def check_tiles(grid: _schedule.TileGrid, tiles: set[tuple[int, int]]) -> None:
    """Cover, permutation, bijection and the inverse bounds, for one head."""
    visits = walks(grid)
    by_m: dict[int, list[tuple[int, int]]] = defaultdict(list)  # m -> [(turn, n)]
    for n, walk in enumerate(visits):
        visited = [m for m, _ in walk]
        wanted = [m for m in range(grid.num_m_blocks()) if (m, n) in tiles]
        assert sorted(visited) == wanted, f"{describe(grid)}: n_block {n} visits {visited}"
        bounds = list(range(grid.m_begin(n), grid.m_end(n)))
        assert bounds == wanted, f"{describe(grid)}: m_begin, m_end of n_block {n} give {bounds}"
        assert grid.num_steps(n) == len(wanted)
        for m, turn in walk:
            by_m[m].append((turn, n))
    for m in range(grid.num_m_blocks()):
        contributors = sorted(n for _, n in by_m[m])
        bounds = list(range(grid.n_begin(m), grid.n_end(m)))
        assert bounds == contributors, f"{describe(grid)}: n_begin, n_end of m_block {m}: {bounds}"
        assert _schedule.num_turns(grid, m) == len(contributors), f"{describe(grid)}: m_block {m}"
        if _schedule.is_ordered(grid):
            turns = sorted(turn for turn, _ in by_m[m])
            assert turns == list(range(len(turns))), f"{describe(grid)}: m_block {m} turns {turns}"


def check_dispatch(grid: _schedule.TileGrid) -> None:
    """Dispatch is a bijection, and tickets rise along every chain of an ordered schedule."""
    order = dispatch(grid)
    wanted = {
        (n, h, b)
        for n in range(grid.num_n_blocks())
        for h in range(grid.num_heads)
        for b in range(grid.batch)
    }
    assert len(order) == len(wanted) and set(order) == wanted, f"{describe(grid)}: {order}"
    if not _schedule.is_ordered(grid):
        return
    ticket = {tile: index for index, tile in enumerate(order)}
    visits = walks(grid)
    chains: dict[int, dict[int, int]] = defaultdict(dict)  # m -> turn -> n
    for n, walk in enumerate(visits):
        for m, turn in walk:
            chains[m][turn] = n
    for b in range(grid.batch):
        for h in range(grid.num_heads):
            for m, chain in chains.items():
                tickets = [ticket[chain[turn], h, b] for turn in range(len(chain))]
                assert tickets == sorted(tickets), f"{describe(grid)}: m_block {m}: {tickets}"
