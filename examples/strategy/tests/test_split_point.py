"""The strategy finds a known optimum, and is never worse than its two extremes."""

import numpy as np
import pytest
from split_point import SplitPoint

from byoc.placement import Placement, Problem, Strategy, find_violation
from byoc.placement.strategies import AllSupported, LaunchAware


def make_chain(host: list[float], device: list[float], transfer: float, launch: float) -> Problem:
    """Return a chain of units; each tensor between two of them costs the same to transfer."""
    units = len(host)
    return Problem.build(
        seconds=np.column_stack([host, device]),
        producer=range(-1, units),
        consumers=[*([unit] for unit in range(units)), []],
        is_output=[False] * units + [True],
        to_device=np.full((units + 1, 1), transfer),
        to_host=np.full((units + 1, 1), transfer),
        launch=[launch],
    )


def solve(strategy: Strategy, problem: Problem) -> Placement:
    """Return a strategy's placement, checked as byoc does."""
    placement = strategy.solve(problem)
    assert not find_violation(problem, placement)
    return placement


def test_the_stretch_that_the_accelerator_is_good_at() -> None:
    problem = make_chain([1, 9, 9, 1, 1], [5, 1, 1, 5, 5], transfer=2, launch=1)

    placement = solve(SplitPoint(), problem)

    assert placement.labels.tolist() == [0, 1, 1, 0, 0]
    assert placement.cost.total == 1 + (1 + 1) + 1 + 1 + 2 * 2 + 1
    assert placement.measures["stretch"] == 2


@pytest.mark.parametrize("seed", range(20))
def test_it_is_never_worse_than_its_extremes_nor_better_than_the_optimum(seed: int) -> None:
    random = np.random.default_rng(seed)
    device = np.where(random.random(8) < 0.2, np.inf, random.uniform(1, 9, 8))
    problem = make_chain(random.uniform(1, 9, 8).tolist(), device.tolist(), transfer=1, launch=2)

    found = solve(SplitPoint(), problem).cost.total

    host_only = Placement.from_labels(problem, np.zeros(8, np.int64)).cost.total
    assert found <= min(host_only, solve(AllSupported(), problem).cost.total)
    assert found >= solve(LaunchAware(), problem).cost.total - 1e-9
