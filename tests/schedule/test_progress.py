"""The hand-over never deadlocks, and the simulator that says so can say otherwise."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import HealthCheck, given, settings

from dash import _schedule

from .oracle import CAUSAL, FULL, MASKS, describe, some_window
from .test_invariants import CASE_IDS, CASES, large_grids

# NEVER also for an order of tickets that is not the kernel's: what it takes ahead means nothing.
NEVER = _schedule.TakesAhead.NEVER
KEEPS_GANGS_APART = _schedule.TakesAhead.KEEPS_GANGS_APART
ALWAYS = _schedule.TakesAhead.ALWAYS


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_a_gang_or_more_slots_finish(mask: str, name: str) -> None:
    """For monotone schedules a gang is one slot."""
    legal = 0
    generator = random.Random(0)
    for num_m, num_n, heads, section in itertools.product(
        (1, 2, 5, 12, 24), (1, 2, 7, 12), (1, 3), (1, 2, 3)
    ):
        for extra in (0, -40, 300):
            seqlen_k = max(num_n * 128 + extra, 1)
            seqlen_q = seqlen_k if name == "symmetric_shift" else num_m * 64 - 9
            window = some_window(mask, generator, seqlen_q, seqlen_k)
            grid = _schedule.TileGrid(seqlen_q, seqlen_k, 64, 128, heads, 2, window, name, section)
            if not _schedule.is_legal(grid):
                continue
            legal += 1
            gang = _schedule.gang_size(grid)
            for slots in (*range(gang, gang + 8), gang + 13, 1000):
                assert _schedule.simulate_progress(grid, slots), f"{describe(grid)}: {slots} slots"
    assert legal >= 100


@pytest.mark.parametrize("num_blocks", range(1, 13))
def test_every_small_gang_finishes_and_with_a_slot_less_does_not(num_blocks: int) -> None:
    """Exactly gang_size slots are needed: one less is found to deadlock wherever the gang has
    two members that wait for each other."""
    for num_m in range(num_blocks, 13):
        for name in ("shift", "ring"):
            grid = _schedule.TileGrid(num_m * 64, num_blocks * 128, 64, 128, 2, 1, FULL, name)
            is_split = name == "ring" and 2 * num_blocks > num_m
            gang = (num_blocks + 1) // 2 if is_split else num_blocks
            assert _schedule.gang_size(grid) == gang
            assert _schedule.simulate_progress(grid, gang), describe(grid)
            if gang > 1:
                assert not _schedule.simulate_progress(grid, gang - 1), describe(grid)
    grid = _schedule.TileGrid(
        num_blocks * 128, num_blocks * 128, 64, 128, 2, 1, CAUSAL, "symmetric_shift"
    )
    gang = _schedule.gang_size(grid)
    assert gang == (num_blocks + 1) // 2
    assert _schedule.simulate_progress(grid, gang)
    if gang > 1:
        assert not _schedule.simulate_progress(grid, gang - 1), describe(grid)


@pytest.mark.parametrize(
    "name, causal", [("shift", False), ("ring", False), ("symmetric_shift", True)]
)
def test_tickets_taken_ahead_keep_gangs_apart_or_deadlock(name: str, causal: bool) -> None:
    """A CTA takes its next ticket early if all of its gang's are taken. With as few CTAs as the
    gang has members, one that took it whenever it likes would hold two members, and they would wait
    for each other."""
    for num_blocks in (4, 7, 12):
        rows = num_blocks * 128
        window = CAUSAL if causal else FULL
        grid = _schedule.TileGrid(rows, rows, 64, 128, 3, 2, window, name)
        gang = _schedule.gang_size(grid)
        for rule, finishes in ((NEVER, True), (KEEPS_GANGS_APART, True), (ALWAYS, False)):
            assert _schedule.simulate_progress(grid, gang, ahead=rule) == finishes, rule


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(large_grids())
def test_random_large_grids_finish(grid: _schedule.TileGrid) -> None:
    gang = _schedule.gang_size(grid)
    for slots in (gang, gang + 1, 132):
        if slots >= gang:
            assert _schedule.simulate_progress(grid, slots), f"{describe(grid)}: {slots} slots"


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_a_dispatch_against_the_turns_is_found_to_deadlock(mask: str, name: str) -> None:
    """The last item of every chain first: it waits for items that get a slot only after it."""
    # The last rows of the window see every key.
    window = (768, 3) if mask == "window" else MASKS[mask]
    grid = _schedule.TileGrid(768, 768, 128, 128, 1, 1, window, name)
    tickets = range(_schedule.num_tickets(grid))
    slots = range(1, len(tickets) + 1)
    backwards = list(reversed(tickets))
    finishes = [_schedule.simulate_progress(grid, n, backwards, NEVER) for n in slots]
    if name == "unordered":
        assert all(finishes)  # nothing waits
    else:
        # One chain: progress only when the chain's first item holds a slot too.
        assert finishes == [False] * (len(tickets) - 1) + [True], f"{name}: {finishes}"


def test_two_swapped_items_are_found_to_deadlock() -> None:
    grid = _schedule.TileGrid(512, 512, 128, 128, 1, 1, FULL, "band")
    assert not _schedule.simulate_progress(grid, 1, [0, 2, 1, 3], NEVER)
    assert _schedule.simulate_progress(grid, 2, [0, 2, 1, 3], NEVER)
