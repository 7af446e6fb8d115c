"""Edits of a graph: gathered in constant time each, written to the graph or to a copy of it."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from helpers.support import count_calls, parse, prepared
from onnx import NodeProto, TensorProto, helper

from byoc.model import EditableGraph, EditableModel, GraphIndex, build_node, copy_without
from byoc.onnxrt import open_session, run_session, without_optimizations

NESTED = """g (float[2] x, bool c) => (float[2] y, float[2] p)
    <float[2] w = {1, 2}, float[2] v = {3, 4}> {
    a = Add(x, w)
    b = Identity(a)
    u = Mul(b, v)
    d = Neg(u)
    y = If (c) <
        then_branch = t () => (float[2] b) { },
        else_branch = e () => (float[2] q) { r = Exp(b)\n q = Sub(r, a) }
    >
    p = Relu(b)
}"""


def lines(nodes: Sequence[NodeProto]) -> list[str]:
    return [f"{' '.join(n.output)} = {n.op_type}({' '.join(n.input)})" for n in nodes]


def run(model: onnx.ModelProto, c: bool) -> list[np.ndarray]:
    inputs = {"x": np.array([0.5, -1.0], np.float32), "c": np.array(c)}
    with without_optimizations():
        made = run_session(open_session(model), inputs)
    return [made[value.name] for value in model.graph.output]


def drop_identity(index: GraphIndex) -> onnx.ModelProto:
    """Return the model of an index without the Identity that is its node 1."""
    graph = EditableGraph.of_index(index)
    graph.remove(1)
    graph.link("b", "a")
    copy = copy_without(index.proto)
    graph.write_to(copy.graph)
    return copy


def test_a_tensor_that_goes_is_replaced_in_bodies_and_as_what_they_return() -> None:
    model = parse(NESTED)
    before = model.SerializeToString()
    copy = drop_identity(GraphIndex(model, {}))

    assert model.SerializeToString() == before
    assert lines(copy.graph.node)[1:] == [
        *("u = Mul(a v)", "d = Neg(u)", "y = If(c)", "p = Relu(a)"),
    ]
    then, other = (attribute.g for attribute in copy.graph.node[3].attribute)
    assert [value.name for value in then.output] == ["a"]
    assert lines(other.node) == ["r = Exp(a)", "q = Sub(r a)"]


@pytest.mark.parametrize("c", [True, False])
def test_a_model_without_an_identity_computes_the_same(c: bool) -> None:
    model = prepared(NESTED.replace("(float[2] b) { }", "(float[2] k) { k = Neg(b) }"))

    for made, wanted in zip(run(drop_identity(model.index), c), run(model.proto, c), strict=True):
        np.testing.assert_array_equal(made, wanted)


def test_an_output_is_taken_over_by_another_tensor() -> None:
    index = GraphIndex(parse("g (float[2] x) => (float[2] y) { a = Exp(x)\n y = Identity(a) }"), {})
    graph = EditableGraph.of_index(index)
    graph.remove(1)
    graph.link("y", "a")
    graph.claims["a"] = "y"
    graph.write_to(index.graph)

    assert lines(index.graph.node) == ["y = Exp(x)"]


@pytest.mark.parametrize("indexed", [True, False])
def test_unread_nodes_go_with_what_only_they_read(indexed: bool) -> None:
    model = parse(NESTED)
    index = GraphIndex(model, {})
    graph = EditableGraph.of_index(index) if indexed else EditableGraph(model.graph)

    assert graph.drop_unread() == {"v"}
    graph.write_to(model.graph)
    assert lines(model.graph.node) == ["a = Add(x w)", "b = Identity(a)", "y = If(c)", "p = Relu(b)"]


def test_nodes_stay_that_may_not_go_or_are_not_asked_for() -> None:
    index = GraphIndex(parse(NESTED), {})

    def is_neg(number: int, nodes: Sequence[NodeProto]) -> bool:
        return nodes[0].op_type == "Neg"

    graph = EditableGraph.of_index(index)
    assert graph.drop_unread(may_go=is_neg) == set()
    assert graph.removed == {3}
    graph = EditableGraph.of_index(index)
    assert graph.drop_unread(["u", "w"]) == set()
    assert not graph.removed
    graph.remove(3)
    assert graph.drop_unread(["u", "w"]) == {"v"}
    assert graph.removed == {2, 3}


def test_a_reader_that_is_replaced_or_inserted_counts() -> None:
    index = GraphIndex(parse(NESTED), {})
    graph = EditableGraph.of_index(index)
    graph.replace(5, build_node("Relu", ["u"], ["p"]))
    assert (graph.list_readers("b"), graph.list_readers("u")) == ([2, 4], [3, 5])
    assert graph.drop_unread() == set()
    assert graph.removed == {3}

    graph = EditableGraph.of_index(index)
    graph.insert_after(3, build_node("Exp", ["d"], ["kept"]))
    graph.drop_unread(["d"])
    assert "d = Neg(u)" in lines(graph.nodes)


def test_nodes_that_stay_are_not_copied_and_their_order_is_written() -> None:
    model = parse(NESTED)
    graph = EditableGraph(model.graph)
    kept = model.graph.node[5]
    graph.insert_first(build_node("Exp", ["x"], ["f"]))
    graph.insert_last(build_node("Exp", ["p"], ["l"]))
    graph.insert_before(graph.nodes[4], build_node("Exp", ["u"], ["m"]))
    graph.write_to(model.graph)

    made = [node.output[0] for node in model.graph.node]
    assert made == ["f", "a", "b", "u", "m", "d", "y", "p", "l"]
    kept.doc_string = "the same node"
    assert model.graph.node[7].doc_string == "the same node"


def test_new_names_are_free_in_bodies_and_functions() -> None:
    function = helper.make_function(
        "own", "F", ["i"], ["o"], [build_node("Neg", ["i"], ["o"])], [helper.make_opsetid("", 17)]
    )
    model = parse(NESTED)
    model.functions.append(function)
    names = EditableModel(model).names

    assert [names.new_tensor(name) for name in "roz"] == ["r_1", "o_1", "z"]


@pytest.mark.parametrize(("ir_version", "inputs"), [(3, ["x", "n"]), (8, ["x"])])
def test_a_new_initializer_has_a_type_and_is_an_input_where_all_are(
    ir_version: int, inputs: list[str]
) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Exp(x) }")
    model.ir_version = ir_version
    graph = EditableGraph.of_index(GraphIndex(model, {}))
    assert graph.store(np.zeros((2, 3), np.float16), "n") == "n"
    graph.write_stored(model.graph)

    assert graph.types["n"] == helper.make_tensor_type_proto(TensorProto.FLOAT16, [2, 3])
    assert [value.name for value in model.graph.input] == inputs
    assert [tensor.name for tensor in model.graph.initializer] == ["n"]


def test_names_are_written_where_nodes_were_merged_meanwhile() -> None:
    model = parse(NESTED)
    graph = EditableGraph.of_index(GraphIndex(model, {}))
    graph.remove(1)
    graph.link("b", "a")
    first, second = build_node("Exp", ["a"], ["e"]), build_node("Exp", ["e"], ["f"])
    graph.insert_after(0, first)
    graph.insert_after(first, second)
    assert lines(graph.nodes)[:4] == ["a = Add(x w)", "e = Exp(a)", "f = Exp(e)", "u = Mul(b v)"]
    graph.write_to(model.graph)

    assert lines(model.graph.node)[3:] == ["u = Mul(a v)", "d = Neg(u)", "y = If(c)", "p = Relu(a)"]


def test_a_tensor_is_renamed_in_a_graph_that_has_no_other_edit() -> None:
    model = parse(NESTED)
    graph = EditableGraph(model.graph)
    graph.link("b", "a")
    graph.write_to(model.graph)

    assert lines(model.graph.node)[5] == "p = Relu(a)"


def edit_chain(length: int) -> int:
    """Insert, replace and drop nodes all along a chain; return the calls that it takes."""
    nodes = [build_node("Exp", [f"t{i}"], [f"t{i + 1}"]) for i in range(length)]
    side = [build_node("Neg", [f"t{i}"], [f"n{i}"]) for i in range(length)]
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    outputs = [helper.make_value_info(f"t{length}", value)]
    inputs = [helper.make_value_info("t0", value)]
    model = helper.make_model(helper.make_graph([*nodes, *side], "g", inputs, outputs))

    def edit() -> None:
        graph = EditableGraph.of_index(GraphIndex(model, {}))
        for number in range(length):
            graph.insert_after(number, build_node("Abs", [f"t{number}"], [f"a{number}"]))
            graph.drop_unread([f"n{number}"])
        graph.write_to(model.graph)

    calls = count_calls(edit, 10_000 * length)
    assert len(model.graph.node) == 2 * length
    return calls


def test_edits_take_time_that_is_linear() -> None:
    assert edit_chain(400) < 2.5 * edit_chain(200)
