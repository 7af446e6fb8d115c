"""Nodes that are the same to the rules are tried once, and whatever tells nodes apart is seen."""

import random
from itertools import product
from pathlib import Path

import pytest
from helpers.ruling import filled, make_target, rules, target
from helpers.support import OPENVINO_RULES, parse, prepared, sample_cases

from byoc.model import GraphIndex, prepare_model
from byoc.onnxrt import INSTALL_HINT
from byoc.patterns import Mark
from byoc.rules import Annotator, Target, annotate_graph, load_rules
from byoc.zoo import load_model

ROOT = Path(__file__).parents[2]


def index_of(text: str) -> GraphIndex:
    return prepare_model(filled(text), "test").index


def count_trials(index: GraphIndex, target: Target, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the nodes that the rules were tried on while a graph was annotated."""
    tried: list[int] = []
    try_rules = Annotator._try_rules

    def watch(self: Annotator, number: int) -> tuple[Mark, bool]:
        tried.append(number)
        return try_rules(self, number)

    monkeypatch.setattr(Annotator, "_try_rules", watch)
    annotate_graph(index, target)
    return tried


def test_equal_nodes_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of("""g (float[1,8] x) => (float[1,8] y) {
        a = Relu (x)
        b = Relu (a)
        c = Sin (b)
        [last] y = Relu (c)
    }""")
    assert count_trials(index, rules("[{op: Relu}]"), monkeypatch) == [0, 2]


APART = """g (float[1,8] x, float[8] t)
  => (float[1,2] y, float[8] u, float[1,8] z, int64[1,1] j) {
    k = Constant <value_floats = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]> ()
    two = Constant <value_ints = [2]> ()
    one = Constant <value_ints = [1]> ()
    [plain] a = Add (x, x)
    [constant] b = Add (a, k)
    [type] u = Add (t, t)
    [kept] c, ci = TopK (x, two)
    [axis] e, i = TopK <axis = 0> (b, one)
    y = Add (c, c)
    [value] d, j = TopK (x, one)
    [named] z = Add (e, x)
}"""


@pytest.mark.parametrize(
    ("rule", "taken"),
    [
        ("{op: Add, tensors: {B: {constant: true}}}", ["constant"]),
        ("{op: Add, tensors: {A: {rank: 1}}}", ["type"]),
        ("{op: Add, where: ['name == \"named\"']}", ["named"]),
        ('{op: Add, where: [\'B.name == "x" && A.name == "e"\']}', ["named"]),
        ("{op: TopK, dtype: any, tensors: {K: {value: {min: 2}}}}", ["kept"]),
        ("{op: TopK, dtype: any, where: ['K.value[0] == 1']}", ["axis", "value"]),
        ("{op: TopK, dtype: any, attributes: {axis: {one_of: [0]}}}", ["axis"]),
        ("{op: TopK, dtype: any, tensors: {Indices: {absent: true}}}", ["axis", "kept"]),
    ],
)
def test_what_tells_nodes_apart(rule: str, taken: list[str]) -> None:
    index = index_of(APART)
    marks = annotate_graph(index, rules(f"[{rule}]"))
    found = {node.name for node, mark in zip(index.nodes, marks, strict=True) if mark.verdict}
    assert sorted(found) == taken


def test_a_reason_that_names_a_tensor_is_not_shared() -> None:
    """Both nodes lack a shape, each because of another input."""
    index = prepared("""g (float[N] x, float[M] t) => (float[N] y, float[M] z) {
        y = Relu (x)
        z = Relu (t)
    }""").index
    marks = annotate_graph(index, rules("[{op: Relu, tensors: {X: {static: true}}}]"))
    assert "N" in str(marks[0].verdict)
    assert "M" in str(marks[1].verdict)


def mark_alone(rule_file: str, index: GraphIndex, number: int) -> Mark:
    """Return the mark of a node by a target that has seen no other."""
    return Annotator(load_rules(ROOT / "annotations" / f"{rule_file}.yaml"), index).annotate_node(number)


@pytest.mark.parametrize(
    "name", sample_cases(["squeezenet", "t5", "mobilenet_v3_large"], "squeezenet", "t5")
)
@pytest.mark.parametrize("rule_file", ["dla", OPENVINO_RULES, "ethos-u55", "nnpa"])
def test_marks_are_those_of_each_node_alone(name: str, rule_file: str) -> None:
    index = load_model(f"zoo:{name}").index
    target = load_rules(ROOT / "annotations" / f"{rule_file}.yaml")
    marks = annotate_graph(index, target)
    sample = range(0, len(marks), 7)
    assert [marks[n] for n in sample] == [mark_alone(rule_file, index, n) for n in sample]


def test_nodes_of_other_constants_are_told_apart_where_a_rule_reads_them() -> None:
    index = index_of("""g (float[4] x) => (float[4] y)
        <float low = {0}, float six = {6}, float nine = {9}, float same = {6}> {
        a = Clip (x, low, six)
        b = Clip (a, low, nine)
        c = Clip (b, low, same)
        y = Clip (c, low)
    }""")
    for rule in (
        "{op: Clip, where: [{expr: 'max.value[0] <= 6', reason: r}]}",
        "{op: Clip, tensors: {max: {value: {max: 6}}}}",
    ):
        marks = annotate_graph(index, rules(f"[{rule}]"))
        assert [bool(mark.verdict) for mark in marks][:3] == [True, False, True]


@pytest.mark.parametrize("name", ["a", "alpha", "dom", "level", "named", "zeta", "", "NAME"])
def test_there_is_no_fact_of_another_name(name: str) -> None:
    index = index_of("g (float[4] x) => (float[4] y) { [last] y = Relu (x) }")
    facts = Annotator(rules("[{op: Relu}]"), index)._make_view(0).facts
    assert name not in facts
    with pytest.raises(KeyError):
        facts[name]
    assert (facts["name"], facts["op"], facts["domain"], len(facts)) == ("last", "Relu", "", 7)
    assert {*facts} == {"op", "domain", "opset", "name", "attr", "X", "Y"}
    assert all(key in facts for key in facts)


@pytest.mark.parametrize("is_there", [False, True])
def test_onnxruntime_is_named_where_its_operators_are_not_known(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("byoc.rules._annotator.has_runtime_schemas", lambda: is_there)
    model = filled("g (float[4] x) => (float[4] y) { y = acme.Odd (x) }")
    model.opset_import.add(domain="acme", version=1)
    index = prepare_model(model, "test").index
    target = make_target(
        {
            "target": "dla",
            "cost_model": "dla",
            "dtype": "float32",
            "ops": [{"op": "acme.Odd", "tensors": {"x": {"rank": 1}}}],
        }
    )
    (mark,) = annotate_graph(index, target)
    assert "the tensors of acme.Odd cannot be told by name" in str(mark.verdict)
    assert (INSTALL_HINT in str(mark.verdict)) is not is_there


QUANTIZED = """g ({one}[1,4] p, {other}[1,4] q) => ({one}[1,4] y, {one}[1,8] k, {one}[1,2] m) <
  float s = {{{s}}}, {one} z = {{{z}}}, float[{n}] t = {{{t}}}, {other}[{n}] u = {{{u}}},
  int8[4,2] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[2] ws = {{{s}, 0.5}}, int8[2] wz = {{0, {z}}}
> {{
  a = DequantizeLinear (p, s, z)
  b = DequantizeLinear <axis = 1> (q, t, u)
  c = Add (a, b)
  y = QuantizeLinear (c, s, z)
  d = Concat <axis = 1> (a, b)
  k = QuantizeLinear (d, s, z)
  v = DequantizeLinear <axis = {axis}> (w, ws, wz)
  e = MatMul (a, v)
  m = QuantizeLinear (e, s, z)
}}"""
SCHEMES = {
    "numbers": "{activations: {dtype: [int8]}}",
    "same scale": "{same_scale: [Add, Concat]}",
    "powers of two": "{scales: power_of_two}",
    "symmetric": "{activations: {symmetric: true}, weights: {symmetric: true}}",
    "one scale": "{activations: {per_channel: false}}",
}
ASKED = {
    "nothing": "",
    "axis": ", tensors: {B: {quantized: {axis: 1}}}",
    "same as": ", tensors: {C: {quantized: {same_as: A}}}",
    "scale": ", where: ['A.quantized.scale[0] < 0.4']",
    "dtype": ", where: ['B.quantized.dtype == \"int8\"']",
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("asked", ASKED)
def test_quantized_nodes_of_many_graphs_get_the_marks_of_each_alone(scheme: str, asked: str) -> None:
    """Scales, zero points, their number and their axes differ from graph to graph."""

    def make() -> Target:
        columns = "{op: MatMul, quantized: true, tensors: {B: {quantized: {axis: 1}}}}"
        ops = f"[{{op: Add, quantized: true{ASKED[asked]}}}, {columns}, {{op: Concat, quantized: true}}]"
        return target(f"quantization: {SCHEMES[scheme]}\nops: {ops}")

    shared, seen = make(), set()
    scales = ("0.5", "0.3", "0.5, 0.3")
    every = list(product(("int8", "uint8"), ("int8", "uint8"), (0.5, 0.3), (0, 1), scales, (0, 1)))
    chosen = random.Random(f"{scheme} {asked}").sample(every, 16)
    for one, other, s, z, t, axis in chosen:
        n = t.count(",") + 1
        u = ", ".join(["1"] * n)
        text = QUANTIZED.format(one=one, other=other, s=s, z=z, t=t, n=n, u=u, axis=axis)
        index = prepare_model(parse(text), "test").index
        marks = annotate_graph(index, shared)
        assert marks == annotate_graph(index, make())
        seen.update(str(mark.verdict) for mark in marks)
    assert len(seen) > 2


def test_a_quantized_node_is_tried_once_for_graphs_that_differ_in_scales(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = target("ops: [{op: [Add, Concat, MatMul], quantized: true}]")
    tried = []
    for s in (0.3, 0.6):
        text = QUANTIZED.format(one="int8", other="int8", s=s, z=1, t="0.7", n=1, u="1", axis=1)
        tried.append(count_trials(prepare_model(parse(text), "test").index, shared, monkeypatch))
    assert len(tried[0]) > 2
    assert not tried[1]


def test_known_marks_do_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two graphs are annotated in turn, node by node, while the known marks begin anew."""
    monkeypatch.setattr("byoc.rules._rule_loading._MOST_KNOWN", 10)
    shared, ops = target("ops: [{op: Relu}]"), ("Relu", "Abs")
    for extent in range(1, 9):
        graphs = [
            index_of(f"g (float[{n}] x) => (float[{n}] y) {{ a = {first}(x) y = {last}(a) }}")
            for n, first, last in ((extent, *ops), (extent + 8, *reversed(ops)))
        ]
        turns = [Annotator(shared, index) for index in graphs]
        marks = [[bool(each.annotate_node(number).verdict) for each in turns] for number in (0, 1)]
        assert marks == [[True, False], [False, True]]
        assert len(shared.open_known_marks().numbers) < 30
