"""What the zoo lists, what it refuses, and the images it gives."""

from pathlib import Path

import numpy as np
import pytest

from byoc import zoo
from byoc.errors import InputError
from byoc.zoo import catalog

NAMES = [
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
]


def test_the_nine_are_listed_by_name() -> None:
    assert [entry.name for entry in zoo.entries()] == NAMES


def test_an_entry_says_where_the_model_is_from() -> None:
    entry = zoo.entries()[NAMES.index("squeezenet")]
    assert entry == zoo.ZooEntry(
        name="squeezenet",
        family="convolutional classifier",
        source="onnx package, test data light_squeezenet.onnx",
        licence="Apache-2.0",
        weights="random, seeded",
    )


@pytest.mark.parametrize("function", [zoo.load, zoo.structure, zoo.sample_inputs])
def test_an_unknown_name_lists_the_nearest_and_all(function: object) -> None:
    assert callable(function)
    with pytest.raises(InputError) as caught:
        function("squeeznet")
    assert str(caught.value) == (
        "zoo: no model named 'squeeznet' (did you mean squeezenet?); available: " + ", ".join(NAMES)
    )


def test_an_onnx_without_light_models_is_named_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(catalog, "_FOLDER", tmp_path / "absent")
    assert zoo.entries() == ()
    with pytest.raises(InputError, match=r"carries no light models in .*absent"):
        zoo.load("squeezenet")


def test_an_image_fits_its_model() -> None:
    (name, image), *others = zoo.sample_inputs("resnet50").items()
    assert (name, others) == ("gpu_0/data_0", [])
    assert image.shape == (1, 3, 224, 224)
    assert image.dtype == np.float32


def test_an_image_is_normalized_and_seeded() -> None:
    first, again, other = (zoo.sample_inputs("vgg19", seed)["data_0"] for seed in (3, 3, 4))
    assert abs(first.mean()) < 0.5
    assert 0.7 < first.std() < 1.3
    assert np.array_equal(first, again)
    assert abs(first - other).mean() > 0.5


def test_neighbouring_pixels_resemble_each_other() -> None:
    image = zoo.sample_inputs("vgg19")["data_0"]
    rows = image[..., :-1].ravel(), image[..., 1:].ravel()
    assert np.corrcoef(*rows)[0, 1] > 0.5
