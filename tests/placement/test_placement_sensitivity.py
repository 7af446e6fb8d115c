"""What other costs of some units gain, against searches of every placement."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.placement_random import random_problem
from helpers.support import sample_cases

from byoc.errors import InputError
from byoc.placement import Placement, Problem, Sensitivity, find_violation
from byoc.placement.strategies import Exhaustive

CASES = [
    (seed, features)
    for seed in range(60)
    for features in (
        frozenset({"launch"}),
        frozenset({"launch", "two devices"}),
        frozenset({"launch", "capacity", "region count"}),
        frozenset[str](),
    )
]


def find_refused(problem: Problem) -> list[int]:
    return np.flatnonzero(np.isinf(problem.seconds[:, 1])).tolist()


def allow(problem: Problem, rows: list[int], seconds: np.ndarray) -> Problem:
    costs = problem.seconds.copy()
    costs[rows, 1] = seconds
    return replace(problem, seconds=costs)


@pytest.mark.parametrize(("seed", "features"), sample_cases(CASES, every=5))
def test_gains_are_those_of_every_placement(seed: int, features: frozenset[str]) -> None:
    """What is found is a placement, between the optimum and the present; the bound holds."""
    problem = random_problem(seed, 9, features)
    rows = find_refused(problem)
    if not rows:
        return
    seconds = problem.seconds[rows, 0] / 4
    try:
        known = Exhaustive().solve(problem)
    except InputError:  # no placement keeps the limits
        return
    sensitivity = Sensitivity(problem, known, 12)
    changed = allow(problem, rows, seconds)
    found, best = sensitivity.solve_changed(rows, 1, seconds), Exhaustive().solve(changed)
    assert not find_violation(changed, found)
    assert best.cost.total <= found.cost.total * (1 + 1e-12)
    assert found.cost.total <= known.cost.total
    if features <= {"launch"}:
        assert known.cost.total - best.cost.total <= sensitivity.bound_gain(rows, 1, seconds) + 1e-12


def test_most_gains_are_exact() -> None:
    """One cut or a few at the multipliers of the present problem find nearly every optimum."""
    exact = asked = 0
    for seed in range(80):
        problem = random_problem(seed, 9, frozenset({"launch"}))
        rows = find_refused(problem)
        if not rows:
            continue
        seconds = problem.seconds[rows, 0] / 4
        sensitivity = Sensitivity(problem, Exhaustive().solve(problem), 12)
        found = sensitivity.solve_changed(rows, 1, seconds)
        best = Exhaustive().solve(allow(problem, rows, seconds))
        exact += math.isclose(found.cost.total, best.cost.total, rel_tol=1e-9)
        asked += 1
    assert asked > 40
    assert exact >= 0.95 * asked


def test_a_worse_placement_is_improved_before_it_is_compared() -> None:
    problem = random_problem(4, 9, frozenset({"launch"}))
    host = Placement.from_labels(problem, np.zeros(problem.units, np.int64))
    optimum = Exhaustive().solve(problem)
    assert optimum.cost.total < host.cost.total
    assert Sensitivity(problem, host, 12).best.cost.total == pytest.approx(optimum.cost.total)


def test_steps_are_counted() -> None:
    """A step is a unit or an entry of a cut for each accelerator; rounds are limited."""
    problem = random_problem(3, 9, frozenset({"launch", "two devices"}))
    host = Placement.from_labels(problem, np.zeros(problem.units, np.int64))
    sensitivity = Sensitivity(problem, host, 3)
    assert sensitivity.round_steps == 2 * (problem.units + len(problem.consumers))
    _ = sensitivity.best
    before = sensitivity.steps
    assert 0 < before <= 3 * sensitivity.round_steps
    rows = find_refused(problem)
    sensitivity.solve_changed(rows, 1, problem.seconds[rows, 0])
    assert before < sensitivity.steps <= before + 2 * sensitivity.round_steps


def test_what_is_ruled_out_without_a_cut_gains_nothing() -> None:
    """A unit alone among units of the host is not tried, and no placement with it is better."""
    ruled_out = asked = 0
    for seed in range(40):
        problem = random_problem(seed, 6, frozenset({"launch"}))
        refused = problem.seconds.copy()
        refused[np.random.default_rng(seed).random(problem.units) < 0.6, 1] = np.inf
        problem = replace(problem, seconds=refused)
        known = Exhaustive().solve(problem)
        sensitivity = Sensitivity(problem, known, 12)
        present = sensitivity.best
        for row in find_refused(problem):
            seconds = problem.seconds[[row], 0] / (1 + row % 4)
            steps = sensitivity.steps
            found = sensitivity.solve_changed([row], 1, seconds)
            asked += 1
            if sensitivity.steps > steps:
                continue
            ruled_out += 1
            best = Exhaustive().solve(allow(problem, [row], seconds))
            assert found is present
            assert best.cost.total == pytest.approx(known.cost.total, rel=1e-9)
    assert asked / 2 > ruled_out > 20
