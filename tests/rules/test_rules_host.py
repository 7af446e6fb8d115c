"""What a rule file keeps on the host: operators, names, and all that is downstream of some nodes."""

import onnx
import pytest
from helpers.ruling import target
from helpers.support import prepared

from byoc.model import GraphIndex, prepare_model
from byoc.rules import Annotator, Target, annotate_graph, find_unmatched_names, is_kept_whole

CHAIN = """
g (float[2] x) => (float[2] y, float[2] z) {
  a = Relu (x)
  b = Neg (a)
  c = Relu (b)
  d = Abs (a)
  y = Add (c, d)
  z = Relu (d)
}
"""


def named(text: str) -> GraphIndex:
    """Return the index of a model whose nodes are called as what they make."""
    model = onnx.ModelProto()
    model.CopyFrom(prepared(text).proto)
    for node in model.graph.node:
        node.name = f"net/{node.output[0]}"
    return prepare_model(model, "test").index


def kept(host: str, text: str = CHAIN) -> dict[str, str]:
    """Return for each node on the host why, by what it makes."""
    ops = target(f"ops: [{{op: '*'}}]\nhost: {host}")
    index = named(text)
    marks = annotate_graph(index, ops)
    return {
        node.output[0]: str(mark.verdict)
        for node, mark in zip(index.nodes, marks, strict=True)
        if not mark.verdict
    }


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("{ops: Abs}", {"d": "Abs is kept on the host"}),
        ("{ops: [Neg, Abs]}", {"b": "Neg is kept on the host", "d": "Abs is kept on the host"}),
        ("{ops: [Conv]}", {}),
        ("{names: '^net/[bd]$'}", dict.fromkeys("bd")),
        ("{names: ['/y', 'z$']}", dict.fromkeys("yz")),
        ("{names: '^y'}", {}),
        ("{after: {ops: Neg}}", dict.fromkeys("cy")),
        ("{after: {names: [/d$]}}", dict.fromkeys("yz")),
        ("{after: {ops: Add}}", {}),
        ("{ops: Neg, after: {ops: Neg}}", dict.fromkeys("bcy")),
    ],
)
def test_what_is_kept(host: str, expected: dict[str, str | None]) -> None:
    found = kept(host)
    assert sorted(found) == sorted(expected)
    for name, reason in expected.items():
        assert reason is None or found[name] == reason


def test_reasons() -> None:
    assert kept("{names: ['no', /b$]}")["b"] == "the name 'net/b' is kept on the host"
    assert kept("{after: {ops: Neg}}")["y"] == (
        "it is downstream of Neg 'net/b', after which all stays on the host"
    )


def test_places() -> None:
    ops = target("ops: [{op: Relu}]\nhost: {names: [nope, /a$], after: {ops: [Conv, Neg]}}")
    annotator = Annotator(ops, named(CHAIN))
    places: dict[str, list[tuple[str, str]]] = {
        node.output[0]: [(a.rule, o.location) for a in annotator.list_attempts(i) for o in a.objections]
        for i, node in enumerate(annotator.index.nodes)
    }
    assert places["a"] == [("", "host.names[1]")]
    assert places["c"] == [("", "host.after.ops[1]")]
    assert places["d"] == [("", "ops")]


BRANCHES = """
g (float[2] x, bool c) => (float[2] y) {
  a = Neg (x)
  y = If (c) <
    then_branch = t () => (float[2] p) { n = Abs (a)
      p = Relu (n) },
    else_branch = e () => (float[2] q) { q = Relu (x) }
  >
}
"""


def inside(host: str) -> list[list[str]]:
    ops = target(f"ops: [{{op: '*'}}]\nhost: {host}")
    index = prepared(BRANCHES).index
    return [
        [str(mark.verdict) for mark in annotate_graph(found, ops)]
        for found in (index, *(body.index for body in index.bodies[1]))
    ]


def test_bodies() -> None:
    after = "it is downstream of {}, after which all stays on the host"
    assert inside("{ops: Relu}") == [
        ["yes", "yes"],
        ["yes", "Relu is kept on the host"],
        ["Relu is kept on the host"],
    ]
    behind = after.format("Neg 'a'")
    assert inside("{after: {ops: Neg}}") == [["yes", behind], [behind, behind], [behind]]
    assert inside("{after: {ops: Abs}}") == [["yes", "yes"], ["yes", after.format("Abs 'n'")], ["yes"]]


def test_names_that_match_nothing() -> None:
    index = named(CHAIN)
    ops = "\nops: [{op: Relu}]"
    assert find_unmatched_names(index, target("host: {ops: Exp, names: ['/a$', '/[bc]$']}" + ops)) == []
    host = "host: {names: ['/a$', head], after: {ops: TopK, names: '^tail/'}}"
    assert find_unmatched_names(index, target(host + ops)) == [
        "host.names[1]: no node has a name that matches 'head'",
        "host.after.names[0]: no node has a name that matches '^tail/'",
    ]
    inherited = Target("test", target(host + ops).rules, {"host.names[1]": "dla.yaml: host.names[0]"})
    assert find_unmatched_names(index, inherited)[0].startswith("dla.yaml: host.names[0]: no node")


def test_names_in_bodies_match() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(
        prepared("""
            g (bool c, float[2] x) => (float[2] y) {
              y = If (c) <then_branch = a () => (float[2] p) { p = Neg (x) },
                          else_branch = b () => (float[2] q) { q = Abs (x) }>
            }""").proto
    )
    model.graph.node[0].attribute[0].g.node[0].name = "inner"
    index = prepare_model(model, "test").index
    assert find_unmatched_names(index, target("host: {names: inner}\nops: [{op: Relu}]")) == []


@pytest.mark.parametrize(
    ("more", "kept_whole"),
    [
        ("keep: [HardSwish]", True),
        ("keep: [Mish]", False),
        ("host: {ops: [HardSwish]}", True),
        ("host: {ops: [Abs]}", False),
        ("host: {names: 'net/y'}", True),
        ("host: {names: 'net/x'}", False),
        ("host: {after: {ops: [HardSwish]}}", True),
        ("host: {after: {names: 'net/y'}}", True),
        ("host: {after: {ops: [Abs]}}", False),
    ],
)
def test_nodes_that_a_file_speaks_of_stay_whole(more: str, kept_whole: bool) -> None:
    (node,) = named("g (float[2] x) => (float[2] y) { y = HardSwish(x) }").nodes
    assert is_kept_whole(node, target(f"ops: [{{op: Erf}}]\n{more}").rules) is kept_whole


def test_what_is_behind_a_node_whose_body_has_a_source_stays_on_the_host() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
      a = If (c) <
        then_branch = t () => (float[2] p) { p = Abs(x) },
        else_branch = e () => (float[2] q) { r = Neg(x) q = Exp(r) }
      >
      y = Relu(a)
    }"""
    for op, made in (("Abs", "p"), ("Exp", "q"), ("Neg", "r")):
        found = kept(f"{{after: {{ops: {op}}}}}", text)
        assert found["y"] == f"it is downstream of {op} '{made}', after which all stays on the host"
    assert kept("{after: {ops: Sin}}", text) == {}
