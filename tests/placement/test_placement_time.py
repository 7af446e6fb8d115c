"""Time limits of large problems: what is not counted step by step has a counted allowance."""

from typing import Any

import pytest
from large_problems import layered_problem
from placement_searches import CoverSearch, LoadFrontier, UnitGroups, split_chain

from byoc.numerics import SearchBudget
from byoc.placement import find_violation
from byoc.placement.strategies import LaunchAware, Makespan, Throughput, TreeDP


class RanError(Exception):
    """Something ran for which there is no time."""


def refuse(*_: object, **__: object) -> Any:
    raise RanError


def test_starting_points_without_time_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered_problem(0, 300, 2)
    monkeypatch.setattr(TreeDP, "solve", refuse)
    monkeypatch.setattr(LaunchAware, "solve", refuse)
    with pytest.raises(RanError):
        Makespan().solve(problem)
    assert find_violation(problem, Makespan(time_limit=0.01).solve(problem)) == ""


def test_tables_of_loads_are_not_made_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layered_problem(0, 60, 2)
    groups, setup = UnitGroups.from_problem(problem), SearchBudget(1.0)
    CoverSearch(problem, groups, 0.0, setup).search(1000.0, [], SearchBudget(0.1))
    assert setup.left < 1.0
    monkeypatch.setattr(LoadFrontier, "build", refuse)
    search = CoverSearch(problem, groups, 0.0, SearchBudget(0.0))
    search.search(1000.0, [], SearchBudget(0.1))
    assert search.bound == 0
    order = range(groups.count)
    assert split_chain(groups, order, problem.occupies, 1, SearchBudget(0.0)) is None
    assert split_chain(groups, order, problem.occupies, 1, SearchBudget(1.0)) is not None


def test_annealing_ends_where_its_preparation_has_taken_the_limit() -> None:
    problem = layered_problem(0, 600, 2)
    placement = Throughput(time_limit=0.001).solve(problem)
    assert find_violation(problem, placement) == ""
    assert placement.bound is not None
    assert placement.bound > 0
