"""Behind which node or graph input types are not known, and what settles them."""

import onnx
import pytest
from helpers.support import parse
from onnx import helper

from byoc.model import GraphIndex, find_type_origin, prepare_model

ODD = """
g (float[2, 4] x, float[N, 4] z, float[2, 3] k) => (float y) {
  a = Relu (x)
  o = acme.Odd (a)
  b = Relu (o)
  s = Shape (b)
  t = Neg (s)
  r = Reshape (k, t)
  q = Add (r, z)
  m = Relu (z)
  y = ReduceMax (q)
}
"""


def load(text: str) -> GraphIndex:
    model = parse(text)
    model.opset_import.append(helper.make_opsetid("acme", 1))
    return prepare_model(model, "test").index


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        ("a", None),
        (
            "o",
            "the shape of 'o', which Odd 'o' makes, is not known (state it as value_info of the model)",
        ),
        # Not Relu, and not Reshape, whose shape is computed from that of `b`.
        (
            "b",
            "the shape of 'o', which Odd 'o' makes, is not known (state it as value_info of the model)",
        ),
        (
            "r",
            "the shape of 'o', which Odd 'o' makes, is not known (state it as value_info of the model)",
        ),
        (
            "q",
            "the shape of 'o', which Odd 'o' makes, is not known (state it as value_info of the model)",
        ),
        ("z", "dimension N of input 'z' is not fixed (--dim N=SIZE)"),
        ("m", "dimension N of input 'z' is not fixed (--dim N=SIZE)"),
    ],
)
def test_the_first_of_a_chain_is_named(tensor: str, text: str | None) -> None:
    found = find_type_origin(load(ODD), [tensor])
    assert (str(found) if found else None) == text


def test_a_stated_shape_settles_what_is_behind_it() -> None:
    model = parse(ODD)
    model.opset_import.append(helper.make_opsetid("acme", 1))
    model.graph.value_info.append(helper.make_tensor_value_info("o", onnx.TensorProto.FLOAT, [2, 4]))
    assert find_type_origin(prepare_model(model, "test").index, ["b"]) is None


def test_inputs_without_sizes_or_names() -> None:
    """As Paddle exports them; a rank that is not known comes before an open dimension."""
    given = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, None, None]),
        helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, None),
        helper.make_tensor_value_info("n", onnx.TensorProto.FLOAT, ["N"]),
    ]
    made = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    nodes = [helper.make_node("Sum", ["n", "u"], ["y"])]
    proto = helper.make_model(helper.make_graph(nodes, "g", given, made))
    index = GraphIndex.of_model(proto)
    assert str(find_type_origin(index, ["x"])) == (
        "dimension 1 of input 'x' has neither size nor name (--shape x=EXTENTS)"
    )
    assert str(find_type_origin(index, ["u"])) == (
        "the rank of input 'u' is not known (--shape u=EXTENTS)"
    )
    assert str(find_type_origin(index, ["n", "y"])) == (
        "the rank of input 'u' is not known (--shape u=EXTENTS)"
    )


def test_a_body_is_told_of_what_is_around_it() -> None:
    index = load("""
        g (float[2, 4] x, bool c) => (float y) {
          o = acme.Odd (x)
          y = If <then_branch = t () => (float u) { w = Neg (o) u = ReduceMax (w) },
                  else_branch = e () => (float v) { v = ReduceMax (x) }> (c)
        }""")
    ((then, other),) = index.bodies.values()
    found = find_type_origin(then.index, ["w"])
    assert found is not None
    assert found.tensor == "o"
    assert find_type_origin(other.index, ["x"]) is None
