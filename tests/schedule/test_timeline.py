"""The simulator with time: the paper's closed forms, deadlocks, and the graph that must agree."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dash import _schedule, dag
from dash.schedule import Costs, execute, h200_costs, items, square_grid

from .oracle import FULL, MASKS, chains, describe
from .test_invariants import CASE_IDS, CASES, large_grids

C, R = 5.0, 2.0
PAPER = Costs(compute=C, reduce=R)  # the add in line, no lag


def makespan(name: str, causal: bool, n: int, heads: int, q_tiles: int | None = None) -> float:
    """One SM per KV tile, one head after the other."""
    grid = square_grid(
        name, causal=causal, q_tiles=q_tiles or n, kv_tiles=n, heads=heads, section=1
    )
    return execute(grid, n, PAPER).makespan


@pytest.mark.parametrize("n", range(1, 13))
@pytest.mark.parametrize("m", [1, 2, 4, 6])
def test_the_five_closed_forms_are_exact(n: int, m: int) -> None:
    """n KV tiles on n SMs, m heads."""
    assert makespan("ascending", False, n, m) == m * n * (C + R) + (n - 1) * R
    assert makespan("ascending", True, n, 1) == n * (C + R) + (n - 1) * R
    assert makespan("ascending", True, n, m) == m * n * (C + R) + (n - 1) * R
    assert makespan("shift", False, n, m) == m * n * (C + R)
    if m % 2 == 0:
        assert makespan("descending", True, n, m) == m * (n + 1) * (C + R) / 2 + (n - 1) * R
        if n % 2 == 0:
            assert makespan("symmetric_shift", True, n, m) == m * (n + 1) * (C + R) / 2


@pytest.mark.parametrize("n, q_tiles", [(3, 6), (4, 7), (5, 12), (8, 13)])
def test_closed_forms_with_rectangular_tiles(n: int, q_tiles: int) -> None:
    for m in (1, 2, 3):
        full = m * q_tiles * (C + R)
        assert makespan("ascending", False, n, m, q_tiles) == full + (n - 1) * R
        assert makespan("shift", False, n, m, q_tiles) == full
        # A head is one gang, or two of half the size, each as long: no one waits.
        grid = square_grid("ring", causal=False, q_tiles=q_tiles, kv_tiles=n, heads=m)
        gangs = 1 if q_tiles >= 2 * n else 2
        assert execute(grid, n // gangs, PAPER).makespan == gangs * full


def test_a_lag_delays_the_naive_order_and_not_the_shift() -> None:
    costs = Costs(compute=C, reduce=R, lag=4.0)
    grid = square_grid("ascending", causal=False, q_tiles=8, kv_tiles=8)
    assert execute(grid, 8, costs).makespan == 8 * (C + R) + 7 * (R + 4.0)
    grid = square_grid("shift", causal=False, q_tiles=8, kv_tiles=8)
    assert execute(grid, 8, costs).makespan == 8 * (C + R)


def test_writers_take_the_add_out_of_the_line() -> None:
    """One KV tile: compute-bound with two writers, bound by the writer's chain with one."""
    grid = square_grid("ascending", causal=False, q_tiles=10, kv_tiles=1)
    two = Costs(compute=4.0, reduce=2.0, lag=3.0, writers=2, prologue=1.0, epilogue=0.5)
    assert execute(grid, 1, two).makespan == 1.0 + 10 * 4.0 + 2.0
    one = Costs(compute=4.0, reduce=2.0, lag=3.0, writers=1)
    assert execute(grid, 1, one).makespan == 4.0 + 9 * 5.0 + 2.0
    slow_drain = Costs(compute=4.0, reduce=6.0, writers=2)
    assert execute(grid, 1, slow_drain).makespan == 4.0 + 10 * 6.0


@pytest.mark.parametrize("mask, name", CASES, ids=CASE_IDS)
def test_gangs_finish_on_as_many_slots_and_deadlock_on_fewer(mask: str, name: str) -> None:
    costs = Costs(compute=4.0, reduce=2.0, lag=1.0, writers=2)
    for n, in_line in itertools.product((1, 2, 5, 8), (True, False)):
        window = (n, 1) if mask == "window" else MASKS[mask]
        grid = square_grid(name, window=window, q_tiles=2 * n, kv_tiles=n, heads=3)
        gang = _schedule.gang_size(grid)
        for slots in (gang, gang + 1, 3 * gang):
            used = PAPER if in_line else costs
            assert _schedule.simulate(grid, slots, used).is_finished, describe(grid)
        if gang > 1 and in_line:
            assert not _schedule.simulate(grid, gang - 1, PAPER).is_finished
            with pytest.raises(ValueError, match=f"needs {gang} SMs at once"):
                execute(grid, gang - 1, PAPER)


COSTS = st.builds(
    Costs,
    compute=st.integers(1, 9),
    reduce=st.integers(0, 9),
    lag=st.integers(0, 9),
    prologue=st.integers(0, 9),
    epilogue=st.integers(0, 9),
    writers=st.integers(0, 3),
    buffers=st.integers(1, 3),
)


@st.composite
def executions(draw: st.DrawFn) -> tuple[_schedule.TileGrid, int, _schedule.Costs]:
    mask, name = draw(st.sampled_from(CASES))
    n = draw(st.integers(1, 7))
    q_tiles = draw(st.integers(n, 12))
    if name == "symmetric_shift":
        q_tiles = n * draw(st.integers(1, 2))
    window = MASKS[mask]
    if mask == "window":
        window = (draw(st.integers(0, 20)), draw(st.integers(-1, 9)))
    grid = square_grid(
        name,
        window=window,
        q_tiles=q_tiles,
        kv_tiles=n,
        heads=draw(st.integers(1, 4)),
        section=draw(st.integers(1, 4)),
    )
    slots = _schedule.gang_size(grid) + draw(st.integers(0, 9))
    return grid, slots, draw(COSTS)


@settings(max_examples=300, deadline=None)
@given(executions())
def test_the_longest_path_is_as_long_as_the_simulation(
    case: tuple[_schedule.TileGrid, int, _schedule.Costs],
) -> None:
    """Two statements of one model: times that the simulator gives, and edges."""
    grid, slots, costs = case
    execution = execute(grid, slots, costs)
    graph, nodes = execution.graph
    ends, _ = dag.depths(graph)
    for step, node in zip(execution.timeline.steps, nodes, strict=True):
        assert ends[node.compute] == step.compute_begin + costs.compute, describe(grid)
        assert ends[node.add] == step.add_begin + costs.reduce, describe(grid)
    last = max(
        ends[node.compute] + (0.0 if costs.writers == 0 else costs.epilogue) for node in nodes
    )
    assert execution.makespan >= last
    length, path = dag.longest_path(graph)
    assert length <= execution.makespan <= length + costs.epilogue + costs.lag
    assert ends[path[-1]] == length
    begins = [ends[node] - graph.weights[node] for node in path]
    assert begins == sorted(begins)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(large_grids(), st.integers(0, 40), COSTS)
def test_an_execution_keeps_the_rules(
    grid: _schedule.TileGrid, more_slots: int, costs: _schedule.Costs
) -> None:
    """By the times alone: items in ticket order, adds in turn order, a slot one step at a time."""
    slots = _schedule.gang_size(grid) + more_slots
    timeline = _schedule.simulate(grid, slots, costs)
    assert timeline.is_finished
    begins = defaultdict(lambda: float("inf"))
    by_slot = defaultdict(list)
    adds = {}
    for step in timeline.steps:
        begins[step.ticket] = min(begins[step.ticket], step.compute_begin)
        by_slot[step.slot].append(step)
        adds[step.tile, step.m_block] = step
        assert step.add_begin >= step.compute_begin + costs.compute
    visits = (
        sum(grid.num_steps(n) for n in range(grid.num_n_blocks())) * grid.num_heads * grid.batch
    )
    assert len(adds) == len(timeline.steps) == visits
    ordered_begins = [begins[ticket] for ticket in sorted(begins)]
    if costs.prologue == 0 and all(grid.num_steps(n) for n in range(grid.num_n_blocks())):
        assert ordered_begins == sorted(ordered_begins)
    for sequence in by_slot.values():
        sequence.sort(key=lambda step: step.compute_begin)
        for before, after in itertools.pairwise(sequence):
            assert after.compute_begin >= before.compute_begin + costs.compute
    if not _schedule.is_ordered(grid):
        return
    for bidh, bidb in itertools.product(range(grid.num_heads), range(grid.batch)):
        for m, chain in chains(grid, bidh).items():
            for first, second in itertools.pairwise(chain):
                before, after = adds[(first, bidh, bidb), m], adds[(second, bidh, bidb), m]
                assert after.add_begin >= before.add_begin + costs.reduce + costs.lag


def test_h200_costs_and_what_they_predict() -> None:
    """Few waves of a full mask, 4,096 queries: the naive order waits, band and ring hardly do."""
    times = {}
    for name in ("unordered", "ascending", "band", "ring"):
        grid = _schedule.make_grid("bf16", 128, FULL, 4, 4096, 4096, 16, 16, name)
        times[name] = execute(grid, 132, h200_costs(128)).makespan
    assert times["ascending"] > 1.05 * times["unordered"]
    assert times["band"] < 1.05 * times["unordered"]
    assert times["ring"] < 1.05 * times["unordered"]


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("left", [1024, 4096])
def test_an_ordered_window_costs_as_much_as_an_unordered_one(head_dim: int, left: int) -> None:
    """In the model, 16,384 tokens and 16 heads; ascending Q tiles, one head at a time, wait."""
    times = {}
    for name in ("unordered", "ascending", "band", "shortest_first"):
        call = ("bf16", head_dim, (left, 0), 1, 16_384, 16_384, 16, 16)
        costs = h200_costs(head_dim, window=(left, 0))
        times[name] = execute(_schedule.make_grid(*call, name), 132, costs).makespan
    assert times["band"] < 1.02 * times["unordered"], times
    assert times["ascending"] > 2.0 * times["unordered"], times


def test_h200_costs_have_the_buffers_of_the_kernel() -> None:
    for head_dim, window in itertools.product(_schedule.supported_head_dims(), MASKS.values()):
        costs = h200_costs(head_dim, window=window)
        config = _schedule.bwd_config("bf16", head_dim, window)
        assert costs.buffers == config.stages_dq, f"{head_dim} {window}"
        assert costs.compute > costs.reduce > 0
    assert h200_costs(64).buffers == 2
    causal, window = h200_costs(128, True), h200_costs(128, window=MASKS["causal"])
    assert (causal.compute, causal.buffers) == (window.compute, window.buffers)
    assert h200_costs(128, True, 4).compute == 4 * h200_costs(128, True).compute


def test_items_of_a_pair_run_on_one_slot() -> None:
    grid = square_grid("symmetric_shift", causal=True, q_tiles=8, kv_tiles=4, heads=2)
    execution = execute(grid, 4, PAPER)
    slot_of = {step.tile: step.slot for step in execution.timeline.steps}
    for item in items(grid):
        assert len({slot_of[tile] for tile in item}) == 1
