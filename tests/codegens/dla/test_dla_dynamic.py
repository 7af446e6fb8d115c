"""Tensors that are quantized as the program runs: the commands, and their products by integers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byoc.codegens.dla.compiler.layers import ConvLayer, MinMaxLayer, MoveLayer, QuantizeLayer
from byoc.codegens.dla.machine import (
    ABSENT,
    Conv,
    ConvFlags,
    DType,
    FunctionKind,
    MinMax,
    Pair,
    Quantize,
    disassemble,
    to_real_multiplier,
)
from byoc.codegens.dla.simulator import SimulationError
from dla_bench import make_machine, onnx_run, run_one
from dla_on_driver import assert_same, run_on_driver
from dla_regions import agrees, bytes_of, executed, floats, mentioned, model, network, region
from hypothesis import given
from hypothesis import strategies as st

from byoc.codegen import CompileError, find_codegen, parse_codegen_options
from byoc.codegen.drivers import DriverLibrary
from byoc.errors import ByocError

LIMITS = np.array([[[-1.5, 2.25]]], np.float32)
NUMBERS = {
    "mixed": floats(2, 3, 5),
    "of one sign": np.abs(floats(2, 3, 5)) + 3,
    "negative": -np.abs(floats(2, 3, 5)) - 3,
    "nothing but 0": np.zeros((2, 3, 5), np.float32),
    "halves of a step": (np.arange(30, dtype=np.float32).reshape(2, 3, 5) + 0.5) * np.float32(255 / 30),
    "halves of all steps": (np.arange(-256, 255, dtype=np.float32) / 2).reshape(1, 7, 73),
    "large": floats(2, 3, 5) * np.float32(1e37),
    "tiny": floats(2, 3, 5) * np.float32(1e-37),
    "one number": np.full((1, 1, 1), 0.3, np.float32),
}
DQL = "g (float[{}] x) => (uint8[{}] q) {{ q, s, z = DynamicQuantizeLinear(x) }}"


def find_limits(x: Any, before: Any = None) -> Any:
    """Return what MINMAX finds."""
    arrays = {"x": x} if before is None else {"x": x, "before": before}
    return run_one(lambda **boxes: MinMax(0, **{"before": ABSENT, **boxes}), arrays, (1, 1, 2))


@pytest.mark.parametrize("name", NUMBERS)
def test_the_integers_are_those_that_onnx_defines(name: str) -> None:
    """Both results of QUANTIZE, against onnxruntime's operator."""
    x = NUMBERS[name]
    extents = ",".join(map(str, x.shape))
    integers = onnx_run(DQL.format(extents, extents), {"x": x}).astype(int)
    zero = onnx_run(
        f"g (float[{extents}] x) => (uint8 z) {{ q, s, z = DynamicQuantizeLinear(x) }}", {"x": x}
    )
    real = onnx_run(
        f"g (float[{extents}] x) => (float[{extents}] y) {{ q, s, z = DynamicQuantizeLinear(x)"
        " y = DequantizeLinear(q, s, z) }",
        {"x": x},
    )
    limits = find_limits(x)

    for dtype, wanted in ((DType.INT16, integers - int(zero)), (DType.FLOAT32, real)):
        made = run_one(lambda **boxes: Quantize(0, **boxes), {"x": x, "limits": limits}, x.shape, dtype)
        np.testing.assert_array_equal(made, wanted)


def test_limits_go_on_from_those_before() -> None:
    x = np.array([[[0.5, -0.25]]], np.float32)

    np.testing.assert_array_equal(find_limits(x).reshape(-1), [-0.25, 0.5])
    np.testing.assert_array_equal(find_limits(x, LIMITS), LIMITS)
    np.testing.assert_array_equal(find_limits(x, LIMITS * 0).reshape(-1), [-0.25, 0.5])
    np.testing.assert_array_equal(find_limits(x * np.float32(np.nan)).reshape(-1), [0, 0])


def make_dynamic_conv(**fields: Any) -> Any:
    """Return what makes a pointwise convolution from int16 into float32."""
    usual = {"flags": ConvFlags.ONLY, "accumulator": ABSENT, "kernel": Pair(1, 1), **fields}
    return lambda **boxes: Conv(0, **{**usual, **boxes})


def conv_rows(scales: Any, bias: Any) -> Any:
    """Return the nine rows of parameters of a CONV into float32."""
    rows = np.zeros((9, len(bias)), np.int32)
    rows[1:3] = np.array([to_real_multiplier(float(scale)) for scale in scales]).T
    rows[4] = np.asarray(bias, np.float32).view(np.int32)
    return rows.reshape(-1)


@given(
    st.integers(0, 99),
    st.sampled_from([FunctionKind.IDENTITY, FunctionKind.SIGMOID, FunctionKind.LEAKY_RELU]),
    st.sampled_from([(-np.inf, np.inf), (0.0, np.inf), (-0.5, 0.5)]),
    st.sampled_from([1e-3, 1.0, 1e-30]),
)
def test_a_convolution_into_floats(
    dla_driver: DriverLibrary | None,
    seed: int,
    function: FunctionKind,
    limits: tuple[float, float],
    scale: float,
) -> None:
    """One command, against numpy; the driver in C makes what the simulator makes."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-255, 256, (2, 3, 8)).astype(np.int16)
    weights = rng.integers(-128, 128, (4, 8)).astype(np.int8)
    scales, bias = rng.uniform(0.5, 2, 4) * scale, rng.standard_normal(4).astype(np.float32)
    arrays = {
        "x": x, "weights": weights.reshape(-1),
        "parameters": conv_rows(scales, bias), "residual": LIMITS,
    }  # fmt: skip
    low, high = limits
    make = make_dynamic_conv(function=function, alpha=0.1, low=low, high=high)

    simulator, inputs, y = make_machine(make, arrays, (2, 3, 4))
    made = simulator.run(inputs, [y]).outputs[0]

    real = (x.astype(np.int64) @ weights.T.astype(np.int64)) * scales * (3.75 / 255) + bias
    with np.errstate(over="ignore"):
        applied = {
            FunctionKind.IDENTITY: real,
            FunctionKind.SIGMOID: 1 / (1 + np.exp(-real)),
            FunctionKind.LEAKY_RELU: np.where(real < 0, np.float32(0.1) * real, real),
        }[function]
    np.testing.assert_allclose(made, np.clip(applied, low, high), rtol=1e-6, atol=1e-6)
    if dla_driver is not None:
        (other,) = run_on_driver(dla_driver, simulator, inputs, [y])
        assert_same(made, other)


X16 = np.full((1, 1, 1), 7, np.int16)
ONE = np.ones(1, np.int8)
ROWS = conv_rows([1.0], [0.0])
REAL = np.ones((1, 1, 1), np.float32)
WRONG: dict[str, tuple[Any, dict[str, Any], DType]] = {
    "no limits": (
        make_dynamic_conv(residual=ABSENT),
        {"x": X16, "weights": ONE, "parameters": ROWS},
        DType.FLOAT32,
    ),
    "limits of integers": (
        make_dynamic_conv(),
        {"x": X16, "weights": ONE, "parameters": ROWS, "residual": X16}, DType.FLOAT32,
    ),
    "a convolution of bytes": (
        make_dynamic_conv(),
        {"x": X16.astype(np.int8), "weights": ONE, "parameters": ROWS, "residual": LIMITS},
        DType.FLOAT32,
    ),
    "three rows": (
        make_dynamic_conv(),
        {"x": X16, "weights": ONE, "parameters": ROWS[:3], "residual": LIMITS}, DType.FLOAT32,
    ),
    "levels in bytes": (
        lambda **boxes: Quantize(0, **boxes), {"x": REAL, "limits": LIMITS}, DType.UINT8,
    ),
    "levels of integers": (
        lambda **boxes: Quantize(0, **boxes), {"x": X16, "limits": LIMITS}, DType.INT16,
    ),
    "one limit": (lambda **boxes: Quantize(0, **boxes), {"x": REAL, "limits": REAL}, DType.FLOAT32),
    "limits of what are integers": (
        lambda **boxes: MinMax(0, **{"before": ABSENT, **boxes}), {"x": X16}, DType.FLOAT32,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_found_by_the_simulator_and_by_the_driver(
    case: str, dla_driver: DriverLibrary | None
) -> None:
    make, arrays, dtype = WRONG[case]
    simulator, inputs, y = make_machine(make, arrays, (1, 1, 1), dtype)

    with pytest.raises(SimulationError):
        simulator.run(inputs, [y])
    if dla_driver is not None:
        with pytest.raises(ByocError):
            run_on_driver(dla_driver, simulator, inputs, [y])


@pytest.mark.parametrize("name", NUMBERS)
def test_the_driver_finds_the_same_limits_and_levels(
    name: str, dla_driver: DriverLibrary | None
) -> None:
    x = NUMBERS[name]
    for make, arrays, shape, dtype in (
        (lambda **b: MinMax(0, **{"before": ABSENT, **b}), {"x": x}, (1, 1, 2), DType.FLOAT32),
        (lambda **b: MinMax(0, **b), {"x": x, "before": LIMITS}, (1, 1, 2), DType.FLOAT32),
        (lambda **b: Quantize(0, **b), {"x": x, "limits": find_limits(x)}, x.shape, DType.INT16),
        (lambda **b: Quantize(0, **b), {"x": x, "limits": find_limits(x)}, x.shape, DType.FLOAT32),
    ):
        simulator, inputs, y = make_machine(make, arrays, shape, dtype)
        made = simulator.run(inputs, [y]).outputs[0]
        if dla_driver is not None:
            (other,) = run_on_driver(dla_driver, simulator, inputs, [y])
            np.testing.assert_array_equal(other, made)


QUANTIZE = "q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z)"
CONV = "Conv<pads=[1,1,1,1]>"
CHANNELS = np.array([0.01, 0.02, 0.005, 0.03], np.float32)
WEIGHTS = {
    "int8": (bytes_of(4, 4, 3, 3), np.float32(0.01), np.int8(0)),
    "int8 by channel": (bytes_of(4, 4, 3, 3), CHANNELS, np.zeros(4, np.int8)),
    "uint8 around 128": (bytes_of(4, 4, 3, 3, dtype="uint8"), np.float32(0.01), np.uint8(128)),
    "uint8 by channel": (
        bytes_of(4, 4, 3, 3, dtype="uint8"), CHANNELS, np.array([0, 99, 128, 255], np.uint8),
    ),
    "uint8 from 0": (bytes_of(4, 4, 3, 3, dtype="uint8"), np.float32(0.01), np.uint8(0)),
    "half of int8": (bytes_of(4, 4, 3, 3) // 2, np.float32(0.02), np.int8(0)),
    "negative scale": (bytes_of(4, 4, 3, 3), -CHANNELS, np.zeros(4, np.int8)),
}  # fmt: skip
IN_INTEGERS = {"int8", "int8 by channel", "uint8 around 128", "half of int8", "negative scale"}
BEHIND = {
    "nothing": "y = Identity(c)",
    "a bias": "y = Add(c, b)",
    "a bias and a clamp": "a = Add(c, b) y = Relu(a)",
    "a bias in front": "a = Add(b, c) y = Clip(a, low, high)",
    "a function": "a = Add(c, b) y = Sigmoid(a)",
    "one number": "a = Add(c, low) y = LeakyRelu(a)",
    "a gate": "g = Sigmoid(c) y = Mul(c, g)",
    "a residual": "y = Add(c, x)",
    "a map": "y = Add(c, map)",
    "a sum that is read twice": "a = Add(c, b) r = Relu(a) y = Add(a, r)",
    "a normalization": "y = BatchNormalization(c, t, u, v, w2)",
}
OTHERS = {
    "b": floats(1, 4, 1, 1, seed=3), "low": np.float32(-0.5), "high": np.float32(0.5),
    "map": floats(1, 4, 6, 6, seed=4), "t": floats(4, seed=5), "u": floats(4, seed=6),
    "v": floats(4, seed=7), "w2": np.abs(floats(4, seed=8)),
}  # fmt: skip


def conv_model(weights: str, behind: str, convolution: str = CONV) -> Any:
    """Return the model of a convolution of an image that is quantized as it runs."""
    stored, scale, zero = WEIGHTS[weights]
    axis = "<axis=0>" if np.ndim(scale) else ""
    text = f"{QUANTIZE} e = DequantizeLinear{axis}(w, ws, wz) c = {convolution}(d, e) {BEHIND[behind]}"
    constants = {"w": stored, "ws": scale, "wz": zero, **OTHERS}
    return model(f"g (float[1,4,6,6] x) => (float[1,4,6,6] y) {{ {text} }}", mentioned(text, constants))


@pytest.mark.parametrize("scratchpad", ["1024", "65536"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_convolution_by_any_weights(weights: str, scratchpad: str, tmp_path: Path) -> None:
    proto = conv_model(weights, "a bias and a clamp")

    agrees(proto, {"x": floats(1, 4, 6, 6)}, tmp_path, scratchpad=scratchpad)
    (layer,) = [each for each in network(proto, tmp_path).layers if isinstance(each, ConvLayer)]
    assert (layer.limits is not None) is (weights in IN_INTEGERS)


@pytest.mark.parametrize("behind", BEHIND)
def test_what_is_behind_a_convolution(behind: str, tmp_path: Path) -> None:
    proto = conv_model("int8 by channel", behind)

    agrees(proto, {"x": floats(1, 4, 6, 6)}, tmp_path, scratchpad="2048")
    agrees(proto, {"x": floats(1, 4, 6, 6)}, tmp_path, stripes="true")


def test_a_bias_clamp_and_function_are_part_of_the_convolution(tmp_path: Path) -> None:
    for behind in ("a bias", "a bias and a clamp", "a bias in front", "a function", "one number"):
        layers = network(conv_model("int8", behind), tmp_path).layers
        kinds = {type(layer) for layer in layers}
        assert kinds == {MinMaxLayer, QuantizeLayer, MoveLayer, ConvLayer}, behind


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("window", ["strides=[2,2]", "dilations=[2,2]", "pads=[2,0,1,2]"])
def test_windows_and_groups(groups: int, window: str, tmp_path: Path) -> None:
    text = f"{QUANTIZE} e = DequantizeLinear(w, ws, wz) y = Conv<group={groups}, {window}>(d, e)"
    constants = {"w": bytes_of(4, 4 // groups, 3, 3), "ws": np.float32(0.1), "wz": np.int8(0)}
    proto = model(f"g (float[2,4,9,8] x) => (float[n,4,h,w] y) {{ {text} }}", constants)
    shape = {"strides": "4,3", "dilations": "5,4", "pads": "10,8"}[window.partition("=")[0]]
    for dim, extent in zip(proto.graph.output[0].type.tensor_type.shape.dim, [2, 4, *shape.split(",")],
                           strict=True):  # fmt: skip
        dim.Clear()
        dim.dim_value = int(extent)

    agrees(proto, {"x": floats(2, 4, 9, 8)}, tmp_path, scratchpad="1024")


PRODUCTS = {
    "a matrix": ("5,6", "5,3"),
    "rows": ("2,5,6", "2,5,3"),
    "images": ("1,2,5,6", "1,2,5,3"),
}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_products_share_what_they_read(name: str, dtype: str, several: bool, tmp_path: Path) -> None:
    """Two products of one tensor, with a bias behind each; per channel in the second."""
    given, made = PRODUCTS[name]
    second = "m = MatMul(d, f)" if several else "m = MatMul(d, e)"
    text = (
        f"{QUANTIZE} e = DequantizeLinear(w, ws, wz) f = DequantizeLinear<axis=1>(v, vs, vz)"
        f" k = MatMul(d, e) {second} a = Add(k, b) t = Tanh(m) y = Add(a, t)"
    )
    zero = 0 if dtype == "int8" else 130
    constants = {
        "w": bytes_of(6, 3, dtype=dtype), "ws": np.float32(0.02), "wz": np.asarray(zero, dtype),
        "v": bytes_of(6, 3, seed=9), "vs": CHANNELS[:3], "vz": np.zeros(3, np.int8),
        "b": floats(3, seed=1),
    }  # fmt: skip
    proto = model(f"g (float[{given}] x) => (float[{made}] y) {{ {text} }}", constants)

    agrees(proto, {"x": floats(*map(int, given.split(",")))}, tmp_path)


def test_a_tensor_that_something_else_reads_is_rounded_in_floats(tmp_path: Path) -> None:
    text = f"{QUANTIZE} e = DequantizeLinear(w, ws) k = MatMul(d, e) y = Add(k, d)"
    proto = model(
        f"g (float[5,6] x) => (float[5,6] y) {{ {text} }}",
        {"w": bytes_of(6, 6), "ws": np.float32(0.02)},
    )

    agrees(proto, {"x": floats(5, 6)}, tmp_path)
    (layer,) = [each for each in network(proto, tmp_path).layers if isinstance(each, QuantizeLayer)]
    assert layer.y.dtype == "float32"


def test_both_operands_may_be_quantized_as_it_runs(tmp_path: Path) -> None:
    text = (
        f"{QUANTIZE} t = Transpose<perm=[0,2,1]>(x) p, r, o = DynamicQuantizeLinear(t)"
        " e = DequantizeLinear(p, r, o) y = MatMul(d, e)"
    )
    proto = model(f"g (float[2,5,6] x) => (float[2,5,5] y) {{ {text} }}")

    agrees(proto, {"x": floats(2, 5, 6)}, tmp_path)


def test_a_chain_has_new_limits_at_each_layer(tmp_path: Path) -> None:
    text = (
        f"{QUANTIZE} e = DequantizeLinear(w, ws) c = {CONV}(d, e) r = Relu(c)"
        " p, t, u = DynamicQuantizeLinear(r) f = DequantizeLinear(p, t, u)"
        f" k = {CONV}(f, e) g = GlobalAveragePool(k) y = Flatten(g)"
    )
    proto = model(
        f"g (float[1,4,6,6] x) => (float[1,4] y) {{ {text} }}",
        {"w": bytes_of(4, 4, 3, 3), "ws": np.float32(0.01)},
    )
    for scale in (1.0, 1e-3, 1e3):
        agrees(proto, {"x": floats(1, 4, 6, 6) * np.float32(scale)}, tmp_path)


@pytest.mark.parametrize("made", ["q", "s", "z"])
def test_integers_that_leave_are_refused(made: str, tmp_path: Path) -> None:
    kind = "float" if made == "s" else "uint8"
    shape = "[5,6]" if made == "q" else ""
    proto = model(
        f"g (float[5,6] x) => (float[5,6] d, {kind}{shape} {made}) {{ {QUANTIZE} }}",
    )

    with pytest.raises(CompileError, match=r"of a DynamicQuantizeLinear, and nothing else|but must be"):
        executed(proto, {"x": floats(5, 6)}, tmp_path)


def test_programs_have_the_least_version_that_knows_them(tmp_path: Path) -> None:
    codegen: Any = find_codegen("dla")
    options = parse_codegen_options(codegen, {})
    made = codegen.compile(region(conv_model("int8", "a bias"), tmp_path), options)

    assert made.metadata["isa"] == "6"
    kinds = [type(each) for each in disassemble(made.files["program.bin"]).commands]
    assert [kinds.count(kind) for kind in (MinMax, Quantize, Conv)] == [1, 1, 1]
