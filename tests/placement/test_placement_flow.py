"""Minimum cuts beyond what scipy's int32 can hold."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_oracle import COSTS, thorough

from byoc.placement.solvers._minimum_cut import CutNetwork, find_minimum_cut


def network(size: int, *arcs: tuple[int, int, float]) -> CutNetwork:
    """Node 0 is the source, node 1 the sink."""
    tail, head, capacity = zip(*arcs, strict=True)
    return CutNetwork(size, 0, 1, np.array(tail), np.array(head), np.array(capacity, np.float64))


def test_capacities_that_would_wrap() -> None:
    value, side = find_minimum_cut(network(3, (0, 2, 2.0**31 + 10), (2, 1, 2.0**40)), 2.0**40)
    assert value == 2**31 + 10
    assert side.tolist() == [False, True, True]


def test_small_differences_beside_large_capacities() -> None:
    """Node 2 and node 3 differ in the 36th bit; a single int32 solve sees no difference."""
    near = 1 + 2.0**-36
    arcs = [(0, 2, 1.0), (2, 1, near), (0, 3, near), (3, 1, 1.0), (0, 1, 4.0)]
    value, side = find_minimum_cut(network(4, *arcs), 8.0)
    assert value == 6
    assert side.tolist() == [False, True, True, False]


def test_a_tie_leaves_the_node_on_the_source_side() -> None:
    value, side = find_minimum_cut(network(4, (0, 2, 0.3), (2, 3, inf), (3, 2, inf), (3, 1, 0.3)), 0.3)
    assert value == pytest.approx(0.3, rel=1e-14)
    assert side.tolist() == [False, True, False, False]


def test_many_parallel_endless_arcs() -> None:
    arcs = [(0, 2, inf)] * 1000 + [(0, 2, 1e300)] * 1000 + [(2, 1, 0.25)] * 4
    assert find_minimum_cut(network(3, *arcs), 1.0)[0] == 1


@st.composite
def networks(draw: st.DrawFn) -> CutNetwork:
    size = draw(st.integers(2, 7))
    node = st.integers(0, size - 1)
    arc = st.tuples(node, node, COSTS | st.just(inf)).filter(lambda arc: arc[0] != arc[1])
    arcs = draw(st.lists(arc, min_size=1, max_size=20))
    return network(size, *((u, v, c if (u, v) != (0, 1) else 0.0) for u, v, c in arcs))


@thorough
@given(networks())
def test_equals_the_least_of_all_cuts(drawn: CutNetwork) -> None:
    def cost(side: tuple[bool, ...]) -> float:
        arcs = zip(drawn.tail, drawn.head, drawn.capacity, strict=True)
        return float(sum(capacity for u, v, capacity in arcs if not side[u] and side[v]))

    rest = list(product((False, True), repeat=drawn.size - 2))
    sides = [(False, True, *others) for others in rest]
    costs = {side: cost(side) for side in sides}
    finite = [value for value in costs.values() if 0 < value < inf]
    if not finite:
        return
    best = min(costs.values())
    for ceiling in (min(finite), max(finite)):
        value, side = find_minimum_cut(drawn, ceiling)
        assert value <= best * (1 + 1e-15)
        assert value == pytest.approx(best, abs=20 * 2.0**-49 * ceiling, rel=0)
        assert costs[tuple(side.tolist())] == pytest.approx(best, abs=20 * 2.0**-49 * ceiling)
