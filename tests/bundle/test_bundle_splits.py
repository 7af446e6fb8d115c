"""The manifest's entry for a batch that runs row by row, held against a model of one row."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from byoc.bundle import WeightFile, check_split, describe_split
from byoc.errors import InputError
from byoc.model import Dim, TensorType
from byoc.padding import RowSplit

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
