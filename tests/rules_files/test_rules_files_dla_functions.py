"""annotations/dla.yaml: functions behind convolutions and products are one unit with these."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse
from onnx import numpy_helper

from byoc.model import Model, prepare_model
from byoc.pipeline import partition

IMAGE = "1,4,6,6"
CONV = "e = DequantizeLinear <axis = 0> (w, v) c = Conv <pads = [1, 1, 1, 1]> (d, e)"
ADDED = f"""{CONV.replace("c =", "b =")} k = DequantizeLinear (z, s, p) c = Add (k, b)"""
GEMM = "e = DequantizeLinear <axis = 1> (m, v) c = Gemm (d, e)"
MATMUL = "e = DequantizeLinear <axis = 1> (m, v) c = MatMul (d, e)"
GATED = "g = Sigmoid (c) y = Mul (c, g)"
PARTS = "g = HardSigmoid <alpha = 0.16666667, beta = 0.5> (c) y = Mul (g, c)"
FUNCTIONS = ["LeakyRelu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Gelu", "Elu"]


def quantized(lines: str, shape: str) -> Model:
    """Return a model of some lines from `d` to `y`, between DequantizeLinear and QuantizeLinear."""
    text = f"""g (int8[{shape}] x, int8[{shape}] z) => (int8[] q) {{ d = DequantizeLinear (x, s, p)
      {lines} q = QuantizeLinear (y, t, p) }}"""
    model = parse(text, opset=20)
    constants: dict[str, Any] = {
        "s": np.float32(0.02), "t": np.float32(0.01), "p": np.int8(3), "v": np.full(4, 0.01, np.float32),
        "w": np.arange(144, dtype=np.int8).reshape(4, 4, 3, 3),
        "m": np.arange(24, dtype=np.int8).reshape(6, 4),
    }  # fmt: skip
    read = {name for node in model.graph.node for name in node.input}
    for name in read & constants.keys():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(constants[name]), name))
    if "z" not in read:
        del model.graph.input[1]
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    return prepare_model(model, "test")


@pytest.mark.parametrize(
    ("lines", "shape", "composite"),
    [
        *((f"{CONV} y = {each} (c)", IMAGE, "conv_function") for each in FUNCTIONS),
        (f"{ADDED} y = HardSwish (c)", IMAGE, "conv_function"),
        (f"{CONV} {GATED}", IMAGE, "conv_gated"),
        (f"{ADDED} {PARTS}", IMAGE, "conv_gated"),
        *((f"{GEMM} y = {each} (c)", "5,6", "product_function") for each in ("Relu", "Sigmoid")),
        (f"{MATMUL} y = Gelu (c)", "2,5,6", "product_function"),
        (GATED.replace("c", "d"), IMAGE, "gated"),
        (PARTS.replace("(c)", "(d)").replace("c)", "d)"), IMAGE, "gated"),
    ],
)
def test_one_unit_of_one_layer(lines: str, shape: str, composite: str, tmp_path: Path) -> None:
    result = partition(
        quantized(lines, shape).proto, "dla", output=tmp_path / "b", strategy="all-supported",
        strict=True, what_if=False,
    )  # fmt: skip

    (region,) = result.plan.regions
    assert [unit.composite for unit in region.units] == [composite]
    assert not result.plan.host_units
    assert result.verification is not None
    assert result.verification.passed


@pytest.mark.parametrize(
    "lines",
    [
        f"{CONV} n = Tanh (c) y = Mul (c, n)",  # a product of the sum by another function
        f"{CONV} k = DequantizeLinear (z, s, p) n = Mul (c, k) y = HardSwish (n)",
    ],
)
def test_what_would_be_rounded_in_between_stays_in_floating_point(lines: str) -> None:
    result = partition(quantized(lines, IMAGE).proto, "dla", what_if=False, strategy="all-supported")

    assert result.plan.host_units
