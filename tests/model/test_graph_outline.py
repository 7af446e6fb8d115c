"""Outlining by hand: what is a function then, what calls it, and what stays as it was."""

from collections.abc import Sequence

import pytest
from helpers.support import parse
from onnx import ModelProto, NodeProto, TensorProto, checker, helper

from byoc.errors import InputError
from byoc.model import (
    Composite,
    CompositeLine,
    GraphCuts,
    GraphIndex,
    OutlineGroup,
    RegionCut,
    outline,
    prepare_model,
    read_type,
)

DOMAIN = "byoc.dla"


def cut(name: str, *nodes: int, **metadata: str) -> RegionCut:
    return RegionCut(name, DOMAIN, tuple(OutlineGroup((node,)) for node in nodes), metadata)


def outlined(text: str, *cuts: RegionCut, opset: int = 17, ir: int = 8) -> ModelProto:
    index = prepare_model(parse(text, ir=ir, opset=opset), "test").index
    return outline(GraphCuts(index, cuts))


def calls(nodes: Sequence[NodeProto]) -> list[str]:
    """Return nodes as text: `y = Add(a, b)`."""
    return [f"{', '.join(n.output)} = {n.op_type}({', '.join(n.input)})" for n in nodes]


CHAIN = """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    a = Relu(x)
    b = Add(a, w)
    c = Neg(b)
    y = Abs(c)
}"""


def test_a_region_is_a_function_that_the_graph_calls() -> None:
    model = outlined(CHAIN, cut("dla_0", 1, 2, note="mine"))
    assert calls(model.graph.node) == ["a = Relu(x)", "c = dla_0(a, w)", "y = Abs(c)"]
    call = model.graph.node[1]
    assert (call.name, call.domain) == ("dla_0", DOMAIN)
    assert {entry.key: entry.value for entry in call.metadata_props} == {"note": "mine"}
    (function,) = model.functions
    assert (function.name, function.domain) == ("dla_0", DOMAIN)
    assert (list(function.input), list(function.output)) == (["a", "w"], ["c"])
    assert calls(function.node) == ["b = Add(a, w)", "c = Neg(b)"]
    assert {entry.key: entry.value for entry in function.metadata_props} == {"note": "mine"}
    assert {entry.domain: entry.version for entry in function.opset_import} == {"": 17}
    assert {entry.domain: entry.version for entry in model.opset_import} == {"": 17, DOMAIN: 1}
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]
    infos = {value.name: str(read_type(value.type)) for value in model.graph.value_info}
    assert infos == {"a": "float32[2]", "c": "float32[2]"}
    checker.check_model(model)


@pytest.mark.parametrize(("before", "after"), [(4, 10), (8, 10), (10, 10), (11, 11), (13, 13)])
def test_the_version_is_the_nearest_whose_nodes_have_metadata(before: int, after: int) -> None:
    assert outlined(CHAIN, cut("dla_0", 1), ir=before).ir_version == after


def test_weights_that_are_inputs_of_an_old_file_are_none_of_a_new_one() -> None:
    proto = parse(CHAIN, ir=3)
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (2,)))
    model = outline(GraphCuts(prepare_model(proto, "test").index, (cut("dla_0", 1),)))
    assert [value.name for value in model.graph.input] == ["x"]
    assert [value.name for value in proto.graph.input] == ["x", "w"]
    proto.ir_version = 8  # a default that the caller may override: data
    model = outline(GraphCuts(prepare_model(proto, "test").index, (cut("dla_0", 1),)))
    assert [value.name for value in model.graph.input] == ["x", "w"]


def test_metadata_of_groups_and_of_nodes_that_stay() -> None:
    index = prepare_model(parse(CHAIN), "test").index
    groups = (OutlineGroup((1,), metadata={"group": "one"}), OutlineGroup((2,)))
    cuts = (RegionCut("dla_0", DOMAIN, groups),)
    model = outline(GraphCuts(index, cuts, {0: {"device": "host"}}))
    found = {
        node.op_type: {entry.key: entry.value for entry in node.metadata_props}
        for node in (*model.graph.node, *model.functions[0].node)
    }
    assert found == {
        "Relu": {"device": "host"},
        "dla_0": {},
        "Abs": {},
        "Add": {"group": "one"},
        "Neg": {},
    }
    assert not any(node.metadata_props for node in index.graph.node)  # the model given is not changed


def test_regions_are_called_where_all_that_they_read_is_there() -> None:
    text = """g (float[2] x) => (float[2] y) {
        a = Relu(x)
        b = Neg(x)
        c = Abs(b)
        d = Add(a, c)
        y = Neg(d)
    }"""
    model = outlined(text, cut("dla_0", 0, 3), cut("dla_1", 4))
    assert calls(model.graph.node) == ["b = Neg(x)", "c = Abs(b)", "d = dla_0(x, c)", "y = dla_1(d)"]
    assert [calls(function.node) for function in model.functions] == [
        ["a = Relu(x)", "d = Add(a, c)"],
        ["y = Neg(d)"],
    ]


CONSTANTS = """g (float[2] x) => (float[2] y, float[2] z) {
    k = Constant <value = float[2] {1, 2}> ()
    m = Neg(k)
    a = Add(x, m)
    y = Abs(a)
    z = Add(a, k)
}"""


def test_constant_nodes_go_along_and_stay_where_others_read_them() -> None:
    model = outlined(CONSTANTS, cut("dla_0", 2))
    assert calls(model.graph.node) == [
        "k = Constant()",
        "a = dla_0(x)",
        "y = Abs(a)",
        "z = Add(a, k)",
    ]
    assert calls(model.functions[0].node) == ["k = Constant()", "m = Neg(k)", "a = Add(x, m)"]


def test_constant_nodes_that_nothing_else_reads_are_dropped() -> None:
    model = outlined(CONSTANTS, cut("dla_0", 2, 4))
    assert calls(model.graph.node) == ["a, z = dla_0(x)", "y = Abs(a)"]
    shared = outlined(CONSTANTS, cut("dla_0", 2), cut("dla_1", 4))
    assert calls(shared.graph.node) == ["a = dla_0(x)", "y = Abs(a)", "z = dla_1(a)"]
    assert [len(function.node) for function in shared.functions] == [3, 2]


def test_a_constant_node_that_is_an_output_stays() -> None:
    text = CONSTANTS.replace("float[2] z)", "float[2] z, float[2] m)")
    model = outlined(text, cut("dla_0", 2, 4))
    assert calls(model.graph.node)[:2] == ["k = Constant()", "m = Neg(k)"]


LOOP = """g (float[2] x, int64 n) => (float[2] y) <float[2] w = {1, 2}> {
    y = Loop (n, , x) <body = b (int64 i, bool go, float[2] c) => (bool on, float[2] d) {
        on = Identity (go)
        e = Relu (c)
        d = Add (e, w)
    }>
}"""


def test_regions_of_bodies_are_called_in_the_bodies() -> None:
    proto = parse(LOOP)
    index = prepare_model(proto, "test").index
    (body,) = index.bodies[0]
    inner = GraphCuts(body.index, (cut("dla_0", 1, 2),))
    model = outline(GraphCuts(index, (), {0: {"device": "host"}}, {0: [inner]}))
    (loop,) = model.graph.node
    graph = next(attribute.g for attribute in loop.attribute if attribute.name == "body")
    assert calls(graph.node) == ["on = Identity(go)", "d = dla_0(c, w)"]
    assert {entry.key: entry.value for entry in loop.metadata_props} == {"device": "host"}
    assert calls(model.functions[0].node) == ["e = Relu(c)", "d = Add(e, w)"]
    assert not list(graph.value_info)  # `on` and `d` are outputs, and `e` is gone
    assert calls(proto.graph.node[0].attribute[0].g.node)[1] == "e = Relu(c)"  # not changed
    checker.check_model(model)


def test_a_node_whose_bodies_have_no_regions_is_left_as_it_is() -> None:
    index = prepare_model(parse(LOOP), "test").index
    (body,) = index.bodies[0]
    model = outline(GraphCuts(index, (), {}, {0: [GraphCuts(body.index, ())]}))
    assert model.graph.node[0] == index.nodes[0]


def test_bodies_inside_a_region_state_the_types_that_are_known() -> None:
    proto = parse(LOOP)
    for value in (*proto.graph.node[0].attribute[0].g.input, *proto.graph.node[0].attribute[0].g.output):
        if value.name in "cd":
            value.type.tensor_type.ClearField("shape")
    model = outline(GraphCuts(prepare_model(proto, "test").index, (cut("dla_0", 0),)))
    assert _types_of_body(model.functions[0].node[0]) == KNOWN
    index = prepare_model(proto, "test").index
    inner = GraphCuts(index.bodies[0][0].index, (cut("dla_0", 1),))
    (loop,) = outline(GraphCuts(index, (), {}, {0: [inner]})).graph.node
    assert _types_of_body(loop) == KNOWN
    proto.graph.node[0].attribute[0].g.input[2].type.tensor_type.shape.dim.add(dim_value=2)
    assert (
        _types_of_body(
            outline(GraphCuts(prepare_model(proto, "test").index, (cut("dla_0", 0),)))
            .functions[0]
            .node[0]
        )
        == KNOWN
    )


KNOWN = {"i": "int64[]", "go": "bool[]", "c": "float32[2]", "on": "bool[]", "d": "float32[2]"}


def _types_of_body(node: NodeProto) -> dict[str, str]:
    graph = next(attribute.g for attribute in node.attribute if attribute.name == "body")
    assert len(graph.node) > 1
    return {value.name: str(read_type(value.type)) for value in (*graph.input, *graph.output)}


def test_composites_are_functions_of_the_domain_that_uses_them() -> None:
    index = prepare_model(parse(CHAIN), "test").index
    groups = []
    for name, numbers in (("first", (0, 1)), ("second", (2, 3))):
        one, other = (index.nodes[number] for number in numbers)
        lines = (
            CompositeLine("p", one.op_type, "", tuple(one.input), tuple(one.output), numbers[0]),
            CompositeLine("q", other.op_type, "", tuple(other.input), tuple(other.output), numbers[1]),
        )
        inputs = {each: each for each in (one.input[0], *other.input[1:])}
        outputs = {each: each for each in other.output}
        groups.append(OutlineGroup(numbers, Composite(index, name, name, lines, inputs, outputs)))
    cuts = (
        RegionCut("dla_0", "byoc.b", groups[:1]),  # type: ignore[arg-type]
        RegionCut("npu_0", "byoc.a", groups[1:]),  # type: ignore[arg-type]
    )
    model = outline(GraphCuts(index, cuts))
    functions = {(each.domain, each.name): each for each in model.functions}
    assert set(functions) == {
        ("byoc.b", "first"),
        ("byoc.a", "second"),
        ("byoc.b", "dla_0"),
        ("byoc.a", "npu_0"),
    }
    assert calls(functions["byoc.b", "dla_0"].node) == ["b = first(x, w)"]
    assert calls(functions["byoc.a", "npu_0"].node) == ["y = second(b)"]
    imports = functions["byoc.b", "dla_0"].opset_import
    assert {entry.domain: entry.version for entry in imports} == {"": 17, "byoc.b": 1}
    assert calls(model.graph.node) == ["b = dla_0(x, w)", "y = npu_0(b)"]


@pytest.mark.parametrize("uses", ["import", "function"])
def test_a_domain_that_the_model_uses_already_is_refused(uses: str) -> None:
    proto = parse(CHAIN)
    if uses == "import":
        proto.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    else:
        node = helper.make_node("Relu", ["p"], ["q"])
        imports = [helper.make_opsetid("", 17)]
        proto.functions.append(helper.make_function(DOMAIN, "f", ["p"], ["q"], [node], imports))
    index = GraphIndex.of_model(proto)
    with pytest.raises(InputError) as caught:
        outline(GraphCuts(index, (cut("dla_0", 1),)))
    assert str(caught.value) == f"the model already uses the domain '{DOMAIN}': partitioned before?"


def test_the_users_texts_and_a_tensor_without_a_certain_shape() -> None:
    proto = parse(
        """g (float[N] x, int64[M] k) => (float[P] y) { a = Relu(x)  b = Reshape(a, k)  y = Neg(b) }"""
    )
    stated = helper.make_tensor_value_info("a", TensorProto.FLOAT, ("N",), doc_string="the first")
    proto.graph.value_info.append(stated)
    index = prepare_model(proto, "test").index
    model = outline(GraphCuts(index, (cut("dla_0", 2),)))
    infos = {value.name: value for value in model.graph.value_info}
    assert (infos["a"].doc_string, str(read_type(infos["a"].type))) == ("the first", "float32[N]")
    assert infos["b"].type.tensor_type.elem_type == TensorProto.FLOAT


def test_no_type_is_stated_of_a_tensor_that_the_file_calls_sparse() -> None:
    """onnxruntime makes sparse tensors dense, constants among them."""
    proto = parse(
        """g (float[2] x) => (float[2] y) {
            a = Relu(x)
            b = Neg(a)
            c = custom.Foo(b)
            d = Neg(x)
            y = custom.Foo(d, c)
        }"""
    )
    proto.opset_import.append(helper.make_opsetid("custom", 1))
    proto.graph.value_info.append(helper.make_sparse_tensor_value_info("c", TensorProto.FLOAT, [2]))
    values = helper.make_tensor("b", TensorProto.FLOAT, [1], [3.0])
    places = helper.make_tensor("places", TensorProto.INT64, [1], [1])
    sparse = helper.make_sparse_tensor(values, places, [2])
    proto.graph.node[1].CopyFrom(helper.make_node("Constant", [], ["b"], sparse_value=sparse))
    model = outline(GraphCuts(prepare_model(proto, "test").index, (cut("dla_0", 0),)))
    infos = {value.name: str(read_type(value.type)) for value in model.graph.value_info}
    assert infos == {"b": "float32[2]", "d": "float32[2]"}


def test_defaults_are_stated_of_operators_that_are_functions_and_of_stft() -> None:
    text = """g (float[1, 8, 1] x, float[4] f) => (float[1, 8, 1] y, float[1, 3, 3, 2] s)
        <int64 two = {2}> {
        y = Softmax(x)
        s = STFT(x, two, f)
    }"""
    model = outlined(text, cut("dla_0", 0, 1))
    found = {node.op_type: {a.name: a.i for a in node.attribute} for node in model.functions[0].node}
    assert found == {"Softmax": {"axis": -1}, "STFT": {"onesided": 1}}
    assert not any(node.attribute for node in outlined(CHAIN, cut("d", 0, 1)).functions[0].node)


def test_other_operators_are_left_as_they_are() -> None:
    proto = parse("g (float[2, 2] x) => (float[2, 2] y) { a = Gemm(x, x)  y = custom.Foo(a) }")
    proto.opset_import.append(helper.make_opsetid("custom", 3))
    model = outline(GraphCuts(GraphIndex.of_model(proto), (cut("dla_0", 0, 1),)))
    (function,) = model.functions
    assert not any(node.attribute for node in function.node)
    assert {entry.domain: entry.version for entry in function.opset_import} == {"": 17, "custom": 3}
