"""Regions in float16 and bfloat16: what crosses, what is stored, and the numbers, in onnxruntime."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from cutting import planned, ramp
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from pipeline.random_graphs import GraphMaker
from short import FIRST, SECOND, Short, casts, computed, decibels, near, same, short
from short import original as run_original
from strategies import Alternating, Random
from support import parse, prepared

from byoc.boundary.border import Wants
from byoc.boundary.precision.rounding import rounded
from byoc.errors import InputError
from byoc.graph.load import Model, prepare, read_file
from byoc.graph.marks import noted
from byoc.placement import Strategy
from byoc.placement.strategies.all_supported import AllSupported
from byoc.rules.load import Target, load_rules
from byoc.rules.schema import Quantization
from byoc.runtime.onnxrt import open_session, run_session, unoptimized
from byoc.zoo.classics import Classics

RULES = """
target: npu
cost_model: dla
dtype: float16
ops:
  - op: [Conv, Relu, MaxPool, AveragePool, GlobalAveragePool, Gemm, BatchNormalization, Add, Sum, Mul,
         Sub, Sigmoid, Abs, Identity, Concat, Split, Reshape, Flatten, Dropout, LRN, Softmax, Transpose,
         Unsqueeze, Clip, Cast, If]
"""
SOME = ("densenet121", "inception_v2", "resnet50", "shufflenet", "squeezenet")
CHAIN = """
g (float[2, 4] x) => (float[2, 4] y) <float[4] w = {0.1, -2.5, 3.3, 1e-6}> {
  a = Mul(x, w)
  b = Relu(a)
  c = Sigmoid(b)
  y = Sub(c, w)
}
"""


def target(folder: Path, rules: str = RULES, compute: str = "float16") -> Target:
    file = folder / "npu.yaml"
    file.write_text(rules)
    return replace(load_rules(str(file)), compute=compute)


def partitioned(
    model: Model, there: Target, strategy: Strategy, convert: Literal["host", "device"] = "host"
) -> Short:
    """Return a model placed by the rules, its regions in the target's type."""
    rules = there.rules.model_copy(update={"quantization": Quantization(convert=convert)})
    plan = planned(model, replace(there, rules=rules), strategy)
    onnx.checker.check_model(plan.proto, full_check=True)
    return Short(model, plan.proto, plan.values, ())


def by_hand(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model of one input and output in float16 throughout, cast at its ends."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    graph = result.graph
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    stored = {t.name for t in graph.initializer}
    data = next(value.name for value in graph.input if value.name not in stored)
    for value in graph.input:
        if value.name in stored and value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    out = graph.output[0].name
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = {data: "data16", out: "out16"}.get(name, name)
        for i, name in enumerate(node.output):
            node.output[i] = {out: "out16"}.get(name, name)
    graph.node.insert(0, helper.make_node("Cast", [data], ["data16"], to=TensorProto.FLOAT16))
    graph.node.append(helper.make_node("Cast", ["out16"], [out], to=TensorProto.FLOAT))
    del graph.value_info[:]
    return result


@pytest.mark.parametrize(
    ("name", "convert"),
    [*((name, "host") for name in SOME), ("squeezenet", "device"), ("resnet50", "device")],
)
def test_light_models_are_as_close_as_float16_is(
    name: str, convert: Literal["host", "device"], tmp_path: Path
) -> None:
    zoo = Classics()
    model = prepare(zoo.load(name), name)
    made = partitioned(model, target(tmp_path), AllSupported(), convert)
    assert len(made.proto.functions) == 1
    assert [len(casts(made.proto.graph.node)), len(casts(made.function().node))] == (
        [2, 0] if convert == "host" else [0, 2]
    )
    assert "FLOAT" not in made.stored().values()
    inputs = zoo.sample_inputs(name, 0)
    near(made, inputs)
    with unoptimized():
        expected = run_session(open_session(by_hand(model.proto)), inputs)
    same(expected, made.run(inputs))


@pytest.mark.parametrize("convert", ["host", "device"])
def test_regions_that_meet_exchange_float16(convert: Literal["host", "device"]) -> None:
    made = short(prepared(CHAIN), [0, 1], [2, 3], convert=convert)
    assert (
        casts(made.proto.graph.node) == [] if convert == "device" else made.host[1:3] == [FIRST, SECOND]
    )
    assert (made.inside(FIRST), made.inside(SECOND)) == (
        (["Mul", "Relu"], ["Sigmoid", "Sub"])
        if convert == "host"
        else (["Cast", "Mul", "Relu"], ["Sigmoid", "Sub", "Cast"])
    )
    whole = short(prepared(CHAIN), [0, 1, 2, 3])
    x = {"x": ramp(2, 4)}
    same(whole.run(x), made.run(x))
    same(whole.reference(x), made.reference(x))
    near(made, x)


def test_a_device_that_casts_gives_float32_where_the_host_reads_too() -> None:
    model = prepared(
        "g (float[4] x) => (float[4] y) { a = Abs(x) b = Neg(a) c = Relu(a) y = Add(b, c) }"
    )
    made = short(model, [0], [2], convert="device")
    assert (made.inside(FIRST), made.inside(SECOND)) == (
        ["Cast", "Abs", "Cast"],
        ["Cast", "Relu", "Cast"],
    )
    assert made.host == [FIRST, "Neg", SECOND, "Add"]
    near(made, {"x": ramp(4)})


def test_regions_of_two_types_meet_through_float32() -> None:
    made = short(prepared(CHAIN, opset=22), [0, 1], [2, 3], dtype=["float16", "bfloat16"])
    assert made.host == ["Cast", FIRST, "Cast", "Cast", SECOND, "Cast"]
    assert made.dtypes(FIRST)["b_float16"] == "float16"
    assert made.dtypes(SECOND)["c_bfloat16"] == "bfloat16"


def test_one_cast_serves_all_regions_that_read_a_tensor() -> None:
    text = """
    g (float[4] x) => (float[4] y) {
      a = Neg(x)  b = Relu(a)  c = Abs(a)  d = Exp(b)  e = Sub(d, c)  y = Mul(e, x)
    }"""
    made = short(prepared(text), [1], [2, 4])
    assert made.host == ["Neg", "Cast", FIRST, "Cast", "Exp", "Cast", SECOND, "Cast", "Mul"]
    near(made, {"x": ramp(4)})


def test_what_the_host_computes_stays_float32() -> None:
    made = short(prepared(CHAIN), [1])
    x = ramp(2, 4)
    w = np.array([0.1, -2.5, 3.3, 1e-6], np.float32)
    b = np.maximum((x * w).astype(np.float16), 0).astype(np.float32)
    np.testing.assert_allclose(made.reference({"x": x})["y"], 1 / (1 + np.exp(-b)) - w, rtol=1e-6)


def test_the_name_of_a_graph_output_stays() -> None:
    made = short(
        prepared("g (float[4] x) => (float[4] y, float[4] z) { y = Abs(x) z = Relu(y) }"), [0, 1]
    )
    assert [value.name for value in made.proto.graph.output] == ["y", "z"]
    assert made.host == ["Cast", FIRST, "Cast", "Cast"]
    near(made, {"x": ramp(4)})


def test_integers_cross_as_they_are() -> None:
    text = """
    g (float[3, 4] x, int64[2] i) => (float[2, 4] y, bool[2, 4] z) {
      y = Gather(x, i)  z = Greater(y, y)
    }"""
    made = short(prepared(text), [0, 1])
    assert made.host == ["Cast", FIRST, "Cast"]
    near(made, {"x": ramp(3, 4), "i": np.array([2, 0])})


# --- constants


def test_a_constant_beyond_the_range_becomes_the_largest_number() -> None:
    text = """
    g (float[5] x) => (float[5] y) <float[5] m = {-3.4e38, 70000, 65504, 6e-8, 65519}> {
      y = Max(x, m)
    }"""
    made = short(prepared(text), [0])
    y = made.run({"x": np.full(5, -65504, np.float32)})["y"]
    np.testing.assert_array_equal(y, np.float32([-65504, 65504, 65504, 2.0**-24, 65504]))
    assert made.notes == ("2 values of 'm' beyond the range of float16 became its largest",)


def test_a_constant_is_there_twice_only_if_both_sides_read_it() -> None:
    assert short(prepared(CHAIN), [0, 1]).stored() == {"w": "FLOAT", "w_float16": "FLOAT16"}
    alone = short(prepared(CHAIN), [0], [3])
    assert alone.stored() == {"w_float16": "FLOAT16"}
    assert [list(node.input)[-1] for node in alone.proto.graph.node if node.domain] == ["w_float16"] * 2


def test_a_weight_in_a_constant_node_is_rounded_too() -> None:
    value = numpy_helper.from_array(ramp(20, 20), "value")
    nodes = [
        helper.make_node("Constant", [], ["w"], value=value),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 20]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = prepare(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "t"
    )
    made = short(model, [1])
    assert sorted(made.host) == ["Cast", "Cast", "Constant", FIRST]
    (weight,) = (n.attribute[0].t for n in made.proto.graph.node if n.op_type == "Constant")
    assert weight.data_type == TensorProto.FLOAT16
    near(made, {"x": ramp(2, 20)})


def test_weights_in_a_file_are_rounded(tmp_path: Path) -> None:
    proto = parse("g (float[2, 64] x) => (float[2, 64] y) { y = MatMul(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(ramp(64, 64), "w"))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    model = prepare(read_file(tmp_path / "m.onnx"), "m", tmp_path)
    made = short(model, [0])
    (tensor,) = made.proto.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), ramp(64, 64).astype(np.float16))
    near(made, {"x": ramp(2, 64)})


@given(st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=20))
def test_float16_is_rounded_as_numpy_does_but_for_what_is_beyond(values: list[float]) -> None:
    x = np.array(values, np.float32)
    bits, beyond = rounded(x, "float16")
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    lost = np.isinf(expected) & np.isfinite(x)
    expected[lost] = np.copysign(np.float16(65504), np.sign(x[lost]).astype(np.float16))
    np.testing.assert_array_equal(bits.view(np.float16), expected)
    assert beyond == lost.sum()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_bfloat16_is_the_nearest_of_its_neighbours_even_ones_in_a_tie(value: float) -> None:
    def meant(bits: int) -> float:
        return float(np.array([bits << 16], np.uint32).view(np.float32)[0])

    bits, beyond = rounded(np.array([value], np.float32), "bfloat16")
    (found,) = bits.tolist()
    largest = meant(0x7F7F)
    if abs(value) > largest:
        assert abs(meant(found)) == largest
        assert np.sign(meant(found)) == np.sign(value)
        assert beyond == (abs(value) >= largest + (largest - meant(0x7F7E)) / 2)
        return
    magnitude = found & 0x7FFF
    error = abs(meant(found) - value)
    for other in (magnitude - 1, magnitude + 1):
        if 0 <= other <= 0x7F7F:
            away = abs(meant(other) - abs(value))
            assert error < away or (error == away and magnitude % 2 == 0)
    assert beyond == 0


def test_bfloat16_keeps_what_is_no_number() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40], np.float32)
    bits, beyond = rounded(x, "bfloat16")
    back = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(back[:4], x[:4])
    assert np.signbit(back[3])
    assert back[4] == pytest.approx(1e-40, rel=2**-6)  # a subnormal number
    assert beyond == 0


# --- what stays float32 by the schema


def test_scales_of_a_resize_stay_float32() -> None:
    text = """
    g (float[1, 1, 3, 3] x) => (float[1, 1, 4, 4] y) <float[4] s = {1, 1, 1.3334, 1.3334}> {
      a = Relu(x)
      y = Resize(a, , s)
    }"""
    made = short(prepared(text), [0, 1])
    assert made.stored() == {"s": "FLOAT"}
    near(made, {"x": ramp(1, 1, 3, 3)})


def test_what_is_computed_for_scales_alone_stays_float32() -> None:
    text = """
    g (float[1, 1, 3, N] x) => (float[1, 1, A, B] y)
    <float[1] big = {4097}, float[1] r = {3}, float[2] one = {1, 1}> {
      h = Div(big, r)
      s = Concat <axis = 0> (one, r, h)
      a = Relu(x)
      y = Resize(a, , s)
    }"""
    made = short(prepared(text), [2, 3])
    x = ramp(1, 1, 3, 3)
    assert made.run({"x": x})["y"].shape == (1, 1, 9, 4097)  # 4096 if the quotient were rounded
    near(made, {"x": x})


def test_arithmetic_on_extents_stays_float32() -> None:
    text = """
    g (float[N] x) => (float[M] y) <float[1] two = {2}, int64[1] u = {1}> {
      n = Shape(x)  f = Cast <to = 1> (n)  d = Div(f, two)  g = Floor(d)  i = Cast <to = 7> (g)
      k = Max(i, u)  a = Abs(x)  z = Sub(n, k)
      y = Pad(a, zs)
      zs = Concat <axis = 0> (k, z)
    }"""
    text = text.replace("y = Pad(a, zs)\n      zs = Concat <axis = 0> (k, z)",
                        "zs = Concat <axis = 0> (k, z)\n      y = Pad(a, zs)")  # fmt: skip
    model = prepared(text)
    made = short(model, range(len(model.index.nodes)))
    near(made, {"x": ramp(4099)})
    assert made.dtypes()["d"] == "float32"


def test_a_quantizer_that_has_no_float16_reads_float32() -> None:
    text = """
    g (float[4] x) => (float[4] y) <float s = {0.01}, int8 z = {3}> {
      a = Abs(x)  q = QuantizeLinear(a, s, z)  d = DequantizeLinear(q, s, z)  y = Relu(d)
    }"""
    made = short(prepared(text), [0, 1, 2, 3])
    assert made.inside() == ["Abs", "Cast", "QuantizeLinear", "DequantizeLinear", "Cast", "Relu"]
    assert made.stored() == {"s": "FLOAT", "z": "INT8"}
    x = np.float32([0.5, -0.25, 0.125, 1.0])
    expected = np.float32([0.5, 0.25, 0.12, 1.0]).astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(made.run({"x": x})["y"], expected, rtol=1e-3)


# --- types that attributes say


def test_attributes_that_say_a_type_are_changed() -> None:
    text = """
    g (int64[2, 2] i, int64[2] n) => (float[2, 2] y, float[A, B] r) {
      a = Cast <to = 1> (i)
      b = ConstantOfShape <value = float[1] {0.1}> (n)
      c = Constant <value = float[2] {0.3, 100000}> ()
      d = Constant <value_float = 0.7> ()
      e = EyeLike <dtype = 1> (i)
      o = ConstantOfShape(n)
      f = Add(a, b)  g = Add(f, c)  h = Mul(g, d)  k = Add(h, e)
      y = Add(k, o)
      r = RandomNormal <shape = [2, 2], seed = 1.0> ()
    }"""
    model = prepared(text)
    made = short(
        model, [n for n in range(len(model.index.nodes)) if n not in model.index.constant_nodes]
    )
    found = made.dtypes()
    assert {n for n, t in found.items() if t == "float32"} == {"e", "r"}  # numbers from nothing
    assert [node.input[0] for node in casts(made.function().node)] == ["e"]
    assert made.notes == ("1 value of 'c' beyond the range of float16 became its largest",)
    given_ = {"i": np.array([[1, 2], [3, 4]]), "n": np.array([2, 2])}
    h = np.float16
    first = np.array([[1, 2], [3, 4]], h) + h(0.1)
    with np.errstate(over="ignore"):
        expected = (first + np.array([0.3, 65504], h)) * h(0.7) + np.eye(2, dtype=h)
    np.testing.assert_allclose(made.run(given_)["y"], expected.astype(np.float32), rtol=1e-3)
    np.testing.assert_array_equal(made.reference(given_)["y"], expected.astype(np.float32))


def test_a_type_that_is_taken_from_an_input_follows() -> None:
    text = """
    g (int64[4] i, float[4] x) => (float[4] y) {
      a = CastLike(i, x)  b = Cast <to = 1> (x)  y = Add(a, b)
    }"""
    made = short(prepared(text), [0, 1, 2])
    assert casts(made.function().node) == []
    near(made, {"i": np.arange(4), "x": ramp(4)})


# --- bodies


IF = """
g (float[4] x, bool b) => (float[4] y) <float[4] w = {0.1, 0.2, 0.3, 0.4}> {
  a = Relu(x)
  c = If (b) <
    then_branch = t () => (float[4] p) {
      k = Constant <value = float[1] {0.7}> ()  q = Mul(a, w)  p = Add(q, k)
    },
    else_branch = e () => (float[4] r) { r = Neg(x) }
  >
  y = Sub(c, w)
}
"""


@pytest.mark.parametrize("way", [True, False])
def test_branches_inside_compute_in_float16(way: bool) -> None:
    made = short(prepared(IF), [0, 1, 2])
    assert made.host == ["Cast", FIRST, "Cast"]
    assert made.inside() == ["Relu", "If", "Sub"]
    assert made.stored() == {"w_float16": "FLOAT16"}
    x = np.float32([0.3, -0.7, 1.1, 2.3])
    h, w = x.astype(np.float16), np.array([0.1, 0.2, 0.3, 0.4], np.float16)
    inner = np.maximum(h, 0) * w + np.float16(0.7) if way else -h
    given_ = {"x": x, "b": np.array(way)}
    np.testing.assert_array_equal(made.reference(given_)["y"], (inner - w).astype(np.float32))
    near(made, given_)


@pytest.mark.parametrize("way", [True, False])
def test_branches_that_cannot_pass_bfloat16_stay_float32(way: bool) -> None:
    made = short(prepared(IF, opset=13), [0, 1, 2], dtype="bfloat16")
    assert made.inside() == ["Relu", "Cast", "Cast", "If", "Cast", "Sub"]
    inner = made.function().node[made.inside().index("If")]
    kinds = {v.type.tensor_type.elem_type for a in inner.attribute for v in a.g.output}
    assert kinds == {TensorProto.FLOAT}


def test_a_loop_carries_float16() -> None:
    text = """
    g (float[2] x, int64 n) => (float[2] y, float[A, 2] s) <bool go = {1}> {
      a = Abs(x)
      y, s = Loop (n, go, a) <
        body = l (int64 i, bool c, float[2] v) => (bool d, float[2] u, float[2] o)
        <float[2] w = {1.5, 0.1}> { d = Identity(c) u = Mul(v, w) o = Identity(u) }
      >
    }"""
    made = short(prepared(text), [0, 1])
    x = np.float32([1.1, -0.7])
    v, w = np.abs(x).astype(np.float16), np.array([1.5, 0.1], np.float16)
    steps = []
    for _ in range(3):
        v = v * w
        steps.append(v)
    found = made.run({"x": x, "n": np.array(3)})
    np.testing.assert_array_equal(found["y"], v.astype(np.float32))
    np.testing.assert_array_equal(found["s"], np.stack(steps).astype(np.float32))


def test_a_scan_carries_float16() -> None:
    text = """
    g (float[3, 2] x, float[2] z) => (float[2] y, float[3, 2] s) {
      y, s = Scan <num_scan_inputs = 1,
        body = l (float[2] v, float[2] r) => (float[2] u, float[2] o) { u = Add(v, r) o = Abs(u) }
      > (z, x)
    }"""
    made = short(prepared(text), [0])
    near(made, {"x": ramp(3, 2), "z": ramp(2)}, 55)


def test_a_region_in_a_branch_reads_what_is_cast_around_it() -> None:
    text = IF.replace("y = Sub(c, w)", "y = Sub(c, a)")
    model = prepared(text)
    then, other = (body.index for body in model.index.bodies[1])
    from byoc.graph.outline import Cut, GraphCuts, Group, outline  # noqa: PLC0415

    cut = GraphCuts(then, (Cut(FIRST, "byoc.npu", (Group((1,)), Group((2,)))),))
    root = GraphCuts(model.index, (), bodies={1: [cut, GraphCuts(other, ())]})
    made = computed(model, outline(root), [Wants(compute="float16")])
    assert made.host == ["Relu", "Cast", "If", "Sub"]
    branch = made.proto.graph.node[2].attribute[0].g
    assert [node.op_type for node in branch.node] == [FIRST, "Cast"]
    assert made.stored() == {"w_float16": "FLOAT16"}
    for way in (True, False):
        near(made, {"x": ramp(4), "b": np.array(way)}, 60)


# --- composites


COMPOSITES = (
    RULES
    + """
  - op: [ConstantOfShape, Constant]
composites:
  - {name: scaled, pattern: "c = Cast(x)\\nm = Mul(c, y)\\nr = Relu(m)"}
"""
)


def test_a_cast_inside_a_composite_follows_its_call(tmp_path: Path) -> None:
    text = """
    g (int64[4] i, float[4] x) => (float[4] y, int32[4] z) <int32[4] k = {1, 2, 3, 4}> {
      a = Cast <to = 1> (i)  b = Mul(a, x)  y = Relu(b)
      d = Cast <to = 6> (i)  e = Mul(d, k)  z = Relu(e)
    }"""
    rules = COMPOSITES.replace("dtype: float16", "dtype: [float16, int32, int64]")
    made = partitioned(prepared(text), target(tmp_path, rules), AllSupported())
    calls = [node for f in made.proto.functions for node in f.node if node.domain]
    assert {noted(node, "byoc.composite") for node in calls} == {"scaled"}
    assert sorted(node.attribute[0].i for node in calls) == [TensorProto.INT32, TensorProto.FLOAT16]
    near(made, {"i": np.array([1, -2, 3, 4]), "x": ramp(4)})


def test_composites_whose_calls_differ_get_functions_of_their_own(tmp_path: Path) -> None:
    text = """
    g (float[4] x, float[4] w) => (float[4] y, float[4] z) <float s = {0.01}, int8 p = {3}> {
      q = QuantizeLinear(x, s, p)  d = DequantizeLinear(q, s, p)  y = Mul(d, w)
      r = QuantizeLinear(w, s, p)  e = DequantizeLinear(r, s, p)  z = Mul(e, x)
    }"""
    rules = (
        RULES.replace("dtype: float16", "dtype: [float16, int8]")
        + """
  - op: [QuantizeLinear, DequantizeLinear]
    dtype: [any]
composites:
  - {name: fake, pattern: "q = QuantizeLinear(x, s, p)\\nd = DequantizeLinear(q, s, p)"}
"""
    )
    made = partitioned(prepared(text), target(tmp_path, rules), AllSupported())
    inner = [f for f in made.proto.functions if f.name.startswith("fake")]
    assert [[node.op_type for node in f.node] for f in inner] == [
        ["Cast", "QuantizeLinear", "DequantizeLinear"]
    ]
    assert inner[0].name == "fake_float16"
    near(made, {"x": ramp(4), "w": ramp(4)}, 30)


# --- bfloat16, whole models, errors


def test_bfloat16_is_what_onnx_says(tmp_path: Path) -> None:
    text = """
    g (float[2, 8] x) => (float[2, 4] y) <float[4] b = {0.1, 0.2, 0.3, 1e30}> {
      m = MatMul(x, w)  a = Min(m, b)  y = Relu(a)
    }"""
    proto = parse(text, ir=10, opset=22)
    proto.graph.initializer.append(numpy_helper.from_array(ramp(8, 4), "w"))
    made = short(prepare(proto, "t"), [0, 1, 2], dtype="bfloat16")
    assert set(made.dtypes().values()) == {"bfloat16"}
    (note,) = (note for note in made.notes if "onnxruntime" in note)
    assert note.startswith("regions compute in bfloat16")
    x = ramp(2, 8)
    (found,) = ReferenceEvaluator(made.proto).run(None, {"x": x})
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    assert found.dtype == np.float32
    assert 30 < decibels(expected, found) < 60


@pytest.mark.parametrize(("dtype", "opset", "least"), [("bfloat16", 12, 13), ("float16", 5, 6)])
def test_an_operator_set_without_the_type_is_refused(dtype: str, opset: int, least: int) -> None:
    model = prepared("g (float[4] x) => (float[4] y) { y = Abs(x) }", opset=opset)
    with pytest.raises(InputError, match=f"operator set {opset}.* {dtype}.*{least} or newer"):
        short(model, [0], dtype=dtype)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 25), st.sampled_from(["host", "device"]))
def test_random_graphs_are_valid_and_near(
    seed: int, size: int, convert: Literal["host", "device"]
) -> None:
    model = prepare(GraphMaker(seed).model(size), "random")
    rules = load_rules(str(Path(__file__).parent / "short.yaml"))
    there = replace(rules, compute="float16")
    for strategy in (AllSupported(), Random(seed), Alternating()):
        made = partitioned(model, there, strategy, convert)
        x = {"x0": ramp(1, 4, 3, 3), "x1": ramp(1, 4, 3, 3)[::, ::-1]}
        expected = run_original(model, x)
        given_out: dict[str, Any] = made.run(x)
        for name, value in expected.items():
            with np.errstate(over="ignore"):
                finite = np.isfinite(value.astype(np.float16)).all()
            assert given_out[name].dtype == value.dtype
            if finite:
                scale = max(1.0, float(np.abs(value).max()))
                np.testing.assert_allclose(given_out[name], value, atol=0.02 * scale)
