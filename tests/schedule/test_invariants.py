"""The invariants of csrc/schedule/policy.hpp: exhaustive on small grids, random on large ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dash import _schedule
from dash.schedule import dispatch, walks

from .oracle import (
    CAUSAL,
    MASKS,
    check_dispatch,
    check_tiles,
    describe,
    legal_schedules,
    some_window,
    tiles_by_corner,
    tiles_by_elements,
)

KERNEL_TILES = [(64, 128), (80, 128), (128, 128), (128, 64)]
CASES = [(mask, name) for mask in MASKS for name in legal_schedules(mask)]
CASE_IDS = [f"{mask}-{name}" for mask, name in CASES]


def lengths(block: int, num_blocks: int) -> list[int]:
    """Lengths of exactly num_blocks tiles: last tile of one row, half full, full."""
    before = (num_blocks - 1) * block
    return sorted({before + 1, before + max(block // 2, 1), before + block})


def grids_up_to_12_by_12_tiles(mask: str, name: str) -> Iterator[_schedule.TileGrid]:
    generator = random.Random(0)
    for block_m, block_n in KERNEL_TILES:
        of_q = [length for n in range(1, 13) for length in lengths(block_m, n)]
        of_k = [length for n in range(1, 13) for length in lengths(block_n, n)]
        pairs = itertools.product(of_q, of_k)
        if name == "symmetric_shift":
            limit = 12 * min(block_m, block_n)
            pairs = [(length, length) for length in {*of_q, *of_k} if length <= limit]
        for seqlen_q, seqlen_k in pairs:
            window = some_window(mask, generator, seqlen_q, seqlen_k)
            yield _schedule.TileGrid(seqlen_q, seqlen_k, block_m, block_n, 2, 1, window, name)


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_every_grid_up_to_12_by_12_tiles(mask: str, name: str) -> None:
    legal = 0
    for grid in grids_up_to_12_by_12_tiles(mask, name):
        if _schedule.is_legal(grid):
            legal += 1
            check_tiles(grid, tiles_by_corner(grid))
            check_dispatch(grid)
    assert legal >= (130 if name == "symmetric_shift" else 2000)


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_legality(mask: str, name: str) -> None:
    """Everything is legal for its mask, but for what legal_for says."""
    for grid in grids_up_to_12_by_12_tiles(mask, name):
        if name in ("shift", "ring"):
            wanted = grid.num_n_blocks() <= grid.num_m_blocks()
        elif name == "symmetric_shift":
            wanted = grid.block_m <= grid.block_n or _schedule.is_legal(grid)
        else:
            wanted = True
        assert _schedule.is_legal(grid) == wanted, describe(grid)
    for other in MASKS.values():
        grid = _schedule.TileGrid(512, 512, 64, 128, 1, 1, other, name)
        assert _schedule.is_legal(grid) == _schedule.supports(name, other)
    assert not _schedule.is_legal(
        _schedule.TileGrid(512, 640, 64, 128, 1, 1, CAUSAL, "symmetric_shift")
    )


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_every_element_lies_in_exactly_one_visited_tile(mask: str, name: str) -> None:
    generator = random.Random(1)
    for block_m, block_n in [(1, 1), (1, 3), (2, 3), (3, 2), (4, 1), (4, 7)]:
        for seqlen_q, seqlen_k in itertools.product(range(0, 18), repeat=2):
            window = some_window(mask, generator, seqlen_q, seqlen_k)
            grid = _schedule.TileGrid(seqlen_q, seqlen_k, block_m, block_n, 2, 1, window, name)
            if not _schedule.is_legal(grid):
                continue
            tiles = tiles_by_elements(grid)
            assert tiles == tiles_by_corner(grid), describe(grid)
            check_tiles(grid, tiles)
            check_dispatch(grid)


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_dispatch_is_a_bijection_for_any_section(mask: str, name: str) -> None:
    for num_heads, batch, num_n in itertools.product((1, 2, 3, 5, 8), (1, 2, 3), (1, 2, 3, 5)):
        for section in range(1, num_heads * batch + 3):
            length = num_n * 128 - 60
            grid = _schedule.TileGrid(
                length, length, 64, 128, num_heads, batch, MASKS[mask], name, section
            )
            assert _schedule.is_legal(grid)
            check_dispatch(grid)


def test_more_than_32767_items() -> None:
    for mask, name in CASES:
        grid = _schedule.TileGrid(1024, 1024, 64, 128, 33, 130, MASKS[mask], name, 16)
        assert grid.num_work_tiles() > 32_767
        check_dispatch(grid)


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_order_depends_on_lengths_tiles_and_mask_only(mask: str, name: str) -> None:
    """And, for mirrored, on the head's parity."""

    def order(batch: int, num_heads: int, section: int, bidh: int) -> list[list[tuple[int, int]]]:
        sizes = (1000, 1000, 64, 128, num_heads, batch)
        grid = _schedule.TileGrid(*sizes, MASKS[mask], name, section)
        assert _schedule.is_legal(grid)
        return walks(grid, bidh)

    even, odd = order(1, 2, 1, 0), order(1, 2, 1, 1)
    assert (even == odd) == (name != "mirrored")
    for batch, num_heads, section in [(1, 8, 8), (7, 3, 2), (64, 16, 16), (2, 1, 1)]:
        assert order(batch, num_heads, section, num_heads - 1) == (odd, even)[num_heads % 2]
        assert order(batch, num_heads, section, 0) == even
    for head_dim in _schedule.supported_head_dims():
        call = ("bf16", head_dim, MASKS[mask])
        orders = [
            walks(_schedule.make_grid(*call, batch, 1000, 1000, heads, 2, name))
            for batch, heads in [(1, 2), (1, 8), (9, 16)]
        ]
        assert orders[0] == orders[1] == orders[2]


CORNERS = [
    (1, 1),
    (1, 1000),
    (1000, 1),
    (5, 2),
    (2, 5),
    (63, 4096),
    (4096, 63),
    (799, 3),
    (64, 128),
    (65, 129),
    (192, 384),
    (320, 128),
    (0, 5),
    (5, 0),
    (0, 0),
    (1, 1),
    (127, 127),
    (129, 129),
    (385, 385),
    (2049, 2049),
]


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_corner_shapes(mask: str, name: str) -> None:
    generator = random.Random(2)
    for (seqlen_q, seqlen_k), tiles in itertools.product(CORNERS, KERNEL_TILES):
        for num_heads, section in [(1, 1), (5, 2), (5, 16)]:
            window = some_window(mask, generator, seqlen_q, seqlen_k)
            grid = _schedule.TileGrid(
                seqlen_q, seqlen_k, *tiles, num_heads, 1, window, name, section
            )
            if not _schedule.is_legal(grid):
                continue
            check_tiles(grid, tiles_by_corner(grid))
            check_dispatch(grid)


@st.composite
def large_grids(draw: st.DrawFn) -> _schedule.TileGrid:
    """Of every schedule alike, and legal for it."""
    mask, name = draw(st.sampled_from(CASES))
    seqlen_q = draw(st.integers(0, 9_000))
    seqlen_k = seqlen_q if name == "symmetric_shift" else draw(st.integers(0, 9_000))
    grid = _schedule.TileGrid(
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        block_m=draw(st.sampled_from([64, 80, 96, 128, 192])),
        block_n=draw(st.sampled_from([64, 80, 96, 128, 176])),
        num_heads=draw(st.integers(1, 4)),
        batch=draw(st.integers(1, 3)),
        window=some_window(mask, draw(st.randoms(use_true_random=False)), seqlen_q, seqlen_k),
        schedule=name,
        section=draw(st.integers(1, 16)),
    )
    assume(_schedule.is_legal(grid))
    return grid


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(large_grids())
def test_random_large_grids(grid: _schedule.TileGrid) -> None:
    check_tiles(grid, tiles_by_corner(grid))
    check_dispatch(grid)


@settings(max_examples=12, deadline=None)
@given(st.integers(2 * 132 * 2 - 8, 900), st.sampled_from([(1, 1), (1, 2), (2, 4), (3, 4)]))
def test_symmetric_shift_in_several_waves(seqlen: int, tiles: tuple[int, int]) -> None:
    length = seqlen * tiles[1] // 2 - seqlen % tiles[1]
    grid = _schedule.TileGrid(length, length, *tiles, 1, 2, CAUSAL, "symmetric_shift")
    assert _schedule.is_legal(grid)
    assert _schedule.gang_size(grid) <= 132
    check_tiles(grid, tiles_by_corner(grid))
    check_dispatch(grid)


@pytest.mark.parametrize("name", legal_schedules("causal"))
def test_section_is_at_most_the_number_of_lists(name: str) -> None:
    for batch, num_heads, num_heads_k in [(1, 1, 1), (2, 16, 16), (1, 32, 8), (64, 32, 1)]:
        for seqlen in (0, 1, 512, 16_384):
            grid = _schedule.make_grid(
                "bf16", 128, CAUSAL, batch, seqlen, seqlen, num_heads, num_heads_k, f"{name}/1"
            )
            assert 1 <= grid.section <= batch * num_heads_k
            assert grid.num_heads == num_heads_k
            order = dispatch(grid)
            assert len(set(order)) == len(order) == grid.num_work_tiles()
