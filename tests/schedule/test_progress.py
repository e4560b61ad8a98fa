"""The hand-over never deadlocks, and the simulator that says so can say otherwise."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings

from dash import _schedule

from .oracle import describe, legal_schedules
from .test_invariants import CASE_IDS, CASES, large_grids


@pytest.mark.parametrize("causal, name", CASES, ids=CASE_IDS)
def test_any_number_of_slots_finishes(causal: bool, name: str) -> None:
    for num_m, num_n, heads, section in itertools.product(
        (1, 2, 5, 12), (1, 2, 7, 12), (1, 3), (1, 2, 3)
    ):
        for extra in (0, -40, 300):
            grid = _schedule.TileGrid(
                num_m * 64 - 9,
                max(num_n * 128 + extra, 1),
                64,
                128,
                heads,
                2,
                causal,
                name,
                section,
            )
            for slots in (*range(1, 9), 13, 1000):
                assert _schedule.simulate_progress(grid, slots), f"{describe(grid)}: {slots} slots"


@settings(max_examples=40, deadline=None)
@given(large_grids())
def test_random_large_grids_finish(grid: _schedule.TileGrid) -> None:
    for slots in (1, 2, 132):
        assert _schedule.simulate_progress(grid, slots), f"{describe(grid)}: {slots} slots"


@pytest.mark.parametrize("causal", [False, True])
def test_a_dispatch_against_the_turns_is_found_to_deadlock(causal: bool) -> None:
    """The last item of every chain first: it waits for items that get a slot only after it."""
    for name in legal_schedules(causal):
        grid = _schedule.TileGrid(768, 768, 128, 128, 1, 1, causal, name)
        backwards = list(reversed(range(grid.num_work_tiles())))
        finishes = [_schedule.simulate_progress(grid, slots, backwards) for slots in range(1, 7)]
        if name == "unordered":
            assert all(finishes)  # nothing waits
        else:
            # Six items of one chain: progress only when the chain's first item holds a slot too.
            assert finishes == [False] * 5 + [True], f"{name}: {finishes}"


def test_two_swapped_items_are_found_to_deadlock() -> None:
    grid = _schedule.TileGrid(512, 512, 128, 128, 1, 1, False, "band")
    assert not _schedule.simulate_progress(grid, 1, [0, 2, 1, 3])
    assert _schedule.simulate_progress(grid, 2, [0, 2, 1, 3])
