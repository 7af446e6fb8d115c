"""Fusions: those chosen are disjoint, in one region each, and never wait for one another."""

import random
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import chain, ints
from helpers.placement_random import random_problem
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_searches import choose_fusions

from byoc.placement import Fusion, Placement, Problem, find_violation, solve_problem
from byoc.placement.strategies import Exact, Exhaustive, LaunchAware


def with_fusions(problem: Problem, *fusions: tuple[tuple[int, ...], float]) -> Problem:
    return replace(problem, fusions=tuple(Fusion(members, 1, saving) for members, saving in fusions))


FOUR = chain([3.0] * 4, [2.0] * 4, down=1, up=1)


def test_the_best_of_overlapping_ones() -> None:
    problem = with_fusions(FOUR, ((0, 1), 1.0), ((1, 2), 1.5), ((2, 3), 1.0))
    everywhere = Placement.from_labels(problem, ints(1, 1, 1, 1))
    assert everywhere.fusions == (0, 2)
    assert everywhere.cost.saved == 2
    assert everywhere.cost.total == 8 + 2 - 2
    assert Placement.from_labels(problem, ints(0, 1, 1, 1)).fusions == (1,)
    assert Placement.from_labels(problem, ints(1, 0, 1, 0)).fusions == ()


def test_members_in_two_regions_are_not_fused() -> None:
    problem = with_fusions(FOUR, ((0, 2), 1.0))
    assert Placement.from_labels(problem, ints(1, 0, 1, 1)).fusions == ()
    assert (
        Placement.from_labels(problem, ints(1, 1, 1, 1)).fusions == ()
    )  # unit 1 lies between: a circle


def test_two_that_would_wait_for_each_other() -> None:
    """0 to 1 and 2 to 3: fusing 0 with 3 and 1 with 2 makes a circle."""
    crossing = Problem.build(
        seconds=[[3, 1]] * 4,
        producer=[0, 2],
        consumers=[[1], [3]],
        is_output=[False, False],
        to_device=[[1], [1]],
        to_host=[[1], [1]],
        launch=[0],
        fusions=[Fusion((0, 3), 1, 0.5), Fusion((1, 2), 1, 0.75)],
    )
    assert choose_fusions(crossing, ints(1, 1, 1, 1), ints(0, 0, 0, 0)) == (1,)
    for strategy in (Exact(), Exhaustive(), LaunchAware()):
        placement = strategy.solve(crossing)
        assert placement.cost.total == 4 - 0.75
        assert find_violation(crossing, placement) == ""
    both = replace(Placement.from_labels(crossing, ints(1, 1, 1, 1)), fusions=(0, 1))
    assert find_violation(crossing, both) == "the fusions it chose wait for one another in a circle"


def test_of_many_that_would_wait_for_one_another_the_best_are_chosen() -> None:
    """Seven times the four units above: more fusions than can be searched, two of each in a circle."""
    starts = range(0, 28, 4)
    crossing = Problem.build(
        seconds=[[3, 1]] * 28,
        producer=[first + unit for first in starts for unit in (0, 2)],
        consumers=[[first + unit] for first in starts for unit in (1, 3)],
        is_output=[False] * 14,
        to_device=[[1]] * 14,
        to_host=[[1]] * 14,
        launch=[0],
        fusions=[
            Fusion((first + one, first + other), 1, saving)
            for first in starts
            for one, other, saving in ((0, 3, 0.5), (1, 2, 0.75))
        ],
    )
    chosen = choose_fusions(crossing, np.ones(28, np.int64), np.zeros(28, np.int64))
    assert chosen == tuple(range(1, 14, 2))


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_names_change_nothing_but_the_order_of_the_search(seed: int, chance: random.Random) -> None:
    """The answer is in the numbers of the problem that was given, in whatever order it was solved."""
    problem = random_problem(seed, 6, frozenset({"fusions", "two devices", "launch"}))
    names = [str(number) for number in range(problem.units)]
    chance.shuffle(names)
    placement = solve_problem(problem, Exact(), names)
    assert find_violation(problem, placement) == ""
    assert placement.cost.total == pytest.approx(Exhaustive().solve(problem).cost.total, rel=1e-9)


def test_fusions_that_are_given_are_kept() -> None:
    problem = with_fusions(FOUR, ((0, 1), 1.0), ((1, 2), 1.5))
    assert Placement.from_labels(problem, ints(1, 1, 1, 1)).fusions == (1,)
    for chosen in ((), (0,)):
        assert Placement.from_labels(problem, ints(1, 1, 1, 1), fusions=chosen).fusions == chosen


def test_a_saving_pulls_units_over() -> None:
    """Alone, crossing costs 2 and gains 0 to 1; fused they gain 3."""
    problem = chain([3.0, 2.0, 2.0, 3.0], [9.0, 2.0, 1.0, 9.0], down=1, up=1)
    assert Exact().solve(problem).labels.tolist() == [0, 0, 0, 0]
    fused = with_fusions(problem, ((1, 2), 2.0))
    for strategy in (Exact(), Exhaustive(), LaunchAware()):
        placement = strategy.solve(fused)
        assert placement.labels.tolist() == [0, 1, 1, 0]
        assert placement.fusions == (0,)
        assert placement.cost.total == 6 + 3 + 2 - 2


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ((2,), "it chose fusion 2, and there are 2"),
        ((0, 1), "it chose fusion 1, which overlaps another that it chose"),
    ],
)
def test_a_choice_that_cannot_be(chosen: Any, sentence: str) -> None:
    problem = with_fusions(FOUR, ((0, 1), 1.0), ((1, 2), 1.5))
    placement = replace(Placement.from_labels(problem, ints(1, 1, 1, 1)), fusions=chosen)
    assert find_violation(problem, placement) == sentence


@pytest.mark.parametrize(
    ("fusion", "sentence"),
    [
        (((1,), 1.0), "two members or more"),
        (((2, 1), 1.0), "in rising order"),
        (((1, 1), 1.0), "two members or more"),
        (((3, 4), 1.0), "one of the 4 units"),
        (((0, 1, 4), 1.0), "one of the 4 units"),
        (((-1, 1), 1.0), "one of the 4 units"),
        (((0, 1), 5.0), "saves 5 s; its members take 4 s apart"),
        (((0, 1), -0.5), "saves -0.5 s; its members take 4 s apart"),
        (((0, 1), nan), "saves nan s"),
    ],
)
def test_a_fusion_that_makes_no_sense(fusion: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        with_fusions(FOUR, fusion)
    assert with_fusions(FOUR, ((0, 1), 4.0), ((2, 3), 0.0)).fusions


@pytest.mark.parametrize("device", [0, 2])
def test_a_fusion_is_of_an_accelerator_that_is_there(device: int) -> None:
    with pytest.raises(ValueError, match="a device is one of 1 accelerators"):
        replace(FOUR, fusions=(Fusion((0, 1), device, 1.0),))


def test_a_fusion_of_a_unit_that_its_device_refuses() -> None:
    with pytest.raises(ValueError, match="device 1 refuses one of its members"):
        with_fusions(chain([3.0] * 3, [2.0, 2.0, inf]), ((1, 2), 1.0))


def test_more_than_can_be_searched_are_chosen_by_the_saving_of_each_member() -> None:
    """14 overlapping ones: three members save 1 each, a pair 1.25, other pairs 0.5 each."""
    problem = chain([3.0] * 14, [2.0] * 14)
    pairs = [((unit, unit + 1), 1.0) for unit in range(12)]
    fused = with_fusions(problem, ((0, 1, 2), 3.0), *pairs, ((12, 13), 0.25), ((2, 3), 2.5))
    chosen = choose_fusions(fused, np.ones(14, np.int64), np.zeros(14, np.int64))
    assert [fused.fusions[number].members for number in chosen] == [
        *((0, 1), (4, 5), (6, 7), (8, 9), (10, 11), (12, 13)),
        (2, 3),
    ]


def test_a_bound_loses_what_one_unit_may_save_once() -> None:
    # All three candidates overlap: the most that the middle one may save counts once.
    problem = replace(
        chain([9.0, 9.0, 9.0], [1.0, 1.0, 1.0]),
        fusions=(Fusion((0, 1), 1, 1.9), Fusion((1, 2), 1, 1.9), Fusion((0, 1, 2), 1, 2.8)),
    )
    alone = problem.without_fusions
    assert not alone.fusions
    np.testing.assert_allclose(alone.seconds[:, 1], [0.05, 0.05, 0.05])
    assert alone.seconds[:, 0].tolist() == [9.0, 9.0, 9.0]
