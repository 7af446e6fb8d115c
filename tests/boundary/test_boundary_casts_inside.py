"""What is inside regions in float16: parameters, attributes that say a type, bodies, composites."""

from pathlib import Path

import numpy as np
import pytest
from helpers.cutting import ramp
from helpers.support import prepared
from onnx import TensorProto
from short import FIRST, RULES, casts, computed, near, partitioned, short, target

from byoc.boundary.convert import BoundaryFormat
from byoc.model import GraphCuts, OutlineGroup, RegionCut, get_metadata, outline
from byoc.placement.strategies import AllSupported


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


def test_types_that_a_body_states_follow_and_its_integers_stay() -> None:
    text = """
    g (float[2] x, int64 n) => (float[2] y) <bool go = {1}> {
      y = Loop (n, go, x) <
        body = l (int64 i, bool c, float[2] v) => (bool d, float[2] u)
        <float[2] w = {1.5, 0.1}, int64[2] e = {1, 2}, float[2] m, int64[2] k, float[2] f> {
          d = Identity(c)
          f = Constant <value_floats = [0.3, 0.7]> ()
          m = Mul(v, w)
          k = Abs(e)
          r = Sub(m, f)
          j = Cast <to = 1> (k)
          u = Add(r, j)
        }
      >
    }"""
    made = short(prepared(text), [0])
    body = made.function().node[0].attribute[0].g
    stated = {value.name: value.type.tensor_type.elem_type for value in body.value_info}
    assert (stated["m"], stated["k"]) == (TensorProto.FLOAT16, TensorProto.INT64)
    stored = {tensor.name: tensor.data_type for tensor in body.initializer}
    assert stored["e"] == TensorProto.INT64
    assert set(stored.values()) == {TensorProto.INT64, TensorProto.FLOAT16}
    assert not [node for node in body.node if node.op_type == "Cast" and node.output[0] != "j"]
    w, f = np.float16([1.5, 0.1]), np.float16([0.3, 0.7])
    v = np.float16([1.1, -0.7])
    for _ in range(3):
        v = v * w - f + np.float16([1, 2])
    given = {"x": np.float32([1.1, -0.7]), "n": np.array(3)}
    np.testing.assert_array_equal(made.reference(given)["y"], v.astype(np.float32))
    near(made, given)


def test_what_a_body_carries_is_cast_for_an_operator_without_float16() -> None:
    """QuantizeLinear takes no float16 before opset 19; the state is short all the same."""
    text = """
    g (float[2] x, int64 n) => (float[2] y) <bool go = {1}, float s = {0.25}> {
      y = Loop (n, go, x) <
        body = l (int64 i, bool c, float[2] v) => (bool d, float[2] u) {
          d = Identity(c)
          q = QuantizeLinear(v, s)
          k = DequantizeLinear(q, s)
          u = Sub(v, k)
        }
      >
    }"""
    made = short(prepared(text), [0])
    loop = next(node for node in made.function().node if node.op_type == "Loop")
    body = loop.attribute[0].g
    assert body.input[2].type.tensor_type.elem_type == TensorProto.FLOAT16
    quantize = next(node for node in body.node if node.op_type == "QuantizeLinear")
    (cast,) = [node for node in body.node if node.output[0] == quantize.input[0]]
    assert (cast.op_type, list(cast.input)) == ("Cast", [body.input[2].name])
    x = np.float32([1.1, -0.7])
    given = {"x": x, "n": np.array(1)}
    h = x.astype(np.float16)
    quantized = (np.clip(np.rint(h.astype(np.float32) / 0.25), 0, 255) * 0.25).astype(np.float16)
    np.testing.assert_array_equal(made.run(given)["y"], (h - quantized).astype(np.float32))


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
    cut = GraphCuts(then, (RegionCut(FIRST, "byoc.npu", (OutlineGroup((1,)), OutlineGroup((2,)))),))
    root = GraphCuts(model.index, (), bodies={1: [cut, GraphCuts(other, ())]})
    made = computed(model, outline(root), [BoundaryFormat(compute="float16")])
    assert made.host == ["Relu", "Cast", "If", "Sub"]
    branch = made.proto.graph.node[2].attribute[0].g
    assert [node.op_type for node in branch.node] == [FIRST, "Cast"]
    assert made.stored() == {"w_float16": "FLOAT16"}
    for way in (True, False):
        near(made, {"x": ramp(4), "b": np.array(way)}, 60)


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
    assert {get_metadata(node, "byoc.composite") for node in calls} == {"scaled"}
    assert sorted(node.attribute[0].i for node in calls) == [TensorProto.INT32, TensorProto.FLOAT16]
    assert [f.name for f in made.proto.functions if f.name.startswith("scaled")] == ["scaled"]
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
