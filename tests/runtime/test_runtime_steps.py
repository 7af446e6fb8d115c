"""The order of execution: what runs in which step, on graphs by hand and at random."""

import onnx
import pytest
from helpers.support import parse
from hypothesis import given
from hypothesis import strategies as st

from byoc.model import GraphIndex, get_stated_types
from byoc.runtime._program_builder import GraphStep, find_steps


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
