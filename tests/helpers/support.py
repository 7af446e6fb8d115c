"""What tests of every room use: models written as ONNX text, and what a run of the command line gave."""

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import onnx
import pytest
from hypothesis import settings

from byoc.model import Model, prepare_model

THOROUGH = 100
"""How many examples hypothesis tries in the profile `thorough` of a property that says no number."""

VANILLA = Path(__file__).with_name("vanilla.yaml")
"""A rule file for what is not about accelerators: target `dla`, open extents, run by `reference`."""


def copy_vanilla(folder: Path) -> str:
    """Copy `VANILLA` beside a file that is to name it, since one may name no file elsewhere."""
    shutil.copy(VANILLA, folder)
    return VANILLA.name


LIGHT = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
)
"""The nine light models of the zoo, which are always there."""


def count_calls(function: Callable[[], object], most: int) -> int:
    """Return how many functions of Python are called while `function` runs, itself among them.

    Says whether work grows out of hand, on any machine and under any load. More than `most` calls end it
    with an AssertionError; what is computed inside one function, or by numpy, does not count.
    """
    count = 0

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"
        assert count <= most, f"more than {most} calls, the last of {frame.f_code.co_qualname}"

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


# OpenVINO's rules speak of attributes that the lowest version of onnx does not have.
OPENVINO_RULES = pytest.param(
    "openvino-cpu", marks=pytest.mark.skipif(not find_spec("openvino"), reason="OpenVINO is not here")
)


def sample_cases(cases: Sequence[Any], *ordinary: Any, every: int = 0) -> list[Any]:
    """Return parameters for `pytest.mark.parametrize`, most of them marked `thorough`.

    The ordinary tests run the cases that are given as `ordinary`, and each whose place is a multiple of
    `every`. `pytest -m thorough` runs the others.
    """

    def is_ordinary(place: int, case: Any) -> bool:
        return case in ordinary or bool(every and place % every == 0)

    missing = [case for case in ordinary if case not in cases]
    assert not missing, f"no such cases: {missing}"
    return [
        case
        if is_ordinary(place, case)
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough)
        for place, case in enumerate(cases)
    ]


def examples(count: int) -> int:
    """Return how many examples hypothesis tries: `count` in the profile `thorough`, else a third.

    `pytest --hypothesis-profile thorough` chooses that profile, which tests/conftest.py registers.
    """
    return max(count * settings.default.max_examples // THOROUGH, min(count, 10))


def region_names(bundle: Path) -> list[str]:
    """Return the names of the regions in a bundle's folder, in launch order."""
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    (variant,) = manifest["variants"]
    return [region["name"] for region in variant["regions"]]


def parse(text: str, ir: int = 8, opset: int = 17) -> onnx.ModelProto:
    """Return the model for a graph in ONNX's text form: `g (float[2] x) => (float[2] y) { ... }`."""
    return onnx.parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]>\n{text}')


def prepared(text: str, ir: int = 8, opset: int = 17) -> Model:
    """Return `parse`d text as a checked model."""
    return prepare_model(parse(text, ir, opset), "test")


@dataclass(frozen=True)
class Ran:
    """What a run of the command line gave."""

    code: int
    out: str
    err: str


def without_location(text: str) -> str:
    """Return a text without the file and line of a vendor's code, `(acme/lowering.py:42)`, in it."""
    return re.sub(r" \([\w./-]+\.py:\d+\)", "", text)


def wait_for(answer: Callable[[], Any]) -> Any:
    """Wait until a function returns something true, and return that."""
    while not (found := answer()):
        time.sleep(0.02)
    return found


def is_running(number: int) -> bool:
    """Return whether a process runs; one that ended and that nobody waited for does not."""
    try:
        state = Path(f"/proc/{number}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] not in "ZX"
