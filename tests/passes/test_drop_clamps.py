"""Clamps that do nothing to a quantized tensor go, and no others: held to all integers of each type."""

import itertools
import re
from collections.abc import Mapping
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.failing import rules
from helpers.support import parse, sample_cases
from numpy.typing import NDArray
from onnx import TensorProto, helper

import byoc
from byoc.model import build_node, prepare_model
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.passes import clean_model, count_operators, list_clean_passes

INTEGERS = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "int4": (-8, 7),
    "uint4": (0, 15),
}
NUMBERS = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
}
SCALE = np.float32(6 / 255)


def clean(model: onnx.ModelProto, *kept: str) -> onnx.ModelProto:
    (drop,) = (
        each for each in list_clean_passes(False, False, clamps=kept) if each.name == "drop-clamps"
    )
    return clean_model(prepare_model(model, "m"), [drop]).model.proto


def count(model: onnx.ModelProto) -> Mapping[str, int]:
    return {name: found for name, found in count_operators(model).items() if name != "Constant"}


def run(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> NDArray[Any]:
    with without_optimizations():
        return np.asarray(run_session(open_session(model), inputs)["y"])


def store(name: str, values: Any, number: int = TensorProto.FLOAT) -> onnx.TensorProto:
    array = np.asarray(values)
    return helper.make_tensor(name, number, array.shape, array.ravel().tolist())


def clamp(op: str, low: float, high: float) -> tuple[onnx.NodeProto, list[onnx.TensorProto]]:
    """Return a clamp from `d` to `c`; Max and Relu have no upper bound, Min no lower one."""
    if op == "Clip":
        return build_node("Clip", ["d", "low", "high"], ["c"]), [store("low", low), store("high", high)]
    if op == "Relu":
        return build_node("Relu", ["d"], ["c"]), []
    name, bound = ("low", low) if op == "Max" else ("high", high)
    return build_node(op, [name, "d"], ["c"]), [store(name, bound)]


def between(  # noqa: PLR0917 - what a clamp between QDQ nodes is made of
    op: str,
    dtype: str,
    low: float,
    high: float,
    scale: Any = SCALE,
    point: Any = None,
    after: Any = None,
    axis: int = 1,
) -> onnx.ModelProto:
    """Return a model of DequantizeLinear, a clamp and QuantizeLinear, from `q` to `y`.

    Its input is of all integers of the type, as `with_all_integers` stores them.
    """
    least, largest = INTEGERS[dtype]
    number = NUMBERS[dtype]
    scale = np.asarray(scale, np.float32)
    point = np.full(scale.shape, (least + largest) // 2 if point is None else point)
    after = scale if after is None else np.asarray(after, np.float32)
    node, bounds = clamp(op, low, high)
    rows = max(scale.size, 1)
    values = np.tile(np.arange(least, largest + 1), (1, rows, 1))
    info = helper.make_tensor_value_info("q", number, values.shape)
    nodes = [
        build_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=axis),
        node,
        build_node("QuantizeLinear", ["c", "t", "z"], ["r"], axis=axis),
        build_node("DequantizeLinear", ["r", "t", "z"], ["y"], axis=axis),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, values.shape)
    stored = [store("s", scale), store("t", after), store("z", point, number), *bounds]
    graph = helper.make_graph(nodes, "g", [info], [output], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def with_all_integers(model: onnx.ModelProto, dtype: str) -> onnx.ModelProto:
    """Return a model whose input is a stored tensor of all integers of its type."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    least, largest = INTEGERS[dtype]
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    values = np.broadcast_to(np.arange(least, largest + 1), shape)
    made.graph.initializer.append(store("q", values, NUMBERS[dtype]))
    del made.graph.input[:]
    return made


def outcomes(model: onnx.ModelProto, dtype: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what a model makes of all integers, with the clamp and without it."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    plain.graph.node[1].CopyFrom(build_node("Identity", ["d"], ["c"]))
    return run(with_all_integers(model, dtype), {}), run(with_all_integers(plain, dtype), {})


def ends(dtype: str, scale: np.float32, point: int) -> list[float]:
    """Return bounds about the ends of what a scale and a zero point span, and those of no use."""
    least, largest = INTEGERS[dtype]
    found: list[float] = [-inf, inf, 0.0, 6.0, float(np.finfo(np.float32).max)]
    for end in (least, largest):
        real = np.float32(end - point) * scale
        for bound in (real, real + scale / 2, real - scale / 2, real + scale, real - scale):
            found += [float(bound), float(np.nextafter(bound, np.float32(inf)))]
            found += [float(np.nextafter(bound, np.float32(-inf)))]
    return found


def is_tie(bound: float) -> bool:
    """Return whether a bound is halfway between integers, so that rounding decides: it may stay."""
    return np.isfinite(bound) and abs(abs(bound) / float(SCALE) % 1 - 0.5) < 0.01


@pytest.mark.parametrize(
    ("op", "dtype"),
    sample_cases(
        [*itertools.product(["Clip", "Max", "Min", "Relu"], INTEGERS)], ("Clip", "uint8"), every=5
    ),
)
def test_a_clamp_goes_if_no_integer_tells_it(op: str, dtype: str) -> None:
    dropped = 0
    least, largest = INTEGERS[dtype]
    for point in (least, (least + largest) // 2, largest):
        found = ends(dtype, SCALE, point)
        pairs = [(low, inf) for low in found] if op == "Max" else [(-inf, high) for high in found]
        pairs = [(0.0, inf)] if op == "Relu" else pairs
        if op == "Clip":
            pairs = [*itertools.product(found[:5], repeat=2), *itertools.pairwise(sorted(found))]
            pairs += [(low, high) for low, high in zip(found, found[::-1], strict=True)]
            pairs = [(-inf, inf), *pairs[:: 5 if largest < 1000 else 17]]
        for low, high in pairs:
            model = between(op, dtype, low, high, point=point)
            wanted, without = outcomes(model, dtype)
            left = count(clean(model))
            idle = np.array_equal(wanted, without)
            if low <= high and not is_tie(low) and not is_tie(high):
                assert (op not in left) == idle, (low, high, point)
            elif op not in left:
                assert idle, (low, high, point)
                assert low <= high
            dropped += op not in left
            if op not in left:
                again = with_all_integers(clean(model), dtype)
                assert run(again, {}).tobytes() == wanted.tobytes()
    assert dropped


@pytest.mark.parametrize("after", [0.01, 6 / 255, 0.05])
@pytest.mark.parametrize("high", [0.5, 2.0, 3.005, 6.0, 6.5])
def test_another_scale_behind_the_clamp_may_saturate_as_it_does(after: float, high: float) -> None:
    for dtype, low in itertools.product(("int8", "uint8"), (-3.1, -1.27, -1.0, 0.0)):
        model = between("Clip", dtype, low, high, after=after)
        wanted, without = outcomes(model, dtype)
        assert ("Clip" not in count(clean(model))) == np.array_equal(wanted, without)


def test_scales_by_channel_are_held_to_each() -> None:
    scales = [0.01, 6 / 255, 0.05]
    for low, high in ((-1.28, 1.27), (-6.4, 6.35), (-6.3, 7.0), (-7.0, 7.0)):
        model = between("Clip", "int8", low, high, scale=scales, point=0)
        wanted, without = outcomes(model, "int8")
        found = clean(model)
        assert ("Clip" not in count(found)) == np.array_equal(wanted, without)
        if "Clip" not in count(found):
            assert run(with_all_integers(found, "int8"), {}).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("bounds", [(nan, 7.0), (-7.0, nan), (5.0, -5.0), (0.0, 0.0)])
def test_bounds_that_are_none_stay(bounds: tuple[float, float]) -> None:
    assert "Clip" in count(clean(between("Clip", "int8", *bounds)))


@pytest.mark.parametrize("scale", [0.0, -0.1, nan, inf])
def test_a_scale_that_is_none_proves_nothing(scale: float) -> None:
    assert "Clip" in count(clean(between("Clip", "int8", -7.0, 7.0, scale=scale)))


TEXT = """m (float[2, 3, 4] x) => (float[2, 3, 4] y)
<float s = {0.05}, float t = {0.1}, uint8 z = {0}, uint8 p = {10}, float zero = {0.0}, float six = {6.0},
 float large = {25.5}, int64[1] shape = {-1}, int64[3] back = {2, 3, 4}> {
"""


def spell(text: str) -> str:
    """Return a text with the whole names of QDQ nodes, which are `Q` and `D` here."""
    names = {"Q": "QuantizeLinear", "D": "DequantizeLinear"}
    return re.sub(r"\b([QD])\(", lambda found: f"{names[found[1]]}(", text)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        # The pairs around it go with it if they are of one scale and zero point.
        ("q = Q(x, s, z) d = D(q, s, z) c = Relu(d)"
         " r = Q(c, s, z) y = D(r, s, z)", {"Q": 1, "D": 1}),
        ("q = Q(x, s, z) d = D(q, s, z) c = Relu(d)"
         " r = Q(c, t, z) y = D(r, t, z)", {"Q": 2, "D": 2}),
        ("q = Q(x, s, z) d = D(q, s, z) c = Relu(d)"
         " r = Q(c, s, p) y = D(r, s, p)", {"Q": 2, "D": 2}),
        # Nothing quantizes what it makes: what it reads is within its bounds all the same, or is not.
        ("q = Q(x, s, z) d = D(q, s, z) y = Relu(d)", {"Q": 1, "D": 1}),
        ("q = Q(x, s, p) d = D(q, s, p) y = Relu(d)",
         {"Q": 1, "D": 1, "Relu": 1}),
        # Behind views, and before them.
        ("q = Q(x, s, z) d = D(q, s, z) v = Reshape(d, shape) c = Relu(v)"
         " w = Reshape(c, back) r = Q(c, t, z) e = D(r, t, z)"
         " f = Reshape(e, back) y = Add(f, w)", {"Q": 2, "D": 2, "Reshape": 3, "Add": 1}),
        # Behind an operator saturation does it; read by another one as well it counts.
        ("a = Neg(x) c = Clip(a, zero, large) v = Reshape(c, shape) r = Q(v, t, z)"
         " e = D(r, t, z) y = Reshape(e, back)",
         {"Neg": 1, "Q": 1, "D": 1, "Reshape": 2}),
        ("a = Neg(x) c = Clip(a, zero, six) r = Q(c, t, z) y = D(r, t, z)",
         {"Neg": 1, "Clip": 1, "Q": 1, "D": 1}),
        ("a = Neg(x) c = Relu(a) r = Q(c, t, z) d = D(r, t, z) y = Add(c, d)",
         {"Neg": 1, "Relu": 1, "Q": 1, "D": 1, "Add": 1}),
        # One after the other, and a constant that makes it larger.
        ("q = Q(x, s, z) d = D(q, s, z) a = Relu(d) b = Max(zero, a) c = Clip(b, zero)"
         " r = Q(c, s, z) y = D(r, s, z)", {"Q": 1, "D": 1}),
        # Clamps of integers themselves.
        ("q = Q(x, s, z) c = Max(q, z) y = D(c, s, z)",
         {"Q": 1, "D": 1}),
        ("q = Q(x, s, z) c = Max(q, p) y = D(c, s, z)",
         {"Q": 1, "Max": 1, "D": 1}),
    ],
)  # fmt: skip
def test_what_is_left(body: str, left: dict[str, int]) -> None:
    model = parse(TEXT + spell(body) + " }")
    cleaned = clean(model)
    assert count(cleaned) == {spell(f"{name}(")[:-1]: found for name, found in left.items()}
    x = np.linspace(-40, 40, 24, dtype=np.float32).reshape(2, 3, 4)
    x[0, 0, :2] = inf, -inf
    assert run(cleaned, {"x": x}).tobytes() == run(model, {"x": x}).tobytes()


def test_a_constant_that_broadcasts_stays() -> None:
    text = """m (float[4] x) => (float[2, 4] y)
    <float s = {0.05}, uint8 z = {0}, float[2, 1] zero = {0, 0}> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        c = Max(d, zero)
        r = QuantizeLinear(c, s, z)
        y = DequantizeLinear(r, s, z)
    }"""
    assert "Max" in count(clean(parse(text)))


def test_bounds_as_attributes() -> None:
    text = """m (float[4] x) => (float[4] y) <float s = {0.05}, uint8 z = {0}> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        c = Clip <min = 0.0, max = %s> (d)
        r = QuantizeLinear(c, s, z)
        y = DequantizeLinear(r, s, z)
    }"""
    assert "Clip" not in count(clean(parse(text % 12.75, opset=10)))
    assert "Clip" in count(clean(parse(text % 12.6, opset=10)))


def test_one_behind_an_operator_stays_where_a_target_speaks_of_it() -> None:
    body = "a = Neg(x) c = Relu(a) r = QuantizeLinear(c, t, z) y = DequantizeLinear(r, t, z) }"
    assert "Relu" in count(clean(parse(TEXT + body), "Relu"))
    assert "Relu" not in count(clean(parse(TEXT + body), "Clip"))


QUANTIZED = """quantization: {activations: {dtype: [int8, uint8]}, weights: {dtype: int8}}
"""


def test_a_region_is_not_cut_by_it(tmp_path: Path) -> None:
    model = parse(
        """m (uint8[1, 2, 8, 8] q) => (uint8[1, 2, 8, 8] y)
        <float s = {0.0235294122248888}, float t = {0.01}, uint8 z = {0}, int8 o = {0},
         float zero = {0.0}, float six = {6.0}, int8[2, 2, 1, 1] w = {1, 2, 3, 4}> {
          a = DequantizeLinear(q, s, z)
          v = DequantizeLinear(w, t, o)
          b = Conv(a, v)
          c = QuantizeLinear(b, s, z)
          d = DequantizeLinear(c, s, z)
          e = Clip(d, zero, six)
          f = QuantizeLinear(e, s, z)
          g = DequantizeLinear(f, s, z)
          h = Conv(g, v)
          y = QuantizeLinear(h, s, z)
        }"""
    )
    file = rules(tmp_path, "npu", "{op: Conv, quantized: true}", more=QUANTIZED)
    report = byoc.partition(model, file, strategy="all-supported").report
    assert len(report.regions) == 1
    kept = byoc.partition(model, file, strategy="all-supported", no_passes=["drop-clamps"]).report
    assert len(kept.regions) == 2
