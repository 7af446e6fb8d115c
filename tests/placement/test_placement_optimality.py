"""A sample of what `optimality.py` examines in full, and the search itself against a slower one."""

import math

import pytest
from helpers.placement_oracle import slow_best
from helpers.placement_random import FEATURES, count_devices, random_problem
from helpers.support import sample_cases
from optimality import attempt, examine, features_of

from byoc.placement import find_violation
from byoc.placement.strategies import Exhaustive

SEEDS = range(60)


@pytest.mark.parametrize("seed", sample_cases(SEEDS, every=6))
def test_nothing_beats_the_optimum_and_exact_reaches_it(seed: int) -> None:
    assert examine(seed).wrong == []


def test_the_sample_has_every_feature_often() -> None:
    asked = [features_of(seed) for seed in SEEDS]
    assert all(sum(name in features for features in asked) >= 12 for name in FEATURES)
    assert sum(not features for features in asked) >= 1
    assert sum(len(features) >= 3 for features in asked) >= 20


@pytest.mark.parametrize("seed", sample_cases(range(1000, 1080), every=2))
def test_exhaustive_agrees_with_every_partition_into_regions(seed: int) -> None:
    features = features_of(seed)
    most = {1: 7, 2: 5, 3: 4, 4: 4}[count_devices(features)]
    problem = random_problem(seed, most, features)
    best = slow_best(problem)
    found = attempt(Exhaustive(), problem)
    if found is None:
        assert best == math.inf
        return
    assert find_violation(problem, found) == ""
    assert found.cost.total == pytest.approx(best, rel=1e-12)
    assert found.bound is not None
    assert found.bound <= best * (1 + 1e-15)
