"""Files of problems have all that a problem has, whatever it is."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.placement_random import FEATURES, random_problem

from byoc.errors import InputError
from byoc.placement import Problem
from byoc.planning import PlacementInstance, format_problem, parse_instance


def read(document: Any) -> PlacementInstance:
    return parse_instance(json.dumps(document, allow_nan=False).encode(), Path("p"))


@pytest.mark.parametrize("features", [frozenset[str](), frozenset(FEATURES)])
@pytest.mark.parametrize("seed", range(15))
def test_a_file_has_all_numbers_of_a_problem(seed: int, features: frozenset[str]) -> None:
    problem = random_problem(seed, 12, features)
    names = [f"u{number}" for number in range(problem.units)]
    devices = [f"d{number}" for number in range(problem.devices)]
    nodes = [(name,) for name in names]
    document = format_problem(problem, "m", "latency", devices, names, nodes, ["t"] * problem.tensors)
    instance = read(document)
    again = instance.problem
    assert [*instance.nodes] == nodes
    for each in fields(Problem):
        one, other = getattr(problem, each.name), getattr(again, each.name)
        same = np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
        assert same, each.name


@pytest.mark.parametrize("kind", ["units", "tensors"])
def test_a_row_has_a_number_for_each_device_and_memory_may_be_left_out(kind: str) -> None:
    problem = random_problem(0, 12, frozenset({"two devices", "capacity"}))
    assert (problem.devices, problem.tensors > 0) == (2, True)
    names = [f"u{number}" for number in range(problem.units)]
    nodes = [(name,) for name in names]
    made = format_problem(problem, "m", "total", ["a", "b"], names, nodes, ["t"] * problem.tensors)
    keys = {"units": {"costs": 3, "memory": 2}, "tensors": {"to_device": 2, "to_host": 2}}[kind]
    for key, expected in keys.items():
        for count in range(5):
            document = json.loads(json.dumps(made))
            document[kind][0][key] = [1.0] * count
            if count == expected or (key == "memory" and not count):
                read(document)
                continue
            with pytest.raises(InputError) as caught:
                read(document)
            assert str(caught.value) == f"p: {kind}[0].{key}: expected {expected} numbers"


@pytest.mark.parametrize("count", [256, 257])
def test_there_are_at_most_256_accelerators(count: int) -> None:
    device = {"name": "d", "launch": 0.0}
    document = {
        "format": "byoc-placement-problem",
        "devices": [device] * count,
        "units": [{"name": "u", "costs": [1.0] * (1 + count), "memory": [1.0] * count}],
        "tensors": [
            {"producer": 0, "consumers": [], "to_device": [1.0] * count, "to_host": [1.0] * count}
        ],
    }
    if count == 256:
        instance = read(document)
        assert (instance.problem.devices, instance.nodes) == (256, (("u",),))
        return
    with pytest.raises(InputError, match="at most 256 items"):
        read(document)
