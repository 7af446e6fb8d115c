"""Programs of graphs whose regions are functions here, those in bodies of control flow included."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cutting import DEVICE_ONLY, cut, ramp
from helpers.support import parse, prepared
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, helper

from byoc.boundary.contracts import TensorContract
from byoc.bundle import open_bundle
from byoc.codegen import Artifact, Region
from byoc.errors import YES, InputError, refuse
from byoc.model import GraphIndex, TensorType, get_stated_types, read_type
from byoc.runtime import Stage, StageProgram, collect_contradictions, load_executor
from byoc.runtime._executors import ShapeCheck, _note_contradiction
from byoc.runtime._program_builder import GraphStep, ProgramBuilder, find_steps

DOMAIN = "byoc.dla"


def floats(*shape: int | str) -> TensorType:
    return TensorType("float32", shape)


def build(model: ModelProto, **regions: Callable[..., Any]) -> StageProgram:
    """Return the program of a model; a region is a function of its data inputs, named i0, i1, ..."""
    index = GraphIndex(model, get_stated_types(model))
    stages = {}
    for graph in index.walk():
        for node in graph.nodes:
            if node.op_type in regions:
                node.domain = DOMAIN
                count = sum(not graph.is_constant(name) for name in node.input)
                stages[node.op_type] = _region(node.op_type, count, regions[node.op_type])
    return ProgramBuilder(None, stages, frozenset({DOMAIN})).build_program(index, {})  # type: ignore[arg-type]


def _region(name: str, count: int, function: Callable[..., Any]) -> Stage:
    inputs = tuple(f"i{number}" for number in range(count))
    kind = prepared("g (float[2] x) => (float[2] y) { y = Relu(x) }").index.type_protos["y"]

    def run(values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"o0": np.asarray(function(*(values[each] for each in inputs)), np.float32)}

    return Stage(name, inputs, run, {"o0": kind}, device="dla")


LOOP = """g (float[2] x, int64 n) => (float[2] y, float[K, 2] all)
    <float[2] w = {10, 20}, bool yes = {1}> {
    y, all = Loop (n, yes, x) <
        body = b (int64 i, bool go, float[2] c) => (bool on, float[2] d, float[2] e)
        <float[2] v = {1, 2}> {
        on = Identity (go)
        d = dla_0 (c)
        f = Add (d, w)
        e = Add (f, v)
    }>
}"""


def test_a_region_in_a_loop_runs_at_each_trip() -> None:
    program = build(parse(LOOP), dla_0=lambda c: 2 * c)
    y, every = program({"x": np.array([1, 3], np.float32), "n": np.array(2)})
    assert y.tolist() == [4, 12]
    assert every.tolist() == [[13, 28], [15, 34]]
    (stage,) = program.stages
    assert stage.inputs == ("n", "yes", "x")
    assert stage.output_names == ("y", "all")
    # Types without shapes: of the carried value that of the region, of the other what is added to it.
    assert {name: read_type(kind) for name, kind in stage.types.items()} == {
        "y": TensorType("float32", None),
        "all": TensorType("float32", None),
    }


def test_outputs_without_a_name_or_a_type_are_left_out_of_the_types() -> None:
    model = parse(LOOP)
    (loop,) = model.graph.node
    loop.output[0] = ""
    del model.graph.output[0]
    model.graph.output[0].type.Clear()
    body = loop.attribute[0].g
    body.output[2].type.Clear()
    body.node[3].CopyFrom(helper.make_node("dla_1", ["f", "v"], ["e"]))
    program = build(model, dla_0=lambda c: 2 * c, dla_1=lambda f: f)
    (stage,) = program.stages
    assert stage.output_names == ("all",)
    assert set(stage.types) == {"all"}
    (every,) = program({"x": np.array([1, 3], np.float32), "n": np.array(2)})
    assert every.tolist() == [[12, 26], [14, 32]]


IF = """g (bool c, float[2] x) => (float[2] y) <float[2] w = {10, 20}> {
    y = If (c) <
        then_branch = t () => (float[2] p) { p = dla_0 (x) },
        else_branch = e () => (float[2] q) <float[2] w = {1, 2}> { q = Add (x, w) }
    >
}"""


@pytest.mark.parametrize(("condition", "expected"), [(True, [3, 9]), (False, [2, 5])])
def test_a_region_in_a_branch_and_a_constant_of_the_branch(
    condition: bool, expected: list[float]
) -> None:
    program = build(parse(IF), dla_0=lambda x: 3 * x)
    (y,) = program({"c": np.array(condition), "x": np.array([1, 3], np.float32)})
    assert y.tolist() == expected
    (stage,) = program.stages
    assert {name: str(read_type(kind)) for name, kind in stage.types.items()} == {"y": "float32[...]"}


def test_an_input_of_a_body_shadows_an_initializer_of_the_same_name() -> None:
    text = """g (float[2] x, int64 n) => (float[2] y) {
        y = Loop (n, , x) <body = b (int64 i, bool go, float[2] c) => (bool on, float[2] d)
            <float[2] c = {7, 7}> {
            on = Identity (go)
            d = dla_0 (c)
        }>
    }"""
    program = build(parse(text, ir=8), dla_0=lambda c: c + 1)
    (y,) = program({"x": np.array([1, 3], np.float32), "n": np.array(2)})
    assert y.tolist() == [3, 5]


def test_types_that_are_not_stated_are_those_that_onnxruntime_infers() -> None:
    """Of QuickGelu ONNX knows no type."""
    text = """g (float[2] x, int64 n) => (float[2] y, float[K, M] all, float[2] z) {
        a = com.microsoft.QuickGelu (x)
        c = dla_0 (a)
        z = com.microsoft.QuickGelu (c)
        y, all = Loop (n, , z) <
            body = b (int64 i, bool go, float[2] p) => (bool on, float[2] q, r) {
            on = Identity (go)
            q = dla_1 (p)
            r = com.microsoft.QuickGelu (q)
        }>
    }"""
    model = parse(text)
    model.opset_import.add(domain="com.microsoft", version=1)
    program = build(model, dla_0=lambda a: a, dla_1=lambda p: p + 1)
    first, _, second, loop = program.stages
    assert {str(read_type(kind)) for kind in first.types.values()} == {"float32[...]"}
    assert {str(read_type(kind)) for kind in second.types.values()} == {"float32[...]"}
    assert str(read_type(loop.types["all"])) == "float32[...]"
    assert {name: str(read_type(kind)) for name, kind in program.types.items()} == {
        "y": "float32[2]",  # what the file states says more than the loop's own types
        "all": "float32[K, M]",
        "z": "float32[2]",
    }
    y, every, _ = program({"x": np.zeros(2, np.float32), "n": np.array(2)})
    assert y.tolist() == [2, 2]
    assert every.dtype == np.float32
    assert every.shape == (2, 2)
    assert (every[0] < every[1]).all()


def test_nodes_without_inputs_stand_in_the_first_segment() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] r) {
        a = Relu (x)
        r = RandomNormal <shape = [2]> ()
        y = Add (a, r)
    }"""
    model = parse(text)
    index = GraphIndex(model, get_stated_types(model))
    assert find_steps(index, []) == [GraphStep((0, 1, 2), single=False)]
    assert find_steps(index, [2]) == [GraphStep((0, 1), single=False), GraphStep((2,), single=True)]
    assert find_steps(index, [0]) == [
        GraphStep((1,), single=False),
        GraphStep((0,), single=True),
        GraphStep((2,), single=False),
    ]


@pytest.fixture
def region(tmp_path: Any) -> Region:
    cut(parse(DEVICE_ONLY), tmp_path / "b")
    ((_, found, _),) = open_bundle(tmp_path / "b").regions()
    return found


def test_an_output_of_another_shape_is_accepted_where_onnxruntime_makes_it_too(region: Region) -> None:
    (given,), (made,) = region.inputs, region.outputs
    check = ShapeCheck(region, any_shape=True)
    for extents, sentence in (
        ((1, 4), ""),
        ((1, 3), f"gave output '{made.name}' as float32[1, 3], but it is declared float32[1, 4]"),
        ((1, 5), f"gave output '{made.name}' as float32[1, 5], but it is declared float32[1, 4]"),
    ):
        output = {made.name: np.ones(extents, np.float32)}
        if not sentence:
            taken = check.take_outputs({**output, "more": 1}, {given.name: ramp(1, 4)})
            assert {name: array.tolist() for name, array in taken.items()} == {made.name: [[1] * 4]}
            continue
        with pytest.raises(InputError) as caught:
            check.take_outputs(output, {given.name: ramp(1, 4)})
        assert str(caught.value) == sentence
    with pytest.raises(InputError, match=f"^gave no output '{made.name}'$"):
        check.take_outputs({}, {given.name: ramp(1, 4)})
    with collect_contradictions() as notes:
        check.take_outputs({made.name: ramp(1, 5)}, {given.name: ramp(1, 5)})
    assert list(notes) == [
        f"the model says that '{made.name}' is float32[1, 4], but it is float32[1, 5]"
    ]


def test_what_is_bound_may_come_in_another_array_of_its_shape(region: Region) -> None:
    (given,), (made,) = region.inputs, region.outputs
    buffer = np.zeros((1, 4), np.float32)
    check = ShapeCheck(region, any_shape=False).bind({given.name: ramp(1, 4)}, {made.name: buffer})
    check.check_inputs({})
    assert check.take_outputs({made.name: buffer}, {})[made.name] is buffer
    other = np.ones((1, 4), np.float32)
    assert check.take_outputs({made.name: other}, {})[made.name] is other
    with pytest.raises(InputError, match="is compiled for float32"):
        ShapeCheck(region, any_shape=False).bind({given.name: ramp(1, 3)}, {})


def test_inputs_of_another_shape_are_refused_or_noted(region: Region) -> None:
    (given,) = region.inputs
    odd = {given.name: ramp(1, 5)}
    with pytest.raises(InputError) as caught:
        ShapeCheck(region, any_shape=False).check_inputs(odd)
    assert str(caught.value) == (
        f"input '{given.name}' is float32[1, 5], but {region.name} is compiled for float32[1, 4]"
    )
    with collect_contradictions() as notes:
        ShapeCheck(region, any_shape=True).check_inputs(odd)
        ShapeCheck(region, any_shape=False).check_inputs({})  # what is not there is not checked here
    assert list(notes) == [
        f"the model says that '{given.name}' is float32[1, 4], but it is float32[1, 5]"
    ]
    pair = replace(region, inputs=(replace(given, name="a"), replace(given, name="b")))
    with pytest.raises(InputError, match=r"^input 'b' is float32\[1, 5\], but"):
        ShapeCheck(pair, any_shape=False).check_inputs({"b": ramp(1, 5)})


ODD = "the model says that 'x' is float32[1, 5], but it is float32[1, 4]"


@pytest.mark.parametrize(
    ("kind", "logical", "layout", "sentences"),
    [
        (floats(1, 4), floats(1, 4), "", []),
        (floats(1, "N"), floats("M", 4), "", []),
        (floats(1, 5), floats(1, 4), "", [ODD]),
        (floats(1, 4), floats(1, 5), "", [ODD]),
        (floats(1, 5), floats(2, 5), "", [ODD]),  # one sentence of a tensor
        (floats(1, 5), floats(1, 4), "NHWC", [ODD]),
        # At the boundary it has another order of dimensions, or another dtype, than in the file.
        (floats(1, 4), floats(1, 5), "NHWC", []),
        (floats(1, 4), TensorType("int8", (1, 5)), "", []),
    ],
)
def test_contradictions_are_noted_of_what_the_file_states(
    kind: TensorType, logical: TensorType, layout: str, sentences: list[str]
) -> None:
    contract = TensorContract("x", "x", "x", kind, logical, layout)
    with collect_contradictions() as notes:
        _note_contradiction(contract, ramp(1, 4))
        _note_contradiction(contract, ramp(1, 4))
    assert list(notes) == sentences
    with collect_contradictions() as later:
        with collect_contradictions() as inner:
            pass
        _note_contradiction(contract, ramp(1, 4))
    _note_contradiction(TensorContract("z", "z", "z", kind, logical), ramp(9))  # nobody collects it
    assert (list(notes), list(later), list(inner)) == (sentences, sentences, [])


class Old:
    """A codegen that says nothing of recompiling, and whose artifacts fit nowhere."""

    name = "old"

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        return Artifact({}, {"version": "2"})

    def compatible(self, region: Region, artifact: Artifact) -> Any:
        return YES if artifact.metadata["version"] == "2" else refuse("made by version 1")

    def load(self, region: Region, artifact: Artifact) -> Any:
        assert artifact.metadata["version"] == "2"
        return lambda inputs: {region.outputs[0].name: ramp(1, 4) + 1}


def test_a_codegen_that_says_nothing_has_its_artifacts_recompiled(region: Region) -> None:
    run = load_executor(Old(), "old", region, Artifact({}, {"version": "1"}), {})
    (made,) = run({region.inputs[0].name: ramp(1, 4)}).values()
    assert made.tolist() == (ramp(1, 4) + 1).tolist()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_is_not_the_codegens_fault_comes_as_it_is(
    error: type[BaseException], region: Region
) -> None:
    class Broken:
        name = "broken"

        def load(self, region: Region, artifact: Artifact) -> Any:
            raise error

    expected = error if error is KeyboardInterrupt else InputError
    with pytest.raises(expected):
        load_executor(Broken(), "broken", region, Artifact())


def _index(model: onnx.ModelProto) -> GraphIndex:
    return GraphIndex(model, get_stated_types(model))


def _host(*nodes: int) -> GraphStep:
    return GraphStep(nodes, single=False)


def _call(node: int) -> GraphStep:
    return GraphStep((node,), single=True)


CHAIN = """g (float[2] x) => (float[2] y) {
    a = Relu(x)
    b = Relu(a)
    c = Relu(b)
    d = Relu(c)
    y = Relu(d)
}"""


DIAMOND = """g (float[2] x) => (float[2] y) {
    a = Relu(x)
    b = Relu(a)
    c = Relu(a)
    d = Relu(b)
    y = Add(c, d)
}"""


@pytest.mark.parametrize(
    ("text", "calls", "expected"),
    [
        (CHAIN, [], [_host(0, 1, 2, 3, 4)]),
        (CHAIN, [0, 1, 2, 3, 4], [_call(0), _call(1), _call(2), _call(3), _call(4)]),
        (CHAIN, [2], [_host(0, 1), _call(2), _host(3, 4)]),
        (CHAIN, [0], [_call(0), _host(1, 2, 3, 4)]),
        (CHAIN, [4], [_host(0, 1, 2, 3), _call(4)]),
        (CHAIN, [1, 3], [_host(0), _call(1), _host(2), _call(3), _host(4)]),
        (DIAMOND, [1, 2], [_host(0), _call(1), _call(2), _host(3, 4)]),
        # c waits for nothing, so it runs with a, before the region and not after it.
        (DIAMOND, [1], [_host(0, 2), _call(1), _host(3, 4)]),
        (DIAMOND, [4], [_host(0, 1, 2, 3), _call(4)]),
        ("g (float[2] x) => (float[2] x) { }", [], []),
    ],
)
def test_steps_by_hand(text: str, calls: list[int], expected: list[GraphStep]) -> None:
    assert find_steps(_index(parse(text)), calls) == expected


def test_what_no_output_depends_on_is_left_out() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(a) c = Relu(b) y = Relu(a) }"
    assert find_steps(_index(parse(text)), [1]) == [_host(0, 3)]


def test_a_constant_runs_only_where_it_is_wanted_from_outside() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] c) {
        k = Constant <value = float[2] {1, 2}> ()
        c = Relu(k)
        a = Add(x, k)
        y = Add(a, c)
    }"""
    assert find_steps(_index(parse(text)), [2]) == [_host(1), _call(2), _host(3)]
    inner = parse(text.replace(", float[2] c)", ")"))
    assert find_steps(_index(inner), [2]) == [_call(2), _host(3)]


def test_a_body_waits_for_what_it_captures() -> None:
    text = """g (bool b, float[2] x) => (float[2] y) {
        a = Relu(x)
        y = If(b) <
            then_branch = t () => (float[2] o) { o = Neg(a) },
            else_branch = e () => (float[2] p) { p = Identity(x) }
        >
    }"""
    assert find_steps(_index(parse(text)), [0]) == [_call(0), _host(1)]


@st.composite
def _graphs(draw: st.DrawFn) -> tuple[onnx.ModelProto, set[int]]:
    """A random graph in which node i makes t<i>, and some of whose nodes are calls of regions."""
    count = draw(st.integers(1, 14))
    nodes, read = [], set()
    for i in range(count):
        earlier = ["x", *(f"t{j}" for j in range(i))]
        reads = draw(st.lists(st.sampled_from(earlier), min_size=1, max_size=4))
        read.update(reads)
        nodes.append(onnx.helper.make_node("Sum", reads, [f"t{i}"]))
    chosen = draw(st.sets(st.integers(0, count - 1)))
    outputs = {f"t{i}" for i in chosen} | {f"t{i}" for i in range(count) if f"t{i}" not in read}
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "random",
        [onnx.helper.make_tensor_value_info("x", kind, [1])],
        [onnx.helper.make_tensor_value_info(name, kind, [1]) for name in sorted(outputs)],
    )
    return onnx.helper.make_model(graph), draw(st.sets(st.integers(0, count - 1)))


@given(_graphs())
def test_every_node_runs_once_and_after_what_it_reads(case: tuple[onnx.ModelProto, set[int]]) -> None:
    model, calls = case
    index = _index(model)
    made = {"x"}
    ran = []
    for step in find_steps(index, calls):
        assert step.single == (step.nodes[0] in calls)
        assert len(step.nodes) == 1 or calls.isdisjoint(step.nodes)
        for node in step.nodes:
            assert made.issuperset(index.reads[node])
            made.update(index.nodes[node].output)
            ran.append(node)
    assert sorted(ran) == list(range(len(index.nodes)))


@given(_graphs())
def test_there_are_no_more_segments_than_levels_of_regions(
    case: tuple[onnx.ModelProto, set[int]],
) -> None:
    model, calls = case
    index = _index(model)
    depth: dict[str, int] = {"x": 0}
    for i, node in enumerate(index.nodes):
        depth[node.output[0]] = max(depth[name] for name in node.input) + (i in calls)
    segments = [step for step in find_steps(index, calls) if not step.single]
    assert len(segments) <= max(depth.values()) + 1
