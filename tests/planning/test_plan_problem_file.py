"""Files of problems have all that a problem has, whatever it is."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from placement_random import FEATURES, random_problem

from byoc.placement import Problem
from byoc.planning._problem_file import format_problem, parse_problem


@pytest.mark.parametrize("features", [frozenset[str](), frozenset(FEATURES)])
@pytest.mark.parametrize("seed", range(15))
def test_a_file_has_all_numbers_of_a_problem(seed: int, features: frozenset[str]) -> None:
    problem = random_problem(seed, 12, features)
    names = [f"u{number}" for number in range(problem.units)]
    devices = [f"d{number}" for number in range(problem.devices)]
    nodes = [(name,) for name in names]
    document = format_problem(problem, "m", "latency", devices, names, nodes, ["t"] * problem.tensors)
    again, units = parse_problem(json.loads(json.dumps(document, allow_nan=False)), Path("p"))
    assert list(units) == names
    for each in fields(Problem):
        one, other = getattr(problem, each.name), getattr(again, each.name)
        same = np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
        assert same, each.name
