"""Prices on cuts, what is decided before, and turns of several accelerators, on graphs of some size."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.placement_random import random_problem
from optimality import CHEAP, PRICES
from placement_searches import (
    HostDeviceCuts,
    find_persistent_sides,
    form_regions,
    is_contraction_acyclic,
    schedule_launches,
)

from byoc.placement import Problem, find_violation
from byoc.placement.strategies import Exact


def large(seed: int, *features: str, units: int = 120) -> Problem:
    """Return a problem of 60 units or more."""
    for attempt in range(seed * 100, seed * 100 + 100):
        problem = random_problem(attempt, units, frozenset(features))
        if problem.units >= units // 2:
            return problem
    raise AssertionError


@pytest.mark.parametrize("seed", range(12))
def test_prices_are_close_to_the_optimum_with_launches_alone(seed: int) -> None:
    problem = large(seed, "launch")
    best, found = Exact().solve(problem), PRICES.solve(problem)
    assert find_violation(problem, found) == ""
    assert found.bound is not None
    assert found.bound <= best.cost.total * (1 + 1e-12)
    assert found.cost.total >= best.cost.total * (1 - 1e-9)
    assert found.cost.total <= best.cost.total * 1.02
    assert found.bound >= best.cost.total * 0.97


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("more", ["capacity", "region count", "two devices", "fusions", "must"])
def test_the_default_is_never_worse_than_a_cheap_strategy(seed: int, more: str) -> None:
    problem = large(seed, "launch", more)
    found = PRICES.solve(problem)
    assert find_violation(problem, found) == ""
    assert found.bound is not None
    assert found.bound <= found.cost.total
    for strategy in CHEAP:
        if more == "two devices" and strategy.name == "min-cut":
            continue
        other = strategy.solve(problem)
        if not find_violation(problem, other):
            assert found.cost.total <= other.cost.total
            assert found.bound <= other.cost.total


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("launch", [0.0, 0.3])
def test_what_is_decided_is_so_in_every_optimum(seed: int, launch: float) -> None:
    problem = replace(large(seed), launch=np.array([launch]))
    side = find_persistent_sides(problem, launch)
    labels = Exact().solve(problem).labels
    settled = side != -1
    assert settled.any()
    assert (labels[settled] == side[settled]).all()
    nothing = np.full(problem.units, -1, np.int64)
    value, on_device = HostDeviceCuts(problem, 1, nothing).solve()
    other, same = HostDeviceCuts(problem, 1, find_persistent_sides(problem, 0.0)).solve()
    assert other == pytest.approx(value, rel=1e-11)
    assert (same == on_device).all()


@pytest.mark.parametrize("seed", range(30))
def test_patient_turns_launch_one_device_at_a_time(seed: int) -> None:
    problem = large(seed, "three devices")
    labels = np.random.default_rng(seed).integers(0, 4, problem.units)
    slots = schedule_launches(problem, labels)
    for slot in set(slots[labels > 0].tolist()):
        assert len(set(labels[(slots == slot) & (labels > 0)].tolist())) == 1
    source, target = problem.edges
    returns = (labels[source] == 0) & (labels[target] > 0)
    assert (slots[target] >= slots[source] + returns).all()
    assert (slots[labels > 0] >= 1).all()
    regions = form_regions(problem, labels)
    assert is_contraction_acyclic(problem, regions)
    assert regions.max() + 1 <= len(set(slots[labels > 0].tolist()))
