"""Checks of a problem, and its canonical order."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import chain, problems, slow_edges, thorough
from helpers.placement_random import FEATURES, random_problem
from hypothesis import given
from optimality import reordered

from byoc.placement import Problem, order_canonically


@pytest.fixture
def three() -> Problem:
    return chain([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])


def test_sizes(three: Problem) -> None:
    assert (three.units, three.tensors, three.devices) == (3, 4, 1)
    assert three.connected.tolist() == [False]


def test_a_consumer_named_twice_counts_once() -> None:
    problem = Problem.build(
        seconds=np.ones((3, 2)),
        producer=[0, 0],
        consumers=[[2, 1, 2], [2]],
        is_output=[False, False],
        to_device=np.ones((2, 1)),
        to_host=np.ones((2, 1)),
        launch=[0.0],
    )
    assert problem.consumer_start.tolist() == [0, 2, 3]
    assert problem.consumers.tolist() == [1, 2, 2]
    assert problem.consumed.tolist() == [0, 0, 1]
    source, target = problem.edges
    assert (source.tolist(), target.tolist()) == ([0, 0], [1, 2])


@thorough
@given(problems())
def test_edges_are_the_distinct_pairs_in_order(problem: Problem) -> None:
    source, target = problem.edges
    pairs = list(zip(source.tolist(), target.tolist(), strict=True))
    assert pairs == sorted(slow_edges(problem))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seconds": np.ones((3, 3))}, r"seconds is float64 of shape \(3, 3\); .* \(3, 2\)"),
        ({"producer": np.array([-1.0, 0, 1, 2])}, "producer is float64"),
        ({"is_output": np.ones(3, np.bool_)}, r"is_output is bool of shape \(3,\)"),
        ({"to_host": np.ones((4, 2))}, "to_host is"),
        ({"connected": np.ones(2, np.bool_)}, "connected is"),
        ({"seconds": np.array([[1.0, 1], [np.inf, 1], [1, 1]])}, "unit 1: the host must be able"),
        ({"to_device": np.array([[0.0], [0], [-2], [0]])}, r"to_device\[2, 0\] is -2.0"),
        ({"to_host": np.array([[0.0], [np.nan], [0], [0]])}, r"to_host\[1, 0\] is nan"),
        ({"seconds": np.array([[1.0, 1], [1, -0.5], [1, 1]])}, r"seconds\[1, 1\] is -0.5"),
        ({"launch": np.array([-1.0])}, r"launch\[0\] is -1.0"),
        ({"launch": np.array([np.inf])}, "launch is infinite"),
        ({"consumer_start": np.array([1, 1, 2, 3, 3])}, "consumer_start must rise"),
        ({"consumer_start": np.array([0, 2, 1, 3, 3])}, "consumer_start must rise"),
        ({"consumer_start": np.array([0, 1, 2, 2, 2])}, "consumer_start must rise"),
        ({"producer": np.array([-2, 0, 1, 2])}, "a producer is -1"),
        ({"producer": np.array([-1, 0, 1, 3])}, "a producer is -1"),
        ({"consumers": np.array([0, 1, 3])}, "a consumer is one of the 3 units"),
        ({"consumers": np.array([-1, 1, 2])}, "a consumer is one of the 3 units"),
        (
            {"consumers": np.array([1, 1, 2]), "consumer_start": np.array([0, 2, 2, 3, 3])},
            "tensor names a consumer twice",
        ),
        ({"consumers": np.array([0, 1, 1])}, "tensor 2: its producer, unit 1, .* consumer, unit 1"),
    ],
)
def test_refusals(three: Problem, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(three, **changes)


@pytest.mark.parametrize("seed", range(60))
def test_any_order_gives_the_same_arrays(seed: int) -> None:
    problem = random_problem(seed, 14, frozenset(FEATURES))
    keys = [f"unit {number * 7 % 97}" for number in range(problem.units)]
    other, place = reordered(problem, seed)
    moved = [keys[place.index(unit)] for unit in range(problem.units)]
    (one, order), (two, other_order) = order_canonically(problem, keys), order_canonically(other, moved)
    assert [keys[unit] for unit in order] == [moved[unit] for unit in other_order]
    for name in Problem.__dataclass_fields__:
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    again, same = order_canonically(one, [keys[unit] for unit in order])
    assert same.tolist() == list(range(problem.units))
    assert np.array_equal(again.seconds, one.seconds)


def test_keys_must_tell_units_apart() -> None:
    problem = random_problem(3, 14, frozenset())
    assert problem.units > 1
    with pytest.raises(ValueError, match="one distinct key for each"):
        order_canonically(problem, ["same"] * problem.units)
    with pytest.raises(ValueError, match="one distinct key for each"):
        order_canonically(problem, ["a"])


def test_other_seconds_are_checked_as_those_of_a_new_problem() -> None:
    problem = replace(chain([1.0, 2.0], [3.0, 4.0]), must=np.array([False, True]))
    refused = np.array([[1.0, 3.0], [2.0, inf]])
    with pytest.raises(ValueError, match=r"^unit 1 must be on an accelerator, and none takes it$"):
        problem.replace_seconds(refused)
    with pytest.raises(ValueError, match=r"^seconds are float64 of shape \(1, 2\)$"):
        problem.replace_seconds(refused[:1])
    with pytest.raises(ValueError, match=r"^seconds\[0, 1\] is -1.0"):
        problem.replace_seconds(np.array([[1.0, -1.0], [2.0, 2.0]]))
    assert problem.allowed.tolist() == [[True, True], [False, True]]
    other = problem.replace_seconds(np.array([[1.0, inf], [2.0, 2.0]]))
    assert other.allowed.tolist() == [[True, False], [False, True]]
    assert other.costs.tolist() == [[1.0, inf], [inf, 2.0]]
    assert problem.seconds[0, 1] == 3.0
