"""What a strategy gives is held to its word."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import ints

from byoc.placement import Cost, Placement, Problem, find_violation
from byoc.placement.strategies import AllSupported


def diamond() -> Problem:
    """Return four units, 0 to 1 and 2 and these to 3; the accelerator refuses unit 1."""
    return Problem.build(
        seconds=[[1, 1], [1, np.inf], [1, 1], [1, 1]],
        producer=[0, 1, 2, 3],
        consumers=[[1, 2], [3], [3], []],
        is_output=[False, False, False, True],
        to_device=np.ones((4, 1)),
        to_host=np.ones((4, 1)),
        launch=[1],
    )


def test_a_good_answer() -> None:
    assert find_violation(diamond(), AllSupported().solve(diamond())) == ""


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"labels": [1, 0, 1, 1]}, "its labels are not an int64 array"),
        ({"labels": np.ones(4)}, "its labels are not an int64 array"),
        ({"labels": ints(0, 0)}, "its labels have the shape [2], and there are 4 units"),
        ({"labels": ints(0, 0, 2, 0)}, "a label is not one of 0 (the host) to 1"),
        ({"labels": ints(1, 1, 1, 1)}, "it placed unit 1 on device 1, which refuses it"),
        ({"labels": ints(0, 0, 1, 1)}, "a unit of an accelerator has no region, or one of the host has"),
        ({"regions": ints(0, -1, 0, 2)}, "its regions are not numbered 0, 1, ..."),
        ({"regions": ints(0, -1, 0, 0)}, "its regions wait for one another in a circle"),
        ({"bound": 1e9}, "its bound 1e+09 s is above its own total"),
        ({"bound": math.nan}, "its bound nan is not a number of seconds, 0 or more, nor None"),
        ({"bound": -math.inf}, "its bound -inf is not a number of seconds"),
        ({"bound": -1.0}, "its bound -1 is not a number of seconds"),
        ({"bound": "x"}, "its bound is not a number of seconds"),
        ({"cost": None}, "its cost is not a Cost of numbers"),
        ({"cost": Cost("a", "b", "c")}, "its cost is not a Cost of numbers"),  # type: ignore[arg-type]
        ({"cost": Cost(math.nan, 0, 0)}, "its cost is not finite"),
        ({"cost": Cost(0, 0, 0), "bound": 1e9}, "its bound 1e+09 s is above its own total"),
        ({"notes": None}, "its notes are not a tuple of texts"),
        ({"notes": [["a"]]}, "its notes are not a tuple of texts"),
        ({"notes": "text"}, "its notes are not a tuple of texts"),
        ({"why_host": None}, "its why_host is not a text"),
        ({"fusions": None}, "its fusions are not a tuple of whole numbers"),
        ({"fusions": ("a",)}, "its fusions are not a tuple of whole numbers"),
    ],
)
def test_a_bad_answer(changes: dict[str, Any], sentence: str) -> None:
    placement = replace(AllSupported().solve(diamond()), **changes)

    assert find_violation(diamond(), placement).startswith(sentence)


def test_no_placement_at_all() -> None:
    assert find_violation(diamond(), [0, 1]) == "it gave a list instead of a Placement"


def test_a_region_on_two_devices() -> None:
    problem = Problem.build(
        seconds=[[1, 1, 1], [1, 1, 1]],
        producer=[0, 1],
        consumers=[[1], []],
        is_output=[False, True],
        to_device=np.ones((2, 2)),
        to_host=np.ones((2, 2)),
        launch=[1, 1],
    )
    placement = replace(Placement.from_labels(problem, ints(1, 2)), regions=ints(0, 0))

    assert find_violation(problem, placement) == "a region spans several devices"
