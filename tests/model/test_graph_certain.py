"""Types that hold whatever the file states: known from loading where nothing stated was needed."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from helpers.support import parse
from onnx import numpy_helper

from byoc.model import GraphIndex, Model, prepare_model, type_certainly, walk_tensors
from byoc.zoo import load_model

OPEN = """g (float[N, 8] x, int64[2] s) => (float[N, 8] y) <float[4, 8] a> {
    a = Reshape(x, s)
    y = Relu(a)
}"""
CLOSED = """g (float[4, 8] x, bool c) => (float[4, 8] y) {
    y = If (c) <
        then_branch = t () => (float[4, 8] u) { v = Neg(x) u = Neg(v) },
        else_branch = e () => (float[4, 8] w) { w = Relu(x) }
    >
}"""
INSIDE = CLOSED.replace("=> (float[4, 8] u)", "=> (float[4, 8] u) <float[4, 8] v>")


def list_certain(index: GraphIndex) -> list[dict[str, onnx.TypeProto]]:
    """Return the certain types of each graph of a model, bodies included."""
    return [dict(each.type_protos) for each in type_certainly(index).walk()]


def infer_again(model: Model) -> list[dict[str, onnx.TypeProto]]:
    """Return the certain types as they are found where loading does not tell."""
    return list_certain(replace(model.index, certain=False))


@pytest.mark.parametrize("name", ["squeezenet", "decoder_int4", "ssd300_vgg16", "transformer_1k"])
def test_what_loading_knows_is_what_another_inference_finds(name: str) -> None:
    model = load_model(f"zoo:{name}")
    assert model.index.certain
    assert list_certain(model.index) == infer_again(model)


@pytest.mark.parametrize(("text", "certain"), [(CLOSED, True), (INSIDE, False), (OPEN, False)])
def test_stated_types_are_certain_only_where_they_are_not_needed(text: str, certain: bool) -> None:
    model = prepare_model(parse(text), "m")
    assert model.index.certain == certain
    assert list_certain(model.index) == infer_again(model)


def test_a_stated_shape_that_inference_lacks_is_planned_with_and_not_certain() -> None:
    model = prepare_model(parse(OPEN), "m")
    assert model.index.get_shape("a") == (4, 8)
    known = list_certain(model.index)[0]
    assert "a" not in known or known["a"].tensor_type.shape.dim[0].dim_value != 4


WEIGHTED = """g (float[N, 4] x) => (float[N, 8] y) <float[4, 8] w = {WEIGHTS}> {
    c = Constant <value = float[8] {1, 2, 3, 4, 5, 6, 7, 8}> ()
    a = MatMul(x, w)
    y = Add(a, c)
}""".replace("WEIGHTS", ", ".join("1" * 32))


@pytest.mark.parametrize("inside", [False, True])
def test_types_of_a_model_with_weights_in_files_are_certain(inside: bool, tmp_path: Path) -> None:
    path, proto = tmp_path / "m.onnx", parse(WEIGHTED)
    for tensor in walk_tensors(proto):
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(
        proto,
        path,
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
        convert_attribute=inside,
    )
    model = load_model(path)
    assert model.index.certain != inside  # of a tensor inside a node the value might matter
    assert model.index.get_shape("y") == ("N", 8)
    assert list_certain(model.index) == infer_again(model)
