"""Packed sequences: each is a grid of its own, and all tickets one after the other finish."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dash import _schedule
from dash.schedule import Window, items, sequence_grids, walks

from .oracle import (
    CAUSAL,
    FULL,
    MASKS,
    check_dispatch,
    check_tiles,
    legal_schedules,
    some_window,
    tiles_by_corner,
)

CASES = [(mask, name) for mask in MASKS for name in legal_schedules(mask, packed=True)]
CASE_IDS = [f"{mask}-{name}" for mask, name in CASES]
WINDOWS: list[Window] = [FULL, CAUSAL, (100, 0), (0, 7), (-1, 7), (300, -1)]
Lengths = list[tuple[int, int]]


def packed_grid(
    window: Window, name: str, lengths: Lengths, heads: int, head_dim: int = 128
) -> _schedule.TileGrid:
    longest = (max(pair[side] for pair in lengths) for side in (0, 1))
    call = ("bf16", head_dim, window, len(lengths), *longest, 2 * heads, heads)
    return _schedule.make_grid(*call, f"{name}/1", packed=True)


def some_lengths(generator: random.Random) -> Lengths:
    """With sequences that are empty on either side or both, equal ones, and one of one token."""
    lengths = [(generator.randrange(600), generator.randrange(900)) for _ in range(6)]
    lengths += [(0, 0), (0, 200), (200, 0), (1, 1), lengths[0], lengths[1][:1] * 2]
    generator.shuffle(lengths)
    return lengths


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_every_sequence_has_the_order_that_it_has_alone(mask: str, name: str) -> None:
    generator = random.Random(0)
    for heads in (1, 2, 5):
        lengths = some_lengths(generator)
        window = some_window(mask, generator, *max(lengths))
        packed = packed_grid(window, name, lengths, heads)
        for pair in lengths:
            grid = _schedule.sequence_grid(packed, *pair)
            assert (grid.seqlen_q, grid.seqlen_k, grid.batch) == (*pair, 1)
            assert 1 <= grid.section <= heads and grid.num_heads == heads
            tiles = (grid.block_m, grid.block_n)
            alone = _schedule.TileGrid(*pair, *tiles, heads, 1, window, name, grid.section)
            assert items(grid) == items(alone)
            for bidh in range(heads):
                assert walks(grid, bidh) == walks(alone, bidh)
            check_tiles(grid, tiles_by_corner(alone))
            check_dispatch(grid)


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_tickets_of_all_sequences_hold_every_work_tile_once(mask: str, name: str) -> None:
    generator = random.Random(1)
    lengths = some_lengths(generator)
    packed = packed_grid(some_window(mask, generator, 600, 900), name, lengths, 3)
    grids = sequence_grids(packed, lengths)
    assert Counter((g.seqlen_q, g.seqlen_k) for g in grids) == Counter(lengths)
    kv_tiles = [grid.num_n_blocks() for grid in grids]
    assert kv_tiles == sorted(kv_tiles, reverse=True)
    taken = [(index, *tile) for index, g in enumerate(grids) for item in items(g) for tile in item]
    wanted = [
        (index, n, h, 0)
        for index, grid in enumerate(grids)
        for n in range(grid.num_n_blocks())
        for h in range(3)
    ]
    assert sorted(taken) == wanted
    assert sum(map(_schedule.num_tickets, grids)) == len(wanted)


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_packed_sequences_finish_on_any_number_of_slots(mask: str, name: str) -> None:
    generator = random.Random(2)
    for heads in (1, 3):
        lengths = some_lengths(generator)
        packed = packed_grid(some_window(mask, generator, 600, 900), name, lengths, heads)
        grids = sequence_grids(packed, lengths)
        tickets = sum(map(_schedule.num_tickets, grids))
        for slots in (*range(1, 12), tickets - 1, tickets, 1000):
            assert _schedule.simulate_progress(grids, slots), f"{name}: {slots} slots"


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_a_sequence_in_the_wrong_order_is_found_to_deadlock(mask: str, name: str) -> None:
    window = (400, 0) if mask == "window" else MASKS[mask]
    lengths = [(512, 512), (256, 256), (100, 130)]
    grids = sequence_grids(packed_grid(window, name, lengths, 1), lengths)
    assert [_schedule.num_tickets(grid) for grid in grids] == [4, 2, 2]
    assert _schedule.simulate_progress(grids, 1, [*range(8)])
    assert _schedule.simulate_progress(grids, 1, [6, 7, 4, 5, 0, 1, 2, 3])  # sequences in any order
    waits = name != "unordered"
    assert _schedule.simulate_progress(grids, 1, [0, 1, 2, 3, 5, 4, 6, 7]) != waits
    assert _schedule.simulate_progress(grids, 2, [0, 1, 2, 3, 5, 4, 6, 7])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(CASES),
    st.randoms(use_true_random=False),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 2_000)), min_size=1, max_size=9),
    st.integers(1, 40),
)
def test_random_packed_problems_finish(
    case: tuple[str, str], generator: random.Random, lengths: Lengths, slots: int
) -> None:
    mask, name = case
    window = some_window(mask, generator, *lengths[0])
    grids = sequence_grids(packed_grid(window, name, lengths, 2, 64), lengths)
    assert _schedule.simulate_progress(grids, slots)


def test_what_is_legal_for_packed_sequences_does_not_depend_on_lengths() -> None:
    """And only that is: other schedules need many CTAs at once or some lengths."""
    for mask, window in MASKS.items():
        for name in legal_schedules(mask):
            grids = [
                _schedule.TileGrid(*lengths, *tiles, 2, 1, window, name)
                for lengths in [(0, 0), (1, 700), (700, 1), (512, 512), (5000, 400)]
                for tiles in [(64, 128), (80, 128), (128, 64)]
            ]
            is_free = all(_schedule.is_legal(g) and _schedule.gang_size(g) == 1 for g in grids)
            assert _schedule.supports(name, window, True) == is_free, f"{mask} {name}"


@pytest.mark.parametrize("head_dim", _schedule.supported_head_dims())
@pytest.mark.parametrize("softcap", [False, True])
def test_a_packed_sequence_has_the_tiles_that_it_has_alone(head_dim: int, softcap: bool) -> None:
    """Its bits are those of the same sequence in a (batch, seqlen) call."""
    for window in WINDOWS:
        for config in (_schedule.bwd_config, _schedule.fwd_config):
            alone, packed = (
                config("bf16", head_dim, window, packed=packed, softcap=softcap)
                for packed in (False, True)
            )
            tiles = [(c.block_m, c.block_n) for c in (alone, packed)]
            assert tiles[0] == tiles[1], f"{config.__name__} {head_dim} {window}"


def test_names_of_kernels() -> None:
    words = _schedule.kernel_name_words
    assert words(128, FULL, False, False) == (128, "full")
    assert words(128, CAUSAL, False, False) == (128, "causal")
    assert words(128, FULL, True, False) == (128, "packed_full")
    assert words(64, FULL, True, False) == (64, "general")
    for window in WINDOWS:
        for packed in (False, True):
            assert words(128, window, packed, True)[1] == "general"
            if window not in (FULL, CAUSAL):
                assert words(128, window, packed, False)[1] == "general"
    assert words(128, CAUSAL, True, False)[1] == "general"
    compiled = _schedule.supported_head_dims()
    assert compiled == [64, 96, 128, 192, 256]
    for head_dim in range(8, 257, 8):
        assert words(head_dim, FULL, False, False)[0] == min(x for x in compiled if x >= head_dim)
    with pytest.raises(ValueError, match="264 is above the maximum 256"):
        words(264, FULL, False, False)


def test_limits_are_clamped_to_the_lengths() -> None:
    call = (2, 100, 70, 4, 2, "band")
    assert _schedule.make_grid("bf16", 64, (2**40, 3), *call).window == (70, 3)
    assert _schedule.make_grid("bf16", 64, (-1, 3), *call).window == (70, 3)
    assert _schedule.make_grid("bf16", 64, (3, -1), *call).window == (3, 100)
    assert _schedule.make_grid("bf16", 64, (-7, -7), *call).window == FULL
    assert _schedule.make_grid("bf16", 64, (-7, 0), *call).window == CAUSAL
    # All keys in reach, and still a window mask: another kernel, whatever the lengths.
    assert _schedule.make_grid("bf16", 64, (500, 500), *call).window == (70, 100)
