"""The codegen `openvino` by value: NaN, equal keys, constants, empty tensors, and sums of integers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import compiled
from helpers.cutting import original
from helpers.support import parse
from numpy.typing import NDArray
from onnx import numpy_helper

import byoc

pytestmark = pytest.mark.openvino
pytest.importorskip("openvino")

from byoc.codegens import openvino  # noqa: E402 - needs OpenVINO

NAN, INF = np.nan, np.inf


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def with_stored(text: str, opset: int = 21, **stored: Any) -> onnx.ModelProto:
    """Return the model of a text with initializers."""
    proto = parse(text, opset=opset)
    for name, value in stored.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return proto


@pytest.mark.parametrize(
    ("line", "given", "expected"),
    [
        ("Relu(x)", (NAN, -1, 2, -INF), (NAN, 0, 2, 0)),
        ("Clip(x, low, high)", (NAN, -9, 9, INF), (NAN, -1, 4, 4)),
        ("Clip(x, low)", (NAN, -9, 9, INF), (NAN, -1, 9, INF)),
        ("Clip(x, , high)", (NAN, -9, 9, -INF), (NAN, -9, 4, -INF)),
        ("Max(x, low)", (NAN, -9, 9, INF), (NAN, -1, 9, INF)),
        ("Max(low, x)", (NAN, -9, 9, INF), (NAN, -1, 9, INF)),
        ("Max(x, nan)", (1, -9, INF, -INF), (NAN, NAN, NAN, NAN)),
        ("Max(x, z)", (NAN, 1, NAN, INF), (NAN, NAN, NAN, INF)),
        ("Min(x, high)", (NAN, -9, 9, INF), (NAN, -9, 4, 4)),
        ("Min(z, x)", (NAN, 1, NAN, INF), (NAN, NAN, NAN, 2)),
        ("Exp(x)", (NAN, 0, -INF, INF), (NAN, 1, 0, INF)),
        ("HardSigmoid(x)", (NAN, -9, 9, 0), (NAN, 0, 1, 0.5)),
        ("Softmax(x)", (NAN, 1, 2, 3), (NAN, NAN, NAN, NAN)),
        ("Softmax(x)", (INF, 1, 2, 3), (NAN, NAN, NAN, NAN)),
        ("Softmax(x)", (-INF, 1, 1, -INF), (0, 0.5, 0.5, 0)),
        ("LogSoftmax(x)", (NAN, 1, 2, 3), (NAN, NAN, NAN, NAN)),
    ],
)
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_no_number_stays_no_number(
    line: str, given: tuple[float, ...], expected: tuple[float, ...], dtype: str, tmp_path: Path
) -> None:
    kind = {"float": np.float32, "float16": np.float16}[dtype]
    stored = {"low": kind(-1), "high": kind(4), "nan": kind(NAN)}
    used = {name: value for name, value in stored.items() if name in line}
    inputs = {"x": np.array(given, kind), "z": np.array([2, NAN, NAN, 2], kind)}
    proto = with_stored(f"g ({dtype}[4] x, {dtype}[4] z) => ({dtype}[4] y) {{ y = {line} }}", **used)

    made = compiled(proto, tmp_path, "openvino")[2](inputs)["y"]

    np.testing.assert_array_equal(made, np.array(expected, kind))


@pytest.mark.parametrize("line", ["ReduceMax(x, ax)", "ReduceMin(x, ax)"])
def test_extremes_of_no_number_are_none(line: str, tmp_path: Path) -> None:
    proto = with_stored(
        f"g (float[2,3] x) => (float[2,1] y) {{ y = {line} }}", ax=np.array([1], np.int64)
    )

    made = compiled(proto, tmp_path, "openvino")[2]({"x": floats(1, NAN, 2, 3, 3, 3).reshape(2, 3)})["y"]

    np.testing.assert_array_equal(made, floats(NAN, 3).reshape(2, 1))


def test_no_number_is_true_and_neither_greater_nor_less(tmp_path: Path) -> None:
    text = """g (float[4] x, float[4] z) => (bool[4] b, bool[4] g, bool[4] e) {
      b = Cast<to=9>(x)
      g = Greater(x, z)
      e = GreaterOrEqual(x, z)
    }"""
    inputs = {"x": floats(NAN, 0, 1, NAN), "z": floats(0, NAN, 1, NAN)}

    made = compiled(parse(text), tmp_path, "openvino")[2](inputs)

    assert made["b"].tolist() == [True, False, True, True]
    assert made["g"].tolist() == [False] * 4
    assert made["e"].tolist() == [False, False, True, False]


LEVELS = {
    "numbers around 0": np.random.default_rng(0).standard_normal((3, 5, 7)),
    "of one sign": 3 + np.random.default_rng(1).random((3, 5, 7)),
    "from -a to a": np.random.default_rng(2).integers(-5, 6, (3, 5, 7)) / 2,
    "halves of a step": np.arange(105).reshape(3, 5, 7) * (255 / 104) - 0.5,
    "halves of a unit": np.random.default_rng(3).integers(-255, 256, (3, 5, 7)) / 2,
    "tenths": np.random.default_rng(4).integers(-255, 256, (3, 5, 7)) * np.float32(0.1),
    "large": np.random.default_rng(5).standard_normal((3, 5, 7)) * 1e37,
    "nothing but 0": np.zeros((3, 5, 7)),
}


@pytest.mark.parametrize("extents", ["3,5,7", "a,b,c"])
def test_integers_that_are_found_as_it_runs_are_those_of_onnx(extents: str, tmp_path: Path) -> None:
    """Integers, scale and zero point, bit for bit; a quotient by the scale is the model's own."""
    made = f"uint8[{extents}] q, float s, uint8 z, float[{extents}] y, float t"
    text = f"""g (float[{extents}] x) => ({made}) {{
      q, s, z = DynamicQuantizeLinear(x)
      y = DequantizeLinear(q, s, z)
      t = Div(two, s)
    }}"""
    proto = with_stored(text, two=np.float32(2))
    run = compiled(proto, tmp_path, "openvino")[2]

    for name, numbers in LEVELS.items():
        inputs = {"x": numbers.astype(np.float32)}
        found, wanted = run(inputs), original(proto, inputs)
        for each in "qszy":
            np.testing.assert_array_equal(found[each], wanted[each], err_msg=f"{name}: {each}")
        np.testing.assert_allclose(found["t"], wanted["t"], rtol=1e-6, err_msg=name)


def test_an_activation_behind_a_convolution_stays_fused_with_it(tmp_path: Path) -> None:
    text = "g (float[1,2,4,4] x) => (float[1,2,2,2] y) { c = Conv(x, w) y = Relu(c) }"
    proto = with_stored(text, w=np.ones((2, 2, 3, 3), np.float32))

    run = compiled(proto, tmp_path, "openvino")[2]

    kinds = [each.get_rt_info()["layerType"].value for each in run.model.get_runtime_model().get_ops()]
    assert "Convolution" in kinds
    assert not {"Eltwise", "Subgraph"} & set(kinds)


@pytest.mark.parametrize(("count", "k"), [(5, 3), (300, 20), (300, 300), (3920, 20)])
@pytest.mark.parametrize("largest", [0, 1])
def test_the_first_of_equal_keys_is_selected(count: int, k: int, largest: int, tmp_path: Path) -> None:
    text = f"""g (float[3,{count}] x) => (float[3,{k}] y, int64[3,{k}] i) {{
      y, i = TopK<axis=1, largest={largest}>(x, k)
    }}"""
    x = np.random.default_rng(0).integers(0, 9, (3, count)).astype(np.float32)

    made = compiled(with_stored(text, k=np.array([k], np.int64)), tmp_path, "openvino")[2]({"x": x})

    order = np.argsort(-x if largest else x, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(made["i"], order)
    np.testing.assert_array_equal(made["y"], np.take_along_axis(x, order, 1))


def test_whole_numbers_of_constants_are_computed_as_onnx_defines_them(tmp_path: Path) -> None:
    text = "g (int64[3] z) => (int64[3] y) { e = Div(c, d) m = Mod(c, d) s = Add(e, m) y = Add(s, z) }"
    stored = {"c": np.array([-7, 7, 8]), "d": np.array([2, -2, -3])}

    made = compiled(with_stored(text, **stored), tmp_path, "openvino")[2]({"z": np.zeros(3, np.int64)})

    assert made["y"].tolist() == [-3 + 1, -3 - 1, -2 - 1]


@pytest.mark.parametrize("op", ["Add", "Mul", "Less", "Max"])
def test_a_constant_without_elements_is_no_scalar(op: str, tmp_path: Path) -> None:
    kind = "bool" if op == "Less" else "float"
    text = f"g (float[1,3] x) => ({kind}[0,3] y) {{ y = {op}(c, x) }}"
    proto = with_stored(text, c=np.zeros((0, 3), np.float32))

    made = compiled(proto, tmp_path, "openvino")[2]({"x": np.ones((1, 3), np.float32)})["y"]

    assert made.shape == (0, 3)


def quantized(weights: NDArray[np.int8]) -> onnx.ModelProto:
    """Return a quantized convolution of two channels; 255 stands for 255, and a weight for itself."""
    text = """g (float[1,2,1,1] x) => (float[1,1,1,1] y) {
      q = QuantizeLinear(x, s, z)
      d = DequantizeLinear(q, s, z)
      e = DequantizeLinear(w, s, v)
      y = Conv(d, e)
    }"""
    stored = {"s": np.float32(1), "z": np.uint8(0), "v": np.int8(0)}
    return with_stored(text, w=weights.reshape(1, 2, 1, 1), **stored)


@pytest.mark.parametrize(
    ("weights", "saturates", "integers"),
    [
        ((127, 127), True, "False"),
        ((127, 127), False, "True"),
        ((-64, 64), True, "True"),
        ((-65, 0), True, "False"),
    ],
)
def test_integers_are_left_out_where_their_sums_would_saturate(
    weights: tuple[int, int],
    saturates: bool,
    integers: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = openvino._saturates()
    monkeypatch.setattr(openvino, "_saturates", lambda: saturates)

    _, artifact, run = compiled(quantized(np.array(weights, np.int8)), tmp_path, "openvino")

    assert artifact.metadata["integers"].lower() == integers.lower()
    if here and not saturates:
        return  # this processor is another one than is played here, and its sums saturate
    made = run({"x": np.full((1, 2, 1, 1), 255, np.float32)})["y"]
    assert abs(made.item() - 255 * sum(weights)) <= 1e-4 * 255 * 127


def residual(left_unrounded: bool) -> onnx.ModelProto:
    """Return quantized convolutions whose results are added, one of them only clamped if that is asked.

    The scales are such that nothing lies halfway between two integers.
    """
    middle = (
        "r = Clip(b, low, high)"
        if left_unrounded
        else "q2 = QuantizeLinear(b, t, u) r = DequantizeLinear(q2, t, u)"
    )
    text = f"""g (float[1,16,12,12] x) => (uint8[1,16,12,12] y) {{
      q0 = QuantizeLinear(x, s, z) d0 = DequantizeLinear(q0, s, z)
      e1 = DequantizeLinear(w1, ws, v) a = Conv(d0, e1)
      q1 = QuantizeLinear(a, s, z) d1 = DequantizeLinear(q1, s, z)
      e3 = DequantizeLinear(w3, ws, v) c = Conv(d1, e3)
      q3 = QuantizeLinear(c, s, z) d3 = DequantizeLinear(q3, s, z)
      e2 = DequantizeLinear(w2, ws, v) b = Conv(d3, e2)
      {middle}
      sum = Add(d1, r)
      y = QuantizeLinear(sum, s, z)
    }}"""
    random = np.random.default_rng(0)
    stored = {
        name: random.integers(-60, 60, (16, 16, 1, 1)).astype(np.int8) for name in ("w1", "w2", "w3")
    }
    scales = {"s": np.float32(0.0611), "ws": np.float32(0.01013), "t": np.float32(0.203)}
    points = {"z": np.uint8(117), "u": np.uint8(132), "v": np.int8(0)}
    bounds = {"low": np.float32(-0.203 * 132), "high": np.float32(0.203 * 123)}
    return with_stored(text, **stored, **scales, **points, **bounds)


@pytest.mark.parametrize("integers", [True, False])
def test_what_is_added_behind_a_convolution_is_clamped_and_not_rounded_with_integers(
    integers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum is in one kernel with its convolution then, where a CPU has that kernel."""
    monkeypatch.setattr(openvino, "_saturates", lambda: False)
    inputs = {"x": np.random.default_rng(1).normal(size=(1, 16, 12, 12)).astype(np.float32)}
    written, unrounded = (original(residual(flag), inputs)["y"].astype(int) for flag in (False, True))
    assert np.abs(written - unrounded).max() > 1

    run = compiled(residual(False), tmp_path, "openvino", integers=str(integers).lower())[2]

    made = run(inputs)["y"]
    assert np.array_equal(made, written) or (integers and np.array_equal(made, unrounded))


RUN = "import sys, byoc, numpy; print(byoc.load(sys.argv[1])(dict(numpy.load(sys.argv[2])))['y'].item())"


def test_a_bundle_made_elsewhere_is_exact_where_sums_saturate(tmp_path: Path) -> None:
    onnx.save(quantized(np.array([127, 127], np.int8)), tmp_path / "m.onnx")
    x = np.full((1, 2, 1, 1), 255, np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    byoc.partition(
        tmp_path / "m.onnx", "openvino-cpu", output=tmp_path / "b.byoc", strategy="all-supported"
    )

    # OpenVINO's kernels for CPUs with AVX2 and without VNNI, where this is x86.
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, tmp_path / "b.byoc", tmp_path / "x.npz"],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.stdout.strip() == str(2.0 * 255 * 127), ran.stderr


MANY = """g (int32[3] a, int32[3] b, int32[1,3] r, int64[3] w, uint8[3] u, uint8[3] v, float[2] f,
           float[1,4] n, float[1,3] o)
       => (bool[3] equal, int32[3] quotient, int32[1] total, int64[3] folded, uint8[3] shifted,
           uint8[3] added, float[2] back, float[1,4] relu, float[1,4] exp, float[0,3] none) {
  equal = Equal(a, b)
  quotient = Div(a, b)
  total = ReduceSum<keepdims=0>(r, ax)
  e = Div(c, d)
  folded = Add(e, w)
  shifted = BitShift<direction="LEFT">(u, v)
  added = Add(u, v)
  half = Cast<to=10>(f)
  back = Cast<to=1>(half)
  relu = Relu(n)
  exp = Exp(n)
  none = Add(empty, o)
}"""


def test_what_runs_of_a_bundle_is_as_onnx_defines_it(tmp_path: Path) -> None:
    stored = {
        "ax": np.array([1]),
        "c": np.array([-7, 7, 8]),
        "d": np.array([2, -2, -3]),
        "empty": np.zeros((0, 3), np.float32),
    }
    large = np.array([33554433, 100000007, 2147483647], np.int32)
    inputs = {
        "a": large,
        "b": np.array([33554432, 10, 1000], np.int32),
        "r": np.array([[16777217, 1, 1]], np.int32),
        "w": np.zeros(3, np.int64),
        "u": np.array([255, 200, 7], np.uint8),
        "v": np.array([1, 100, 1], np.uint8),
        "f": floats(1 / 3, 1e6),
        "n": floats(NAN, 1, -2, INF).reshape(1, 4),
        "o": np.ones((1, 3), np.float32),
    }
    onnx.save(with_stored(MANY, **stored), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", **inputs)
    byoc.partition(
        tmp_path / "m.onnx", "openvino-cpu", output=tmp_path / "b.byoc", strategy="all-supported"
    )

    command = [sys.executable, "-m", "byoc", "run", "b.byoc", "--inputs", "x.npz", "-o", "y.npz"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    made = dict(np.load(tmp_path / "y.npz"))
    assert made["equal"].tolist() == [False] * 3
    assert made["quotient"].tolist() == [1, 10000000, 2147483]
    assert made["total"].tolist() == [16777219]
    assert made["folded"].tolist() == [-3, -3, -2]
    assert made["shifted"].tolist() == [254, 0, 14]
    assert made["added"].tolist() == [0, 44, 8]
    np.testing.assert_array_equal(made["back"], floats(0.33325195, INF))
    np.testing.assert_array_equal(made["relu"], floats(NAN, 1, 0, INF).reshape(1, 4))
    np.testing.assert_allclose(made["exp"], np.exp(inputs["n"]), rtol=1e-5)
    assert made["none"].shape == (0, 3)
