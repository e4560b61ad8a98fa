"""A schedule as a weighted graph: one node per compute and per add, and what must come first.

It states the rules of csrc/schedule/timeline.hpp a second time, as edges, so that a longest path
checks the simulator's clock and shows what bounds a schedule's time.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import _schedule

SOURCE = 0


@dataclass
class Dag:
    """Nodes are 0 .. len(weights) - 1; node 0 is the start, of weight 0. An edge (u, v, delay): v
    begins no earlier than u's end plus delay. Edges go from a lower to a higher node."""

    weights: list[float] = field(default_factory=lambda: [0.0])
    edges: list[tuple[int, int, float]] = field(default_factory=list)

    def add_node(self, weight: float) -> int:
        """A new node that begins at 0 or later; returns its number."""
        self.weights.append(weight)
        return len(self.weights) - 1


def order(dag: Dag) -> list[int]:
    """Nodes in an order in which every edge goes forward.

    Raises:
        ValueError: there is a cycle.
    """
    incoming = [0] * len(dag.weights)
    after: dict[int, list[int]] = defaultdict(list)
    for u, v, _ in dag.edges:
        incoming[v] += 1
        after[u].append(v)
    ready = [node for node, count in enumerate(incoming) if count == 0]
    ordered = []
    while ready:
        node = ready.pop()
        ordered.append(node)
        for v in after[node]:
            incoming[v] -= 1
            if incoming[v] == 0:
                ready.append(v)
    if len(ordered) != len(dag.weights):
        raise ValueError(f"{len(dag.weights) - len(ordered)} nodes are on or behind a cycle")
    return ordered


def depths(dag: Dag) -> tuple[list[float], list[int]]:
    """For each node the earliest end, and the node that it waits for last (-1 if none)."""
    into: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for u, v, delay in dag.edges:
        into[v].append((u, delay))
    ends = [0.0] * len(dag.weights)
    waits_for = [-1] * len(dag.weights)
    for node in order(dag):
        begin = 0.0
        for u, delay in into[node]:
            if waits_for[node] < 0 or ends[u] + delay > begin:
                begin = max(begin, ends[u] + delay)
                waits_for[node] = u
        ends[node] = begin + dag.weights[node]
    return ends, waits_for


def longest_path(dag: Dag) -> tuple[float, list[int]]:
    """Length of the critical path, and its nodes from first to last."""
    ends, waits_for = depths(dag)
    node = max(range(len(ends)), key=ends.__getitem__)
    path = [node]
    while waits_for[path[-1]] >= 0:
        path.append(waits_for[path[-1]])
    return ends[node], path[::-1]


@dataclass(frozen=True)
class StepNodes:
    """The nodes of one step of a timeline."""

    compute: int
    add: int


def build(
    grid: _schedule.TileGrid, steps: Sequence[_schedule.Step], costs: _schedule.Costs
) -> tuple[Dag, list[StepNodes]]:
    """The graph of a simulated execution; which slot ran which item is taken from `steps`.

    Args:
        steps: of `_schedule.simulate(grid, slots, costs)`.

    Returns:
        The graph, whose longest path is as long as the simulation when every work tile has a Q
        tile; and for each step its nodes.
    """
    dag = Dag()
    nodes = [StepNodes(dag.add_node(costs.compute), dag.add_node(costs.reduce)) for _ in steps]
    by_slot: dict[int, list[int]] = defaultdict(list)
    by_chain: dict[tuple[int, int, int], list[tuple[int, int]]] = defaultdict(list)
    for index, step in enumerate(steps):
        by_slot[step.slot].append(index)
        _, bidh, bidb = step.tile
        by_chain[bidh, bidb, step.m_block].append((step.turn, index))
    ordered = _schedule.is_ordered(grid)
    for sequence in by_slot.values():
        _add_slot(dag, sequence, steps, nodes, costs, ordered)
    if ordered:
        for chain in by_chain.values():
            chain.sort()
            for (_, before), (_, after) in itertools.pairwise(chain):
                dag.edges.append((nodes[before].add, nodes[after].add, costs.lag))
    return dag, nodes


def _add_slot(
    dag: Dag,
    sequence: list[int],
    steps: Sequence[_schedule.Step],
    nodes: list[StepNodes],
    costs: _schedule.Costs,
    ordered: bool,
) -> None:
    """Edges of one slot: steps in order, buffers, writers, and what lies between work tiles."""
    writers, buffers = costs.writers, costs.buffers
    edges = dag.edges
    for place, index in enumerate(sequence):
        node = nodes[index]
        edges.append((node.compute, node.add, 0.0))
        between = costs.prologue
        if place == 0:
            edges.append((SOURCE, node.compute, between))
            continue
        before = nodes[sequence[place - 1]]
        is_new_tile = steps[sequence[place - 1]].tile != steps[index].tile
        between = costs.epilogue + costs.prologue if is_new_tile else 0.0
        if writers == 0:
            edges.append((before.add, node.compute, between))
            continue
        edges.append((before.compute, node.compute, between))
        edges.append((before.add, node.add, 0.0))
        if place > buffers:
            freed = nodes[sequence[place - 1 - buffers]]
            edges.append((freed.add, node.compute, between))
        if place >= buffers:
            edges.append((nodes[sequence[place - buffers]].add, node.add, 0.0))
        if ordered and place >= writers:
            edges.append((nodes[sequence[place - writers]].add, node.add, costs.lag))
        if is_new_tile and steps[index].after_adds:
            edges.append((before.add, node.compute, costs.lag + costs.prologue))
