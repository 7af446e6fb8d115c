"""The rule file for RK3588, held to rknn-toolkit2: `run.py` beside this file, with a sample."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byoc.onnxrt import has_runtime

RUN = Path(__file__).with_name("run.py")

pytestmark = pytest.mark.skipif(not has_runtime(), reason="onnxruntime is not installed")

needs_toolkit = pytest.mark.skipif(
    "BYOC_RKNN_PYTHON" not in os.environ, reason="BYOC_RKNN_PYTHON names no interpreter with the toolkit"
)


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    """Return what the script defines, by name."""
    return runpy.run_path(str(RUN))


@needs_toolkit
@pytest.mark.rknn
@pytest.mark.thorough
def test_the_rule_file_takes_nothing_that_the_toolkit_does_not(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(RUN), str(tmp_path / "store"), "--sample", "60"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)

    assert "false accepts: 0 of" in ran.stdout, ran.stdout + ran.stderr


def test_a_false_accept_and_too_many_false_refusals_miss_the_goal(run: dict[str, Any]) -> None:
    right, wrong = run["Answer"]("a", "Relu", "right"), run["Answer"]("b", "Relu", "wrong", "off")

    assert run["find_missed_goal"]([(right, ""), (wrong, "no")]) == ""
    assert run["find_missed_goal"]([(right, ""), (wrong, "")]) == "1 false accepts"
    assert run["find_missed_goal"]([(right, "no"), (right, "")]) == "1 false refusals of 2"
    lines = list(run["write_table"]([(right, "no"), (wrong, "")]))
    assert lines[2:] == ["false accepts: 1 of 1", "  wrong b: off", "false refusals: 1 of 1", "  a: no"]


def test_results_are_held_to_float16_and_to_units_of_int8(run: dict[str, Any]) -> None:
    floats, integers = np.array([0.0, 1.0], np.float32), np.array([0, 100], np.int8)

    assert run["find_difference"](floats, floats + np.float32(0.005)) == ""
    assert run["find_difference"](floats, floats + np.float32(0.02)) == "is off by 0.02 of the range"
    assert (
        run["find_difference"](floats, np.array([0, np.nan], np.float32)) == "is off by inf of the range"
    )
    assert run["find_difference"](integers, integers + np.int8(2)) == ""
    assert run["find_difference"](integers, integers + np.int8(3)) == "is off by 3 units"
    assert run["find_difference"](integers, integers[:1]) == "has 1 elements for 2"
