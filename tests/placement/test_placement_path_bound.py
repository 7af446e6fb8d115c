"""The bound on the makespan by paths that are cut into regions, against brute force."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from helpers.placement_oracle import thorough
from helpers.placement_random import random_problem
from hypothesis import example, given
from hypothesis import strategies as st
from placement_searches import bound_by_paths
from schedule_oracle import slow_makespan

from byoc.numerics import SearchBudget
from byoc.placement import UNLIMITED, Occupancy, Problem

_FEATURES = ("launch", "must", "capacity", "region size")


# Two tensors beside each other, one with the longer way out, one with the longer way in.
@example(29057, frozenset(), ("two devices",), Occupancy.nothing, 1)
@thorough
@given(
    st.integers(0, 2**32 - 1),
    st.frozensets(st.sampled_from(_FEATURES)),
    st.sampled_from([("two devices",), ("three devices",), ()]),
    st.sampled_from(list(Occupancy)),
    st.sampled_from([1, 1, 1, 2, UNLIMITED]),
)
def test_no_bound_is_above_the_optimum(
    seed: int,
    features: frozenset[str],
    devices: tuple[str, ...],
    occupies: Occupancy,
    most: int,
) -> None:
    problem = random_problem(seed, 5, features | set(devices))
    count = problem.devices
    problem = replace(
        problem,
        max_regions=np.full(count, most),
        occupies=(occupies,) * count,
        cores=UNLIMITED if seed % 2 else 1,
    )
    best = slow_makespan(problem)
    for seconds in (0.0, 1.0):
        assert bound_by_paths(problem, SearchBudget(seconds)).bound <= best * (1 + 1e-12)


def chain_with_memory(capacity: float, devices: int, host: float = inf) -> Problem:
    """Four units in a chain, 1 s each on an accelerator, whose tensors take 0.5 s to move."""
    return Problem.build(
        seconds=[[100.0 if host == inf else host, *[1.0] * devices]] * 4,
        producer=[0, 1, 2],
        consumers=[[1], [2], [3]],
        is_output=[False] * 3,
        to_device=[[0.5] * devices] * 3,
        to_host=[[0.5] * devices] * 3,
        launch=[0.25] * devices,
        memory=[[1.0] * devices] * 4,
        capacity=[capacity] * devices,
        max_regions=[1] * devices,
        occupies=["device"] * devices,
    )


@pytest.mark.parametrize(
    ("capacity", "devices", "host", "bound"),
    [
        (4.0, 1, inf, 4.25),
        (2.0, 2, inf, 4 + 2 * 0.25 + 2 * 0.5),
        (1.0, 4, inf, 4 + 4 * 0.25 + 6 * 0.5),
        (2.0, 1, 1.5, 2 + 0.25 + 0.5 + 2 * 1.5),
        (1.0, 4, 1.0, 4.0),
    ],
)
def test_a_chain_is_cut_where_memory_ends(
    capacity: float, devices: int, host: float, bound: float
) -> None:
    problem = chain_with_memory(capacity, devices, host)
    assert bound_by_paths(problem, SearchBudget()).bound == pytest.approx(bound, rel=1e-9)
    assert (
        bound_by_paths(replace(problem, max_regions=np.full(devices, 9)), SearchBudget()).bound <= bound
    )


def test_units_beside_the_path_are_counted_where_they_lie_between_its_ends() -> None:
    """A region with a fork and its join holds both branches; with the join alone it needs no branch."""
    problem = Problem.build(
        seconds=[[50.0, 1.0, 1.0], [50.0, 3.0, 3.0], [50.0, 1.0, 1.0], [50.0, 1.0, 1.0]],
        producer=[0, 1, 2],
        consumers=[[1, 2], [3], [3]],
        is_output=[False] * 3,
        to_device=[[0.5] * 2] * 3,
        to_host=[[0.5] * 2] * 3,
        launch=[0.0, 0.0],
        memory=[[1.0] * 2] * 4,
        capacity=[3.0, 3.0],
        max_regions=[1, 1],
        occupies=["device"] * 2,
        cores=UNLIMITED,
    )
    # 0 alone: 1.5 s; 1 and 3, with one tensor in from 0 and one from 2, wherever that is: 5 s.
    assert bound_by_paths(problem, SearchBudget()).bound == pytest.approx(6.5, rel=1e-9)
    whole = replace(problem, capacity=np.array([4.0, 4.0]))
    assert bound_by_paths(whole, SearchBudget()).bound == pytest.approx(6.0, rel=1e-9)
    assert slow_makespan(problem) == pytest.approx(7.0, rel=1e-9)
