"""Folding computes what is known, and leaves the rest as it is."""

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.support import parse
from onnx import helper, numpy_helper

from byoc.model import fold_constants
from byoc.onnxrt import open_session, run_session

TEXT = """g (float[2, 3] x) => (float[2, 3] y) <float[3] w = {1, 2, 3}, int64[1] axes = {0}> {
    row = Unsqueeze(w, axes)
    two = Constant <value = float {2}> ()
    scale = Mul(row, two)
    a = Mul(x, scale)
    y = Relu(a)
}"""


def test_constants_are_computed() -> None:
    model = parse(TEXT)
    before = model.SerializeToString()

    folded = fold_constants(model)

    assert [node.op_type for node in folded.graph.node] == ["Mul", "Relu"]
    values = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in folded.graph.initializer}
    assert values["scale"] == [[2, 4, 6]]
    assert model.SerializeToString() == before
    x = np.array([[1, -1, 1], [2, 2, -2]], np.float32)
    session = onnxruntime.InferenceSession(folded.SerializeToString())
    assert session.run(None, {"x": x})[0].tolist() == [[2, 0, 6], [4, 8, 0]]


def test_nothing_to_fold() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")

    assert fold_constants(model) is model


def test_an_output_that_is_constant() -> None:
    model = parse("g () => (float[2] y) <float[2] w = {1, 2}> { y = Add(w, w) }")

    folded = fold_constants(model)

    assert [t.name for t in folded.graph.initializer] == ["w", "y"]
    onnx.checker.check_model(folded)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("opset", [13, 17, 21])
def test_quantized_weights_are_what_onnxruntime_makes_of_them(axis: int | None, opset: int) -> None:
    """ONNX's reference implementation has no DequantizeLinear of operator sets before 19."""
    extent = 1 if axis is None else (2, 6)[axis]
    scale = np.linspace(0.25, 1.5, extent, dtype=np.float32)
    point = np.arange(extent).astype(np.int8)
    if axis is None:
        scale, point = scale.reshape(()), point.reshape(())
    weight = np.arange(-6, 6).reshape(2, 6).astype(np.int8)
    stored = [numpy_helper.from_array(a, n) for a, n in ((weight, "w"), (scale, "s"), (point, "z"))]
    given = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], **given),
        helper.make_node("Add", ["x", "f"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 6]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    folded = {t.name: numpy_helper.to_array(t) for t in fold_constants(model).graph.initializer}
    expected = run_session(open_session(model), {"x": np.zeros((2, 6), np.float32)})["y"]
    np.testing.assert_array_equal(folded["f"], expected)
