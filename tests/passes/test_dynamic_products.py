"""Products of integers that are quantized as a model runs: how they are read, and where they go."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import parse
from onnx import ModelProto, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import byoc
from byoc.model import prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.passes import ReadQuantizedOperators, clean_model

pytestmark = pytest.mark.processor
RANDOM = np.random.default_rng(7)


def draw(*shape: int) -> Any:
    return (RANDOM.standard_normal(shape) * 0.3).astype(np.float32)


NETWORKS = {
    "a product": ("g (float[4,64] x) => (float[4,32] y) { y = MatMul(x, w) }", {"w": draw(64, 32)}),
    "two layers": (
        """g (float[4,64] x) => (float[4,10] y) {
        a = MatMul(x, w) c = Add(a, b) d = Relu(c) y = Gemm<transB=1>(d, v, k) }""",
        {"w": draw(64, 32), "b": draw(32), "v": draw(10, 32), "k": draw(10)},
    ),
    "convolutions": (
        """g (float[1,3,12,12] x) => (float[1,10] y) {
        a = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(a)
        c = Conv<strides=[2,2], pads=[1,1,1,1], group=4>(r, v)
        s = Sigmoid(c) g = GlobalAveragePool(s) f = Flatten(g) y = Gemm<transB=1>(f, k, l) }""",
        {
            "w": draw(8, 3, 3, 3), "b": draw(8), "v": draw(12, 2, 3, 3),
            "k": draw(10, 12), "l": draw(10),
        },
    ),
    "attention": (
        """g (float[1,12,32] x) => (float[1,12,32] y) {
        q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) b = Add(q, bq)
        t = Transpose<perm=[0,2,1]>(k) s = MatMul(b, t) p = Softmax<axis=-1>(s) o = MatMul(p, v)
        l = MatMul(o, wo) y = Add(l, x) }""",
        {**{name: draw(32, 32) for name in ("wq", "wk", "wv", "wo")}, "bq": draw(32)},
    ),
}  # fmt: skip
WAYS = {
    "int8": {"weight_type": QuantType.QInt8},
    "uint8": {"weight_type": QuantType.QUInt8},
    "int8 by channel": {"weight_type": QuantType.QInt8, "per_channel": True},
    "uint8 by channel": {"weight_type": QuantType.QUInt8, "per_channel": True},
    "half of int8": {"weight_type": QuantType.QInt8, "reduce_range": True},
}


def quantize(folder: Path, network: str, way: str) -> Path:
    """Write a network that onnxruntime quantized to be quantized as it runs."""
    text, stored = NETWORKS[network]
    proto = parse(text, opset=17)
    proto.ir_version = 8
    for name, value in stored.items():
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    given, made = folder / "float.onnx", folder / "dynamic.onnx"
    onnx.save(proto, given)
    quantize_dynamic(given, made, **WAYS[way])
    return made


@pytest.mark.parametrize(("network", "way"), list(product(NETWORKS, WAYS)))
def test_every_node_of_a_dynamically_quantized_network_runs_on_dla(
    network: str, way: str, tmp_path: Path
) -> None:
    path = quantize(tmp_path, network, way)

    result = byoc.partition(
        path, "dla", output=tmp_path / "b", strategy="all-supported", cache=False, strict=True
    )

    assert result.verification is not None
    assert result.verification.passed
    assert result.report.nodes.host == 0


CODEGENS = {
    "openvino-cpu": ("openvino-cpu", None),
    "dla in C": ("dla", "c"),
    "dla on onnxruntime": ("dla", "reference"),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("target", CODEGENS)
def test_they_run_on_other_targets(network: str, target: str, tmp_path: Path) -> None:
    rules, codegen = CODEGENS[target]
    pytest.importorskip({"c": "emx_onnx_cgen", None: "openvino"}.get(codegen, "onnxruntime"))
    for way in ("int8 by channel", "uint8"):
        result = byoc.partition(
            quantize(tmp_path, network, way),
            rules,
            output=tmp_path / way,
            strategy="all-supported",
            codegen=codegen,
            cache=False,
            strict=True,
        )

        assert result.verification is not None
        assert result.verification.passed
        assert result.report.nodes.host == 0


SCALES = {
    "one number": np.float32(0.02),
    "one number in a list": np.float32([0.02]),
    "one number of many axes": np.float32([[[0.02]]]),
    "by channel": np.float32([0.01, 0.02, 0.03, 0.04]),
    "by channel of many axes": np.float32([[0.01, 0.02, 0.03, 0.04]]),
}
ARRANGED = {
    "both scales first": "t = Mul(s, k) f = Cast<to=1>(p) y = Mul(f, t)",
    "the weights' scale first": "t = Mul(k, s) f = Cast<to=1>(p) y = Mul(t, f)",
    "one after the other": "f = Cast<to=1>(p) t = Mul(f, s) y = Mul(t, k)",
    "the weights' before the other": "f = Cast<to=1>(p) t = Mul(k, f) y = Mul(s, t)",
}


def read(proto: ModelProto, **options: bool) -> ModelProto:
    """Return what the pass makes of a model."""
    done = clean_model(prepare_model(proto, "m"), (ReadQuantizedOperators(**options),)).model.proto
    onnx.checker.check_model(done, full_check=True)
    return done


def check(proto: ModelProto, shape: tuple[int, ...], operator: str) -> None:
    """Assert that the pass leaves one product, of real numbers, that computes what the model does."""
    done = read(proto)
    kinds = [node.op_type for node in done.graph.node]
    assert kinds == ["DynamicQuantizeLinear", "DequantizeLinear", "DequantizeLinear", operator]
    given = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    with without_optimizations():
        wanted, got = (run_session(open_session(each), given)["y"] for each in (proto, done))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arranged", ARRANGED)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("zero", ["none", "one", "by channel"])
def test_products_of_matrices_are_read_however_they_are_scaled(
    arranged: str, scale: str, zero: str
) -> None:
    rank = max(2, np.ndim(SCALES[scale]))
    extents = ",".join(["1"] * (rank - 2) + ["3"])
    point = {"none": "", "one": ", wz", "by channel": ", wz"}[zero]
    proto = parse(
        f"g (float[{extents},6] x) => (float[{extents},4] y) {{ q, s, z = DynamicQuantizeLinear(x)"
        f" p = MatMulInteger(q, w, z{point}) {ARRANGED[arranged]} }}",
        opset=17,
    )
    stored = {"w": RANDOM.integers(0, 128, (6, 4)).astype(np.uint8), "k": SCALES[scale]}
    if point:
        stored["wz"] = np.uint8([9, 99, 128, 200]) if zero == "by channel" else np.uint8(120)
    for name, value in stored.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))

    check(proto, tuple(map(int, f"{extents},6".split(","))), "MatMul")


@pytest.mark.parametrize("arranged", ARRANGED)
@pytest.mark.parametrize("shape", [(), (1,), (4, 1, 1), (1, 4, 1, 1)])
def test_convolutions_are_read_however_they_are_scaled(arranged: str, shape: tuple[int, ...]) -> None:
    proto = parse(
        "g (float[1,3,6,6] x) => (float[1,4,6,6] y) { q, s, z = DynamicQuantizeLinear(x)"
        f" p = ConvInteger<pads=[1,1,1,1]>(q, w, z, wz) {ARRANGED[arranged]} }}",
        opset=17,
    )
    count = int(np.prod(shape))
    scales = np.linspace(0.01, 0.02, count).astype(np.float32).reshape(shape)
    for name, value in {
        "w": RANDOM.integers(0, 256, (4, 3, 3, 3)).astype(np.uint8),
        "k": scales,
        "wz": np.uint8(120),
    }.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))

    check(proto, (1, 3, 6, 6), "Conv")


@pytest.mark.parametrize(
    ("operator", "shapes", "scale"),
    [
        ("MatMulInteger", ((3, 6), (6, 3), "3,3"), np.float32([[0.01], [0.02], [0.03]])),  # of rows
        ("MatMulInteger", ((3, 6), (6, 1), "3,4"), np.float32([0.01, 0.02, 0.03, 0.04])),  # one channel
        ("ConvInteger", ((1, 3, 4, 4), (4, 3, 1, 1), "1,4,4,4"), np.float32([0.01, 0.02, 0.03, 0.04])),
    ],
)
def test_scales_of_something_else_than_channels_stay(
    operator: str, shapes: tuple[Any, Any, str], scale: Any
) -> None:
    given, weights, made = shapes
    proto = parse(
        f"g (float[{','.join(map(str, given))}] x) => (float[{made}] y) {{"
        f" q, s, z = DynamicQuantizeLinear(x) p = {operator}(q, w, z)"
        f" {ARRANGED['both scales first']} }}",
        opset=17,
    )
    for name, value in {"w": RANDOM.integers(0, 256, weights).astype(np.uint8), "k": scale}.items():
        proto.graph.initializer.append(numpy_helper.from_array(value, name))

    assert operator in {node.op_type for node in read(proto).graph.node}


def test_products_of_one_activation_share_its_real_numbers(tmp_path: Path) -> None:
    done = read(onnx.load(quantize(tmp_path, "attention", "int8")))

    kinds = [node.op_type for node in done.graph.node]
    assert kinds.count("DynamicQuantizeLinear") == 2
    assert kinds.count("DequantizeLinear") == 6  # of two activations and four weights
    first = next(n for n, kind in enumerate(kinds) if kind == "DynamicQuantizeLinear")
    assert kinds[first + 1] == "DequantizeLinear"


def test_dynamic_only_leaves_what_is_quantized_beforehand() -> None:
    proto = parse(
        """g (float[2,6] x, uint8[2,6] q) => (float[2,4] y, uint8[2,4] r) {
        a, s, z = DynamicQuantizeLinear(x) p = MatMulInteger(a, w, z) f = Cast<to=1>(p) t = Mul(s, k)
        y = Mul(f, t) r = QLinearMatMul(q, k, o, w, k, o, k, o) }""",
        opset=17,
    )
    for name, value in {
        "w": RANDOM.integers(0, 128, (6, 4)).astype(np.uint8), "k": np.float32(0.02), "o": np.uint8(3),
    }.items():  # fmt: skip
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))

    kinds = {each: [node.op_type for node in read(proto, dynamic_only=each).graph.node]
             for each in (True, False)}  # fmt: skip

    assert "QLinearMatMul" in kinds[True]
    assert "MatMulInteger" not in kinds[True]
    assert not {"QLinearMatMul", "MatMulInteger"} & {*kinds[False]}
