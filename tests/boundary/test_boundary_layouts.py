"""Layouts at borders: what is put in where, and that nothing is computed differently."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import pytest
from cutting import planned, ramp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto
from pipeline.random_graphs import GraphMaker
from strategies import Alternating, Random
from support import LIGHT, prepared

from byoc.boundary.border import Border, Wants
from byoc.boundary.bound import Bounded, bound
from byoc.boundary.edit import Editing
from byoc.boundary.layouts import NAME, arrange
from byoc.graph.extract import call_model
from byoc.graph.index import GraphIndex, stated_types
from byoc.graph.layout import parse_layout
from byoc.graph.load import Model, prepare
from byoc.graph.marks import LAYOUT, mark_of, noted
from byoc.graph.outline import Cut, GraphCuts, Group, outline
from byoc.graph.spatial import images
from byoc.graph.types import read_type
from byoc.graph.walk import walk_graphs
from byoc.placement import Strategy
from byoc.placement.strategies.all_supported import AllSupported
from byoc.plan.data import GraphPlan, Plan
from byoc.rules.load import load_rules
from byoc.runtime.onnxrt import open_session, run_session, unoptimized
from byoc.zoo.classics import Classics


def border(index: GraphIndex, region: str, layout: str) -> Border:
    wants = Wants(parse_layout(layout))
    return Border(region, f"byoc.{region.rpartition('_')[0]}", wants, images(index), index.values)


def cut(model: Model, *regions: Sequence[int]) -> ModelProto:
    """Return a model with the nodes of each region outlined as `npu_0`, `npu_1`, ..."""
    cuts = (
        Cut(f"npu_{i}", "byoc.npu", tuple(Group((n,)) for n in nodes)) for i, nodes in enumerate(regions)
    )
    return outline(GraphCuts(model.index, tuple(cuts)))


def arranged(outlined: ModelProto, borders: Sequence[Border]) -> tuple[ModelProto, Editing]:
    """Return a copy of an outlined model in which layouts alone have been arranged."""
    copy = ModelProto()
    copy.CopyFrom(outlined)
    edit = Editing(copy)
    arrange(edit, borders)
    return edit.finish(), edit


def laid(
    text: str, regions: Sequence[Sequence[int]], layouts: str | Sequence[str] = "NHWC"
) -> ModelProto:
    """Return a model cut in regions with the layouts, after holding it against the model as it was."""
    model = prepared(text)
    words = [layouts] * len(regions) if isinstance(layouts, str) else layouts
    borders = [border(model.index, f"npu_{i}", word) for i, word in enumerate(words)]
    outlined = cut(model, *regions)
    result, _ = arranged(outlined, borders)
    same(model.proto, result)
    return result


def same(one: ModelProto, other: ModelProto, inputs: Mapping[str, Any] | None = None) -> None:
    """Assert that two models are right and give the same bits."""
    if len(one.graph.initializer) < 100:
        onnx.checker.check_model(other, full_check=True)
    inputs = inputs or feeds(one)
    with unoptimized():
        expected = run_session(open_session(one), inputs)
        given_out = run_session(open_session(other), inputs)
    assert list(expected) == list(given_out)
    for name, value in expected.items():
        assert value.dtype == given_out[name].dtype
        np.testing.assert_array_equal(value, given_out[name], err_msg=name)


def feeds(model: ModelProto) -> dict[str, NDArray[Any]]:
    stored = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, NDArray[Any]] = {}
    for value in model.graph.input:
        kind = read_type(value.type)
        if value.name in stored or kind is None or kind.shape is None:
            continue
        shape = [dim if isinstance(dim, int) else 2 for dim in kind.shape]
        found[value.name] = np.asarray(
            ramp(*shape) if kind.dtype == "float32" else np.full(shape, 3)
        ).astype(kind.dtype)
    return found


def put_in(nodes: Sequence[NodeProto]) -> list[str]:
    """Return what was put in for layouts, as `output = Operator(input)`."""
    return [
        f"{node.output[0]} = {node.op_type}({node.input[0]})"
        for node in nodes
        if mark_of(node) == LAYOUT and node.op_type != "Constant"
    ]


def region(model: ModelProto, name: str) -> FunctionProto:
    return next(function for function in model.functions if function.name == name)


def call(model: ModelProto, name: str) -> NodeProto:
    nodes = (node for graph in walk_graphs(model.graph) for node in graph.node)
    return next(node for node in nodes if node.op_type == name)


CHAIN = """g (float[N, 3, 6, 5] x) => (float[N, 3, 6, 5] y) {
    a = Relu(x)
    b = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a)
    c = Sigmoid(b)
    d = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(c)
    y = Neg(d)
}"""


def test_a_region_is_given_its_layout_and_gives_it_back() -> None:
    model = laid(CHAIN, [[1, 2]])

    assert put_in(model.graph.node) == ["a_NHWC = Transpose(a)", "c = Transpose(c_NHWC)"]
    assert (call(model, "npu_0").input, call(model, "npu_0").output) == (["a_NHWC"], ["c_NHWC"])
    function = region(model, "npu_0")
    assert (function.input, function.output) == (["a_NHWC"], ["c_NHWC"])
    assert put_in(function.node) == ["a = Transpose(a_NHWC)", "c_NHWC = Transpose(c)"]
    marked = [node for node in (*model.graph.node, *function.node) if mark_of(node)]
    assert [noted(node, NAME) for node in marked] == ["NHWC"] * 4
    types = {value.name: str(read_type(value.type)) for value in model.graph.value_info}
    assert types["a_NHWC"] == types["c_NHWC"] == "float32[N, 6, 5, 3]"


def test_between_regions_of_one_layout_nothing_is_converted() -> None:
    model = laid(CHAIN, [[0, 1], [2], [3, 4]])

    assert put_in(model.graph.node) == ["x_NHWC = Transpose(x)", "y = Transpose(y_NHWC)"]
    assert call(model, "npu_1").input == ["b_NHWC"]
    assert put_in(region(model, "npu_1").node) == ["b = Transpose(b_NHWC)", "c_NHWC = Transpose(c)"]


def test_regions_of_two_layouts_meet_in_the_plain_one() -> None:
    model = laid(CHAIN, [[0, 1], [2, 3, 4]], ["NHWC", "NCHW4c"])

    assert put_in(model.graph.node) == [
        *("x_NHWC = Transpose(x)", "b = Transpose(b_NHWC)"),
        *("b_NCHW4c_pad = Pad(b)", "b_NCHW4c_reshape = Reshape(b_NCHW4c_pad)"),
        "b_NCHW4c = Transpose(b_NCHW4c_reshape)",
        *("y_transpose = Transpose(y_NCHW4c)", "y_reshape = Reshape(y_transpose)"),
        "y = Slice(y_reshape)",
    ]
    assert call(model, "npu_1").output == ["y_NCHW4c"]


def test_what_several_read_is_converted_once() -> None:
    model = laid(
        """g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] x_NHWC,
                float[1, 2, 4, 4] z, float[1, 2, 4, 4] q, float[1, 2, 4, 4] h) {
            x_NHWC = MaxPool<kernel_shape = [1, 1]>(x)
            h = Sigmoid(x_NHWC)
            z = AveragePool<kernel_shape = [1, 1]>(x_NHWC)
            q = Add(x, x_NHWC)
        }""",
        [[0], [2], [3]],
    )

    # The tensor that region 0 makes is an output of the model, too, and read by Sigmoid. Its name is
    # what byoc would have called x, had it been free.
    assert put_in(model.graph.node) == [
        "x_NHWC_1 = Transpose(x)",
        "x_NHWC = Transpose(x_NHWC_NHWC)",
        "z = Transpose(z_NHWC)",
        "q = Transpose(q_NHWC)",
    ]
    assert call(model, "npu_2").input == ["x_NHWC_1", "x_NHWC_NHWC"]


def test_an_input_that_is_an_output_is_left_alone() -> None:
    model = laid(
        """g (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] x, float[1, 2, 1, 1] y) {
            y = GlobalAveragePool(x)
        }""",
        [[0]],
    )

    assert put_in(model.graph.node) == ["x_NHWC = Transpose(x)", "y = Transpose(y_NHWC)"]


def test_only_images_are_converted() -> None:
    model = laid(
        """g (float[1, 2, 4, 4] x, float[2, 3, 4, 5] m, float[2] v)
            => (float[1, 2, 4, 4] y, float[2, 3, 4, 4] z, float[1, 32] f)
            <float[2, 2, 1, 1] w = {1, 2, 3, 4}> {
            y = Conv(x, w, v)
            t = Transpose<perm = [0, 1, 3, 2]>(m)
            z = MatMul(m, t)
            f = Flatten(x)
        }""",
        [[0, 1, 2, 3]],
    )

    assert list(call(model, "npu_0").input) == ["x_NHWC", "v", "m", "w"]
    assert list(call(model, "npu_0").output) == ["y_NHWC", "z", "f"]


def test_an_input_given_twice_is_given_twice_in_the_layout() -> None:
    model = prepared("g (float[1,2,3,3] x) => (float[1,2,3,3] y) { a = Abs(x) y = LRN<size = 1>(a) }")
    outlined = cut(model, [0, 1])
    outlined.graph.node[0].input.append("x")
    outlined.functions[0].input.append("again")
    outlined.functions[0].node[0].CopyFrom(onnx.helper.make_node("Add", ["x", "again"], ["a"]))
    doubled = ModelProto()
    doubled.CopyFrom(outlined)

    result, _ = arranged(outlined, [border(model.index, "npu_0", "NHWC")])

    same(doubled, result)
    assert call(result, "npu_0").input == ["x_NHWC", "x_NHWC"]
    assert len(set(region(result, "npu_0").input)) == 2


@pytest.mark.parametrize("opset", [10, 11])
def test_blocks_stay_plain_where_operators_are_too_old(opset: int) -> None:
    model = prepared(
        "g (float[1,2,3,3] x) => (float[1,2,1,1] y) { a = Abs(x) y = GlobalMaxPool(a) }", opset=opset
    )

    result, _ = arranged(cut(model, [0, 1]), [border(model.index, "npu_0", "NCHW4c")])

    same(model.proto, result)
    assert bool(put_in(result.graph.node)) == (opset >= 11)


def test_a_plain_layout_changes_nothing() -> None:
    model = prepared(CHAIN)
    outlined = cut(model, [1, 2])

    for word in ("NCHW", ""):
        wants = Wants(parse_layout(word) if word else None)
        where = Border("npu_0", "byoc.npu", wants, images(model.index), model.index.values)
        result, edit = arranged(outlined, [where])
        assert result == outlined
        assert not edit.values


LOOP = """g (float[1, 2, 4, 3] x, int64 n) => (float[1, 2, 4, 3] y)
    <bool yes = {1}, float[2, 2, 1, 1] w = {0.5, 0.25, -1, 2}> {
    a = Sigmoid(x)
    y = Loop (n, yes, x) <body = b (int64 i, bool go, float[1, 2, 4, 3] v)
            => (bool on, float[1, 2, 4, 3] o) {
        on = Identity(go)
        p = Conv(a, w)
        o = Add(p, v)
    }>
}"""
IF = """g (float[1, 2, 4, 3] x, bool c) => (float[1, 2, 4, 3] y)
    <float[2, 2, 1, 1] w = {0.5, 0.25, -1, 2}> {
    a = Sigmoid(x)
    y = If (c) <
        then_branch = t () => (float[1, 2, 4, 3] u) { t0 = Conv(a, w)\n u = Relu(t0) },
        else_branch = e () => (float[1, 2, 4, 3] u) { t0 = Conv(a, w)\n u = Abs(t0) }
    >
}"""
# The branch is run many times, and what it reads is made outside of the loop.
DEEP = """g (float[1, 2, 4, 3] x, int64 n, bool c) => (float[1, 2, 4, 3] y)
    <bool yes = {1}, float[2, 2, 1, 1] w = {0.5, 0.25, -1, 2}> {
    a = Sigmoid(x)
    y = Loop (n, yes, x) <body = b (int64 i, bool go, float[1, 2, 4, 3] v)
            => (bool on, float[1, 2, 4, 3] o) {
        on = Identity(go)
        o = If (c) <
            then_branch = t () => (float[1, 2, 4, 3] u) { t0 = Conv(a, w)\n u = Add(t0, v) },
            else_branch = e () => (float[1, 2, 4, 3] s) { s = Neg(v) }
        >
    }>
}"""


def inner_cuts(index: GraphIndex, regions: Mapping[str, Sequence[int]], place: str = "") -> GraphCuts:
    """Return cuts of a graph and its bodies: places such as `body` or `body/then_branch` to nodes."""
    bodies = {
        number: [inner_cuts(b.index, regions, f"{place}/{b.attribute}".strip("/")) for b in inner]
        for number, inner in index.bodies.items()
    }
    name = f"npu_{list(regions).index(place)}" if place in regions else ""
    cuts = (Cut(name, "byoc.npu", tuple(Group((n,)) for n in regions[place])),) if name else ()
    return GraphCuts(index, cuts, bodies=bodies)


def laid_inside(text: str, regions: Mapping[str, Sequence[int]], word: str = "NHWC") -> ModelProto:
    model = prepared(text)
    cuts = inner_cuts(model.index, regions)
    borders = [border(part.index, c.name, word) for part in cuts.walk() for c in part.cuts]
    result, _ = arranged(outline(cuts), borders)
    kinds = {value.name: read_type(value.type) for value in model.proto.graph.input}
    for n in (0, 1, 3):
        for c in (True, False):
            scalars = {"n": np.array(n), "c": np.array(c)}
            inputs = {"x": ramp(1, 2, 4, 3), **{k: v for k, v in scalars.items() if k in kinds}}
            same(model.proto, result, inputs)
    return result


def body(model: ModelProto, *names: str) -> GraphProto:
    graph = model.graph
    for name in names:
        attributes = (a for node in graph.node for a in node.attribute if a.HasField("g"))
        graph = next(a.g for a in attributes if a.name == name)
    return graph


@pytest.mark.parametrize("word", ["NHWC", "NCHW4c"])
def test_a_tensor_from_around_a_loop_is_converted_before_it(word: str) -> None:
    model = laid_inside(LOOP, {"body": [1, 2]}, word)

    assert put_in(model.graph.node)[-1].startswith(f"a_{word} = ")
    inside = put_in(body(model, "body").node)
    assert not any(f"a_{word} = " in line for line in inside)
    assert list(call(model, "npu_0").input)[:2] == [f"a_{word}", f"v_{word}"]


def test_a_tensor_from_around_an_if_is_converted_in_the_branches() -> None:
    model = laid_inside(IF, {"then_branch": [0, 1], "else_branch": [0, 1]})

    assert put_in(model.graph.node) == []
    assert put_in(body(model, "then_branch").node) == [
        "a_NHWC = Transpose(a)",
        "u = Transpose(u_NHWC)",
    ]
    # A name is given once in a model, though branches may have the same names.
    assert put_in(body(model, "else_branch").node) == [
        "a_NHWC_1 = Transpose(a)",
        "u = Transpose(u_NHWC_1)",
    ]


def test_what_a_region_outside_gives_out_is_read_in_its_layout_inside() -> None:
    model = laid_inside(IF, {"": [0], "then_branch": [0, 1], "else_branch": [0, 1]})

    assert put_in(model.graph.node) == ["x_NHWC = Transpose(x)"]
    assert put_in(body(model, "then_branch").node) == ["u = Transpose(u_NHWC)"]
    assert call(model, "npu_1").input[0] == call(model, "npu_0").output[0] == "a_NHWC"


def test_a_branch_in_a_loop_reads_what_was_converted_before_the_loop() -> None:
    model = laid_inside(DEEP, {"body/then_branch": [0, 1]})

    assert put_in(model.graph.node) == ["a_NHWC = Transpose(a)"]
    assert put_in(body(model, "body").node) == []
    assert put_in(body(model, "body", "then_branch").node) == [
        "v_NHWC = Transpose(v)",
        "u = Transpose(u_NHWC)",
    ]


@pytest.mark.parametrize("word", ["NHWC", "NCHW4c", "CHWN2h"])
def test_types_of_all_that_is_put_in_are_what_onnx_infers(word: str) -> None:
    model = prepared(CHAIN.replace("N, 3", "2, 3"))
    result, edit = arranged(cut(model, [0, 1], [3]), [border(model.index, r, word) for r in REGIONS])

    types = {**model.index.values, **edit.values}
    index = GraphIndex(result, types)
    found = dict(stated_types(bare(result)))
    for name in REGIONS:
        found.update(stated_types(bare(call_model(index, call(result, name), types))))

    assert set(edit.values) <= set(found)
    for name, kind in edit.values.items():
        assert read_type(found[name]) == read_type(kind), name


REGIONS = ("npu_0", "npu_1")


def bare(model: ModelProto) -> ModelProto:
    """Return a model with the types that follow from those of its inputs."""
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(copy, strict_mode=True, data_prop=True)


def region_borders(plan: GraphPlan, word: str) -> list[Border]:
    found = [border(plan.index, r.name, word) for r in plan.regions]
    for inner in plan.bodies.values():
        found += [one for part in inner for one in region_borders(part, word)]
    return found


@pytest.mark.parametrize("strategy", [AllSupported(), Alternating()], ids=lambda s: s.name)
@pytest.mark.parametrize("name", LIGHT)
def test_light_models_give_the_same_bits(name: str, strategy: Strategy) -> None:
    plan = planned(prepare(Classics().load(name), name), load_rules("dla"), strategy)

    figures(name, plan, "NHWC")


@pytest.mark.parametrize("strategy", [AllSupported(), Alternating()], ids=lambda s: s.name)
@pytest.mark.parametrize("name", ["shufflenet", "squeezenet"])
def test_light_models_give_the_same_bits_in_blocks(name: str, strategy: Strategy) -> None:
    newer = onnx.version_converter.convert_version(Classics().load(name), 13)
    plan = planned(prepare(newer, name), load_rules("dla"), strategy)

    figures(name, plan, "NCHW16c")


def figures(name: str, plan: Plan, word: str) -> None:
    """Assert that a plan's model gives the same bits with a layout, and tell what was put in."""
    original = ModelProto()
    original.CopyFrom(plan.proto)
    result: Bounded = bound(plan.proto, region_borders(plan.root, word))

    same(original, result.proto, Classics().sample_inputs(name, 0))
    inside = sum(len(put_in(function.node)) for function in result.proto.functions)
    outside = len(put_in(result.proto.graph.node))
    sys.stdout.write(f"{name} {word}: {len(plan.region_names)} regions, {outside} + {inside} nodes\n")
    assert inside >= len(plan.region_names)
    assert outside > 0


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 25),
    st.sampled_from(["NHWC", "CHWN", "NCHW4c", "NHWC3c", "CNHW2h2w"]),
    st.booleans(),
)
def test_random_models_give_the_same_bits(seed: int, size: int, word: str, dense: bool) -> None:
    model = prepare(GraphMaker(seed).model(size), "random")
    strategy = AllSupported() if dense else Random(seed)
    plan = planned(model, load_rules("dla"), strategy)

    result, edit = arranged(plan.proto, region_borders(plan.root, word))

    same(plan.proto, result)
    # Every form of a tensor is made once, by whoever makes it.
    made = Counter(name for graph in walk_graphs(result.graph) for n in graph.node for name in n.output)
    assert max(made[name] for name in edit.values if name in made) == 1 if edit.values else True
