"""Models with an open batch, of many kinds, run at several sizes as plain onnxruntime runs them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import original
from helpers.support import parse
from onnx import numpy_helper

import byoc
from byoc.runtime import VariantSession

RULES = """
target: t
codegen: reference
cost_model: costs.yaml
dtype: any
shapes: static
ops: [{op: '*'}]
"""
COSTS = """
kind: roofline
name: t
peak: {float32: 1.0e+15}
bandwidth: 1.0e+15
launch: 1.0e-9
link: {bandwidth: 1.0e+15, latency: 1.0e-9}
"""
HOST = """
kind: roofline
name: host
peak: {float32: 1.0e+9}
bandwidth: 1.0e+9
overhead: 1.0e-7
"""
IMAGE = "float[n, 3, 8, 8] x"
ROW = "float[n, 24] x"
TEXT = "float[n, 4, 6] x"
# Each with the declaration of its input, its steps from x to y, and the rank of y.
INDEPENDENT = {
    "conv": (IMAGE, "c = Conv <kernel_shape = [3, 3]> (x, k) y = Relu(c)", 4),
    "conv, pooled and flattened": (
        IMAGE,
        "c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, k) p = GlobalAveragePool(c) "
        "y = Flatten <axis = 1> (p)",
        2,
    ),
    "batch norm": (IMAGE, "b = BatchNormalization(x, one3, zero3, zero3, one3) y = Relu(b)", 4),
    "layer norm": (TEXT, "l = LayerNormalization <axis = -1> (x, c6, c6) y = Neg(l)", 3),
    "attention": (
        TEXT,
        "q = MatMul(x, w66) t = Transpose <perm = [0, 2, 1]> (x) s = MatMul(q, t) "
        "p = Softmax <axis = -1> (s) y = MatMul(p, x)",
        3,
    ),
    "gather in a row": (TEXT, "g = Gather <axis = 1> (x, order) y = Relu(g)", 3),
    "table": ("int64[n, 5] x", "g = Gather <axis = 0> (table, x) y = Tanh(g)", 3),
    "reshape": (ROW, "r = Reshape(x, rows46) s = Softmax <axis = 2> (r) y = Reshape(s, rows24)", 2),
    "reshape with 0": (TEXT, "r = Reshape(x, keep) y = MatMul(r, w24)", 2),
    "dense": (ROW, "g = Gemm <transB = 1> (x, w24, c24) y = Sigmoid(g)", 2),
    "mean of a row": (TEXT, "m = ReduceMean <axes = [1, 2], keepdims = 0> (x) y = Exp(m)", 1),
    "cumsum in a row": (TEXT, "c = CumSum(x, axis1) y = Neg(c)", 3),
    "topk in a row": (ROW, "v, i = TopK <axis = 1> (x, three) y = Relu(v)", 2),
    "lstm": (
        "float[4, n, 6] x",
        "h, a, b = LSTM <hidden_size = 3> (x, wl, rl) y = Relu(h)",
        4,
    ),
    "qdq": (
        IMAGE,
        "q = QuantizeLinear(x, scale, point) d = DequantizeLinear(q, scale, point) "
        "c = Conv <kernel_shape = [3, 3]> (d, k) r = QuantizeLinear(c, scale, point) "
        "y = DequantizeLinear(r, scale, point)",
        4,
    ),
    "a loop": (
        TEXT,
        "on = Constant <value_int = 1> () go = Cast <to = 9> (on) "
        "y = Loop (three0, go, x) <body = inner (int64 i, bool c, float[n, 4, 6] v) => "
        "(bool d, float[n, 4, 6] u) { d = Identity(c) u = Tanh(v) }>",
        3,
    ),
    "an if": (
        TEXT,
        "on = Constant <value_int = 1> () go = Cast <to = 9> (on) "
        "y = If (go) <then_branch = one () => (float[n, 4, 6] u) { u = Relu(x) }, "
        "else_branch = two () => (float[n, 4, 6] v) { v = Neg(x) }>",
        3,
    ),
}
# These need other rows, or the place of a row among them.
DEPENDENT = {
    "mean over the batch": (TEXT, "m = ReduceMean <axes = [0], keepdims = 1> (x) y = Sub(x, m)", 3),
    "cumsum over the batch": (TEXT, "c = CumSum(x, axis0) y = Neg(c)", 3),
    "softmax over the batch": (TEXT, "s = Softmax <axis = 0> (x) y = Neg(s)", 3),
    "topk over the batch": (TEXT, "v, i = TopK <axis = 0> (x, one) y = Sub(x, v)", 3),
    "first row": (TEXT, "f = Gather <axis = 0> (x, axis0v) y = Sub(x, f)", 3),
    "dynamic quantization": (
        TEXT,
        "q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z) y = Neg(d)",
        3,
    ),
    "dynamic product": (
        TEXT,
        "q, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(q, wi, z) f = Cast <to = 1> (p) "
        "y = Mul(f, s)",
        3,
    ),
    "nonzero": (
        TEXT,
        "z = NonZero(x) f = Cast <to = 1> (z) m = ReduceMax <keepdims = 0> (f) y = Add(x, m)",
        3,
    ),
    "batch norm of a column": (
        "float[3, n] x",
        "t = Transpose <perm = [1, 0]> (x) m = ReduceMax <axes = [0], keepdims = 1> (t) y = Sub(t, m)",
        2,
    ),
    "a loop over rows": (
        TEXT,
        "on = Constant <value_int = 1> () go = Cast <to = 9> (on) "
        "y = Loop (three0, go, x) <body = inner (int64 i, bool c, float[n, 4, 6] v) => "
        "(bool d, float[n, 4, 6] u) { d = Identity(c) u = CumSum(v, axis0) }>",
        3,
    ),
}
_RNG = np.random.default_rng(0)
STORED: dict[str, Any] = {
    "k": _RNG.standard_normal((4, 3, 3, 3), np.float32),
    "one3": np.ones(3, np.float32),
    "zero3": np.zeros(3, np.float32),
    "c6": np.linspace(-1, 1, 6, dtype=np.float32),
    "c24": np.linspace(-1, 1, 24, dtype=np.float32),
    "w66": _RNG.standard_normal((6, 6), np.float32),
    "w24": _RNG.standard_normal((24, 24), np.float32),
    "wi": _RNG.integers(0, 255, (6, 6)).astype(np.uint8),
    "table": _RNG.standard_normal((10, 6), np.float32),
    "order": np.array([3, 1, 0, 2]),
    "rows46": np.array([-1, 4, 6]),
    "rows24": np.array([-1, 24]),
    "keep": np.array([0, -1]),
    "axis0": np.array(0),
    "axis0v": np.array([0]),
    "axis1": np.array(1),
    "one": np.array([1]),
    "three": np.array([3]),
    "three0": np.array(3),
    "wl": _RNG.standard_normal((1, 12, 6), np.float32),
    "rl": _RNG.standard_normal((1, 12, 3), np.float32),
    "scale": np.float32(0.05),
    "point": np.int8(3),
}
SIZES = (1, 2, 3, 7, 32)


def make(case: tuple[str, str, int]) -> onnx.ModelProto:
    given, steps, rank = case
    shape = ", ".join(f"d{axis}" for axis in range(rank))
    model = parse(f"g ({given}) => (float[{shape}] y) {{ {steps} }}")
    bodies = [attribute.g for node in model.graph.node for attribute in node.attribute]
    nodes = [*model.graph.node, *(node for body in bodies for node in body.node)]
    used = {name for node in nodes for name in node.input}
    for name, value in STORED.items():
        if name in used:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def noise(model: onnx.ModelProto, size: int) -> dict[str, Any]:
    (value,) = model.graph.input
    shape = [dim.dim_value or size for dim in value.type.tensor_type.shape.dim]
    rng = np.random.default_rng(size)
    if value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
        return {value.name: rng.integers(0, 10, shape)}
    return {value.name: rng.standard_normal(shape, np.float32)}


def partition(model: onnx.ModelProto, folder: Path) -> byoc.Result:
    for name, text in (("t.yaml", RULES), ("costs.yaml", COSTS), ("host.yaml", HOST)):
        (folder / name).write_text(text)
    return byoc.partition(
        model, folder / "t.yaml", output=folder / "b", host_cost_model=folder / "host.yaml"
    )


def check(model: onnx.ModelProto, folder: Path) -> VariantSession | byoc.Session:
    """Compare a bundle with plain onnxruntime at all sizes, in calls and in a pipeline."""
    session = byoc.load(folder / "b")
    batches = [noise(model, size) for size in SIZES]
    for inputs, piped in zip(batches, session.run_pipeline(batches, 2), strict=True):
        (expected,) = original(model, inputs).values()
        for found in (session(inputs)["y"], piped["y"]):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    return session


@pytest.mark.parametrize("case", INDEPENDENT)
def test_rows_that_are_independent_are_as_in_the_whole_batch(case: str, tmp_path: Path) -> None:
    model = make(INDEPENDENT[case])
    partition(model, tmp_path)
    session = check(model, tmp_path)
    if case not in UNPROVEN:
        assert isinstance(session, VariantSession)
        assert session.split is not None


# Nothing is known of what bodies do with rows: the whole batch runs as it is.
UNPROVEN = {"a loop", "an if"}


@pytest.mark.parametrize("case", DEPENDENT)
def test_rows_that_depend_on_others_stay_together(case: str, tmp_path: Path) -> None:
    model = make(DEPENDENT[case])
    partition(model, tmp_path)
    session = check(model, tmp_path)
    assert not isinstance(session, VariantSession) or session.split is None
