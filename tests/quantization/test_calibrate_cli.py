"""`byoc calibrate` from the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.calibrating import ACTIVATIONS, inputs, network
from helpers.support import Ran
from PIL import Image

from byoc.model import Model, prepare_model
from byoc.quantization import calibrate, read_ranges
from byoc.samples import Preprocessing

Byoc = Callable[..., Ran]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(network(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, sample in enumerate(inputs(4)):
        np.save(folder / f"{i}.npy", sample["x"])
    return folder


def test_a_file_is_written_and_summed_up(byoc: Byoc, net: Model, model: Path, data: Path) -> None:
    output = model.parent / "c.yaml"
    ran = byoc("calibrate", model, "--data", data, "-o", output, "--method", "minmax", "--samples", 3)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"{output}: ranges of 8 tensors, by minmax, on 3 samples of photos\n"
    found = read_ranges(output)
    assert found == calibrate(net, data, method="minmax", samples=3)
    assert (found.model, found.source, found.samples) == ("net", "photos", 3)
    assert sorted(path.name for path in model.parent.iterdir()) == ["c.yaml", "net.onnx", "photos"]


def test_random_data_is_warned_of(byoc: Byoc, model: Path, tmp_path: Path) -> None:
    options = ("--method", "mse", "--bits", 16, "--symmetric", "--samples", 2, "--format", "json")
    ran = byoc("calibrate", model, "--data", "random", "-o", tmp_path / "c.yaml", *options)
    assert ran.err == "byoc: calibrated on random data: the ranges say little about real data\n"
    document = json.loads(ran.out)
    assert document["random"] is read_ranges(tmp_path / "c.yaml").random is True
    assert document["options"] == {"bits": 16, "symmetric": True}
    assert list(document["tensors"]) == ACTIVATIONS
    assert all(entry["low"] == -entry["high"] for entry in document["tensors"].values())


def test_one_tensor_by_percentile(byoc: Byoc, net: Model, model: Path, data: Path) -> None:
    output = model.parent / "c.yaml"
    options = ("--method", "percentile", "--percentile", 80, "--tensor", "c", "--tensor", "m")
    assert byoc("calibrate", model, "--data", data, "-o", output, *options).code == 0
    expected = calibrate(net, data, method="percentile", percentile=80.0)
    assert read_ranges(output).tensors == {name: expected.tensors[name] for name in ("c", "m")}


def test_images_with_preprocessing(byoc: Byoc, net: Model, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(2):
        pixels = np.random.default_rng(i).integers(0, 256, (20, 30, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    options = ("--image-mean", "0.5,0.4,0.3", "--image-std", "0.2", "--image-color", "bgr")
    output = tmp_path / "c.yaml"
    ran = byoc("calibrate", model, "--data", folder, "-o", output, "--method", "minmax", *options)
    assert ran.code == 0, ran.err
    how = Preprocessing((0.5, 0.4, 0.3), (0.2,), color="bgr")
    assert read_ranges(output) == calibrate(net, folder, method="minmax", images=how)
    assert read_ranges(output) != calibrate(net, folder, method="minmax")


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("--method", "minmax", "--bits", "4"), 1, "byoc: the calibrator minmax has no option 'bits'"),
        (
            ("--method", "percentile", "--percentile", "0"),
            1,
            "byoc: the percentile is 0: must be above 0",
        ),
        (("--method", "mse", "--bits", "32"), 1, "byoc: 32 bits: tensors are quantized to 2 to 16"),
        (("--tensor", "cc"), 1, "byoc: 'cc' cannot be calibrated: the model has no such tensor"),
        (("--image-mean", "a,b"), 2, "numbers with commas are expected"),
        (
            ("--image-color", "bgr"),
            1,
            " (holds .npy files): mean, std, scale and color are for images (.png, .jpg",
        ),
        (("--data", "random", "--image-scale", "1"), 1, "byoc: random data: mean, std, scale and color"),
        (("--method", "kl"), 2, "'kl' is not one of"),
    ],
)
def test_options_that_do_not_do(  # noqa: PLR0917
    byoc: Byoc, model: Path, data: Path, options: tuple[str, ...], code: int, told: str
) -> None:
    output = model.parent / "c.yaml"
    ran = byoc("calibrate", model, "--data", data, "-o", output, *options)
    assert ran.code == code
    assert told in ran.err
    assert not output.exists()


def test_an_output_that_cannot_be_written(byoc: Byoc, model: Path, data: Path) -> None:
    ran = byoc("calibrate", model, "--data", data, "-o", model.parent / "nowhere" / "c.yaml")
    assert ran.code == 1
    assert "c.yaml: cannot be written: there is no folder" in ran.err


def test_weights_beside_the_model(byoc: Byoc, net: Model, data: Path, tmp_path: Path) -> None:
    """As for models of more than 2 GB, whose protobuf holds no weights."""
    (tmp_path / "large").mkdir()
    path = tmp_path / "large" / "net.onnx"
    onnx.save(network(), path, save_as_external_data=True, location="net.data", size_threshold=0)
    output = tmp_path / "c.yaml"
    ran = byoc("calibrate", path, "--data", data, "-o", output, "--method", "minmax")
    assert ran.code == 0, ran.err
    assert read_ranges(output) == calibrate(net, data, method="minmax")


def test_functions_and_unnamed_opsets_are_no_obstacle(net: Model) -> None:
    """What is added is of ONNX's own operators, which this graph uses only inside a function."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["mine": 1]>
        g (float[2] x) => (float[2] y) { y = mine.twice(x) }
        <domain: "mine", opset_import: ["": 17]>
        twice (a) => (b) { b = Add(a, a) }"""
    )
    found = calibrate(prepare_model(proto, "f"), [{"x": np.array([1, -2], np.float32)}], method="minmax")
    assert [(name, entry.low, entry.high) for name, entry in found.tensors.items()] == [  # type: ignore[union-attr]
        ("x", -2.0, 1.0),
        ("y", -4.0, 2.0),
    ]
