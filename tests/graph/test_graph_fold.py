"""Folding computes what is known, and leaves the rest as it is."""

import numpy as np
import onnx
import onnxruntime
from support import parse

from byoc.graph.fold import fold_constants

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
