"""The least load of small problems by trying all placements, and what annealing leaves out."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import chain
from helpers.placement_random import FEATURES, random_problem
from helpers.support import sample_cases
from objectives import find_least_load
from placement_searches import Cooling, LoadAnnealer, UnitGroups
from test_placement_throughput import occupying

from byoc.errors import InputError
from byoc.numerics import SearchBudget
from byoc.placement import find_violation
from byoc.placement.strategies import Throughput


def record_budgets(monkeypatch: pytest.MonkeyPatch) -> list[SearchBudget]:
    """Keep the budgets of what is solved from now on."""
    made: list[SearchBudget] = []

    def make(seconds: float) -> SearchBudget:
        made.append(SearchBudget(seconds))
        return made[-1]

    monkeypatch.setattr("byoc.placement.strategies._throughput.SearchBudget", make)
    return made


@pytest.mark.parametrize("seed", sample_cases(range(120), every=4))
def test_few_placements_are_all_tried(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every limit, regions and fusions: the optimum of another search over all, and proven."""
    rng = np.random.default_rng(seed)
    features = {feature for feature in FEATURES[:7] if rng.random() < 0.4}
    features |= {FEATURES[7 + seed % 2]} if seed % 3 else set()
    problem = occupying(random_problem(seed, 6 - seed % 2, frozenset(features)), seed, 1 + seed % 2)
    best = find_least_load(problem)
    budgets = record_budgets(monkeypatch)
    if best == inf:
        with pytest.raises(InputError, match="no placement keeps all the limits"):
            Throughput().solve(problem)
        return
    placement = Throughput().solve(problem)
    assert find_violation(problem, placement) == ""
    assert placement.value == pytest.approx(best, rel=1e-9)
    assert placement.bound is not None
    assert best * (1 - 1e-9) <= placement.bound <= best
    assert 10 - budgets[0].left < 0.5


def test_what_takes_too_many_regions_to_try_is_searched_as_large_problems_are() -> None:
    """Any set of 13 units is a region: more than 0.01 s are counted for them."""
    problem = random_problem(2, 13, frozenset({"region size", "launch", "two devices"}))
    problem = replace(
        problem,
        producer=np.full_like(problem.producer, -1),
        max_nodes=np.full_like(problem.max_nodes, 2),
        min_nodes=np.full_like(problem.min_nodes, 2),
        size=np.ones_like(problem.size),
    )
    placement = Throughput(time_limit=0.02).solve(problem)
    assert find_violation(problem, placement) == ""
    assert placement.bound is not None
    assert placement.bound < placement.value * (1 - 1e-6)


def test_no_run_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run depends on where it begins, how it cools and its seed; here none finds anything."""
    runs: list[object] = []

    def record(
        _: LoadAnnealer, groups: UnitGroups, labels: Sequence[int], cooling: Cooling, *more: Any
    ) -> tuple[float, list[int]]:
        runs.append((groups.count, tuple(labels), cooling, more[0]))
        return 0.0, list(labels)

    monkeypatch.setattr(LoadAnnealer, "improve", record)
    problem = occupying(random_problem(7, 12, frozenset({"three devices"})), 1)
    Throughput().solve(problem)
    assert len(set(runs)) == len(runs) > 4


def test_no_run_begins_where_the_load_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal halves, for free: a split is as good as can be."""
    monkeypatch.setattr(LoadAnnealer, "improve", None)
    problem = chain(np.full(20, 3.0), np.full(20, 3.0))
    placement = Throughput().solve(problem)
    assert placement.value == 30
    assert placement.bound == pytest.approx(30)
