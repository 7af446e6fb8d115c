"""Editing an outlined model: nodes put where they belong, names that are free, all written back."""

import onnx
import pytest
from helpers.support import parse, prepared
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from byoc.boundary.convert import ModelEditor
from byoc.model import GraphCuts, OutlineGroup, RegionCut, outline

TEXT = """g (float[2] x, bool c) => (float[2] y) {
    a = Relu(x)
    b = Neg(a)
    i = If (c) <
        then_branch = t () => (float[2] u) { v = Abs(b)\n u = Add(v, a) },
        else_branch = e () => (float[2] w) { w = Neg(x) }
    >
    y = Add(i, b)
}"""
FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])


def outlined() -> ModelProto:
    """Return a model with region `npu_0` in the main graph and `npu_1` in a branch."""
    index = prepared(TEXT).index
    then, other = (body.index for body in index.bodies[2])
    region = RegionCut("npu_0", "byoc.npu", (OutlineGroup((1,)),))
    inner = RegionCut("npu_1", "byoc.npu", (OutlineGroup((0,)),))
    return outline(
        GraphCuts(index, (region,), {}, {2: [GraphCuts(then, (inner,)), GraphCuts(other, ())]})
    )


def lines(nodes: "list[NodeProto] | GraphProto") -> list[str]:
    listed = nodes.node if isinstance(nodes, GraphProto) else nodes
    return [f"{n.output[0]} = {n.op_type}({', '.join(n.input)})" for n in listed]


def relu(source: str, target: str) -> NodeProto:
    return helper.make_node("Relu", [source], [target])


def test_regions_are_found_in_bodies_too() -> None:
    edit = ModelEditor(outlined())

    assert set(edit.calls) == {"npu_0", "npu_1"}
    assert edit.calls["npu_0"].scope is edit.main
    branch = edit.calls["npu_1"].scope
    assert (branch.outer, branch.find_captures()) == (edit.main, ["b", "a"])
    assert branch.owner is not None
    assert branch.owner.op_type == "If"
    assert [scope.outer for scope in edit.scopes].count(edit.main) == 2


def test_nodes_stand_where_they_were_put() -> None:
    edit = ModelEditor(outlined())
    first, call, *_ = edit.main.nodes

    edit.main.insert_before(call, relu("x", "p"))
    edit.main.insert_before(call, relu("p", "q"))
    edit.main.insert_after(call, relu("b", "r"))
    edit.main.insert_after(first, relu("a", "s"))
    edit.main.insert_first(relu("x", "second"))
    edit.main.insert_first(relu("x", "first"), relu("first", "behind"))
    edit.main.insert_last(relu("y", "last"))

    expected = [
        *("first = Relu(x)", "behind = Relu(first)", "second = Relu(x)", "a = Relu(x)", "s = Relu(a)"),
        *("p = Relu(x)", "q = Relu(p)", "b = npu_0(a)", "r = Relu(b)", "i = If(c)", "y = Add(i, b)"),
        "last = Relu(y)",
    ]
    assert lines(edit.main.nodes) == expected
    assert lines(edit.main.nodes) == expected  # reading does not put in again
    assert lines(edit.finish().graph) == expected


def test_what_is_written_back_holds_all_graphs_and_the_types() -> None:
    edit = ModelEditor(outlined())
    outer, inner = edit.calls["npu_0"], edit.calls["npu_1"]
    given = edit.add_tensor("b_new", FLOATS, "b")
    outer.replace_output(0, given, relu("b", given))
    outer.scope.insert_after(outer.node, helper.make_node("Identity", [given], ["b"]))
    passed = edit.add_tensor("b_new", FLOATS, "b")
    inner.replace_input(0, passed, helper.make_node("Identity", [passed], ["b"]))
    inner.scope.insert_before(inner.node, relu("b", passed))

    model = edit.finish()

    onnx.checker.check_model(model, full_check=True)
    branch = model.graph.node[3].attribute[0].g
    assert lines(branch) == ["b_new_1 = Relu(b)", "v = npu_1(b_new_1)", "u = Add(v, a)"]
    functions = {function.name: function for function in model.functions}
    assert lines(list(functions["npu_0"].node)) == ["b = Neg(a)", "b_new = Relu(b)"]
    assert lines(list(functions["npu_1"].node)) == ["b = Identity(b_new_1)", "v = Abs(b)"]
    assert "b_new" in {value.name for value in model.graph.value_info}
    assert "b_new_1" in {value.name for value in branch.value_info}
    assert "b_new_1" not in {value.name for value in model.graph.value_info}


def test_what_is_gone_is_not_spoken_of() -> None:
    edit = ModelEditor(outlined())
    assert "a" in {value.name for value in edit.model.graph.value_info}

    edit.main.nodes[1].input[0] = "x"
    edit.calls["npu_1"].scope.nodes[1].input[1] = "b"
    edit.main.nodes = [node for node in edit.main.nodes if node.output[0] != "a"]
    model = edit.finish()

    assert "a" not in {value.name for value in model.graph.value_info}
    onnx.checker.check_model(model, full_check=True)


def test_names_are_new_in_every_graph_and_function() -> None:
    edit = ModelEditor(outlined())

    assert edit.new_name("z") == "z"
    assert [edit.new_name(name) for name in ("z", "z", "v", "w", "x", "z_1")] == [
        *("z_1", "z_2", "v_1", "w_1", "x_1", "z_1_1"),
    ]


def test_origins_are_followed_to_the_first() -> None:
    edit = ModelEditor(outlined())

    half = edit.new_name("a_half", "a")
    packed = edit.new_name("a_half_NHWC", half)

    assert [edit.find_origin(name) for name in (packed, half, "a", "never")] == ["a", "a", "a", "never"]


def test_readers_count_what_bodies_capture_as_they_are_now() -> None:
    edit = ModelEditor(outlined())
    branch = edit.calls["npu_1"].scope

    def of(name: str) -> list[str]:
        return [node.op_type for node in edit.main.find_readers().get(name, [])]

    assert of("a") == ["npu_0", "If"]
    branch.nodes[1].input[1] = "x"
    assert of("a") == ["npu_0"]
    branch.insert_last(helper.make_node("Relu", ["fresh"], ["unread"]))
    assert of("fresh") == ["If"]
    assert "unread" not in branch.find_captures()


@pytest.mark.parametrize(("opset", "domain"), [(17, ""), (13, "ai.onnx")])
def test_the_operator_set_is_known_under_both_of_its_names(opset: int, domain: str) -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=opset)
    model.opset_import[0].domain = domain

    assert ModelEditor(model).opset == opset
    del model.opset_import[:]
    assert ModelEditor(model).opset == 0
