"""Minimum cuts beyond what scipy's int32 can hold."""

from collections.abc import Sequence
from itertools import product
from math import inf
from typing import Any

import pytest
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.numerics.solvers import find_minimum_cut

COSTS = st.sampled_from([0.0, 1e-12, 1e-6, 0.1, 0.2, 0.3, 1.0, 2.0, 7.5, 1e6]) | st.floats(0, 4)

MANY = 300
"""Arcs of a network that is too large for paths to be searched in Python."""

Network = tuple[int, list[tuple[int, int, float]]]


def find_cut(size: int, arcs: Sequence[Any], ceiling: float | None = None) -> tuple[float, Any]:
    """Return a minimum cut: the same whether paths are searched in Python or scipy is called."""
    value, side = find_minimum_cut(size, arcs, ceiling)
    # Arcs without capacity change nothing, but scipy is called where there are many.
    longer = [[*part, *[end] * MANY] for part, end in zip(arcs, (0, 1, 0.0), strict=True)]
    other_value, other_side = find_minimum_cut(size, longer, ceiling)
    assert value == other_value
    assert side.tolist() == other_side.tolist()
    return value, side


def cut(
    size: int, *arcs: tuple[int, int, float], ceiling: float | None = None
) -> tuple[float, list[bool]]:
    """Return a minimum cut's value and the nodes on its sink side; node 0 is the source, 1 the sink."""
    value, side = find_cut(size, list(zip(*arcs, strict=True)), ceiling)
    assert find_cut(size, list(zip(*arcs, strict=True)))[1].tolist() == side.tolist()
    return value, side.tolist()


def test_capacities_that_would_wrap() -> None:
    value, side = cut(3, (0, 2, 2.0**31 + 10), (2, 1, 2.0**40), ceiling=2.0**40)
    assert value == 2**31 + 10
    assert side == [False, True, True]


def test_small_differences_beside_large_capacities() -> None:
    """Node 2 and node 3 differ in the 36th bit; a single int32 solve sees no difference."""
    near = 1 + 2.0**-36
    arcs = [(0, 2, 1.0), (2, 1, near), (0, 3, near), (3, 1, 1.0), (0, 1, 4.0)]
    value, side = cut(4, *arcs, ceiling=8.0)
    assert value == 6
    assert side == [False, True, True, False]


def test_a_tie_leaves_the_node_on_the_source_side() -> None:
    value, side = cut(4, (0, 2, 0.3), (2, 3, inf), (3, 2, inf), (3, 1, 0.3), ceiling=0.3)
    assert value == pytest.approx(0.3, rel=1e-14)
    assert side == [False, True, False, False]


def test_many_parallel_endless_arcs() -> None:
    arcs = [(0, 2, inf)] * 1000 + [(0, 2, 1e300)] * 1000 + [(2, 1, 0.25)] * 4
    assert cut(3, *arcs, ceiling=1.0)[0] == 1


@st.composite
def networks(draw: st.DrawFn) -> Network:
    size = draw(st.integers(2, 7))
    node = st.integers(0, size - 1)
    arc = st.tuples(node, node, COSTS | st.just(inf)).filter(lambda arc: arc[0] != arc[1])
    arcs = draw(st.lists(arc, min_size=1, max_size=20))
    return size, [(u, v, c if (u, v) != (0, 1) else 0.0) for u, v, c in arcs]


@settings(max_examples=examples(300), deadline=None)
@given(networks())
def test_equals_the_least_of_all_cuts(drawn: Network) -> None:
    size, arcs = drawn

    def cost(side: tuple[bool, ...]) -> float:
        return float(sum(capacity for u, v, capacity in arcs if not side[u] and side[v]))

    rest = list(product((False, True), repeat=size - 2))
    sides = [(False, True, *others) for others in rest]
    costs = {side: cost(side) for side in sides}
    finite = [value for value in costs.values() if 0 < value < inf]
    if not finite:
        return
    best = min(costs.values())
    for ceiling in (min(finite), max(finite)):
        value, side = find_cut(size, list(zip(*arcs, strict=True)), ceiling)
        assert value <= best * (1 + 1e-15)
        assert value == pytest.approx(best, abs=20 * 2.0**-49 * ceiling, rel=0)
        assert costs[tuple(side.tolist())] == pytest.approx(best, abs=20 * 2.0**-49 * ceiling)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 2**40)), min_size=1))
def test_whole_numbers_are_exact(arcs: list[tuple[int, int, int]]) -> None:
    cuts = [
        sum(c for tail, head, c in arcs if side >> tail & 1 and not side >> head & 1)
        for side in range(1 << 6)
        if side & 1 and not side & 2
    ]

    assert find_cut(6, list(zip(*arcs, strict=True)))[0] == min(cuts)
