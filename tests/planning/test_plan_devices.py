"""An accelerator as placement sees it: regions, memory, state and boundaries by its rules."""

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from accelerators import Files
from helpers.support import copy_vanilla, parse

import byoc
from byoc.costs import PlacementDevice
from byoc.pipeline import PlanOptions, load_settings
from byoc.placement import UNLIMITED


def describe(folder: Path, more: str, **limits: Any) -> PlacementDevice:
    rules = Files(folder).rules("npu", "Relu", more=more)
    settings = load_settings(PlanOptions(Path(rules)), "exact")
    known = replace(settings.known_limits, **limits)
    (found,) = replace(settings, known_limits=known).devices
    assert found.name == "npu"
    return found


@pytest.mark.parametrize(
    ("more", "convert"),
    [
        ("", "host"),
        ("quantization: {convert: device}\n", "device"),
        ("quantization: {convert: host}\n", "host"),
        ("quantization: {convert: between}\n", "host"),
    ],
)
def test_who_quantizes_at_boundaries(more: str, convert: str, tmp_path: Path) -> None:
    wants = describe(tmp_path, more).wants
    assert (wants.convert, wants.compute, wants.activations) == (convert, None, None)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", {}),
        ("state: kept\n", {"keeps_state": True}),
        ("state: sent\n", {}),
        ("regions: connected\n", {"connected": True}),
        ("regions: phase\n", {"connected": False}),
        ("limits: {min_nodes: 2}\n", {"min_nodes": 2}),
        ("limits: {max_nodes: 7}\n", {"max_nodes": 7}),
        ("limits: {regions: 3}\n", {"max_regions": 3}),
        ("limits: {memory: 1024}\n", {"memory": 1024.0}),
        (
            "limits: {min_nodes: 1, max_nodes: 9, regions: 2, memory: 8}\n",
            {"min_nodes": 1, "max_nodes": 9, "max_regions": 2, "memory": 8.0},
        ),
    ],
)
def test_limits_of_a_rule_file(more: str, expected: dict[str, Any], tmp_path: Path) -> None:
    plain = {
        "keeps_state": False,
        "min_nodes": 0,
        "max_nodes": UNLIMITED,
        "max_regions": UNLIMITED,
        "memory": inf,
    }
    found = describe(tmp_path, more)
    assert {name: getattr(found, name) for name in (*plain, *expected)} == {**plain, **expected}


CELL = """g (float[1, 64] x, float[1, 64] past_key) => (float[1, 64] y, float[1, 64] present_key) {
    present_key = Add(x, past_key)
    y = Relu(present_key)
}"""


@pytest.mark.parametrize("how", ["kept", "sent"])
def test_state_that_an_accelerator_keeps_is_not_moved_to_it(how: str, tmp_path: Path) -> None:
    rules = tmp_path / "npu.yaml"
    rules.write_text(f"extends: {copy_vanilla(tmp_path)}\nstate: {how}\n")
    plan = byoc.partition(parse(CELL), rules, strategy="all-supported").plan
    problem = plan.graph_problem.problem
    moving = (problem.to_device > 0).any(axis=1).tolist()
    assert moving.count(False) == (1 if how == "kept" else 0)
    # Sent are both inputs and both outputs, or what is no state of them.
    each = float(problem.to_device.max())
    assert plan.cost.transfer == pytest.approx(each * (2 if how == "kept" else 4))
