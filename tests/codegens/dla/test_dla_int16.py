"""Activations of 16 bits by weights of 8: sums of 48 bits, mixtures with bytes, versions of programs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byoc.codegens.dla import DLA
from byoc.codegens.dla.compiler import layers
from byoc.codegens.dla.dla_options import DLAOptions
from byoc.codegens.dla.machine import (
    ABSENT,
    Command,
    Conv,
    ConvFlags,
    DType,
    Pair,
    Pool,
    PoolKind,
    Scale,
    disassemble,
    to_multiplier,
)
from byoc.codegens.dla.simulator import SimulationError
from dla_bench import make_machine, run_one
from dla_exact import exact
from dla_on_driver import run_on_driver
from dla_regions import agrees, bytes_of, executed, floats, mentioned, model, network, region
from hypothesis import given
from hypothesis import strategies as st
from test_dla_channel_scales import Encoding, qdq

from byoc.codegen import CompileError
from byoc.codegen.drivers import DriverLibrary
from byoc.errors import ByocError

C = 4
IMAGE = (1, C, 6, 6)
WEIGHT_SCALES = np.array([0.005, 0.01, 0.002, 0.004], np.float32)
CONSTANTS = {
    "s": np.float32(0.02 / 256),
    "z": np.int16(0),
    "u": np.float32(0.05 / 256),
    "o": np.int16(300),
    "w": bytes_of(C, C, 3, 3),
    "ws": WEIGHT_SCALES,
    "b": bytes_of(C, dtype="int32") // 2**12,
    "bs": WEIGHT_SCALES * np.float32(0.02 / 256),
    "m": bytes_of(6, 5, seed=2),
    "ms": np.float32(0.01),
    "low": np.float32(-0.5),
    "high": np.float32(0.5),
}
CONV = (
    "e = DequantizeLinear<axis=0>(w, ws) f = DequantizeLinear<axis=0>(b, bs)"
    " c = Conv<pads=[1,1,1,1]>(d, e, f)"
)
LAYERS = {
    "a convolution": f"{CONV} y = QuantizeLinear(c, u, z)",
    "a Relu behind it": f"{CONV} r = Relu(c) y = QuantizeLinear(r, u, z)",
    "a Clip behind it": f"{CONV} r = Clip(c, low, high) y = QuantizeLinear(r, u, z)",
    "a residual": f"{CONV} a = Add(c, d) r = Relu(a) y = QuantizeLinear(r, u, z)",
    "a function": f"{CONV} a = HardSwish(c) y = QuantizeLinear(a, u, z)",
    "a zero point": f"{CONV} y = QuantizeLinear(c, u, o)",
    "a product": "e = DequantizeLinear(m, ms) p = MatMul(d, e) y = QuantizeLinear(p, u, z)",
    "a maximum": "p = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(d) y = QuantizeLinear(p, s, z)",
    "a mean": "p = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(d) y = QuantizeLinear(p, u, z)",
    "a sum": "a = Add(d, d) r = Relu(a) y = QuantizeLinear(r, u, z)",
    "a square": "a = Mul(d, d) y = QuantizeLinear(a, u, z)",
    "a concatenation": "a = Concat<axis=1>(d, d) y = QuantizeLinear(a, u, z)",
    "a function alone": "a = Sigmoid(d) y = QuantizeLinear(a, s, z)",
    "a gate alone": "g = HardSigmoid(d) a = Mul(d, g) y = QuantizeLinear(a, s, z)",
    "a Relu alone": "a = Relu(d) y = QuantizeLinear(a, u, o)",
    "a view": "a = Flatten(d) y = QuantizeLinear(a, u, z)",
    "a turned image": "a = Transpose<perm=[0,2,3,1]>(d) y = QuantizeLinear(a, s, z)",
}
SHAPES = {
    "a concatenation": "1,8,6,6",
    "a view": "1,144",
    "a turned image": "1,6,6,4",
    "a product": "1,4,6,5",
}


@pytest.mark.parametrize("scratchpad", ["1024", "65536"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer(name: str, scratchpad: str, tmp_path: Path) -> None:
    text = f"d = DequantizeLinear(x, s, z) {LAYERS[name]}"
    proto = model(
        f"g (int16[1,4,6,6] x) => (int16[{SHAPES.get(name, '1,4,6,6')}] y) {{ {text} }}",
        mentioned(text, CONSTANTS),
        opset=21,
    )

    agrees(proto, {"x": bytes_of(*IMAGE, dtype="int16")}, tmp_path, scratchpad=scratchpad)


encodings = st.builds(
    Encoding,
    st.sampled_from([0, C]),
    st.sampled_from(["int8", "uint8", "int16"]),
    st.sampled_from([1.0, 60.0]),
    st.integers(0, 9),
)
CONVOLUTIONS = [
    "r = Relu(c)",
    "",
    "r = HardSwish(c)",
    "r = Sigmoid(c)",
    "r = LeakyRelu<alpha=0.1>(c)",
]


@given(
    st.sampled_from(CONVOLUTIONS),
    encodings,
    encodings,
    encodings,
    st.sampled_from([1, 2, C]),
    st.booleans(),
)
def test_a_convolution_of_any_types_is_rounded_once(  # noqa: PLR0917 - what is drawn
    tmp_path_factory: pytest.TempPathFactory,
    function: str,
    x: Encoding,
    y: Encoding,
    added: Encoding,
    groups: int,
    residual: bool,
) -> None:
    """Against onnxruntime within one unit; the driver in C makes what the simulator makes."""
    if groups < C:
        x = replace(x, channels=0)
    added = replace(added, channels=0)
    convolution = f"Conv<group={groups}, pads=[1,1,1,1]>(d, e)"
    lines = f"c = {convolution}"
    if residual:
        lines = f"k = DequantizeLinear(n, p, q) b = {convolution} c = Add(b, k)"
    constants = {
        "s": x.scale, "z": x.zero, "t": y.scale, "u": y.zero, "ws": WEIGHT_SCALES,
        "w": bytes_of(C, C // groups, 3, 3, seed=4), "p": added.scale, "q": added.zero,
    }  # fmt: skip
    text = f"""g ({x.dtype}[1,4,6,6] x, {added.dtype}[1,4,6,6] n) => ({y.dtype}[1,4,6,6] y) {{
      d = DequantizeLinear<axis=1>(x, s, z) e = DequantizeLinear<axis=0>(w, ws) {lines} {function}
      y = QuantizeLinear<axis=1>({"r" if function else "c"}, t, u) }}"""
    numbers = (bytes_of(*IMAGE, dtype=each.dtype, seed=n) for n, each in enumerate((x, added)))

    agrees(
        model(text, mentioned(text, constants), opset=21),
        dict(zip("xn", numbers, strict=True)),
        tmp_path_factory.mktemp("region"),
    )


@given(encodings, encodings)
def test_a_conversion_of_one_type_to_another(
    tmp_path_factory: pytest.TempPathFactory, x: Encoding, y: Encoding
) -> None:
    folder = tmp_path_factory.mktemp("region")
    agrees(qdq("r = Identity(d)", (IMAGE, IMAGE), x, y), {"x": bytes_of(*IMAGE, dtype=x.dtype)}, folder)


def wide_sums(channels: int = 96) -> Any:
    """Return the model of a product by the largest weights of one sign, and by ones."""
    return model(
        f"g (int16[2,{channels}] x) => (int16[2,3] y) {{ d = DequantizeLinear(x, s, z)"
        " e = DequantizeLinear<axis=1>(w, ws) p = MatMul(d, e) y = QuantizeLinear(p, t, z) }",
        {
            "s": np.float32(2.0**-10), "z": np.int16(0), "t": np.float32(2.0**-4 * channels),
            "w": np.broadcast_to(np.array([127, -128, 1], np.int8), (channels, 3)),
            "ws": np.array([2.0**-5, 2.0**-5, 2.0**-5], np.float32),
        },
        opset=21,
    )  # fmt: skip


@pytest.mark.parametrize("scratchpad", ["1024", "65536"])
def test_sums_of_more_than_32_bits_are_exact(scratchpad: str, tmp_path: Path) -> None:
    """Whole, and cut into commands that hand on int64: all scales are powers of two."""
    proto = wide_sums(2048)
    x = np.stack([np.full(2048, -(2**15)), bytes_of(2048, dtype="int16")]).astype(np.int16)

    found = executed(proto, {"x": x}, tmp_path, scratchpad=scratchpad)

    sums = x.astype(np.int64) @ np.array([[127, -128, 1]]).repeat(2048, 0)
    assert abs(sums).max() == 2**33
    expected = np.clip(np.rint(sums / (2.0**11 * 2048)), -(2**15), 2**15 - 1)
    np.testing.assert_array_equal(found["y"], expected)
    wanted = exact(region(proto, tmp_path), {"x": x})
    np.testing.assert_array_equal(found["y"], wanted["y"])


def test_sums_that_could_leave_48_bits_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert layers._SUM == 47
    monkeypatch.setattr(layers, "_SUM", 28)

    with pytest.raises(CompileError, match=r"can be from .* and leave the range of 48 bits"):
        network(wide_sums(), tmp_path)


def point(**fields: Any) -> Any:
    """Return what makes a pointwise convolution of one channel."""
    usual = {"flags": ConvFlags.ONLY, "residual": ABSENT, "kernel": Pair(1, 1), **fields}
    return lambda **boxes: Conv(0, **{"accumulator": ABSENT, **usual, **boxes})


ROWS = np.array([0, 1 << 30, 30, 0, 0, -(2**15), 2**15 - 1, 1 << 30, 30], np.int32)
ONE = np.ones(1, np.int8)
BEYOND = np.array([*ROWS[:3], 2**15, *ROWS[4:]], np.int32)
X16 = np.full((1, 1, 1), 7, np.int16)
SUM = np.full((1, 1, 1), 2**47 - 7, np.int64)
WRONG = {
    "three rows": (point(), {"x": X16, "weights": ONE, "parameters": ROWS[:3]}, DType.INT16, "rows"),
    "a sum of 48 bits": (
        point(flags=ConvFlags.LAST),
        {"x": X16, "weights": ONE, "parameters": ROWS, "accumulator": SUM}, DType.INT16, "48 bits",
    ),
    "sums of 32 bits": (
        point(flags=ConvFlags.LAST),
        {"x": X16, "weights": ONE, "parameters": ROWS, "accumulator": SUM.astype(np.int32)},
        DType.INT16, "an operand is",
    ),
    "a zero point": (
        point(), {"x": X16, "weights": ONE, "parameters": BEYOND},
        DType.INT16, "zero point is not one of its type",
    ),
    "a sum as a result": (
        point(), {"x": X16, "weights": ONE, "parameters": ROWS}, DType.INT64, "accumulators alone",
    ),
    "a sum as an operand": (lambda **boxes: Scale(0, **boxes), {"x": SUM}, DType.INT16, "accumulators"),
    "a pool of positions": (
        lambda **boxes: Pool(0, PoolKind.MAX, kernel=Pair(1, 1), **boxes),
        {"x": X16.astype(np.int32)}, DType.INT16, "x and y are",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_found_by_the_simulator_and_by_the_driver(
    case: str, dla_driver: DriverLibrary | None
) -> None:
    make, arrays, dtype, message = WRONG[case]
    simulator, inputs, y = make_machine(make, arrays, (1, 1, 1), dtype)

    with pytest.raises(SimulationError, match=message):
        simulator.run(inputs, [y])
    if dla_driver is not None:
        with pytest.raises(ByocError):
            run_on_driver(dla_driver, simulator, inputs, [y])


@given(
    st.sampled_from(["int8", "uint8", "int16"]),
    st.floats(2.0**-20, 2.0**20, width=32),
    st.integers(0, 127),
    st.integers(0, 99),
)
def test_conversions_to_floats_and_back(dtype: str, scale: float, zero: int, seed: int) -> None:
    x = bytes_of(3, 4, 5, dtype=dtype, seed=seed)
    mantissa, shift = to_multiplier(scale)

    def dequantize(**boxes: Any) -> Command:
        return Scale(0, x_zero=zero, mantissa=mantissa, shift=shift, **boxes)

    reals = run_one(dequantize, {"x": x}, x.shape)
    np.testing.assert_array_equal(reals, (x.astype(np.float32) - np.float32(zero)) * np.float32(scale))

    factor = to_multiplier(1 / scale)

    def quantize(**boxes: Any) -> Command:
        return Scale(0, y_zero=zero, mantissa=factor[0], shift=factor[1], **boxes)

    np.testing.assert_array_equal(run_one(quantize, {"x": reals}, x.shape, DType[dtype.upper()]), x)


def test_numbers_that_are_none_become_the_least() -> None:
    x = np.array([[[np.nan, np.inf, -np.inf, 2.5, -2.5, 3.5]]], np.float32)

    made = run_one(lambda **boxes: Scale(0, low=-100, **boxes), {"x": x}, x.shape, DType.INT16)

    np.testing.assert_array_equal(made[0, 0], [-100, 2**15 - 1, -100, 2, -2, 4])


@pytest.mark.parametrize(("dtype", "version"), [("int8", 4), ("int16", 5)])
def test_a_program_has_the_least_version_that_has_its_types(
    dtype: str, version: int, tmp_path: Path
) -> None:
    each = Encoding(0, dtype, 1.0)
    found = region(qdq("r = Relu(d)", (IMAGE, IMAGE), each, each), tmp_path)

    artifact = DLA().compile(found, DLAOptions())

    content = artifact.files["program.bin"]
    assert int.from_bytes(content[4:8], "little") == version
    assert artifact.metadata["isa"] == str(version)
    assert DLA().compatible(found, artifact)
    assert disassemble(content).commands


def test_floats_beside_them(tmp_path: Path) -> None:
    """A network that reads both types, each part of it in its own."""
    text = "d = DequantizeLinear(x, s, z) r = Relu(d) y = QuantizeLinear(r, u, z) t = Tanh(f)"
    proto = model(
        f"g (int16[1,4,6,6] x, float[2,3] f) => (int16[1,4,6,6] y, float[2,3] t) {{ {text} }}",
        mentioned(text, CONSTANTS),
        opset=21,
    )

    agrees(proto, {"x": bytes_of(*IMAGE, dtype="int16"), "f": floats(2, 3)}, tmp_path)
