"""An accelerator as placement sees it: regions, memory, state and boundaries by its rules."""

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from accelerators import Files

from byoc.costs import PlacementDevice
from byoc.options import PlanOptions
from byoc.placement import UNLIMITED
from byoc.stages import load_settings


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
