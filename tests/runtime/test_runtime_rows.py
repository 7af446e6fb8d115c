"""A batch where byoc chose sizes: as calls of one row each where that is said, else at once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cutting import number_regions
from helpers.support import parse
from onnx import numpy_helper

import byoc
from byoc.errors import InputError
from byoc.runtime import VariantSession

MODEL = """g (float[batch, length, 8] x, float[8] k) => (float[batch, length, 8] y, float[batch] s) {
    a = MatMul(x, w)
    y = Add(a, k)
    s = ReduceSum <keepdims = 0> (y, axes)
}"""
SPLIT = {"dim": "batch", "most": 5, "inputs": {"x": 0}, "outputs": {"y": 0, "s": 0}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a fixed variant, which takes one row, and of an open one; with a split of rows."""
    path = tmp_path_factory.mktemp("rows") / "b"
    model = parse(MODEL)
    weights = np.random.default_rng(0).standard_normal((8, 8), np.float32)
    for name, value in (("w", weights), ("axes", np.array([1, 2]))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    with number_regions():
        byoc.partition(model, "dla", output=path, strategy="all-supported", codegen="reference")
    document = json.loads((path / "manifest.json").read_text())
    assert [each["name"] for each in document["variants"]] == ["fixed", "open"]
    document["variants"][0]["split"] = SPLIT
    document["variants"][0]["padding"] = None
    (path / "manifest.json").write_text(json.dumps(document))
    return path


@pytest.fixture(scope="module")
def session(folder: Path) -> VariantSession:
    loaded = byoc.load(folder, trust=True)
    assert isinstance(loaded, VariantSession)
    return loaded


def find_length(session: VariantSession) -> int:
    shape = session.sessions["fixed"].types["x"].shape
    assert shape is not None
    assert (shape[0], shape[2]) == (1, 8)
    return int(str(shape[1]))


def make(*shape: int) -> dict[str, Any]:
    rng = np.random.default_rng(sum(shape))
    return {"x": rng.standard_normal(shape, np.float32), "k": np.arange(8, dtype=np.float32)}


@pytest.mark.parametrize(
    ("count", "calls"),
    [(1, ["fixed"]), (2, ["fixed"] * 2), (4, ["fixed"] * 4), (5, ["fixed"] * 5), (6, ["open"])],
)
def test_up_to_the_largest_batch_each_row_is_a_call(
    count: int, calls: list[str], session: VariantSession
) -> None:
    given = make(count, find_length(session), 8)
    trace = byoc.Trace()
    found = session.run(given, trace)
    names = [event.name for event in trace.events]
    assert [event.variant for event in trace.events if event.name == names[0]] == calls
    expected = session.sessions["open"](given)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)
    for name, value in session(given).items():
        np.testing.assert_array_equal(value, found[name])


@pytest.mark.parametrize("count", [0, 2, 5, 6])
def test_rows_that_the_fixed_variant_does_not_take_run_at_once(
    count: int, session: VariantSession
) -> None:
    given = make(count, find_length(session) + 1, 8)
    trace = byoc.Trace()
    found = session.run(given, trace)
    assert {event.variant for event in trace.events} == {"open"}
    assert found["y"].shape == given["x"].shape


def test_no_row_is_the_open_variants(session: VariantSession) -> None:
    given = make(0, find_length(session), 8)
    assert session.choose(given) is session.sessions["open"]
    assert session(given)["y"].shape == given["x"].shape


def test_types_are_those_of_the_open_variant(session: VariantSession) -> None:
    assert session.types == session.sessions["open"].types
    assert session.types["x"].shape == ("batch", "length", 8)


def test_without_padding_there_are_no_rows(folder: Path) -> None:
    loaded = byoc.load(folder, trust=True, pad=False)
    assert isinstance(loaded, VariantSession)
    assert loaded.split is None
    given = make(2, find_length(loaded), 8)
    trace = byoc.Trace()
    loaded.run(given, trace)
    assert {event.variant for event in trace.events} == {"open"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda split: split["inputs"].update(z=0), "split: input 'z': the model has no axis 0"),
        (lambda split: split["inputs"].update(x=1), "split: input 'x': the model has no axis 1"),
        (lambda split: split["inputs"].update(k=0), "split: input 'k': the model has no axis 0"),
        (lambda split: split["outputs"].pop("s"), "split: nothing is said of output 's'"),
        (lambda split: split.update(most=0), "greater than or equal to 1"),
    ],
)
def test_a_split_that_is_not_the_models_is_refused(
    change: Callable[[Any], object], said: str, folder: Path
) -> None:
    path = folder / "manifest.json"
    before = path.read_text()
    document = json.loads(before)
    change(document["variants"][0]["split"])
    path.write_text(json.dumps(document))
    try:
        with pytest.raises(InputError) as caught:
            byoc.load(folder, trust=True)
    finally:
        path.write_text(before)
    assert said in str(caught.value)
