"""Makespan and throughput against brute force on random problems of 2 to 4 accelerators with limits.

`PYTHONPATH=tests python tests/placement/objectives.py [problems]` prints for each objective how many of
so many problems are solved to the optimum, how far the others are from it, and how near the bounds are.
Every problem has at least one limit of memory, regions or units; transfers occupy anything.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf

import numpy as np
from helpers.placement_oracle import every_region, slow_savings
from helpers.placement_random import random_problem
from schedule_oracle import slow_makespan
from test_placement_throughput import slow_loads

from byoc.errors import InputError
from byoc.placement import UNLIMITED, Occupancy, Placement, Problem, Strategy, find_violation
from byoc.placement.strategies import Makespan, Throughput

_LIMITS = ("must", "capacity", "region count", "region size", "connected")
_DEVICES = ("two devices", "three devices", "four devices")
_UNITS = (6, 5, 4)


def build_problem(seed: int) -> Problem:
    """A random problem of 2 to 4 accelerators, with launches, and one limit or more."""
    which = seed % len(_DEVICES)
    rng = np.random.default_rng(seed)
    kept = [limit for limit in _LIMITS if rng.random() < 0.5] or [_LIMITS[seed % len(_LIMITS)]]
    problem = random_problem(seed, _UNITS[which], frozenset({"launch", _DEVICES[which], *kept}))
    kinds = list(Occupancy)
    occupies = tuple(kinds[(seed // 3 + device) % len(kinds)] for device in range(problem.devices))
    return replace(problem, occupies=occupies, cores=(1, 2, UNLIMITED)[seed // 2 % 3])


def find_least_load(problem: Problem) -> float:
    """The least maximal load of all lawful labels, regions and fusions."""
    best = inf
    on_device = [
        replace(problem, fusions=tuple(each for each in problem.fusions if each.device == 1 + device))
        for device in range(problem.devices)
    ]
    for labels, regions in every_region(problem):
        saved = [slow_savings(each, labels, regions) for each in on_device]
        best = min(best, max(slow_loads(problem, list(labels), regions, saved)))
    return best


def measure_ratios(
    problem: Problem, strategy: Strategy, find_least: Callable[[Problem], float]
) -> tuple[float, float] | None:
    """The value and the bound as multiples of the optimum; None where both find nothing lawful."""
    best = find_least(problem)
    try:
        found = strategy.solve(problem)
    except InputError:
        assert best == inf
        return None
    assert isinstance(found, Placement)
    wrong = find_violation(problem, found)
    assert (wrong == "") == (best < inf), wrong
    if wrong:
        return None
    assert found.bound is not None
    assert found.bound <= best * (1 + 1e-12)
    assert found.value >= best * (1 - 1e-12)
    return (found.value / best, found.bound / best) if best else (1.0, 1.0)


def main(count: int) -> None:
    """Print a line for each objective."""
    objectives = (
        ("makespan", Makespan(), slow_makespan),
        ("throughput", Throughput(), find_least_load),
    )
    for name, strategy, find_least in objectives:
        found = [measure_ratios(build_problem(seed), strategy, find_least) for seed in range(count)]
        solved = [each for each in found if each is not None]
        values, bounds = zip(*solved, strict=True)
        optimal = sum(value < 1 + 1e-9 for value in values)
        sys.stdout.write(
            f"{name}: {len(solved)} of {count} can be solved, {optimal} of them optimal, "
            f"mean {np.mean(values):.4f}, worst {max(values):.3f}; "
            f"bound {np.mean(bounds):.3f} of the optimum on average\n"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 60)
