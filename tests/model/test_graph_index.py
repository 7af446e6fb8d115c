"""Look-ups: who makes, who reads, what is constant."""

import pytest
from helpers.support import parse, prepared
from onnx import TensorProto, helper

from byoc.model import GraphIndex, TensorType, prepare_model

CONSTANTS = """
g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, int64[1] axes = {0}> {
  k = Constant <value_floats = [3.0, 4.0]> ()
  ww = Add (w, k)
  www = Neg (ww)
  a = Add (x, www)
  y = Mul (a, w)
}
"""


def test_producers_and_consumers() -> None:
    index = prepared(CONSTANTS).index
    assert index.producers == {"k": 0, "ww": 1, "www": 2, "a": 3, "y": 4}
    assert index.consumers == {"w": [1, 4], "k": [1], "ww": [2], "x": [3], "www": [3], "a": [4]}
    assert [list(names) for names in index.reads] == [[], ["w", "k"], ["ww"], ["x", "www"], ["a", "w"]]
    assert (list(index.inputs), list(index.outputs), index.opsets) == (["x"], ["y"], {"": 17})


def test_a_capture_is_a_use() -> None:
    index = prepared("""
        g (float[2] x, bool c) => (float[2] y) {
          a = Relu (x)
          b = Neg (x)
          y = If <then_branch = t () => (float[2] u) { u = Abs (a) },
                  else_branch = e () => (float[2] v) { v = Add (a, x) }> (c)
        }""").index
    assert index.consumers["a"] == [2]
    assert index.consumers["x"] == [0, 1, 2]
    assert index.is_used("a")
    assert not index.is_used("b")
    assert index.is_used("y")


def test_a_tensor_read_twice_by_a_node_has_one_consumer() -> None:
    assert prepared("g (float[2] x) => (float[2] y) { y = Mul (x, x) }").index.consumers == {"x": [0]}


def test_constants_through_a_chain() -> None:
    index = prepared(CONSTANTS).index
    assert index.constant_nodes == {0, 1, 2}
    assert [name for name in ("w", "k", "ww", "www", "x", "a", "y") if index.is_constant(name)] == [
        "w",
        "k",
        "ww",
        "www",
    ]
    assert index.find_constant_nodes(["a", "www"]) == [0, 1, 2]
    assert index.find_constant_nodes(["ww", "x", "w"]) == [0, 1]
    assert index.find_constant_nodes(["y"]) == []


@pytest.mark.parametrize(
    "op",
    [
        "RandomNormal <shape = [2]> ()",
        "RandomUniform <shape = [2]> ()",
        "RandomNormalLike (w)",
        "RandomUniformLike (w)",
        "Bernoulli (w)",
    ],
)
def test_random_operators_are_never_constant(op: str) -> None:
    text = f"g (float[2] x) => (float[2] y) <float[2] w = {{0, 1}}> {{ r = {op}\n y = Add (x, r) }}"
    index = prepared(text).index
    assert index.constant_nodes == set()
    assert not index.is_constant("r")


def test_what_a_random_operator_feeds_is_not_constant() -> None:
    index = prepared("g () => (float[2] y) { r = RandomNormal <shape = [2]> ()\n y = Neg (r) }").index
    assert index.constant_nodes == set()


def test_other_domains_and_bodies_are_never_constant() -> None:
    model = parse("""
        g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, bool c = {1}> {
          i = If <then_branch = t () => (float[2] u) { u = Abs (w) },
                  else_branch = e () => (float[2] v) { v = Neg (w) }> (c)
          y = Add (x, i)
        }""")
    model.opset_import.append(helper.make_opsetid("acme", 1))
    model.graph.node.insert(0, helper.make_node("Secret", ["w"], ["s"], domain="acme"))
    assert prepare_model(model, "test").index.constant_nodes == set()


def test_the_standard_domain_by_its_long_name() -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { n = Neg (w)\n y = Add (x, n) }"
    )
    model.graph.node[0].domain = "ai.onnx"
    model.opset_import[0].domain = "ai.onnx"
    index = GraphIndex.of_model(model)
    assert index.constant_nodes == {0}
    assert index.opsets == {"": 17}


@pytest.mark.parametrize(("ir", "inputs", "constant"), [(3, ["x"], True), (4, ["x", "w"], False)])
def test_an_initializer_that_is_an_input(ir: int, inputs: list[str], constant: bool) -> None:
    """Up to IR 3 every initializer had to be an input; from IR 4 on being one makes it a default."""
    text = "g (float[2] x, float[2] w) => (float[2] y) { n = Neg (w)\n y = Add (x, n) }"
    model = parse(text, ir=ir, opset=9)
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [2], [1, 2]))
    index = prepare_model(model, "test").index
    assert index.has_default_inputs == (ir >= 4)
    assert list(index.inputs) == inputs
    assert index.is_constant("w") == constant
    assert index.constant_nodes == ({0} if constant else set())


def test_dead_outputs() -> None:
    index = prepared(
        "g (float[1,1,4,4] x) => (float[1,1,2,2] y) { y, i = MaxPool <kernel_shape = [3, 3]> (x) }"
    ).index
    assert index.is_used("y")
    assert not index.is_used("i")
    assert not index.is_used("")


def test_types_stated_and_inferred() -> None:
    index = prepared(
        "g (float[N, 4] x) => (float[N, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}>"
        "{ y = MatMul (x, w) }"
    ).index
    assert index.types == {
        "x": TensorType("float32", ("N", 4)),
        "y": TensorType("float32", ("N", 2)),
        "w": TensorType("float32", (4, 2)),
    }
