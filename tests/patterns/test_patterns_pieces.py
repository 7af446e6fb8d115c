"""Parts of the matcher: values and texts at their limits, forms without lines, limits of searches."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers.support import parse, prepared
from onnx import helper

from byoc.errors import YES, refuse
from byoc.model import GraphIndex
from byoc.model.schemas import find_schemas, list_onnx_operators
from byoc.patterns import (
    Mark,
    PatternForm,
    PatternLine,
    Unit,
    find_matches,
    find_near_misses,
    group_units,
    parse_pattern,
)
from byoc.patterns import _contraction_order as contraction
from byoc.patterns import _grouper as near_misses
from byoc.patterns import _qdq_groups as qdq
from byoc.patterns._contraction_order import ContractionOrder
from byoc.patterns._grouper import _describe_progress, _is_near, _nodes_around
from byoc.patterns._matcher import describe_rejection
from byoc.patterns._pattern import lines_needed, replace_operand
from byoc.patterns._pattern_search import (
    PatternSearch,
    _attribute_equals,
    _attribute_problem,
    _describe_operand,
    _describe_value,
    _has_value,
    _output_problem,
    check_node,
)
from byoc.patterns._pattern_syntax import (
    AttributeTest,
    NodeTable,
    PatternOperand,
    counts_trailing_inputs,
    function_label,
    has_variadic_output,
    operand_counts,
    output_count,
    strip_trailing_empty,
)
from byoc.patterns._qdq_groups import check_unaccepted_nodes

ACCEPTED = Mark(YES, "ops[0]")


WANTS = "the pattern wants 1..3"


def form_of(text: str) -> PatternForm:
    (form,) = parse_pattern("p", text).forms
    return form


@pytest.mark.parametrize(
    ("names", "left"),
    [
        ([], ()),
        ([""], ()),
        (["a", ""], ("a",)),
        (["", "a", "", ""], ("", "a")),
        (["a", "b"], ("a", "b")),
    ],
)
def test_empty_names_at_the_end_are_left_out(names: list[str], left: tuple[str, ...]) -> None:
    assert strip_trailing_empty(names) == left


@pytest.mark.parametrize(
    ("op", "counts"),
    [("Loop", True), ("Sum", True), ("Split", True), ("Clip", False), ("Relu", False), ("Concat", True)],
)
def test_operators_whose_last_inputs_may_be_many_count_them(op: str, counts: bool) -> None:
    for schema in find_schemas(op):
        assert counts_trailing_inputs(schema) is counts
    assert counts_trailing_inputs(None)


def test_operators_are_known_by_all_of_their_versions() -> None:
    assert operand_counts("Clip") == (1, 3)
    assert operand_counts("acme.Odd") is None
    assert (output_count("TopK"), output_count("acme.Odd")) == (2, None)
    assert [has_variadic_output(op) for op in ("Split", "TopK", "Loop", "acme.Odd")] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("matched", "count", "text"),
    [
        (3, 3, "matched to its last line"),
        (0, 3, "matched to its no line"),
        (1, 3, "matched to its first line"),
        (2, 9, "matched to its second line"),
        (9, 12, "matched to its ninth line"),
        (10, 12, "matched to its line 10"),
    ],
)
def test_progress_is_told_by_ordinals_or_numbers(matched: int, count: int, text: str) -> None:
    assert _describe_progress(matched, count) == text


def operand(*value: float, vector: bool = False) -> PatternOperand:
    return PatternOperand("k", constant=True, value=value, vector=vector)


@pytest.mark.parametrize(
    ("value", "wanted", "has"),
    [
        (np.array(2), (2,), True),
        (np.array(2), (2.0005,), False),  # integers are exact
        (np.array(True), (1,), True),
        (np.array([1, 2]), (1, 2), True),
        (np.array([1, 2]), (2, 1), False),
        (np.array([1, 2]), (1,), False),
        (np.array([[1.0]]), (1,), True),
        (np.array(1.0009), (1,), True),
        (np.array(1.0011), (1,), False),
        (np.array(np.inf), (np.inf,), True),
        (np.array(-np.inf), (np.inf,), False),
        (np.array(1e38), (np.inf,), False),
        (np.array(np.inf), (1.0,), False),
        (np.array("1"), (1,), False),
        (np.array([1.0 + 0j]), (1,), False),
        (np.array([], np.float32), (), True),
    ],
)
def test_a_constant_has_the_value_of_a_literal(value: Any, wanted: Any, has: bool) -> None:
    assert _has_value(value, operand(*wanted)) is has


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not known"),
        (np.array(0.5, np.float32), "0.5"),
        (np.array([3]), "3"),
        (np.array([1.0, 2.5]), "[1, 2.5]"),
        (np.array([True, False]), "[True, False]"),
        (np.arange(8), "[0, 1, 2, 3, 4, 5, 6, 7]"),
        (np.arange(9), "a constant of 9 elements"),
    ],
)
def test_a_constant_is_shown_where_it_is_short(value: Any, text: str) -> None:
    assert _describe_value(value) == text


def test_an_operand_is_shown_as_it_was_written() -> None:
    assert _describe_operand(PatternOperand("w")) == "w"
    assert _describe_operand(PatternOperand("w", constant=True)) == "w!"
    assert _describe_operand(operand(0.5)) == "0.5"
    assert _describe_operand(operand(1, 2.0, vector=True)) == "[1, 2]"


@pytest.mark.parametrize(
    ("value", "wanted", "equal"),
    [
        (1, 1, True),
        (1.0 + 9e-7, 1, True),
        (1.0 + 2e-6, 1, False),
        ("a", "a", True),
        ("1", 1, False),
        (1, "1", False),
        ([1, 2], (1, 2), True),
        ([1, 2], (1, 2, 3), False),
        ([1, 2], (2, 2), False),
        (1, (1,), False),
        ([1], 1, False),
    ],
)
def test_attributes_equal_what_is_wanted(value: Any, wanted: Any, equal: bool) -> None:
    assert _attribute_equals(value, wanted) is equal


@pytest.mark.parametrize(
    ("test", "values", "problem"),
    [
        (AttributeTest("axis", (1,), text="1"), {"axis": 1}, None),
        (AttributeTest("axis", (1, 2), text="1 | 2"), {"axis": 2}, None),
        (AttributeTest("axis", (1,), text="1"), {"axis": 3}, "axis is 3, the pattern wants 1"),
        (AttributeTest("axis", (1,), text="1"), {}, "axis is absent, the pattern wants 1"),
        (AttributeTest("axis", (1,), absent=True, text="1 | absent"), {}, None),
        (AttributeTest("axis", ranges=((1, 3),), text="1..3"), {"axis": 1}, None),
        (AttributeTest("axis", ranges=((1, 3),), text="1..3"), {"axis": 3}, None),
        (
            AttributeTest("axis", ranges=((1, 3),), text="1..3"),
            {"axis": 0},
            f"axis is 0, {WANTS}",
        ),
        (
            AttributeTest("axis", ranges=((1, 3),), text="1..3"),
            {"axis": "2"},
            f"axis is 2, {WANTS}",
        ),
        (AttributeTest("odd", (1,), text="1"), {}, None),  # of another operator of the line
    ],
)
def test_a_wrong_attribute_is_told(test: AttributeTest, values: Any, problem: str | None) -> None:
    assert _attribute_problem(test, "Softmax", values) == problem


@pytest.mark.parametrize(
    ("wanted", "op", "made", "problem"),
    [
        (("v",), "TopK", ("a", "b"), None),
        (("v", "i"), "TopK", ("a", "b"), None),
        (("v", ""), "TopK", ("a",), None),
        (("v", "i"), "Dropout", ("a",), "it makes 1, the pattern wants 2"),
        (("v",), "Split", ("a", "b"), "it makes 2, the pattern wants 1"),
        (("v", "i"), "TopK", ("", "b"), "it leaves out an output that the pattern wants"),
        (("", "i"), "TopK", ("", "b"), None),
    ],
)
def test_outputs_are_those_that_the_pattern_wants(
    wanted: tuple[str, ...], op: str, made: tuple[str, ...], problem: str | None
) -> None:
    assert _output_problem(PatternLine(wanted, (op,), ()), op, made) == problem


def test_a_node_with_bodies_fits_no_line() -> None:
    proto = parse(
        "g (bool c, float[4] x) => (float[4] y) { y = If (c) <then_branch = t () => (float[4] r) "
        "{ r = Relu(x) }, else_branch = e () => (float[4] s) { s = Neg(x) }> }"
    )
    table = NodeTable.from_index(GraphIndex(proto, {}))
    for op in ("If", "*"):
        verdict = check_node(PatternLine(("y",), (op,), ()), 0, table)
        assert str(verdict) == f"{table.describe(0)} has bodies"
    verdict = check_node(PatternLine(("y",), ("Relu", "Neg"), ()), 0, table)
    assert str(verdict) == f"it wants Relu or Neg, and there is {table.describe(0)}"


@pytest.mark.parametrize(
    ("text", "missing", "kept", "outputs"),
    [
        ("a = Neg(x)?\ny = Relu(a)", ("a",), ["y"], ("y",)),
        ("a = Neg(x)\nb = Abs(a)?\nc = Exp(b)?\ny = Relu(c)", ("b", "c"), ["a", "y"], ("y",)),
        ("a = Neg(x)\ny = Relu(a)?", ("y",), ["a"], ("a",)),
        ("a = Neg(x)?\ny = Relu(a)\nreturn a, y", ("a",), None, ()),  # it would return an input
        ("a = Neg(x)\nb = Abs(a)?\ny = Relu(b)\nreturn a, b, y", ("b",), None, ()),  # one twice
        ("a = Neg(x)\nb = Abs(a)?\ny = Relu(b)\nreturn b, y", ("b",), ["a", "y"], ("a", "y")),
    ],
)
def test_a_form_without_lines(
    text: str, missing: tuple[str, ...], kept: list[str] | None, outputs: tuple[str, ...]
) -> None:
    form = form_of(text)
    found = form.without(frozenset(missing))
    if kept is None:
        assert found is None
        return
    assert found is not None
    assert [line.output for line in found.nodes] == kept
    assert found.outputs == outputs
    assert {line.output for line in found.left_out} == {line.output for line in form.nodes} - {*kept}
    assert form.without(frozenset(missing)) is found
    assert form.without(frozenset()) is form


def test_operands_take_other_names_and_lines_are_needed_backwards() -> None:
    kept = PatternOperand("a", True, True)
    assert replace_operand(kept, {"b": "c"}) is kept
    assert replace_operand(kept, {"a": "b", "b": "c"}) == PatternOperand("c", True, True)
    lines = form_of("a = Neg(x)\nb = Abs(x)\nc = Add(a, b)\ny = Relu(c)").nodes
    assert [line.output for line in lines_needed(lines, ["c"])] == ["a", "b", "c"]
    assert [line.output for line in lines_needed(lines, ["b", "y"])] == ["a", "b", "c", "y"]
    assert lines_needed(lines, ["x"]) == ()


@pytest.mark.parametrize(
    ("pattern", "starts"),
    [
        ("a = Neg(x)\ny = Relu(a)", [("y", ())]),
        ("a = Neg(x)\ny = Relu(a)?", [("y", ()), ("a", ("y",))]),
        ("a = Neg(x)\nb = Abs(a)?\ny = Relu(b)?", [("y", ()), ("b", ("y",)), ("a", ("y", "b"))]),
    ],
)
def test_matching_begins_at_the_last_line_or_where_it_is_left_out(
    pattern: str, starts: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert [(line.output, missing) for line, missing in form_of(pattern).starts] == starts


@pytest.mark.parametrize(
    ("pattern", "body", "may"),
    [
        ("n = Neg(x)\ny = Sub(n, z)", "n = Neg(a) y = Sub(n, b)", True),
        ("n = Neg(x)\ny = Sub(n, z)", "n = Neg(a) y = Sub(b, n)", False),
        ("n = Neg(x)\ny = Add(n, z)", "n = Neg(a) y = Add(b, n)", True),  # in either order
        ("n = Neg(x)\ny = Add(n, z)", "n = Abs(a) y = Add(b, n)", False),
        ("n = Neg(x)\ny = *(n, z)", "n = Neg(a) y = Div(n, b)", True),
        ("n = Neg(x)\ny = *(n, z)", "n = Neg(a) y = Div(b, n)", False),
        ("n = Neg(x)\ny = Sum(z, n)", "n = Neg(a) y = Sum(a, n, b)", True),
        ("n = Neg(x)\ny = Sum(n, z)", "n = Neg(a) y = Sum(a, n, b)", False),
        ("n = Neg(x)\ny = Sum(z, n)", "n = Neg(a) y = Sum(n)", False),
        ("n = Neg(x)\ny = Mul(n, z)", "n = Neg(a) y = Div(n, b)", False),
    ],
)
def test_a_node_may_be_a_line_where_its_inputs_are_made_so(pattern: str, body: str, may: bool) -> None:
    index = GraphIndex(parse(f"g (float[4] a, float[4] b) => (float[4] y) {{ {body} }}"), {})
    form = form_of(pattern)
    search = PatternSearch(form, NodeTable.from_index(index), {0, 1})
    assert search.may_be(form.root, 1) is may
    assert search.may_start(1) is may
    assert not search.may_start(0)


def wires(*edges: tuple[int, ...]) -> GraphIndex:
    """Return a graph whose nodes each read what the given nodes make."""
    x = helper.make_tensor_value_info("x", 1, [2])
    nodes = [
        helper.make_node("Sum", [f"t{n}" for n in reads] or ["x"], [f"t{number}"])
        for number, reads in enumerate(edges)
    ]
    return GraphIndex(helper.make_model(helper.make_graph(nodes, "g", [x], [])), {})


def test_searches_count_the_edges_that_they_visit_and_end_at_their_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = wires((), (0,), (1,), (2,), (0, 3))
    order = ContractionOrder(index)
    assert order.find_returning_node([0, 4]) in {1, 2, 3}
    first = order._visited_edges
    assert first > 0
    order.find_returning_node([0, 4])
    assert order._visited_edges == 2 * first
    assert order.find_returning_node([0, 1]) is None
    apart = wires((), (0,), (0,), (1,), (2,), (3, 4))
    assert ContractionOrder(apart).find_returning_node([0, 3]) == 1
    for name in ("_MAX_AT_ONCE", "_LEAST_IN_ALL"):
        monkeypatch.undo()
        monkeypatch.setattr(contraction, "_IN_ALL_PER_NODE", 0)
        branches = wires((), (0,), (0,), (0,), (1,), (4,), (5,))
        assert ContractionOrder(branches).find_returning_node([2, 6]) is None
        monkeypatch.setattr(contraction, name, 0)
        limited = ContractionOrder(wires((), (0,), (1,), (), (3,), (4,)))
        assert limited.find_returning_node([0, 5]) is not None  # it is not known that there is none


def test_nodes_around_one_are_those_a_few_edges_away(monkeypatch: pytest.MonkeyPatch) -> None:
    table = NodeTable.from_index(wires((), (0,), (1,), (2,), (3,), (2,), ()))
    assert _nodes_around(table, 2, 0) == {2}
    assert _nodes_around(table, 2, 1) == {1, 2, 3, 5}
    assert _nodes_around(table, 2, 2) == {0, 1, 2, 3, 4, 5}
    assert _nodes_around(table, 6, 9) == {6}
    monkeypatch.setattr(near_misses, "_MAX_AROUND", 4)
    assert _nodes_around(table, 2, 2) == {0, 1, 2, 3, 4, 5}
    monkeypatch.setattr(near_misses, "_MAX_AROUND", 3)
    assert _nodes_around(table, 2, 2) == {1, 2, 3, 5}


NEARLY = "g (float[4] x) => (float[4] y) { a = Neg(x) b = Abs(a) y = Sin(b) }"


def test_near_misses_end_with_their_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    index = prepared(NEARLY).index
    pattern = parse_pattern("p", "a = Neg(x)\nb = Abs(a)\ny = Relu(b)")
    marks = [ACCEPTED] * 3
    (miss,) = find_near_misses(index, [pattern], marks)
    assert (miss.node, miss.matched, miss.lines, miss.nodes) == (1, 2, 3, {0, 1})
    assert miss.reason.endswith("its next line wants Relu, and Abs 'b' is read by Sin 'y'")
    monkeypatch.setattr(near_misses, "_MAX_ATTEMPTS", 0)
    assert find_near_misses(index, [pattern], marks) == []


def test_two_readers_are_named_at_most() -> None:
    body = "a = Neg(x) b = Abs(a) p = Sin(b) q = Cos(b) r = Tan(b) s = Sum(p, q, r)"
    index = prepared(f"g (float[4] x) => (float[4] s) {{ {body} }}").index
    pattern = parse_pattern("p", "a = Neg(x)\nb = Abs(a)\ny = Relu(b)")
    (miss,) = find_near_misses(index, [pattern], [ACCEPTED] * 6)
    assert miss.reason.endswith("and Abs 'b' is read by Sin 'p', Cos 'q'")


def test_the_same_nodes_are_one_match_of_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    index = prepared("g (float[4] x) => (float[4] y) { a = Neg(x) y = Add(a, a) }").index
    pattern = parse_pattern("p", ["a = Neg(x)\ny = Add(a, a)", "a = *(x)\ny = Add(a, b)"])
    matches = find_matches(index, [pattern], {0, 1})
    assert [sorted(match.nodes.values()) for match in matches] == [[0, 1]]
    monkeypatch.setattr(qdq, "_LEAST_ATTEMPTS", 0)
    monkeypatch.setattr(qdq, "_ATTEMPTS_PER_NODE", 0)
    assert find_matches(index, [pattern], {0, 1}) == []


QUANTIZED = """g (uint8[4] x) => (uint8[4] y) <float s = {0.5}, uint8 z = {0}> {
    d = DequantizeLinear(x, s, z) r = Relu(d) q = QuantizeLinear(r, s, z)
    e = DequantizeLinear(q, s, z) n = Neg(e) y = QuantizeLinear(n, s, z) }"""


def units_of(marks: Sequence[Mark]) -> dict[str, Unit]:
    index = prepared(QUANTIZED).index
    return {unit.name: unit for unit in group_units(index, [], marks)}


def test_what_is_taken_in_floating_point_alone_keeps_its_neighbours_out() -> None:
    refused = Mark(refuse("no rule"))
    floating = Mark(YES, "ops[0]", not_quantized="it is no integer")
    units = units_of([refused, floating, refused, refused, refused, refused])
    reason = "Relu 'r' is taken in floating point, not in integers: it is no integer"
    whys = {name: str(unit.verdict) for name, unit in units.items()}
    assert whys["d"] == whys["q"] == reason
    assert (whys["e"], whys["n"], whys["y"]) == ("no rule",) * 3
    taken = units_of([ACCEPTED, floating, refused, refused, refused, refused])
    assert taken["d"].verdict == YES  # what a rule takes needs no reason
    plain = units_of([refused] * 6)
    assert {str(unit.verdict) for unit in plain.values()} == {"no rule"}


def test_without_quantized_nodes_a_rule_for_both_takes_the_plain_one() -> None:
    index = prepared("g (float[4] x) => (float[4] y) { y = Relu(x) }").index
    both = Mark(YES, "ops[0]", accepts_quantized=True)
    (unit,) = group_units(index, [], [both])
    assert (unit.kind, unit.verdict, unit.nodes) == ("node", YES, (0,))
    quantized = Mark(YES, "ops[0]", accepts_plain=False, accepts_quantized=True)
    (unit,) = group_units(index, [], [quantized])
    assert str(unit.verdict) == (
        "Relu is no whole QDQ group: its input 'x' comes from outside the graph, not from a "
        "DequantizeLinear"
    )
    assert unit.rules == ()


@pytest.mark.parametrize(
    ("matched", "count", "fits", "is_near"),
    [
        (0, 0, True, False),
        (0, 1, True, False),
        (1, 2, False, False),
        (1, 2, True, True),
        (1, 3, True, False),
        (2, 4, False, True),
        (2, 5, False, False),
        (2, 5, True, False),
        (3, 5, False, True),
        (3, 6, True, True),
    ],
)
def test_half_of_the_lines_and_two_are_near(matched: int, count: int, fits: bool, is_near: bool) -> None:
    assert _is_near(matched, count, fits) == is_near


def test_the_first_node_that_is_not_accepted_is_named() -> None:
    model = parse("g (float[4] x) => (float[4] y) { a = Relu(x) b = Sin(a) c = Cos(b) y = Tan(c) }")
    index = GraphIndex(model, {})
    marks = [Mark(refuse(f"reason {number}"), accepts_quantized=False) for number in range(4)]
    for nodes in ([1, 2], [3, 1], [2, 3, 1, 0], [2]):
        verdict = check_unaccepted_nodes(index, nodes, marks)
        first = min(nodes)
        assert verdict.reasons == (describe_rejection(index.nodes[first], marks[first]),)
        assert f"reason {first}" in str(verdict)


def test_each_operator_has_a_label_of_its_own() -> None:
    known = [name for name in list_onnx_operators() if "." not in name]
    odd = (
        "acme.Op",
        "acme.OP",
        "a.b_c",
        "a_b.c",
        "a..b",
        ".a",
        "a.",
        "relu",
        "_",
        "a.1b",
        "1",
        "ä.b",
        "a\n.b",
    )
    odd += (
        "a.0b",
        "a._0b",
        "a.b",
        "b",
        "a__b",
        "a._b",
        "a_.b",
        "no_n",
        "v2",
        "a.v2",
        "a.95_b",
        "a_95_b",
    )
    labels = [function_label(name) for name in (*known, *odd)]
    assert len(set(labels)) == len(labels)
    assert function_label("acme.Op") == "acme__Op"
    assert all(text.replace("_", "").isalnum() for text in labels)
