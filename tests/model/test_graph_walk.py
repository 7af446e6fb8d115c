"""Bodies, captures, and a topological order without recursion."""

import random
from collections.abc import Sequence

import onnx
import pytest
from helpers.support import parse
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto, TensorProto, helper

from byoc.errors import InputError
from byoc.model import (
    describe_node,
    list_bodies,
    list_node_captures,
    list_reads,
    prepare_model,
    walk_graphs,
    walk_tensors,
)

NESTED = """
outer (float[2] x, bool c, int64 n) => (float[2] y) {
  a = Relu (x)
  y = If <
    then_branch = then_g () => (float[2] t) {
      t0 = Neg (a)
      t = Loop (n, c, t0) <
        body = loop_g (int64 i, bool go, float[2] s) => (bool go_on, float[2] s_out) {
          go_on = Identity (c)
          s_out = Add (s, x)
        }
      >
    },
    else_branch = else_g () => (float[2] e) <float[2] k = {1, 2}> { e = Add (k, x) }
  > (c)
}
"""


def relu(source: str, target: str, name: str = "") -> NodeProto:
    return helper.make_node("Relu", [source], [target], name)


def holding(body: onnx.GraphProto) -> NodeProto:
    return helper.make_node("Loop", ["n", "c"], [], body=body)


def sort_nodes(nodes: Sequence[NodeProto], **given: Sequence[int]) -> list[int]:
    """Return the order of nodes in a loaded model, by their numbers; tensors are two floats."""
    made = {name for node in nodes for name in node.output}
    read = dict.fromkeys(name for node in nodes for name in list_reads(node) if name not in made)
    last = [name for node in nodes for name in node.output][-1:]
    dtypes = {"c": TensorProto.BOOL, "n": TensorProto.INT64}
    values = [
        helper.make_tensor_value_info(name, dtypes.get(name, TensorProto.FLOAT), given.get(name, [2]))
        for name in [*read, *last]
    ]
    graph = helper.make_graph(nodes, "g", values[: len(read)], values[len(read) :])
    imports = [helper.make_opsetid("", 17)]
    proto = prepare_model(helper.make_model(graph, opset_imports=imports, ir_version=8), "m").proto
    numbers = {node.output[0]: number for number, node in enumerate(nodes)}
    return [numbers[node.output[0]] for node in proto.graph.node]


def test_graphs_at_every_depth() -> None:
    graph = parse(NESTED).graph
    assert sorted(g.name for g in walk_graphs(graph)) == ["else_g", "loop_g", "outer", "then_g"]
    assert [g.name for g in list_bodies(graph.node[1])] == ["then_g", "else_g"]


def test_a_node_reads_what_its_bodies_capture() -> None:
    """Local names, loop variables and the body's own weights are no captures."""
    branch = parse(NESTED).graph.node[1]
    assert list_reads(branch) == ["c", "a", "n", "x"]
    assert list_node_captures(branch) == ["a", "n", "c", "x"]
    then_branch, else_branch = branch.attribute
    del branch.attribute[0]
    assert list_node_captures(branch) == ["x"]
    loop = then_branch.g.node[1]
    assert list_node_captures(loop) == ["c", "x"]
    assert else_branch.name == "else_branch"


def test_reads_leave_out_what_is_absent_or_double() -> None:
    assert list_reads(helper.make_node("Clip", ["x", "", "x"], ["y"])) == ["x"]


def test_a_body_that_gives_out_an_outer_tensor_captures_it() -> None:
    body = helper.make_graph([], "b", [], [helper.make_tensor_value_info("a", TensorProto.FLOAT, [2])])
    assert list_node_captures(holding(body)) == ["a"]


def test_a_name_used_before_a_body_makes_it_anew_is_a_capture() -> None:
    body = helper.make_graph([relu("a", "b"), relu("b", "a2")], "b", [], [])
    assert list_node_captures(holding(body)) == ["a"]


def test_every_stored_tensor() -> None:
    model = parse(NESTED)
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [1], [1]))
    values = helper.make_tensor("sparse", TensorProto.FLOAT, [1], [1])
    places = helper.make_tensor("places", TensorProto.INT64, [1], [1])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))
    constant = helper.make_node("Constant", [], ["k2"])
    constant.attribute.append(helper.make_attribute("value", helper.make_tensor("kt", 1, [1], [1])))
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("attr_values", 1, [1], [1]),
        helper.make_tensor("attr_places", 7, [1], [0]),
        [2],
    )
    other = helper.make_node("Constant", [], ["k3"], sparse_value=sparse)
    then_body = model.graph.node[1].attribute[0].g
    then_body.node.append(constant)
    model.functions.append(
        helper.make_function("f", "F", [], ["k3"], [other], [helper.make_opsetid("", 17)])
    )
    assert sorted(tensor.name for tensor in walk_tensors(model)) == [
        "attr_places",
        "attr_values",
        "k",
        "kt",
        "places",
        "sparse",
        "w",
    ]


def test_a_right_order_is_kept_as_it_is() -> None:
    """Kahn's algorithm alone would put both readers of x before the second of the first branch."""
    nodes = [relu("x", "a"), relu("a", "b"), relu("x", "c"), relu("c", "d")]
    assert sort_nodes(nodes) == [0, 1, 2, 3]


def test_a_long_chain_the_wrong_way_round() -> None:
    nodes = [relu(f"t{i}", f"t{i + 1}") for i in reversed(range(5000))]
    assert sort_nodes(nodes) == list(reversed(range(5000)))


def test_what_a_body_captures_comes_first() -> None:
    graph = parse(NESTED).graph
    assert sort_nodes([graph.node[1], graph.node[0]], c=[], n=[]) == [1, 0]


def test_a_cycle_is_named_by_a_node_on_it() -> None:
    """`after` only follows the cycle and stands first; `before` only leads to it."""
    nodes = [
        relu("b", "z", "after"),
        relu("x", "s", "before"),
        helper.make_node("Add", ["s", "b"], ["a"], "one"),
        relu("a", "b", "two"),
        relu("z", "zz", "last"),
    ]
    with pytest.raises(InputError, match=r"^m: the nodes form a cycle through (Add 'one'|Relu 'two')$"):
        sort_nodes(nodes)


def test_a_node_that_reads_itself() -> None:
    with pytest.raises(InputError, match=r"^m: the nodes form a cycle through Relu 'a'$"):
        sort_nodes([relu("a", "a")])


def test_no_nodes() -> None:
    assert sort_nodes([]) == []


@settings(deadline=None)
@given(st.integers(0, 12), st.randoms(use_true_random=False))
def test_producers_stand_before_consumers(size: int, chance: random.Random) -> None:
    nodes = []
    for i in range(size):
        sources = [f"t{j}" for j in range(i) if chance.random() < 0.4] or ["x"]
        nodes.append(helper.make_node("Sum", sources, [f"t{i}"]))
    chance.shuffle(nodes)
    order = sort_nodes(nodes)
    assert sorted(order) == list(range(size))
    place = {nodes[i].output[0]: position for position, i in enumerate(order)}
    assert all(
        place[name] < place[node.output[0]] for node in nodes for name in node.input if name != "x"
    )


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(0, 5), st.randoms(use_true_random=False))
def test_any_cycle_is_named_by_a_node_on_it(length: int, others: int, chance: random.Random) -> None:
    ring = [relu(f"r{i}", f"r{(i + 1) % length}", f"ring{i}") for i in range(length)]
    after = [relu(f"r{chance.randrange(length)}", f"o{i}", f"after{i}") for i in range(others)]
    nodes = ring + after
    chance.shuffle(nodes)
    with pytest.raises(InputError, match=r"through Relu 'ring\d'$"):
        sort_nodes(nodes)


def test_how_messages_name_a_node() -> None:
    assert describe_node(relu("x", "y", "r")) == "Relu 'r'"
    assert describe_node(relu("x", "y")) == "Relu 'y'"
    assert describe_node(helper.make_node("Dropout", ["x"], ["", "mask"])) == "Dropout 'mask'"
    assert describe_node(onnx.NodeProto(op_type="Sink")) == "Sink ''"
