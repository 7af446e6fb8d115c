"""Quantized operations: what they name, and that they say all that the region computes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.quantized import CONSTANTS, MODELS, feed
from helpers.quantized import model as qdq_model
from helpers.support import parse, sample_cases
from rebuilding import make_region, rebuild

from byoc.bundle import open_bundle
from byoc.codegen import Operation, Region
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.pipeline import partition
from byoc.quantization import Precision


def run(model: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    with without_optimizations():
        return run_session(open_session(model), inputs)


def hold(region: Region, seed: int = 1) -> tuple[Operation, ...]:
    """Assert that the quantized operations compute what the region does, bit for bit; return them."""
    inputs = feed(region.model, seed)
    expected = run(region.load(inline=True), inputs)
    found = run(rebuild(region), inputs)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    return region.operations(quantized=True)


@pytest.mark.parametrize("name", MODELS)
def test_operations_say_all(name: str, tmp_path: Path) -> None:
    hold(make_region(qdq_model(MODELS[name]), tmp_path))


def qdq_region(text: str, folder: Path, **stored: Any) -> Region:
    """Return the region of a text; constants are those of `CONSTANTS` and of `stored`."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in stored.items():
            patch.setitem(CONSTANTS, name, np.asarray(value))
        return make_region(qdq_model(text), folder)


def test_a_group_is_one_operation(tmp_path: Path) -> None:
    (conv,) = hold(qdq_region(MODELS["conv"], tmp_path))
    assert (conv.op, conv.name, conv.inputs, conv.outputs) == ("Conv", "n3", ("x", "w", "b"), ("y",))
    assert conv.constants == ("w", "b")
    assert [str(kind) for kind in conv.input_types] == [
        *("uint8[1, 3, 8, 8]", "int8[4, 3, 3, 3]", "int32[4]")
    ]
    assert [str(kind) for kind in conv.output_types] == ["uint8[1, 4, 8, 8]"]
    x, w, b = conv.input_quantization
    assert x is not None
    assert w is not None
    assert b is not None
    assert (x.dtype, x.scale, x.zero_point, x.axis, x.is_per_tensor) == ("uint8", 0.02, 128, None, True)
    assert (w.dtype, w.axis, b.dtype, b.axis) == ("int8", 0, "int32", 0)
    np.testing.assert_array_equal(w.scale, CONSTANTS["ws"])
    np.testing.assert_array_equal(b.zero_point, np.zeros(4, np.int32))
    assert [each.op for each in conv.fused] == ["QuantizeLinear"]
    assert conv.attributes["pads"] == [1, 1, 1, 1]


def test_constants_are_given_as_integers(tmp_path: Path) -> None:
    region = qdq_region(MODELS["conv"], tmp_path)
    (conv,) = region.operations(quantized=True)
    for name, stored in zip(conv.inputs[1:], ("w", "b"), strict=True):
        np.testing.assert_array_equal(region.constant(name), CONSTANTS[stored])


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("conv", (0, 255)),
        ("conv and relu", (128, 255)),
        ("conv and relu to zero", (0, 255)),
        ("conv and clip", (112, 166)),  # 128 - 0.31 / 0.02, and 128 + 0.77 / 0.02 = 166.5, half to even
    ],
)
def test_clamps_are_limits_of_integers(name: str, limits: tuple[int, int], tmp_path: Path) -> None:
    (conv,) = hold(qdq_region(MODELS[name], tmp_path))
    assert conv.output_limits == (limits,)
    clamps = [each.op for each in conv.fused[:-1]]
    assert clamps == ([] if name == "conv" else ["Clip"] if "clip" in name else ["Relu"])


VECTOR = "g (uint8[4,4] x) => ({outputs}) {{ {body} }}"
# Text, and for each operation: operator, inputs, outputs.
SHAPES = {
    "a shared DequantizeLinear": (
        "uint8[4,4] y, uint8[4,4] t",
        """d = DequantizeLinear(x, s, z) r = Relu(d) y = QuantizeLinear(r, s, z)
        e = Sigmoid(d) t = QuantizeLinear(e, s1, z0)""",
        [("Relu", "x", "y"), ("Sigmoid", "x", "t")],
    ),
    "a requantization": (
        "uint8[4,4] y",
        "d = DequantizeLinear(x, s, z) y = QuantizeLinear(d, s1, z0)",
        [("QuantizeLinear", "x", "y")],
    ),
    "two scales of one result": (
        "uint8[4,4] y, uint8[4,4] t",
        """d = DequantizeLinear(x, s, z) e = Sigmoid(d)
        y = QuantizeLinear(e, s, z) t = QuantizeLinear(e, s1, z0)""",
        [("Sigmoid", "x", "e"), ("QuantizeLinear", "e", "y"), ("QuantizeLinear", "e", "t")],
    ),
    "a residual in floating point": (
        "uint8[4,4] y",
        """d = DequantizeLinear(x, s, z) e = Sigmoid(d) f = Add(e, d) r = Relu(f)
        y = QuantizeLinear(r, s, z)""",
        [("Sigmoid", "x", "e"), ("Add", "e x", "y")],
    ),
    "a result that leaves in both forms": (
        "uint8[4,4] y, float[4,4] e",
        "d = DequantizeLinear(x, s, z) e = Relu(d) y = QuantizeLinear(e, s, z)",
        [("Relu", "x", "e"), ("QuantizeLinear", "e", "y")],
    ),
    "a real value that leaves": (
        "uint8[4,4] y, float[4,4] d",
        "d = DequantizeLinear(x, s, z) e = Relu(d) y = QuantizeLinear(e, s, z)",
        [("DequantizeLinear", "x", "d"), ("Relu", "x", "y")],
    ),
    "several outputs": (
        "uint8[2,4] y, float[2,4] t",
        """d = DequantizeLinear(x, s, z) e, f = Split<axis = 0, num_outputs = 2>(d) r = Relu(e)
        y = QuantizeLinear(r, s, z) t = Neg(f)""",
        [("Split", "x", "y f"), ("Neg", "f", "t")],
    ),
    "the same operand twice": (
        "uint8[4,4] y",
        "d = DequantizeLinear(x, s, z) e = Mul(d, d) y = QuantizeLinear(e, s1, z0)",
        [("Mul", "x x", "y")],
    ),
    "clamps in a row": (
        "uint8[4,4] y",
        """d = DequantizeLinear(x, s, z) e = Neg(d) r = Relu(e) c = Clip(r, low, high)
        y = QuantizeLinear(c, s, z)""",
        [("Neg", "x", "y")],
    ),
    "a clamp with bounds the wrong way round": (
        "uint8[4,4] y",
        "d = DequantizeLinear(x, s, z) c = Clip(d, high, low) y = QuantizeLinear(c, s, z)",
        [("Clip", "x high low", "y")],
    ),
    "a clamp whose bound is computed": (
        "uint8[4,4] y",
        """d = DequantizeLinear(x, s, z) e = Neg(d) g = ReduceMax<keepdims = 0>(e) h = Mul(g, high)
        c = Clip(d, low, h) y = QuantizeLinear(c, s, z)""",
        [("Neg", "x", "e"), ("ReduceMax", "e", "g"), ("Mul", "g high", "h"), ("Clip", "x low h", "y")],
    ),
    "weights quantized in the model": (
        "uint8[4,2] y",
        """q = QuantizeLinear(v, ms, mz) p = DequantizeLinear(q, ms, mz) d = DequantizeLinear(x, s, z)
        m1 = MatMul(d, p) y = QuantizeLinear(m1, s, z)""",
        [("MatMul", "x q", "y")],
    ),
    "weights transposed behind their scales": (
        "uint8[4,2] y",
        """p = DequantizeLinear<axis = 0>(v8, vs) t = Transpose<perm = [1, 0]>(p)
        d = DequantizeLinear(x, s, z) m1 = MatMul(d, t) y = QuantizeLinear(m1, s, z)""",
        [("MatMul", "x t_quantized", "y")],
    ),
    "weights reshaped and transposed": (
        "uint8[4,2] y",
        """p = DequantizeLinear<axis = -1>(v9, vs) a = Reshape(p, to) t = Identity(a)
        d = DequantizeLinear(x, s, z) m1 = MatMul(d, t) y = QuantizeLinear(m1, s, z)""",
        [("MatMul", "x t_quantized", "y")],
    ),
    "weights computed in floating point": (
        "uint8[4,2] y",
        """p = DequantizeLinear(v8, ms) a = Sqrt(p) t = Transpose<perm = [1, 0]>(a)
        d = DequantizeLinear(x, s, z) m1 = MatMul(d, t) y = QuantizeLinear(m1, s, z)""",
        [("MatMul", "x t", "y")],
    ),
}  # fmt: skip
STORED = {
    "v": np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2),
    "v8": np.arange(8, dtype=np.int8).reshape(2, 4),
    "v9": np.arange(-4, 4, dtype=np.int8).reshape(2, 2, 2),
    "vs": np.array([0.01, 0.03], np.float32),
    "to": np.array([4, 2], np.int64),
}


@pytest.mark.parametrize("name", SHAPES)
def test_groups_of_any_shape(name: str, tmp_path: Path) -> None:
    outputs, body, expected = SHAPES[name]
    region = qdq_region(VECTOR.format(outputs=outputs, body=body), tmp_path, **STORED)
    operations = hold(region)
    found = [(each.op, " ".join(each.inputs), " ".join(each.outputs)) for each in operations]
    assert found == expected
    for each in operations:
        assert None not in each.input_types
        assert None not in each.output_types


def test_scales_of_an_axis_follow_it(tmp_path: Path) -> None:
    """Integers that are moved instead of what they stand for keep their scales."""
    for name, axis in (
        ("weights transposed behind their scales", 1),
        ("weights reshaped and transposed", 1),
    ):
        outputs, body, _ = SHAPES[name]
        region = qdq_region(VECTOR.format(outputs=outputs, body=body), tmp_path, **STORED)
        (product,) = region.operations(quantized=True)
        weights = product.input_quantization[1]
        assert weights is not None
        assert weights.axis == axis
        stored = region.constant(product.inputs[1])
        assert (stored.dtype, stored.shape) == (np.int8, (4, 2))
        assert str(region.type(product.inputs[1])) == "int8[4, 2]"
        (plain,) = [each for each in region.operations() if each.op == "MatMul"]
        np.testing.assert_array_equal(weights.dequantize(stored), region.constant(plain.inputs[1]))


FLOATS = """g (float[1,3,10,10] x) => (float[1,6] y) {
  a = Conv<pads = [1, 1, 1, 1]>(x, w1, b1) r = Relu(a)
  c = Conv<pads = [1, 1, 1, 1], group = 4>(r, w2) s = Clip(c, zero, six) t = Add(s, r)
  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(t) h = HardSwish(p) k = Concat<axis = 1>(h, p)
  m = GlobalAveragePool(k) f = Flatten(m) g1 = Gemm<transB = 1>(f, w3, b3) y = Softmax(g1) }"""
WEIGHTS = {"w1": (4, 3, 3, 3), "b1": (4,), "w2": (4, 1, 3, 3), "w3": (6, 8), "b3": (6,)}


def float_model() -> onnx.ModelProto:
    """Return a small network with residual, depthwise convolution, clamps and a dense layer."""
    model = parse(FLOATS, ir=10, opset=21)
    random = np.random.default_rng(5)
    stored = {name: random.normal(size=shape).astype(np.float32) for name, shape in WEIGHTS.items()}
    stored |= {"zero": np.float32(0), "six": np.float32(6)}
    for name, value in stored.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return model


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activations", ["QInt8", "QUInt8", "QInt16", "QUInt16"])
def test_models_of_onnxruntimes_quantizer(activations: str, per_channel: bool, tmp_path: Path) -> None:
    from onnxruntime.quantization import (  # noqa: PLC0415
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = [{"x": feed(float_model(), seed)["x"]} for seed in (3, 4)]

        def get_next(self) -> dict[str, Any] | None:
            return self.left.pop() if self.left else None

    onnx.save(float_model(), tmp_path / "float.onnx")
    quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "quantized.onnx",
        Reader(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType[activations],
        weight_type=QuantType.QInt8,
        per_channel=per_channel,
    )
    region = make_region(onnx.load(tmp_path / "quantized.onnx"), tmp_path)
    operations = hold(region)
    names = [each.op for each in operations]
    assert names[0] == "QuantizeLinear"
    assert names[-1] == "DequantizeLinear"
    computed = operations[1:-1]
    assert {each.op for each in computed}.isdisjoint({"QuantizeLinear", "DequantizeLinear"})
    assert all(each.input_quantization[0] and each.output_quantization[0] for each in computed)
    convolution = next(each for each in computed if each.op == "Conv")
    weights = convolution.input_quantization[1]
    assert weights is not None
    assert (weights.axis == 0) is per_channel
    assert region.constant(convolution.inputs[1]).dtype == np.int8


ZOO = [
    *[("squeezenet", "int8"), ("squeezenet", "uint8"), ("shufflenet", "int8")],
    *[(name, "int8") for name in ("mobilenet_v3_large", "efficientnet_b0", "densenet121", "resnet50")],
    *[(name, "uint8") for name in ("mobilenet_v3_large", "inception_v1")],
]


@pytest.mark.parametrize(("name", "kind"), sample_cases(ZOO, ZOO[1]))
def test_models_that_byoc_quantizes(name: str, kind: str, tmp_path: Path) -> None:
    """Regions of real networks, their composites included."""
    partition(
        f"zoo:{name}",
        "dla.yaml",
        output=tmp_path / "b",
        strategy="all-supported",
        precision=Precision(kind, data="random"),
        codegen="reference",
        verify=False,
    )
    groups = 0
    for _, region, _ in open_bundle(tmp_path / "b").regions():
        operations = hold(region)
        groups += sum(any(each.output_quantization) for each in operations)
        for each in operations:
            assert None not in each.input_types
            assert None not in each.output_types
    assert groups > 30
