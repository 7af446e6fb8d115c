"""Ends of what searches and measures take: rounding at limits, wrong arguments, other prices."""

from collections.abc import Callable
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import chain, ints
from helpers.placement_random import random_problem
from placement_searches import LoadState, PairSearch, UnitGroups

from byoc.placement import Fusion, Measure, Placement, Problem, evaluate
from byoc.placement.strategies import (
    Exact,
    Exhaustive,
    LaunchAware,
    Makespan,
    Throughput,
    measure_placement,
)

FOUR = chain([3.0] * 4, [2.0] * 4, down=1, up=1)


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
