"""What a schedule must fulfil, stated without the code under test: from the mask's definition."""

from __future__ import annotations

import random
from collections import defaultdict

from dash import _schedule
from dash.schedule import Window, items, mask_name, walks

FULL, CAUSAL = (-1, -1), (-1, 0)
MASKS = {"full": FULL, "causal": CAUSAL, "window": (200, 0)}  # a window of each kind
WAVE = 132  # pairs of symmetric_shift that run together
ORDERED = [name for name in _schedule.schedules() if name != "unordered"]


def legal_schedules(mask: str, packed: bool = False) -> list[str]:
    """Schedules that are legal for some shape under the mask; packed: for every one."""
    names = _schedule.schedules()
    return [name for name in names if _schedule.supports(name, MASKS[mask], packed)]


def some_window(mask: str, generator: random.Random, seqlen_q: int, seqlen_k: int) -> Window:
    """The mask's window, or any: limits of 0, few keys, many, just all and more than all."""
    if mask != "window":
        return MASKS[mask]

    def limit(seqlen: int) -> int:
        few = min(seqlen, 40)
        some = [generator.randint(0, few), generator.randint(0, seqlen)]
        return generator.choice([-1, 0, *some, seqlen - 1, seqlen, seqlen + 500])

    window = (limit(seqlen_k), limit(seqlen_q))
    # Without a limit to the left: to the right there is one, or all of it is another mask.
    return window if window[0] >= 0 or window[1] > 0 else (generator.randint(0, seqlen_k), 0)


def describe(grid: _schedule.TileGrid) -> str:
    return (
        f"{grid.schedule} {mask_name(grid.window)} {grid.seqlen_q}x{grid.seqlen_k} tiles "
        f"{grid.block_m}x{grid.block_n} heads {grid.num_heads} batch {grid.batch} "
        f"section {grid.section}"
    )


def is_visible(grid: _schedule.TileGrid, row: int, key: int) -> bool:
    """The mask, element by element: bottom-right aligned."""
    left, right = grid.window
    own = row + grid.seqlen_k - grid.seqlen_q
    return (left < 0 or own - left <= key) and (right < 0 or key <= own + right)


def tiles_by_elements(grid: _schedule.TileGrid) -> set[tuple[int, int]]:
    """(m_block, n_block) of every visible element, by looking at each of them."""
    return {
        (row // grid.block_m, key // grid.block_n)
        for row in range(grid.seqlen_q)
        for key in range(grid.seqlen_k)
        if is_visible(grid, row, key)
    }


def tiles_by_corner(grid: _schedule.TileGrid) -> set[tuple[int, int]]:
    """The same, from each tile's corners: the least and the greatest distance of its keys from the
    rows' own are between the limits, or a visible one is between them."""
    tiles = set()
    left, right = grid.window
    diagonal = grid.seqlen_k - grid.seqlen_q
    for m in range(-(-grid.seqlen_q // grid.block_m)):
        last_row = min((m + 1) * grid.block_m, grid.seqlen_q) - 1
        for n in range(-(-grid.seqlen_k // grid.block_n)):
            last_key = min((n + 1) * grid.block_n, grid.seqlen_k) - 1
            least = n * grid.block_n - last_row - diagonal
            greatest = last_key - m * grid.block_m - diagonal
            if (right < 0 or least <= right) and (left < 0 or greatest >= -left):
                tiles.add((m, n))
    return tiles


def check_tiles(grid: _schedule.TileGrid, tiles: set[tuple[int, int]]) -> None:
    """Cover, permutation, bijection and the inverse bounds, for one head of each parity."""
    for bidh in range(min(grid.num_heads, 2)):
        check_head(grid, tiles, bidh)


def check_head(grid: _schedule.TileGrid, tiles: set[tuple[int, int]], bidh: int) -> None:
    visits = walks(grid, bidh)
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


def chains(grid: _schedule.TileGrid, bidh: int) -> dict[int, list[int]]:
    """m_block -> its contributors of head `bidh` in turn order."""
    by_m: dict[int, dict[int, int]] = defaultdict(dict)
    for n, walk in enumerate(walks(grid, bidh)):
        for m, turn in walk:
            by_m[m][turn] = n
    return {m: [by_turn[turn] for turn in sorted(by_turn)] for m, by_turn in by_m.items()}


def check_dispatch(grid: _schedule.TileGrid) -> None:
    """Dispatch is a bijection. An ordered monotone schedule: tickets rise along every chain. A gang
    schedule: gangs are consecutive, and edges go to the same or a later gang, within one forward in
    (visiting step, -item)."""
    order = items(grid)
    tiles = [tile for item in order for tile in item]
    wanted = {
        (n, h, b)
        for n in range(grid.num_n_blocks())
        for h in range(grid.num_heads)
        for b in range(grid.batch)
    }
    assert len(tiles) == len(wanted) and set(tiles) == wanted, f"{describe(grid)}: {tiles}"
    if not _schedule.is_ordered(grid):
        return
    ticket = {tile: index for index, item in enumerate(order) for tile in item}
    is_gang = _schedule.gang_size(grid) > 1
    for h in range(grid.num_heads):
        for m, chain in chains(grid, h).items():
            for b in range(grid.batch):
                tickets = [ticket[n, h, b] for n in chain]
                if not is_gang:
                    assert tickets == sorted(tickets), f"{describe(grid)}: m_block {m}: {tickets}"
                    assert all(_schedule.gang_end(grid, t) == t + 1 for t in tickets)
    if is_gang:
        check_gangs(grid, ticket)


def check_gangs(grid: _schedule.TileGrid, ticket: dict[tuple[int, int, int], int]) -> None:
    """The conditions of the gang theorem (docs/schedules.md), from tickets and visiting steps; a
    tie goes to the item of the greater n."""
    num_n, num_m = grid.num_n_blocks(), grid.num_m_blocks()
    pairs = (num_n + 1) // 2
    is_paired = grid.schedule == "symmetric_shift"
    is_split = grid.schedule == "ring" and 2 * num_n > num_m  # even and odd n

    def gang_and_step(n: int) -> tuple[int, int]:
        """Number of the gang within the head, and the step at which the item comes to n."""
        if not is_paired:
            return (n % 2 if is_split else 0), 0
        first = min(n, num_n - 1 - n)
        return first // WAVE, grid.num_steps(first) if n >= pairs else 0

    gangs: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for (n, h, b), number in ticket.items():
        if n < pairs or not is_paired:
            gangs[b, h, gang_and_step(n)[0]].append(number)
    for (b, h, gang), numbers in gangs.items():
        first, end = min(numbers), max(numbers) + 1
        assert sorted(numbers) == list(range(first, end)), describe(grid)
        assert len(numbers) <= _schedule.gang_size(grid), describe(grid)
        assert {_schedule.gang_end(grid, number) for number in numbers} == {end}
        assert gang == 0 or max(gangs[b, h, gang - 1]) < first, describe(grid)
    place = {}  # (m, n) -> (gang, step of the item, -item)
    for n, walk in enumerate(walks(grid)):
        gang, before = gang_and_step(n)
        first = min(n, num_n - 1 - n) if is_paired else n
        for step, (m, _) in enumerate(walk):
            place[m, n] = (gang, before + step, -first)
    for m, chain in chains(grid, 0).items():
        places = [place[m, n] for n in chain]
        assert places == sorted(places), f"{describe(grid)}: m_block {m}: {places}"
