"""The Transposes at its boundary that a target takes: those that its rules take alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
from accelerators import Files

from byoc.boundary.convert import AskedTranspose
from byoc.errors import InputError
from byoc.model import TensorType
from byoc.pipeline import PlanOptions, load_settings

INTO, BACK = (0, 2, 3, 1), (0, 3, 1, 2)
FLOAT, INT8 = TensorType("float32", (1, 2, 3, 4)), TensorType("int8", (1, 2, 3, 4))
EITHER = "layout: {activations: NHWC, convert: either}\n"
Check = Callable[[AskedTranspose], bool]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def check(files: Files, *rules: str, more: str = EITHER) -> Check | None:
    """Return the check of a target with some rules."""
    settings = load_settings(PlanOptions(Path(files.rules("npu", *rules, more=more))), "exact")
    found = settings.devices[0].wants.takes_transpose
    assert found is None or callable(found)
    return found


def test_only_who_takes_a_layout_from_either_side_is_asked(files: Files) -> None:
    assert check(files, "Transpose") is not None
    assert check(files, "Transpose", more="layout: {activations: NHWC}\n") is None
    assert check(files, "Transpose", more="layout: {activations: NHWC, convert: host}\n") is None
    assert check(files, "Transpose", more="layout: {convert: either}\n") is None
    assert check(files, "Transpose", more="layout: {activations: NCHW, convert: either}\n") is None


@pytest.mark.parametrize(
    ("rule", "asked", "taken"),
    [
        ("Transpose", AskedTranspose(FLOAT, INTO), True),
        ("Relu", AskedTranspose(FLOAT, INTO), False),
        ("{op: Transpose, where: 'attr.perm == [0, 2, 3, 1]'}", AskedTranspose(FLOAT, INTO), True),
        ("{op: Transpose, where: 'attr.perm == [0, 2, 3, 1]'}", AskedTranspose(FLOAT, BACK), False),
        ("{op: Transpose, where: 'data.shape[3] == 4'}", AskedTranspose(FLOAT, BACK), True),
        ("{op: Transpose, where: 'transposed.shape[1] == 4'}", AskedTranspose(FLOAT, BACK), True),
        ("{op: Transpose, where: 'transposed.shape[1] == 4'}", AskedTranspose(FLOAT, INTO), False),
        ("{op: Transpose, dtype: float32}", AskedTranspose(FLOAT, INTO), True),
        ("{op: Transpose, dtype: float32}", AskedTranspose(INT8, INTO), False),
        ("{op: Transpose, dtype: int8}", AskedTranspose(INT8, INTO), True),
        # Quantized, it is one between DequantizeLinear and QuantizeLinear.
        ("{op: Transpose, quantized: true}", AskedTranspose(INT8, INTO, (0.5, 3)), True),
        ("{op: Transpose, quantized: true}", AskedTranspose(INT8, INTO), False),
        ("Transpose", AskedTranspose(INT8, INTO, (0.5, 3)), False),
        (
            "{op: Transpose, quantized: true, where: 'data.quantized.scale == [0.5]'}",
            AskedTranspose(INT8, INTO, (0.5, 3)),
            True,
        ),
        (
            "{op: Transpose, quantized: true, where: 'data.quantized.zero_point == [3]'}",
            AskedTranspose(INT8, INTO, (0.5, 2)),
            False,
        ),
        (
            "{op: Transpose, quantized: true, where: 'attr.perm == [0, 3, 1, 2]'}",
            AskedTranspose(INT8, BACK, (0.5, 3)),
            True,
        ),
    ],
)
def test_the_rules_are_asked_about_that_transpose_alone(
    rule: str, asked: AskedTranspose, taken: bool, files: Files
) -> None:
    takes = check(files, rule)
    assert takes is not None
    assert takes(asked) is taken
    assert takes(asked) is taken  # the answer is kept


def test_wrong_layouts_and_parameters_are_said_with_their_place(files: Files) -> None:
    for key, more in (("activations", "{activations: NHWQ}"), ("weights", "{weights: NHWQ}")):
        with pytest.raises(InputError, match=rf"layout\.{key}"):
            check(files, "Relu", more=f"layout: {more}\n")
