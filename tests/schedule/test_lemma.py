"""Lemma 1 of the paper, and why its condition is needed.

Parallel isomorphic chains C -> R -> C -> R ...; zero-weight edges (u, v) between nodes of different
chains. They leave the critical path unchanged if depth(u) <= depth(v) for each of them, where
depth(u) is when u ends and depth(v) when v may begin.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dash.dag import SOURCE, Dag, depths, longest_path

Place = tuple[int, int]  # chain, position in it


def parallel_chains(num_chains: int, weights: list[int]) -> tuple[Dag, dict[Place, int]]:
    dag, nodes = Dag(), {}
    for chain in range(num_chains):
        before = SOURCE
        for position, weight in enumerate(weights):
            nodes[chain, position] = dag.add_node(float(weight))
            dag.edges.append((before, nodes[chain, position], 0.0))
            before = nodes[chain, position]
    return dag, nodes


@st.composite
def chains_and_edges(draw: st.DrawFn) -> tuple[int, list[int], list[tuple[Place, Place]]]:
    """Edges (u, v) from position i to position j >= i of another chain, but none among equal
    positions that would close a cycle: those go to a higher chain."""
    num_chains = draw(st.integers(2, 6))
    weights = draw(st.lists(st.integers(1, 9), min_size=1, max_size=10))
    place = st.tuples(st.integers(0, num_chains - 1), st.integers(0, len(weights) - 1))
    edges = []
    for u, v in draw(st.lists(st.tuples(place, place), max_size=40)):
        (a, i), (b, j) = sorted((u, v), key=lambda x: (x[1], x[0]))
        if a != b:
            edges.append(((a, i), (b, j)))
    return num_chains, weights, edges


@given(chains_and_edges())
def test_edges_with_depth_lengthen_nothing(
    case: tuple[int, list[int], list[tuple[Place, Place]]],
) -> None:
    """depth(u) is the time at which u's chain ends u, depth(v) the time at which v may begin: an
    edge from position i to a later one, j > i."""
    num_chains, weights, edges = case
    dag, nodes = parallel_chains(num_chains, weights)
    length = longest_path(dag)[0]
    assert length == sum(weights)
    for u, v in edges:
        if u[1] < v[1]:
            dag.edges.append((nodes[u], nodes[v], 0.0))
    ends, _ = depths(dag)
    assert longest_path(dag)[0] == length
    for (_, position), node in nodes.items():
        assert ends[node] == sum(weights[: position + 1])


@given(chains_and_edges())
def test_an_edge_against_the_depth_lengthens_the_path(
    case: tuple[int, list[int], list[tuple[Place, Place]]],
) -> None:
    """v would have begun before u ends: everything after v is late by the difference."""
    num_chains, weights, edges = case
    for u, v in edges:
        if u[1] <= v[1]:
            dag, nodes = parallel_chains(num_chains, weights)
            dag.edges.append((nodes[v], nodes[u], 0.0))
            late = sum(weights[u[1] : v[1] + 1])
            assert longest_path(dag)[0] == sum(weights) + late


def test_equal_steps_of_two_chains() -> None:
    """The paper's own case: two KV tiles that visit one Q tile at the same step. The second's add
    waits for the first's, so the path grows by one reduce; shifted by a step it does not."""
    compute, reduce, steps = 5, 2, 3
    dag, nodes = parallel_chains(2, [compute, reduce] * steps)
    dag.edges.append((nodes[0, 1], nodes[1, 1], 0.0))
    assert longest_path(dag)[0] == steps * (compute + reduce) + reduce
    dag, nodes = parallel_chains(2, [compute, reduce] * steps)
    dag.edges.append((nodes[0, 1], nodes[1, 3], 0.0))
    assert longest_path(dag)[0] == steps * (compute + reduce)
