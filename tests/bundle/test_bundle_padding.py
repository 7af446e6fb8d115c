"""Paddings in manifests: what was written is read, and what does not fit the model is refused."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cutting import cut
from helpers.support import parse

import byoc
from byoc.bundle import open_bundle
from byoc.errors import InputError
from byoc.runtime import read_paddings

MODEL = """
g (float[1, seq] x, bool[1, seq] m, float[2] w) => (float[1, seq] y, float[2] z) {
  a = Relu(x)
  y = Where(m, a, x)
  z = Relu(w)
}
"""
Changes = Mapping[tuple[str, ...], Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("padding") / "b"
    cut(parse(MODEL), path, variants={"a": {"seq": 8}}, verify=False)
    return path


def change(written: Path, folder: Path, changes: Changes) -> Path:
    """Copy a bundle, with other values in the padding of its variant; return the copy."""
    shutil.copytree(written, folder)
    path = folder / "manifest.json"
    document = json.loads(path.read_text())
    for (*where, last), value in changes.items():
        entry = document["variants"][0]["padding"]
        for key in where:
            entry = entry[key]
        entry[last] = value
    path.write_text(json.dumps(document))
    return folder


def test_what_was_written_is_read(written: Path) -> None:
    entry = open_bundle(written, variant="a").variant.padding
    assert entry is not None
    rule = entry.rule
    assert rule is not None
    assert (rule.dims, rule.equal, rule.reads_values) == ({"seq": 8}, {}, False)
    assert {name: (each.shape, each.value, each.first, each.room, each.made)
            for name, each in rule.inputs.items()} == {
        "x": ((1, "seq"), "edge", None, 0, False),
        "m": ((1, "seq"), "edge", None, 0, False),
    }  # fmt: skip
    assert dict(rule.outputs) == {"y": (1, "seq")}
    assert entry.decision.rule == rule
    assert entry.decision.refusals == {}
    (name,) = read_paddings(open_bundle(written).variants)
    assert name == "a"
    x = np.float32([[1, -2, 3, -4, 5]])
    given = {"x": x, "m": x > 2, "w": np.float32([1, -1])}
    found = byoc.load(written)(given)
    np.testing.assert_array_equal(found["y"], x)
    np.testing.assert_array_equal(found["z"], [1, 0])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({("inputs", "x", "first"): {"axis": 1, "value": 0}}, ""),
        ({("inputs", "x", "first"): {"axis": 2, "value": 0}}, "input 'x': it has no axis 2"),
        ({("inputs", "x", "room"): 7}, ""),
        ({("inputs", "x", "room"): 8}, "input 'x': it has no room for 8 entries"),
        ({("inputs", "m", "made"): True}, ""),
        ({("inputs", "x", "made"): True}, "input 'x': it is made, and not of bool"),
        ({("inputs", "x", "shape"): [1, 8]}, ""),
        (
            {("inputs", "x", "shape"): [1, 8], ("inputs", "x", "room"): 1},
            "input 'x': it has no room for 1 entries",
        ),
        ({("inputs", "x", "shape"): [1, "seq - 1"]}, "input 'x': it is [1, 7] there, and float32[1, 8]"),
        ({("inputs", "x", "shape"): [1, "8*seq - 7*seq"]}, ""),
        ({("inputs", "x", "shape"): ["seq"]}, "input 'x': it is [8] there, and float32[1, 8]"),
        (
            {("inputs", "x", "shape"): [1, "past"]},
            "input 'x': it speaks of a dimension that is not padded",
        ),
        (
            {("inputs", "y"): {"shape": [1, "seq"], "value": 0, "first": None}},
            "input 'y': the model has none of that name, or not of a known shape",
        ),
        ({("outputs", "z"): [2]}, ""),
        ({("outputs", "z"): ["seq - 6"]}, ""),
        ({("outputs", "z"): ["seq"]}, "output 'z': it is [8] there, and float32[2] in the model"),
        ({("outputs", "z"): [2, 1]}, "output 'z': it is [2, 1] there, and float32[2] in the model"),
        (
            {("outputs", "x"): [1, "seq"]},
            "output 'x': the model has none of that name, or not of a known shape",
        ),
        ({("outputs", "y"): [1, "p"]}, "output 'y': it speaks of a dimension that is not padded"),
    ],
)
def test_a_padding_fits_the_model_or_is_refused(
    changes: Changes, said: str, written: Path, tmp_path: Path
) -> None:
    path = change(written, tmp_path / "b", changes)
    if not said:
        assert byoc.load(path, trust=True) is not None
        return
    with pytest.raises(InputError) as caught:
        byoc.load(path, trust=True)
    assert f"padding: {said}" in str(caught.value)


def test_nothing_is_padded_without_dimensions(written: Path, tmp_path: Path) -> None:
    refused = {"seq": "it is a size that decides"}
    nothing = {("dims",): {}, ("inputs",): {}, ("outputs",): {}, ("refused",): refused}
    path = change(written, tmp_path / "b", nothing)
    entry = open_bundle(path, variant="a").variant.padding
    assert entry is not None
    assert entry.rule is None
    assert entry.decision.refusals == refused


def test_of_several_variants_one_has_to_be_chosen(written: Path, tmp_path: Path) -> None:
    assert open_bundle(written).variant.name == "a"
    path = tmp_path / "two"
    cut(parse(MODEL), path, variants={"a": {"seq": 8}, "b": {"seq": 4}}, verify=False)
    for name in ("a", "b"):
        assert open_bundle(path, variant=name).variant.name == name
    with pytest.raises(InputError, match=r"has several variants, and this takes one: .* a, b$"):
        _ = open_bundle(path).variant
    both = open_bundle(path)
    assert [each.variant.name for each in both.variants] == ["a", "b"]
    assert [each.chosen for each in both.variants] == ["a", "b"]
    chosen = open_bundle(path, variant="b")
    assert chosen.variants == (chosen,)  # and no other of the bundle's
    assert [each.whole for each in both.variants] == [both, both]
    assert both.choose("a").choose("b").whole is both
    only = open_bundle(written)
    assert (only.variants, only.whole) == ((only,), None)
    for bundle, there in ((path, "it has a, b"), (written, "it has a")):
        with pytest.raises(InputError, match=rf"no variant 'c'.*; {there}$"):
            _ = open_bundle(bundle, variant="c").variant
