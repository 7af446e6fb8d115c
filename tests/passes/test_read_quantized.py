"""Models in onnxruntime's other quantized forms are read as QDQ groups, and compute the same."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

import byoc
from byoc.model import prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.passes import ReadQuantizedOperators, clean_model

pytestmark = pytest.mark.processor
_SHAPE = (1, 3, 12, 12)


def make_model() -> ModelProto:
    """Return a small float network with the operators that onnxruntime has in integers."""
    random = np.random.default_rng(3)
    stored = {
        "w": random.normal(size=(8, 3, 3, 3)) * 0.2,
        "b": random.normal(size=8),
        "w2": random.normal(size=(8, 8, 1, 1)) * 0.3,
        "m": random.normal(size=(8, 5)),
    }
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,3,12,12] x) => (float[1,5] y) {
      c = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(c) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
      d = Conv(p, w2) s = Sigmoid(d) t = Mul(d, s) a = Add(t, p)
      v = AveragePool<kernel_shape=[2,2], strides=[2,2]>(a) e = GlobalAveragePool(v)
      f = Flatten(e) y = MatMul(f, m)
    }"""
    proto = onnx.parser.parse_model(text)
    for name, value in stored.items():
        proto.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    return proto


def draw(seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).normal(size=_SHAPE).astype(np.float32)}


class Reader(CalibrationDataReader):
    def __init__(self) -> None:
        self.left = iter([draw(seed) for seed in range(4)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


def quantize(folder: Path, form: str, per_channel: bool = False) -> Path:
    given, made = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(make_model(), given)
    if form == "dynamic":
        quantize_dynamic(given, made, per_channel=per_channel, op_types_to_quantize=["MatMul"])
    else:
        quantize_static(
            given,
            made,
            Reader(),
            quant_format=QuantFormat.QOperator,
            per_channel=per_channel,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    return made


def run(proto: ModelProto) -> np.ndarray:
    with without_optimizations():
        return np.asarray(run_session(open_session(proto), draw(9))["y"])


@pytest.mark.parametrize("per_channel", [False, True])
def test_operators_of_integers_become_qdq_groups(tmp_path: Path, per_channel: bool) -> None:
    proto = onnx.load(quantize(tmp_path, "qoperator", per_channel))
    before = {node.op_type for node in proto.graph.node}
    assert {"QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearSigmoid"} <= before
    done = clean_model(prepare_model(proto, "m"), (ReadQuantizedOperators(),)).model.proto
    onnx.checker.check_model(done, full_check=True)
    assert not [node.op_type for node in done.graph.node if node.op_type.startswith("QLinear")]
    wanted, got = run(proto), run(done)
    (scale,) = [
        numpy_helper.to_array(tensor) for tensor in proto.graph.initializer if tensor.name == "y_scale"
    ]
    assert np.abs(wanted - got).max() <= 1.01 * scale


def test_a_qoperator_model_runs_on_dla_in_regions(tmp_path: Path) -> None:
    path = quantize(tmp_path, "qoperator")
    result = byoc.partition(path, "dla", output=tmp_path / "b", strategy="all-supported", cache=False)
    assert result.verification is not None
    assert result.verification.passed
    assert sum(len(region.nodes) for region in result.plan.regions) > 20
    assert "read-quantized" in {effect.name for effect in result.plan.passes}
    kept = byoc.partition(path, "dla", strategy="all-supported", no_passes=["read-quantized"])
    assert not kept.plan.regions


def test_dynamic_quantization_leaves_a_product_that_is_taken(tmp_path: Path) -> None:
    path = quantize(tmp_path, "dynamic")
    proto = onnx.load(path)
    assert "MatMulInteger" in {node.op_type for node in proto.graph.node}
    done = clean_model(prepare_model(proto, "m"), (ReadQuantizedOperators(),)).model.proto
    onnx.checker.check_model(done, full_check=True)
    operators = [node.op_type for node in done.graph.node]
    assert "MatMulInteger" not in operators
    assert operators.count("Cast") == 0
    np.testing.assert_allclose(run(done), run(proto), rtol=1e-5, atol=1e-6)


def test_a_gemm_of_com_microsoft(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    stored = {
        "s": np.float32(0.02), "z": np.uint8(12),
        "w": random.integers(-127, 127, (6, 4)).astype(np.int8),
        "ws": np.float32(0.01), "wz": np.int8(0), "c": random.integers(-900, 900, 4).astype(np.int32),
        "t": np.float32(0.05), "u": np.uint8(128),
    }  # fmt: skip
    node = helper.make_node(
        "QGemm", ["q", "s", "z", "w", "ws", "wz", "c", "t", "u"], ["y"], domain="com.microsoft"
    )
    values = [
        helper.make_tensor_value_info(n, onnx.TensorProto.UINT8, shape)
        for n, shape in (("q", (2, 6)), ("y", (2, 4)))
    ]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    graph = helper.make_graph([node], "g", values[:1], values[1:], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    done = clean_model(prepare_model(proto, "m"), (ReadQuantizedOperators(),)).model.proto
    given = {"q": random.integers(0, 256, (2, 6)).astype(np.uint8)}
    results = [run_session(open_session(each), given)["y"].astype(int) for each in (proto, done)]
    assert np.abs(results[0] - results[1]).max() <= 1
    assert [node.op_type for node in done.graph.node][-2:] == ["Gemm", "QuantizeLinear"]


def read(
    node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]], stored: dict[str, object]
) -> tuple[ModelProto, ModelProto]:
    """Return the model of one node of com.microsoft or ONNX, and what the pass makes of it."""
    values = [
        helper.make_tensor_value_info(
            name, onnx.TensorProto.FLOAT if name in ("a", "y") else onnx.TensorProto.UINT8, shape
        )
        for name, shape in shapes.items()
    ]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    graph = helper.make_graph([node], "g", values[:1], values[1:], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return proto, clean_model(prepare_model(proto, "m"), (ReadQuantizedOperators(),)).model.proto


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("operator", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat"])
def test_products_of_com_microsoft_that_give_floats(operator: str, channels: int) -> None:
    random = np.random.default_rng(1)
    stored: dict[str, object] = {
        "w": random.integers(-127, 127, (6, 4)).astype(np.int8),
        "ws": random.uniform(0.01, 0.02, channels).astype(np.float32),
        "wz": np.zeros(channels, np.int8),
        "b": random.normal(size=4).astype(np.float32),
    }
    if operator == "DynamicQuantizeMatMul":
        names, given = ["a", "w", "ws", "wz", "b"], {"a": random.normal(size=(3, 6)).astype(np.float32)}
    else:
        names, given = (
            ["q", "w", "s", "ws", "z", "wz", "b"],
            {"q": random.integers(0, 256, (3, 6)).astype(np.uint8)},
        )
        stored |= {"s": np.float32(0.02), "z": np.uint8(99)}
    node = helper.make_node(operator, names, ["y"], "product", domain="com.microsoft")
    proto, done = read(node, {names[0]: (3, 6), "y": (3, 4)}, stored)
    onnx.checker.check_model(done, full_check=True)
    operators = [each.op_type for each in done.graph.node]
    assert operators[-4:] == ["DequantizeLinear", "DequantizeLinear", "MatMul", "Add"]
    assert done.graph.node[-1].name == "product"
    with without_optimizations():
        wanted, got = (run_session(open_session(each), given)["y"] for each in (proto, done))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("one", ["scale", "zero point"])
def test_one_number_stands_for_all_channels(one: str) -> None:
    random = np.random.default_rng(2)
    many, few = np.float32([0.01, 0.02, 0.03]), np.float32(0.01)
    stored = {
        "s": np.float32(0.02), "z": np.uint8(12),
        "w": random.integers(0, 255, (3, 2, 1, 1)).astype(np.uint8),
        "ws": few if one == "scale" else many,
        "wz": np.uint8(130) if one == "zero point" else np.uint8([120, 130, 140]),
        "t": np.float32(0.1), "u": np.uint8(128),
    }  # fmt: skip
    node = helper.make_node("QLinearConv", ["q", "s", "z", "w", "ws", "wz", "t", "u"], ["r"])
    _, done = read(node, {"q": (1, 2, 4, 4), "r": (1, 3, 4, 4)}, stored)
    onnx.checker.check_model(done, full_check=True)
    (weights,) = [each for each in done.graph.node if each.input[0] == "w"]
    sizes = {each.name: list(each.dims) for each in done.graph.initializer}
    assert sizes[weights.input[1]] == sizes[weights.input[2]] == [3]
    given = {"q": random.integers(0, 256, (1, 2, 4, 4)).astype(np.uint8)}
    x = (given["q"].astype(float) - 12) * 0.02
    kernel = (stored["w"].astype(float) - np.reshape(stored["wz"], (-1, 1, 1, 1))) * np.reshape(
        stored["ws"], (-1, 1, 1, 1)
    )
    exact = np.einsum("oc,bchw->bohw", kernel[:, :, 0, 0], x) / 0.1 + 128
    with without_optimizations():
        got = run_session(open_session(done), given)["r"]
    assert np.abs(got - np.clip(exact, 0, 255)).max() <= 0.51


def test_a_product_that_is_scaled_otherwise_stays() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,3] x, int8[3,3] w) => (float[2,3] y) {
      q, s, z = DynamicQuantizeLinear(x)
      p = MatMulInteger(q, w, z)
      f = Cast<to=1>(p)
      y = Mul(f, f)
    }"""
    model = prepare_model(onnx.parser.parse_model(text), "m")
    assert clean_model(model, (ReadQuantizedOperators(),)).model is model
