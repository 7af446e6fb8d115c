"""The manifest's entry for a batch that runs row by row, held against a model of one row."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from pydantic import ValidationError

from byoc.bundle import (
    PaddingEntry,
    RowSplitEntry,
    WeightFile,
    check_padding,
    check_split,
    describe_padding,
    describe_split,
)
from byoc.errors import InputError
from byoc.model import Dim, TensorType
from byoc.padding import FirstValue, PaddedInput, PaddingDecision, PaddingRule, RowSplit

NOTHING_PADDED = describe_padding(PaddingDecision(PaddingRule({}, {}, {}), {}))
SPLIT = RowSplit("batch", 256, {"x": 0, "h": 1}, {"y": 0})


def _types(**shapes: tuple[Dim, ...] | None) -> dict[str, TensorType | None]:
    return {name: TensorType("float32", shape) for name, shape in shapes.items()}


def _problem(inputs: dict[str, TensorType | None], outputs: dict[str, TensorType | None]) -> str:
    try:
        check_split(describe_split(SPLIT), inputs, outputs, Path("manifest.json"))
    except InputError as error:
        return str(error)
    return ""


RIGHT = _types(x=(1, 4), h=(2, 1, 4), w=(3,))


@pytest.mark.parametrize("y", [(1, 4), (1,), ("n", 4), None])
def test_a_split_fits_a_model_of_one_row(y: tuple[Dim, ...] | None) -> None:
    assert not _problem(RIGHT, _types(y=y))


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        (_types(x=(2, 4), h=(2, 1, 4)), _types(y=(1,)), "input 'x': the model has no axis 0"),
        (_types(x=("n", 4), h=(2, 1, 4)), _types(y=(1,)), "input 'x': the model has no axis 0"),
        (_types(x=(1, 4), h=(1,)), _types(y=(1,)), "input 'h': the model has no axis 1"),
        (_types(x=(1, 4), h=None), _types(y=(1,)), "input 'h': the model has no axis 1"),
        (_types(x=(1, 4)), _types(y=(1,)), "input 'h': the model has no axis 1"),
        (RIGHT, _types(y=(2, 4)), "output 'y': the model has no axis 0"),
        (RIGHT, _types(y=()), "output 'y': the model has no axis 0"),
        (RIGHT, {}, "output 'y': the model has no axis 0"),
        (RIGHT, _types(y=(1,), z=(1,)), "nothing is said of output 'z'"),
    ],
)
def test_a_split_that_does_not_fit_is_refused(
    inputs: dict[str, TensorType | None], outputs: dict[str, TensorType | None], said: str
) -> None:
    assert _problem(inputs, outputs).startswith(f"manifest.json: split: {said}")


def test_tensors_of_a_weight_file_begin_at_multiples_of_64_bytes(tmp_path: Path) -> None:
    values = [np.arange(number, number + 37 * number + 5, dtype=np.uint8) for number in range(5)]
    with WeightFile(tmp_path) as weights:
        stored = [weights.add(onnx.numpy_helper.from_array(value, "w"), None) for value in values]
    places = [{entry.key: entry.value for entry in tensor.external_data} for tensor in stored]
    content = (tmp_path / places[0]["location"]).read_bytes()

    for place, value in zip(places, values, strict=True):
        offset, length = int(place["offset"]), int(place["length"])
        assert offset % 64 == 0
        assert content[offset : offset + length] == value.tobytes()


LARGEST = 2**31 - 1


@pytest.mark.parametrize(
    "change",
    [
        lambda size: {"most": size},
        lambda size: {"dims": {"n": size}},
        lambda size: {"inputs": {"x": {"shape": [size], "value": 0, "first": None}}},
        lambda size: {"inputs": {"x": {"shape": ["n"], "value": 0, "first": None, "room": size}}},
        lambda size: {"outputs": {"y": [1, size]}},
    ],
)
def test_sizes_are_those_that_a_dimension_may_have(change: Callable[[int], dict[str, Any]]) -> None:
    kind = RowSplitEntry if "most" in change(1) else PaddingEntry
    whole = dict(describe_split(SPLIT) if kind is RowSplitEntry else NOTHING_PADDED)
    for size in (1, LARGEST):
        assert kind.model_validate(whole | change(size))
    for size in (-1, LARGEST + 1):
        with pytest.raises(ValidationError, match=r"(greater|less) than or equal to"):
            kind.model_validate(whole | change(size))
    if kind is RowSplitEntry or "dims" in change(1):
        with pytest.raises(ValidationError, match="greater than or equal to 1"):
            kind.model_validate(whole | change(0))
    else:
        assert kind.model_validate(whole | change(0))


@pytest.mark.parametrize("axis", [-1, 0, 3])
@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_an_axis_of_rows_is_counted_from_the_front(side: str, axis: int) -> None:
    given = dict(describe_split(SPLIT)) | {side: {"x": axis}}
    if axis >= 0:
        assert getattr(RowSplitEntry.model_validate(given).split, side) == {"x": axis}
        return
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        RowSplitEntry.model_validate(given)


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_rows_are_those_of_something(side: str) -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        RowSplitEntry.model_validate(dict(describe_split(SPLIT)) | {side: {}})


def _pad(*shape: int | str, **more: Any) -> PaddingEntry:
    """Return the padding of an input `x` of two open dimensions, of which one may be 8 and one 5."""
    rule = PaddingRule({"n": 8, "m": 5}, {"x": PaddedInput(shape, 0, **more)}, {})
    return describe_padding(PaddingDecision(rule, {}))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (_pad("n", "m"), ""),
        (_pad("n", "m", room=1), ""),
        (_pad("n", "m", room=4), ""),  # along the last open axis, of 5
        (_pad("n", "m", room=5), "it has no room for 5 entries"),
        (_pad("n", 5, room=7), ""),
        (_pad("n", 5, room=8), "it has no room for 8 entries"),
        (_pad(8, 5), ""),
        (_pad(8, 5, room=1), "it has no room for 1 entries"),
        (_pad("n", "m", made=True), "it is made, and not of bool"),
        (_pad("n", "m", first=FirstValue(0, 1)), ""),
        (_pad("n", "m", first=FirstValue(1, 0)), ""),
        (_pad("n", "m", first=FirstValue(2, 0)), "it has no axis 2"),
        (_pad("m", "n"), "it is [5, 8] there, and float32[8, 5] in the model"),
        (_pad("n", "m", "n"), "it is [8, 5, 8] there, and float32[8, 5] in the model"),
        (_pad("n", "m - 1"), "it is [8, 4] there, and float32[8, 5] in the model"),
        (_pad("n", "k"), "it speaks of a dimension that is not padded"),
    ],
)
def test_a_padded_input_is_one_of_the_model(entry: PaddingEntry, said: str) -> None:
    path = Path("manifest.json")
    if not said:
        check_padding(entry, _types(x=(8, 5)), {}, path)
        return
    with pytest.raises(InputError) as caught:
        check_padding(entry, _types(x=(8, 5)), {}, path)
    assert str(caught.value) == f"manifest.json: padding: input 'x': {said}"


@pytest.mark.parametrize(
    ("stated", "fits"),
    [
        ((8, 5), True),
        ((8, "m"), True),
        ((None, "k"), True),
        (None, True),
        ((8,), False),
        ((8, 4), False),
    ],
)
def test_an_output_is_cut_as_far_as_its_shape_is_known(
    stated: tuple[Dim, ...] | None, fits: bool
) -> None:
    rule = PaddingRule({"n": 8, "m": 5}, {}, {"y": ("n", "m")})
    entry = describe_padding(PaddingDecision(rule, {}))
    if fits:
        check_padding(entry, {}, _types(y=stated), Path("manifest.json"))
        return
    with pytest.raises(InputError, match=r"^manifest\.json: padding: output 'y': it is \[8, 5\] there"):
        check_padding(entry, {}, _types(y=stated), Path("manifest.json"))


def test_an_input_of_an_open_shape_is_not_padded() -> None:
    for kind in (None, (8, "m"), ("n", 5)):
        with pytest.raises(InputError, match="padding: input 'x': "):
            check_padding(_pad("n", "m"), _types(x=kind), {}, Path("manifest.json"))


def test_what_is_made_is_of_bool() -> None:
    entry = _pad("n", "m", made=True)
    check_padding(entry, {"x": TensorType("bool", (8, 5))}, {}, Path("manifest.json"))
    assert entry.rule is not None
    assert entry.rule.inputs["x"].made
