"""Ends of what searches and measures take: rounding at limits, wrong arguments, other prices."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import chain
from helpers.placement_random import random_problem
from hypothesis import given
from hypothesis import strategies as st

from byoc.placement import (
    Fusion,
    LoadState,
    Measure,
    PairSearch,
    Placement,
    Problem,
    UnitGroups,
    evaluate,
)
from byoc.placement._load_covering import CoverDevices, _scale
from byoc.placement.strategies import (
    Exact,
    Exhaustive,
    LaunchAware,
    Makespan,
    Throughput,
    measure_placement,
)

FOUR = chain([3.0] * 4, [2.0] * 4, down=1, up=1)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("labels", "regions", "fused"),
    [
        ((1, 1, 1, 1), (0, 0, 0, 0), True),
        ((1, 1, 0, 0), (0, 0, -1, -1), True),
        ((1, 1, 0, 1), (0, 0, -1, 1), True),
        ((0, 0, 1, 1), (-1, -1, 0, 0), False),
        ((0, 1, 1, 1), (-1, 0, 0, 0), False),
        ((1, 0, 1, 1), (0, -1, 1, 1), False),
        ((1, 1, 1, 1), (0, 1, 1, 1), False),
    ],
)
def test_what_a_fusion_saves_counts_in_one_region_of_its_device(
    labels: tuple[int, ...], regions: tuple[int, ...], fused: bool
) -> None:
    problem = replace(FOUR, fusions=(Fusion((0, 1), 1, 0.5), Fusion((2, 3), 1, 0.25)))
    plain = evaluate(problem, ints(*labels), ints(*regions))
    assert plain.saved == 0
    if fused:
        cost = evaluate(problem, ints(*labels), ints(*regions), (0,))
        assert (cost.saved, cost.total) == (0.5, plain.total - 0.5)
        return
    with pytest.raises(ValueError, match=r"^fusion 0 is chosen and not in one region of its device$"):
        evaluate(problem, ints(*labels), ints(*regions), (0,))


@pytest.mark.parametrize("kind", [Exact, LaunchAware, Makespan, Throughput])
@pytest.mark.parametrize("seconds", [0.0, -1.0, nan])
def test_no_strategy_takes_a_limit_that_is_none(kind: Callable[..., Any], seconds: float) -> None:
    with pytest.raises(ValueError, match=r"^time_limit is "):
        kind(time_limit=seconds)
    assert kind(time_limit=1e-9).time_limit == 1e-9


@pytest.mark.parametrize("measure", [*Measure])
def test_a_bound_is_one_on_what_it_was_proven_for(measure: Measure) -> None:
    placement = Placement.from_labels(FOUR, ints(1, 1, 1, 1), 9.0, ("a note",))
    assert placement.measure is Measure.total
    found = measure_placement(FOUR, placement, measure)
    assert found.measure is measure
    assert found.bound == (placement.bound if measure is Measure.total else None)
    assert found.notes == ("a note",)
    again = measure_placement(FOUR, replace(found, bound=7.0), measure)
    assert (again.measure, again.bound, again.value) == (measure, 7.0, found.value)
    total = measure_placement(FOUR, replace(found, bound=7.0), Measure.total)
    assert total.bound == (7.0 if measure is Measure.total else None)


@pytest.mark.parametrize("boundary", [0.25, 0.5, 1.5, 4.0])
@pytest.mark.parametrize("seed", [0, 2, 3, 7])
def test_a_bound_at_other_prices_is_one_at_the_true_ones(boundary: float, seed: int) -> None:
    """And no lower than the prices allow: it is proven where they play no part."""
    problem = random_problem(seed, 6, frozenset({"two devices", "launch"}))
    found = LaunchAware(boundary=boundary).solve(problem)
    best = Exhaustive().solve(problem).cost.total
    assert found.bound is not None
    assert found.bound <= best * (1 + 1e-9)
    assert found.cost.total >= best * (1 - 1e-9)
    free = replace(
        problem,
        to_device=np.zeros_like(problem.to_device),
        to_host=np.zeros_like(problem.to_host),
        launch=np.zeros_like(problem.launch),
    )
    least = Exhaustive().solve(free).cost.total
    assert LaunchAware(boundary=boundary).solve(free).bound == pytest.approx(
        least / max(1.0, boundary), rel=1e-6
    )


def fit(over: float) -> Problem:
    """Three units whose bytes, added up, are the capacity but for rounding and some more."""
    problem = chain([3.0] * 3, [1.0] * 3)
    memory = np.array([[0.1], [0.2], [0.3]])
    return replace(problem, memory=memory, capacity=np.array([0.6]) * (1 - over))


@pytest.mark.parametrize(("over", "fits"), [(0.0, True), (5e-13, True), (2e-12, False), (0.1, False)])
def test_bytes_may_be_above_the_capacity_by_rounding_alone(over: float, fits: bool) -> None:
    problem = fit(over)
    assert 0.1 + 0.2 + 0.3 > 0.6
    groups = UnitGroups.from_problem(problem)
    loads = PairSearch(problem, groups)._measure([1] * groups.count)
    assert np.isfinite(loads).all() == fits
    state = LoadState(groups, problem.occupies, 1, [1, 1, 0])
    assert (state.examine(2, 1) is not None) == fits


amounts = st.lists(
    st.tuples(st.integers(0, 6), st.one_of(st.integers(0, 8), st.just(inf))), min_size=1, max_size=6
)


@given(amounts, st.integers(1, 12), st.integers(1, 3))
def test_divided_groups_have_the_profit_of_the_best_division(
    each: list[tuple[int, float]], most: int, count: int
) -> None:
    """By the dual: some price of a second, that of one of the groups, leaves the least."""
    profit, costs = ints(*(p for p, _ in each)), np.array([float(c) for _, c in each])
    devices = CoverDevices([*range(1, 1 + count)], costs)
    loads = np.arange(0.0, most + 1)
    able = [(p, Fraction(int(c))) for p, c in each if c <= most and p > 0]
    prices = {Fraction(0), *(Fraction(p) / c for p, c in able if c)}
    found = devices.divide_groups(profit, loads, float(most))
    for load, value in zip(loads.tolist(), found.tolist(), strict=True):
        least = min(
            price * Fraction(load) + sum(max(Fraction(0), p - price * c) for p, c in able)
            for price in prices
        )
        assert value == pytest.approx(float(least))
    assert devices.search_seconds == devices.proof_seconds == 0
    bounds = devices.bound_profits(profit, 0.5, 2 * most, float(most))
    again = devices.divide_groups(profit, np.arange(1, 2 * most + 1) * 0.5, float(most))
    np.testing.assert_allclose(bounds, count * again)


@given(st.lists(st.one_of(st.floats(0, 1e300), st.just(inf), st.just(nan)), max_size=6))
def test_profits_are_as_large_as_a_table_takes(profit: list[float]) -> None:
    found = _scale(np.array(profit))
    finite = [each for each in profit if np.isfinite(each)]
    assert found.dtype == np.int64
    assert found.sum() <= 2**28 - 1
    assert [each > 0 for each in found.tolist()] <= [np.isfinite(each) for each in profit]
    if finite and max(finite) > 0:
        assert found.sum() >= 2**28 - 1 - len(profit)
        total = sum(Fraction(each) for each in finite)
        for each, share in zip(profit, found.tolist(), strict=True):
            exact = Fraction(each) / total * (2**28 - 1) if np.isfinite(each) else 0
            assert abs(share - exact) <= 1 + exact * Fraction(1, 2**40)
    else:
        assert not found.any()
