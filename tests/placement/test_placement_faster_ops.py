"""faster-ops and faster-ops-transfer: the rules by hand, and what holds of all answers."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from helpers.placement_dags import limited, random_problem, reordered
from helpers.placement_oracle import chain, problems, slow_optimum, thorough
from hypothesis import given
from hypothesis import strategies as st

from byoc.placement import Placement, Problem, Strategy, find_violation
from byoc.placement.strategies import FasterOps, FasterOpsTransfer

BOTH: list[Strategy] = [FasterOps(), FasterOpsTransfer()]


def without_launch(placement: Placement) -> float:
    return placement.cost.execution + placement.cost.transfer


def test_each_operator_by_itself() -> None:
    """Slower, equal, faster, refused; no transfer matters."""
    problem = chain([1.0, 2.0, 3.0, 4.0], [1.5, 2.0, 2.5, inf], down=100.0, up=100.0)
    assert FasterOps().solve(problem).labels.tolist() == [0, 0, 1, 0]


def test_the_fastest_of_several() -> None:
    problem = Problem.build(
        seconds=[[3.0, 2.0, 1.0], [3.0, 2.0, 2.0], [1.0, 2.0, 2.0]],
        producer=[],
        consumers=[],
        is_output=[],
        to_device=np.ones((0, 2)),
        to_host=np.ones((0, 2)),
        launch=[1.0, 1.0],
    )
    for strategy in BOTH:
        assert strategy.solve(problem).labels.tolist() == [2, 1, 0]


def test_a_seed_draws_its_neighbour() -> None:
    """Unit 0 is 5 times faster and pays for itself; unit 1 gains 0.5 alone and 2 beside it.

    First sweep: unit 0 costs 2 + 2 on the device against 10: placed. Unit 1 is twice 1.5 / 1 only.
    Second: unit 1 costs 1 on the device, and the result has to go back either way: 1 + 2 against
    1.5 + 2 on the host, which is more than 1.1 times.
    """
    problem = chain([10.0, 1.5], [2.0, 1.0], down=2.0, up=2.0)
    assert FasterOpsTransfer().solve(problem).labels.tolist() == [1, 1]
    # By itself it stays: 1 + 4 against 1.5.
    assert FasterOpsTransfer().solve(chain([1.5], [1.0], down=2.0, up=2.0)).labels.tolist() == [0]
    assert FasterOps().solve(chain([1.5], [1.0], down=2.0, up=2.0)).labels.tolist() == [1]


def test_a_decision_stays() -> None:
    """Unit 0 is seeded; unit 1, far faster on the host, is decided in the same sweep and cuts it off."""
    problem = chain([30.0, 1.0, 30.0], [1.0, 9.0, 1.0], down=5.0, up=5.0)
    assert FasterOpsTransfer().solve(problem).labels.tolist() == [1, 0, 1]


def test_the_margin() -> None:
    """On the device 1 + 1 + 1 = 3; on the host a little more, or enough."""
    for host, label in ((3.2, 0), (3.4, 1)):
        problem = chain([host], [1.0], down=1.0, up=1.0)
        assert FasterOpsTransfer().solve(problem).labels.tolist() == [label]
    assert FasterOpsTransfer(margin=1.0).solve(chain([3.2], [1.0], down=1, up=1)).labels.tolist() == [1]


def test_a_tensor_with_several_readers_is_brought_once() -> None:
    """Four readers, each far faster, of a hub that costs 3 to bring: alone each would lose."""
    problem = Problem.build(
        seconds=[[1.0, inf]] + [[3.0, 1.0]] * 4,
        producer=[0],
        consumers=[[1, 2, 3, 4]],
        is_output=[False],
        to_device=[[1.5]],
        to_host=[[1.5]],
        launch=[0.0],
    )
    # 1 + 1.5 against 3: the first sweep seeds all four at once, and the hub is paid for once.
    placement = FasterOpsTransfer().solve(problem)
    assert placement.labels.tolist() == [0, 1, 1, 1, 1]
    assert placement.cost.transfer == 1.5


@thorough
@given(problems(most_units=6, devices=st.integers(0, 2)))
def test_no_answer_is_better_than_the_optimum(problem: Problem) -> None:
    best = slow_optimum(problem)
    for strategy in BOTH:
        placement = strategy.solve(problem)
        assert find_violation(problem, placement) == ""
        assert placement.bound is None
        assert without_launch(placement) >= best * (1 - 1e-12)


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("seed", range(40))
def test_labels_do_not_depend_on_the_order_of_units(strategy: Strategy, seed: int) -> None:
    problem = random_problem(seed, 14, 1 + seed % 3)
    other, place = reordered(problem, seed)
    labels = strategy.solve(other).labels
    assert labels[place].tolist() == strategy.solve(problem).labels.tolist()


@pytest.mark.parametrize("strategy", BOTH)
@pytest.mark.parametrize("seed", range(60))
def test_hard_limits_are_kept(strategy: Strategy, seed: int) -> None:
    problem = replace(limited(random_problem(seed, 12, 1 + seed % 3), seed), must=np.zeros(12, bool))
    placement = strategy.solve(problem)
    assert find_violation(problem, placement) == ""


@pytest.mark.parametrize("strategy", BOTH)
def test_a_unit_that_must(strategy: Strategy) -> None:
    problem = replace(chain([1.0, 1.0], [9.0, 9.0], down=9.0, up=9.0), must=np.array([False, True]))
    assert strategy.solve(problem).labels.tolist() == [0, 1]


@pytest.mark.parametrize("strategy", BOTH)
def test_what_does_not_fit_goes_to_the_next_accelerator(strategy: Strategy) -> None:
    """Four units of 1 byte, alike on two accelerators of 2 bytes and one of 1."""
    problem = Problem.build(
        seconds=[[9.0, 1.0, 1.0, 2.0]] * 6,
        producer=[],
        consumers=[],
        is_output=[],
        to_device=np.ones((0, 3)),
        to_host=np.ones((0, 3)),
        launch=[0.0] * 3,
        memory=np.ones((6, 3)),
        capacity=[2.0, 2.0, 1.0],
    )
    assert strategy.solve(problem).labels.tolist() == [1, 1, 2, 2, 3, 0]


@pytest.mark.parametrize("strategy", BOTH)
def test_units_that_cannot_be_parted_go_together(strategy: Strategy) -> None:
    """Unit 0 gains 3 on the device, unit 1 loses 1; the tensor between them cannot be moved."""
    problem = chain([4.0, 1.0], [1.0, 2.0])
    stuck = np.array([[0.0], [inf], [0.0]])
    assert FasterOps().solve(problem).labels.tolist() == [1, 0]
    joined = replace(problem, to_device=stuck, to_host=stuck)
    assert strategy.solve(joined).labels.tolist() == [1, 1]


def test_nothing_to_place() -> None:
    for strategy in BOTH:
        assert strategy.solve(chain([], [])).labels.tolist() == []
