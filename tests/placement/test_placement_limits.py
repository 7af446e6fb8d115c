"""Hard limits: what breaks them is refused, and cheap strategies mend it."""

from math import inf
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import chain, ints, limited
from helpers.placement_random import random_problem
from optimality import CHEAP
from placement_searches import find_broken_limit, form_regions

from byoc.errors import InputError
from byoc.placement import (
    ALL_REQUIREMENTS,
    Placement,
    Problem,
    describe_ignored,
    find_violation,
    repair_labels,
)
from byoc.placement.strategies import Exact, HostOnly, LaunchAware, MinCut

FIVE = chain([3.0] * 5, [1.0] * 5)


@pytest.mark.parametrize(
    ("limits", "labels", "sentence"),
    [
        ({"must": [False, True, False, False, False]}, (1, 0, 1, 1, 1), "it left unit 1 on the host"),
        ({"min_nodes": [3]}, (1, 1, 0, 0, 0), "region 0 has 2 nodes, and 3 is the least"),
        ({"max_regions": [1]}, (1, 0, 1, 0, 0), "device 1 has 2 regions, and 1 is the most"),
        (
            {"memory": [[4.0]] * 5, "capacity": [9.0]},
            (1, 1, 1, 0, 0),
            "device 1 holds 12 bytes, and 9 is its capacity",
        ),
    ],
)
def test_a_broken_limit_is_refused(limits: Any, labels: Any, sentence: str) -> None:
    problem = limited(FIVE, **limits)
    assert find_violation(problem, Placement.from_labels(problem, ints(*labels))).startswith(sentence)
    assert find_violation(FIVE, Placement.from_labels(FIVE, ints(*labels))) == ""


def test_a_region_of_too_many_nodes_is_refused() -> None:
    problem = limited(FIVE, max_nodes=[2])
    placement = Placement.from_labels(problem, ints(1, 1, 1, 1, 1), regions=ints(0, 0, 0, 1, 1))
    assert find_violation(problem, placement) == "region 0 has 3 nodes, and 2 is the most"


def test_a_region_in_two_pieces_is_refused_where_it_must_be_connected() -> None:
    branches = Problem.build(
        seconds=np.ones((2, 2)),
        producer=[],
        consumers=[],
        is_output=[],
        to_device=np.ones((0, 1)),
        to_host=np.ones((0, 1)),
        launch=[1],
        connected=[True],
    )
    placement = Placement.from_labels(branches, ints(1, 1), regions=ints(0, 0))
    assert find_violation(branches, placement).startswith("one of its regions is not connected")
    assert find_violation(branches, Placement.from_labels(branches, ints(1, 1))) == ""


def test_form_regions_deals_out_what_is_too_large() -> None:
    assert form_regions(limited(FIVE, max_nodes=[2]), ints(1, 1, 1, 1, 1)).tolist() == [0, 0, 1, 1, 2]
    sizes = limited(FIVE, max_nodes=[4], size=[1, 3, 2, 2, 1])
    assert form_regions(sizes, ints(1, 1, 1, 1, 1)).tolist() == [0, 0, 1, 1, 2]
    assert form_regions(sizes, ints(1, 1, 0, 1, 1)).tolist() == [0, 0, -1, 1, 1]


def test_repair_takes_away_what_loses_least() -> None:
    """Regions 0 and 2 gain 4 each, region 1 gains 2."""
    apart = limited(FIVE, seconds=[[5.0, 1.0], [1.0, 1], [3.0, 1], [1, 1], [5, 1]])
    labels = ints(1, 0, 1, 0, 1)
    assert repair_labels(apart, labels).tolist() == labels.tolist()
    assert repair_labels(limited(apart, max_regions=[2]), labels).tolist() == [1, 0, 0, 0, 1]
    must = limited(apart, max_regions=[2], must=[False, False, True, False, False])
    assert repair_labels(must, labels).tolist() == [0, 0, 1, 0, 1]
    assert repair_labels(limited(apart, min_nodes=[2]), ints(1, 0, 0, 1, 1)).tolist() == [0, 0, 0, 1, 1]
    held = limited(apart, memory=[[4.0]] * 5, capacity=[9.0])
    assert (
        find_broken_limit(held, repair_labels(held, ints(1, 1, 1, 1, 1)), form_regions(held, labels))
        == ""
    )


@pytest.mark.parametrize("seed", range(40))
def test_cheap_strategies_keep_limits_without_musts(seed: int) -> None:
    """The host alone keeps them all, so that repair can always end there."""
    features = frozenset({"launch", "capacity", "region count", "region size"})
    problem = random_problem(seed, 30, features)
    for strategy in CHEAP:
        assert find_violation(problem, strategy.solve(problem)) == ""


def test_a_strategy_without_honours_ignores_what_the_problem_asks_for() -> None:
    class Outsider:
        name = "outsider"

        def solve(self, problem: Problem) -> Placement:
            return HostOnly().solve(problem)

    asks = limited(FIVE, launch=[1.0], max_regions=[2], capacity=[9.0])
    assert describe_ignored(Outsider(), FIVE) == ()
    ignored = describe_ignored(Outsider(), asks)
    assert len(ignored) == 3
    assert "launches played no part in the choice" in ignored
    for need in ("launch", "region count", "capacity"):
        assert len(describe_ignored(Outsider(), asks, {need})) == 2
    assert describe_ignored(MinCut(), asks) == ("launches played no part in the choice",)
    assert describe_ignored(LaunchAware(), asks) == describe_ignored(Exact(), asks) == ()
    assert Exact().honours == ALL_REQUIREMENTS - {"contention", "networks"}


def test_limits_that_nothing_keeps_are_said_so() -> None:
    problem = limited(chain([1.0, 1.0], [1.0, inf]), must=[True, False], min_nodes=[2])
    for strategy in (Exact(), LaunchAware()):
        with pytest.raises(InputError, match="no placement"):
            strategy.solve(problem)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"must": [True] * 5, "max_nodes": [0]}, "unit 0 must be on an accelerator, and none takes it"),
        ({"size": [1, 1, 0, 1, 1]}, "a size of 1 node or more"),
        ({"capacity": [np.nan]}, "capacity is negative or not a number"),
        ({"max_regions": [-1]}, "max_regions is negative"),
        ({"memory": [[0.0], [-1], [0], [0], [0]]}, r"memory\[1, 0\] is not 0 or more bytes"),
        ({"must": [1, 0, 0, 0, 0]}, "must is int64"),
    ],
)
def test_a_limit_that_makes_no_sense(limits: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        limited(FIVE, **limits)
