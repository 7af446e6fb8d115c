"""Problems in which tensors cannot be sent and units must not be moved: an answer, or none exists."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.placement_oracle import chain
from helpers.placement_random import FEATURES, random_problem

from byoc.errors import InputError
from byoc.numerics.solvers import find_minimum_cut
from byoc.placement import (
    UNLIMITED,
    Occupancy,
    Placement,
    Problem,
    Strategy,
    find_violation,
    solve_problem,
)
from byoc.placement.strategies import (
    AllSupported,
    Exact,
    Exhaustive,
    FasterOps,
    FasterOpsTransfer,
    LaunchAware,
    Makespan,
    MinCut,
    Throughput,
    TreeDP,
)

NONE_EXISTS = "no placement keeps all the limits"
STRATEGIES: tuple[Strategy, ...] = (
    AllSupported(),
    FasterOps(),
    FasterOpsTransfer(),
    TreeDP(),
    MinCut(),
    LaunchAware(),
    Exact(),
    Makespan(),
    Throughput(),
)


def barred_problem(seed: int) -> Problem:
    """A problem of at most five units with infinite costs anywhere but on the host."""
    rng = np.random.default_rng(seed)
    features = frozenset(each for each in FEATURES if rng.random() < 0.35)
    problem = random_problem(seed, 5, features)
    seconds, down, up = (costs.copy() for costs in (problem.seconds, problem.to_device, problem.to_host))
    for costs in (down, up, seconds[:, 1:]):
        costs[rng.random(costs.shape) < rng.choice([0.1, 0.5, 1.0]) * rng.random()] = np.inf
    must = (rng.random(problem.units) < rng.random()) & np.isfinite(seconds[:, 1:]).any(axis=1)
    return replace(
        problem,
        seconds=seconds,
        to_device=down,
        to_host=up,
        must=must if rng.random() < 0.6 else problem.must & must,
        fusions=tuple(
            each
            for each in problem.fusions
            if each.saving <= seconds[list(each.members), each.device].sum() < np.inf
        ),
        occupies=tuple(rng.choice(list(Occupancy), problem.devices)),
        cores=int(rng.choice([1, 2, UNLIMITED])),
    )


def solve(problem: Problem, strategy: Strategy) -> Placement | None:
    """The checked placement of a strategy; None if it says that there is none."""
    try:
        return solve_problem(problem, strategy, [f"unit{number}" for number in range(problem.units)])
    except InputError as error:
        if str(error) != f"strategy {strategy.name}: {NONE_EXISTS}":
            raise
        return None


@pytest.mark.parametrize("seed", range(60))
def test_every_strategy_answers_exactly_where_a_placement_exists(seed: int) -> None:
    problem = barred_problem(seed)
    best = solve(problem, Exhaustive())
    for strategy in STRATEGIES:
        if problem.devices > 1 and isinstance(strategy, MinCut):
            continue
        found = solve(problem, strategy)
        assert (found is None) == (best is None), strategy.name
        if found is None or best is None or not isinstance(strategy, (LaunchAware, Exact)):
            continue
        assert found.bound is not None
        assert found.bound <= best.value * (1 + 1e-9)
        assert found.value <= best.value * (1 + 1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_unit_that_must_leave_the_host_and_cannot_be_fed_has_no_placement(strategy: Strategy) -> None:
    problem = replace(chain([1.0], [1.0], down=math.inf), must=np.array([True]))
    assert solve(problem, strategy) is None


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("occupies", list(Occupancy))
def test_a_tensor_that_cannot_be_sent_leaves_the_rest_where_it_is(
    strategy: Strategy, occupies: Occupancy
) -> None:
    problem = replace(chain([1.0, 1.0], [0.1, 0.1], down=math.inf), occupies=(occupies,))
    found = solve(problem, strategy)
    assert found is not None
    assert found.labels.tolist() == [0, 0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_units_or_without_accelerators_there_is_an_answer(strategy: Strategy) -> None:
    nothing = chain([], [])
    assert (found := solve(nothing, strategy)) is not None
    assert found.value == 0
    host = Problem.build(
        seconds=[[1.0], [2.0]],
        producer=[-1, 0],
        consumers=[[0], [1]],
        is_output=[False, True],
        to_device=np.zeros((2, 0)),
        to_host=np.zeros((2, 0)),
        launch=[],
    )
    assert (found := solve(host, strategy)) is not None
    assert found.labels.tolist() == [0, 0]


def test_the_units_that_a_repair_moves_are_told() -> None:
    problem = chain([1.0, 1.0], [0.1, 0.1])
    only_first = replace(problem, to_host=np.array([[0.0], [math.inf], [0.0]]))
    split = replace(only_first, seconds=np.array([[1.0, 0.1], [1.0, 9.0]]))
    assert "cannot leave device 1" in find_violation(split, FasterOps().solve(split))
    found = solve(split, FasterOps())
    assert found is not None
    assert np.ptp(found.labels) == 0
    assert found.notes[-1] == "1 unit was moved from where it placed them, to keep the limits"


@pytest.mark.parametrize("size", [4, 300])
def test_a_network_without_a_finite_cut_says_so(size: int) -> None:
    chained = np.arange(2, size)
    tail, head = np.append(0, chained), np.append(chained, 1)
    value, sink_side = find_minimum_cut(size, (tail, head, np.full(len(tail), math.inf)))
    assert value == math.inf
    assert sink_side.all()
