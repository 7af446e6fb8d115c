"""annotations/dla.yaml: which quantized tensors may have a scale for each channel."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse
from onnx import numpy_helper
from shipped_rules import mark

from byoc.model import Model, prepare_model
from byoc.pipeline import partition

IMAGE, ROWS = "1,4,6,6", "2,4,6"
DEEP = "e = DequantizeLinear <axis = 0> (w, v) y = Conv <group = 4> (d, e)"
POINT = "e = DequantizeLinear <axis = 0> (o, v) y = Conv (d, e)"
POOL = "<kernel_shape = [2, 2]> (d)"
ONE, MANY = 1, 4


def between(line: str, shape: str, given: int, made: int) -> Model:
    """Return a line between DequantizeLinear and QuantizeLinear of so many scales along axis 1."""
    text = f"""g (int8[{shape}] x) => (int8[] z) {{ d = DequantizeLinear <axis = 1> (x, s, p)
      {line} z = QuantizeLinear <axis = 1> (y, t, q) }}"""
    model = parse(text, opset=21)
    constants: dict[str, Any] = {"v": np.full(4, 0.01, np.float32)}
    for count, scale, point in ((given, "s", "p"), (made, "t", "q")):
        scales = np.linspace(0.01, 0.03, count, dtype=np.float32)
        points = np.arange(count, dtype=np.int8)
        constants |= {
            scale: scales if count > 1 else scales[0],
            point: points if count > 1 else points[0],
        }
    constants |= {"low": np.float32(-0.02), "high": np.float32(0.02)}
    for name, extents in (("w", (4, 1, 3, 3)), ("o", (4, 4, 1, 1))):
        constants[name] = np.arange(np.prod(extents), dtype=np.int8).reshape(extents)
    read = {name for node in model.graph.node for name in node.input}
    for name in read & constants.keys():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(constants[name]), name))
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return prepare_model(model, "test")


TAKEN = [
    (DEEP, IMAGE, MANY, MANY),
    (DEEP, IMAGE, MANY, ONE),
    (POINT, IMAGE, ONE, MANY),
    (f"y = MaxPool {POOL}", IMAGE, MANY, MANY),
    (f"y = AveragePool {POOL}", IMAGE, MANY, MANY),
    ("y = GlobalAveragePool (d)", IMAGE, MANY, MANY),
    ("y = Add (d, d)", IMAGE, ONE, MANY),
    ("y = Mul (d, d)", IMAGE, ONE, MANY),
    ("y = Sum (d, d)", IMAGE, ONE, MANY),
    ("y = Relu (d)", IMAGE, ONE, MANY),
    ("y = Clip (d, low, high)", IMAGE, ONE, MANY),
    ("y = HardSwish (d)", IMAGE, ONE, MANY),
    ("y = Tanh (d)", IMAGE, ONE, MANY),
]
NO_IMAGE = "it has a scale for each channel, but is no image"
SEVERAL = "has a scale for each channel, which is not supported"
REFUSED = [
    (POINT, IMAGE, MANY, ONE, "X has a scale for each channel, but it is not depthwise"),
    ("y = Add (d, d)", IMAGE, MANY, ONE, f"A {SEVERAL}"),
    ("y = Relu (d)", IMAGE, MANY, ONE, f"X {SEVERAL}"),
    ("y = Tanh (d)", IMAGE, MANY, ONE, f"input {SEVERAL}"),
    ("y = Add (d, d)", ROWS, ONE, MANY, NO_IMAGE),
    ("y = Sum (d, d)", ROWS, ONE, MANY, NO_IMAGE),
    ("y = Relu (d)", ROWS, ONE, MANY, NO_IMAGE),
    ("y = Tanh (d)", ROWS, ONE, MANY, NO_IMAGE),
    ("y = Clip (d)", ROWS, ONE, MANY, NO_IMAGE),
    ("y = Concat <axis = 1> (d)", IMAGE, ONE, MANY, f"concat_result {SEVERAL}"),
    ("y = Transpose <perm = [0, 1, 3, 2]> (d)", IMAGE, ONE, MANY, f"transposed {SEVERAL}"),
]


@pytest.mark.parametrize(("line", "shape", "given", "made"), TAKEN)
def test_taken_and_computed(line: str, shape: str, given: int, made: int, tmp_path: Path) -> None:
    model = between(line, shape, given, made)

    assert mark("dla", model).accepts_quantized
    result = partition(
        model.proto, "dla", output=tmp_path / "b", what_if=False, strategy="all-supported", strict=True
    )
    assert not result.plan.host_units
    assert result.verification is not None
    assert result.verification.passed


@pytest.mark.parametrize(("line", "shape", "given", "made", "reason"), REFUSED)
def test_refused(line: str, shape: str, given: int, made: int, reason: str) -> None:
    found = mark("dla", between(line, shape, given, made))

    assert not found.accepts_quantized
    assert reason in found.not_quantized
