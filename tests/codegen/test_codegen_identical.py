"""Regions that are the same but for names: compiled and loaded once, and never two that differ."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import cut, files, original, ramp, same_as_original
from helpers.support import examples, parse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from byoc.bundle import describe_file, open_bundle
from byoc.codegen import (
    Artifact,
    Executor,
    NoOptions,
    Region,
    digest_regions,
    find_identical,
    read_region,
    region_structure,
)
from byoc.errors import InputError
from byoc.model import write_raw_bytes
from byoc.onnxrt import open_session, run_session
from byoc.runtime import load

WEIGHT = ramp(4, 4, 5, 5)  # more than the 1 KiB up to which constants stay in the model


class Counting:
    """The reference, with a list of what it compiled and of what it loaded."""

    name = "counting"
    Options = NoOptions
    compiled: list[str]
    loaded: list[str]

    def compile(self, region: Region, options: NoOptions) -> Artifact:
        self.compiled.append(region.name)
        return Artifact({"for.txt": region.name.encode()}, {"for": region.name})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        assert artifact.files["for.txt"].decode() == artifact.metadata["for"] == region.name
        self.loaded.append(region.name)
        session = open_session(region.path)
        return lambda inputs: run_session(session, inputs)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    Counting.compiled, Counting.loaded = [], []
    vendors.install(monkeypatch, counting=Counting)
    return Counting


def blocks(*weights: NDArray[np.float32], strides: tuple[int, ...] = (1, 1, 1)) -> onnx.ModelProto:
    """Return a chain of Conv and Relu on the accelerator, with a Sigmoid of the host between."""
    text = ["g (float[1, 4, 8, 8] x0) => (float[1, 4, 8, 8] y) {"]
    for i, stride in zip(range(len(weights)), strides, strict=False):
        text += [
            f"c{i} = Conv<pads = [2, 2, 2, 2], strides = [{stride}, {stride}]>(x{i}, weight_{i}, b{i})",
            f"r{i} = Relu(c{i})",
            f"x{i + 1} = Sigmoid(r{i})",
        ]
    model = parse("\n".join([*text, f"y = Identity(x{len(weights)})", "}"]))
    for i, weight in enumerate(weights):
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, f"weight_{i}"))
        model.graph.initializer.append(onnx.numpy_helper.from_array(ramp(4), f"b{i}"))
    return model


def test_repeated_blocks_compile_and_load_once(counting: type[Counting], tmp_path: Path) -> None:
    model = blocks(WEIGHT, WEIGHT.copy(), WEIGHT.copy())
    result = cut(model, tmp_path / "b", codegen="counting")
    assert result.verification is not None
    assert result.verification.passed
    assert (counting.compiled, counting.loaded) == (["dla_0"], ["dla_0"])
    entries = open_bundle(tmp_path / "b").manifest.regions
    assert [entry.same_as for entry in entries] == ["", "dla_0", "dla_0"]
    assert [name for name in files(tmp_path / "b") if "artifacts" in name] == ["artifacts/dla_0/for.txt"]
    image = {"x0": ramp(1, 4, 8, 8)}
    np.testing.assert_allclose(load(tmp_path / "b")(image)["y"], original(model, image)["y"], 1e-6)
    assert counting.loaded == ["dla_0", "dla_0"]  # once for the verification, once for this


@pytest.mark.parametrize("place", [0, -1])
def test_one_differing_constant_makes_two(place: int, counting: type[Counting], tmp_path: Path) -> None:
    other = WEIGHT.copy()
    other.flat[place] = np.nextafter(other.flat[place], np.float32(1))
    cut(blocks(WEIGHT, other, WEIGHT), tmp_path / "b", codegen="counting")
    assert counting.compiled == ["dla_0", "dla_1"]
    assert [e.same_as for e in open_bundle(tmp_path / "b").manifest.regions] == ["", "", "dla_0"]


def test_one_differing_attribute_makes_two(counting: type[Counting], tmp_path: Path) -> None:
    model = blocks(WEIGHT, WEIGHT, strides=(1, 2))
    del model.graph.output[0].type.tensor_type.shape.dim[2:]
    model.graph.output[0].type.tensor_type.shape.dim.extend(
        [onnx.TensorShapeProto.Dimension(dim_value=4)] * 2
    )
    cut(model, tmp_path / "b", codegen="counting")
    assert counting.compiled == ["dla_0", "dla_1"]


def test_inputs_are_told_apart_by_their_place(counting: type[Counting], tmp_path: Path) -> None:
    # Sub is not taken, so that of two Adds that read the same two tensors each is a region of its own.
    model = parse(
        "g (float[1, 4] x, float[1, 4] z) => (float[1, 4] y) {"
        " a = Add(x, z) s = Sub(a, z) p = Relu(z) b = Add(s, p) y = Sigmoid(b) }"
    )
    cut(model, tmp_path / "b", codegen="counting")
    same_as_original(model, tmp_path / "b", {"x": ramp(1, 4), "z": -ramp(1, 4)})


def _retold(bundle: Path, change: Any) -> None:
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest["variants"][0]["regions"])
    path.write_text(json.dumps(manifest))


def test_a_region_whose_model_was_replaced_is_not_the_same(
    counting: type[Counting], tmp_path: Path
) -> None:
    bundle = tmp_path / "b"
    cut(blocks(WEIGHT, WEIGHT), bundle, codegen="counting")
    region = onnx.load(bundle / "dla_1.onnx", load_external_data=False)
    next(a for a in region.graph.node[1].attribute if a.name == "c_group").i = 2
    (bundle / "dla_1.onnx").write_bytes(region.SerializeToString())
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["dla_1.onnx"] = describe_file(bundle / "dla_1.onnx").model_dump()
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="regions: dla_1: it is not the same as 'dla_0'"):
        load(bundle)


@pytest.mark.parametrize("same_as", ["dla_1", "dla_2", "dla_7", "../dla_0"])
def test_a_region_is_the_same_as_an_earlier_one_only(
    same_as: str, counting: type[Counting], tmp_path: Path
) -> None:
    cut(blocks(WEIGHT, WEIGHT), tmp_path / "b", codegen="counting")
    _retold(tmp_path / "b", lambda regions: regions[1].update(same_as=same_as))
    with pytest.raises(InputError) as caught:
        load(tmp_path / "b")
    assert str(caught.value) == (
        f"{tmp_path / 'b' / 'manifest.json'}: regions: dla_1: it is not the same as '{same_as}'"
    )


def test_a_region_is_not_said_to_be_one_with_another_border(
    counting: type[Counting], tmp_path: Path
) -> None:
    model = parse(
        "g (float[1, 4] x) => (float[4, 1] y)"
        " <int64[2] s = {4, 1}> { a = Relu(x) b = Sigmoid(a) c = Reshape(b, s) y = Relu(c) }"
    )
    cut(model, tmp_path / "b", codegen="counting")
    _retold(tmp_path / "b", lambda regions: regions[1].update(same_as="dla_0"))
    with pytest.raises(InputError, match="regions: dla_1: it is not the same as 'dla_0'"):
        load(tmp_path / "b")


def region(folder: Path, model: onnx.ModelProto, name: str) -> Region:
    """Return a model as a region in a folder."""
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    return read_region(path, name, "acme")


BODY = """
g (float[N, 3] x, float[N, 3] z) => (float[N, 3] y) <float[3] w = {1, 2, 3}> {
  [first] a = Add(x, w)
  [second] b = Sub(a, z)
  y = Clip(b, , w0)
}"""


def _named(text: str, *swaps: tuple[str, str]) -> onnx.ModelProto:
    for old, new in swaps:
        text = text.replace(old, new)
    model = parse(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(6), "w0"))
    return model


def test_names_of_all_kinds_do_not_count(tmp_path: Path) -> None:
    one = _named(BODY)
    other = _named(
        BODY, ("first", "other"), ("a =", "q ="), ("(a,", "(q,"), ("[N", "[M"), ("g (", "h (")
    )
    other.graph.doc_string = "a block"
    other.graph.node[0].metadata_props.add(key="byoc.rule", value="ops[3]")
    other.graph.input[0].doc_string = "an input"
    found = [region(tmp_path, one, "one"), region(tmp_path, other, "other")]
    assert find_identical(found) == {"other": "one"}


@pytest.mark.parametrize(
    "swap",
    [
        ("Add(x, w)", "Add(w, x)"),  # an artifact may go by the order
        ("Sub(a, z)", "Sub(z, a)"),
        ("Sub", "Mul"),
        ("{1, 2, 3}", "{1, 2, 4}"),
        ("Clip(b, , w0)", "Clip(b, w0)"),
        ("[N, 3] z", "[3, 3] z"),
        ("[N, 3] z", "[M, 3] z"),
        ("float[3] w", "float[1, 3] w"),
        ("float[N, 3] x, float[N, 3] z", "float[N, 3] z, float[N, 3] x"),
        ("[second] b", "b"),  # a node's name does not
    ],
)
def test_all_else_counts(swap: tuple[str, str], tmp_path: Path) -> None:
    found = [region(tmp_path, _named(BODY), "one"), region(tmp_path, _named(BODY, swap), "other")]
    assert find_identical(found) == ({"other": "one"} if swap[1] == "b" else {})


def test_targets_and_composites_count(tmp_path: Path) -> None:
    one = region(tmp_path, _named(BODY), "one")
    assert region_structure(replace(one, target="other")) != region_structure(one)


def test_contracts_count(tmp_path: Path) -> None:
    one = region(tmp_path, _named(BODY), "one")
    first, *rest = one.inputs
    scaled = replace(one, inputs=(replace(first, scale=(0.5,), zero_point=(3,)), *rest))
    renamed = replace(one, inputs=(replace(first, tensor="image"), *rest))
    assert region_structure(scaled) != region_structure(one)
    assert region_structure(renamed) == region_structure(one)


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_renaming_never_tells_and_a_changed_byte_always_does(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("r")
    model = parse(
        "g (float[N, 3] x) => (float[N, 3] y) <float[3] p = {1, 2, 3}, float[3] q = {1, 2, 3}>"
        " { a = Add(x, p) b = Mul(a, q) c = Max(a, b, p) y = Relu(c) }"
    )
    names = ["x", "a", "b", "c", "y", "p", "q"]
    new = dict(zip(names, data.draw(st.permutations(names)), strict=True))
    other = onnx.ModelProto()
    other.CopyFrom(model)
    for node in other.graph.node:
        node.input[:] = [new[name] for name in node.input]
        node.output[:] = [new[name] for name in node.output]
    for value in (*other.graph.input, *other.graph.output, *other.graph.initializer):
        value.name = new[value.name]
    tensors = data.draw(st.permutations(list(other.graph.initializer)))
    ordered = [onnx.TensorProto.FromString(t.SerializeToString()) for t in tensors]
    del other.graph.initializer[:]
    other.graph.initializer.extend(ordered)
    one, same = region(folder, model, "one"), region(folder, other, "other")
    assert find_identical([one, replace(same, name="same")]) == {"same": "one"}
    weight = data.draw(st.sampled_from(list(other.graph.initializer)))
    array = onnx.numpy_helper.to_array(weight).copy()
    array[data.draw(st.integers(0, 2))] += 1
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    changed = region(folder, other, "changed")
    assert region_structure(changed) == region_structure(one)
    assert find_identical([one, changed]) == {}


def test_a_constant_of_several_regions_is_read_once_as_long_as_its_file_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read = []

    def write(tensor: onnx.TensorProto, *more: Any) -> int:
        read.append(tensor.name)
        return write_raw_bytes(tensor, *more)

    monkeypatch.setattr("byoc.codegen._identical_regions.write_raw_bytes", write)
    model = parse("g (float[1, 400] x) => (float[1, 400] y) { y = Mul(x, w) }")
    values = np.arange(400, dtype=np.float32)
    outside = model.graph.initializer.add(name="w", dims=values.shape, data_type=onnx.TensorProto.FLOAT)
    outside.data_location = onnx.TensorProto.EXTERNAL
    outside.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(values.tobytes())
    regions = [region(tmp_path, model, name) for name in "ab"]
    first, second = (digest_regions([each]) for each in regions)
    assert first == second
    assert read == ["w"]
    (tmp_path / "w.bin").write_bytes(values[::-1].tobytes())
    os.utime(tmp_path / "w.bin", (0, 0))
    assert digest_regions([region(tmp_path, model, "a")]) != first
    assert read == ["w", "w"]
