"""Makespans with transfers that occupy links, devices or the host, and with limits: against brute force.

As a program, `python tests/placement/test_placement_makespan_transfers.py [problems]` tries more
problems, and prints how far the answers are from the optimum.
"""

import sys
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from helpers.placement_random import random_problem
from helpers.support import sample_cases
from optimality import CHEAP, attempt, features_of
from schedule_oracle import find_least_makespan, gather_jobs, slow_makespan

from byoc.errors import InputError
from byoc.placement import (
    UNLIMITED,
    ListScheduler,
    Measure,
    Occupancy,
    Placement,
    Problem,
    find_violation,
)
from byoc.placement.strategies import LaunchAware, Makespan, measure_placement

_UNITS = {1: 6, 2: 5, 3: 4, 4: 4}
_SEVERAL = ("two devices", "three devices", "four devices")


def build_problem(seed: int, most_units: int | None = None) -> Problem:
    """A random problem with any limits, 1 to 4 accelerators, every kind of transfer, 1 to all cores."""
    devices = 1 + seed % 4
    features = features_of(seed) - {"fusions", *_SEVERAL} | set(
        _SEVERAL[max(devices - 2, 0) : devices - 1]
    )
    problem = random_problem(seed, most_units or _UNITS[devices], frozenset(features))
    kinds = list(Occupancy)
    occupies = tuple(kinds[(seed // 4 + device) % len(kinds)] for device in range(devices))
    return replace(problem, occupies=occupies, cores=(1, 2, UNLIMITED)[seed % 3])


def measure_ratio(seed: int) -> tuple[float, float]:
    """The makespan and the bound as multiples of the optimum, (1, 1) where nothing is lawful."""
    problem = build_problem(seed)
    best = slow_makespan(problem)
    try:
        found = Makespan().solve(problem)
    except InputError:
        assert best == inf
        return 1.0, 1.0
    wrong = find_violation(problem, found)
    assert (wrong == "") == (best < inf), wrong
    if wrong:
        return 1.0, 1.0
    assert found.bound is not None
    assert found.bound <= best * (1 + 1e-12)
    assert found.value >= best * (1 - 1e-12)
    return (found.value / best, found.bound / best) if best else (1.0, 1.0)


@pytest.mark.parametrize("start", sample_cases(range(0, 240, 30), 0))
def test_against_all_labels_regions_and_orders(start: int) -> None:
    ratios = [measure_ratio(seed) for seed in range(start, start + 30)]
    assert np.mean([value < 1 + 1e-9 for value, _ in ratios]) >= 0.9
    assert max(value for value, _ in ratios) < 1.3


@pytest.mark.parametrize("seed", range(30))
def test_a_list_schedule_is_one_of_all_orders(seed: int) -> None:
    problem = build_problem(seed, 5)
    rng = np.random.default_rng(seed)
    labels = [int(rng.choice(np.flatnonzero(np.isfinite(row)))) for row in problem.seconds]
    regions = Placement.from_labels(problem, np.array(labels)).regions.tolist()
    schedule = ListScheduler(problem).schedule(labels, regions)
    assert schedule is not None
    least = inf
    for jobs in gather_jobs(problem, labels, regions):
        least = find_least_makespan(jobs, problem.cores, least)
    assert least * (1 - 1e-12) <= schedule.makespan <= 1.5 * least


@pytest.mark.parametrize("seed", sample_cases(range(60), every=11))
def test_never_worse_than_launch_aware_or_a_cheap_strategy(seed: int) -> None:
    """With capacities, musts, and all other limits; transfers that occupy anything."""
    problem = build_problem(seed, 14)
    answers = [attempt(strategy, problem) for strategy in (LaunchAware(), *CHEAP)]
    lawful = [answer for answer in answers if answer is not None and not find_violation(problem, answer)]
    found = attempt(Makespan(), problem)
    if not lawful:
        assert found is None or find_violation(problem, found)
        return
    assert found is not None
    assert find_violation(problem, found) == ""
    assert found.bound is not None
    assert found.bound <= found.value
    for answer in lawful:
        assert found.value <= measure_placement(problem, answer, Measure.makespan).value


def test_a_link_is_used_by_one_tensor_at_a_time_by_hand() -> None:
    """Two inputs of 2 s, two units of 3 s on the accelerator, then two results of 1 s."""
    problem = Problem.build(
        seconds=[[50.0, 3.0], [50.0, 3.0]],
        producer=[-1, -1, 0, 1],
        consumers=[[0], [1], [], []],
        is_output=[False, False, True, True],
        to_device=[[2.0]] * 4,
        to_host=[[1.0]] * 4,
        launch=[0.0],
    )
    times = {}
    for kind in Occupancy:
        other = replace(problem, occupies=(kind,))
        schedule = ListScheduler(other).schedule([1, 1], [0, 1])
        assert schedule is not None
        times[kind] = schedule.makespan
    # Inputs at 2 and at 2 (or 4), units from 2 to 5 and from 5 to 8, a result from 8 to 9.
    assert times == {
        Occupancy.nothing: 9.0,
        Occupancy.link: 9.0,
        Occupancy.host: 9.0,
        Occupancy.device: 12.0,
    }


def main(count: int) -> None:
    found = [measure_ratio(seed) for seed in range(count)]
    values = [value for value, _ in found]
    optimal = sum(value < 1 + 1e-9 for value in values)
    sys.stdout.write(
        f"{optimal} of {count} optimal, mean {np.mean(values):.4f}, worst {max(values):.3f}; "
        f"bound {np.mean([bound for _, bound in found]):.3f} of the optimum on average\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
