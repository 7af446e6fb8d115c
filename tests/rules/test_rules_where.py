"""Expressions and check functions in rules: what they are given, what they say, what is not known."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from helpers.installing import add_entry_points
from helpers.ruling import lint, rules, target, verdict
from helpers.support import prepared

from byoc.errors import InputError
from byoc.rules import annotate_graph
from byoc.support import CHECKS
from byoc.support.expressions import compile_expression, compile_regex, matches

CONV = """
g (float[1,4,9,9] x) => (float[1,4,7,5] y) <float[4,2,3,5] w, float[4] b> {
  y = Conv <group = 2> (x, w, b)
}
"""


def says(where: str, model: str = CONV, op: str = "Conv") -> str:
    return verdict(model, f"[{{op: {op}, where: {where}}}]").removeprefix(f"{op}: ")


@pytest.mark.parametrize(
    "expression",
    [
        "op == 'Conv' && domain == '' && opset == 17 && name == ''",
        "attr.group == 2 && attr.strides == [1, 1] && attr.auto_pad == 'NOTSET'",
        "X.shape == [1, 4, 9, 9] && X.rank == 4 && X.dtype == 'float32' && !X.constant",
        "W.constant && W.elements == 120 && W.bytes == 480 && W.name == 'w'",
        "B.given && size(B.value) == 4 && B.value.all(v, v == 0.0)",
        "attr.kernel_shape.all(k, k <= 5) && Y.shape[1] % attr.group == 0",
        "(attr.kernel_shape[0] - 1) * attr.dilations[0] + 1 <= 32",
    ],
)
def test_facts(expression: str) -> None:
    assert says(f'["{expression}"]') == "yes"


def test_what_does_not_hold_is_told() -> None:
    assert says("attr.group == 1") == "`attr.group == 1` does not hold"
    assert says("[attr.group == 2, X.rank == 3, B.rank == 2]") == (
        "`X.rank == 3` does not hold; `B.rank == 2` does not hold"
    )
    assert says("[{expr: attr.group == 4, reason: four groups at a time}]") == "four groups at a time"


def test_what_is_not_known_is_told_as_that_whatever_the_reason() -> None:
    text = "g (float[N,3] x) => (float[N,3] y) { y = Relu (x) }"
    assert says("[{expr: 'X.shape[0] < 4', reason: small batches}]", text, "Relu") == (
        "`X.shape[0] < 4` cannot be worked out: X.shape[0] is not fixed (--dim N=SIZE)"
    )
    assert says("X.elements < 4", text, "Relu") == (
        "`X.elements < 4` cannot be worked out: X.shape[0] is not fixed (--dim N=SIZE)"
    )


def test_what_is_not_known_is_no_reason_beside_one_that_is() -> None:
    row = "g (float[1,4,9] x) => (float[1,4,7] y) <float[4,4,3] w> { y = Conv (x, w) }"
    where = "where: ['attr.pads[2] == 0', 'X.shape[1] == 3']"
    image = f"[{{op: Conv, tensors: {{X: {{rank: 4}}}}, {where}}}]"
    assert verdict(row, image) == "Conv: X has rank 3; supported: 4; `X.shape[1] == 3` does not hold"
    undecided = "`attr.pads[2] == 0` cannot be worked out: attr.pads[2] is not there"
    assert f"; {undecided}" in verdict(row, f"[{{op: Conv, {where}}}]")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("B.shape[0] == 4", "B is not given"),
        ("X.shape[X.rank - 2] > 1 && X.shape[3] > 0", "X.shape[3] is not there: X has"),
        ("X.shape[-1] > 1", "X.shape[-1] is not there: elements are counted from 0"),
        ("X.value[0] == 1.0", "X.value is not known"),
        ("W.quantized.bytes < 9", "W.quantized is not known"),
        ("(has(B.shape) && B.rank == 4) || W.value[9] > 1.0", "W.value[9] is not there"),
        ("!B.given || B.rank == 1 ? W.shape[2] > 3 : true", "W.shape[2] is not there"),
        ("X.shape.all(d, d > 3)", "X.shape[1] is not fixed"),
        ("has(attr.nothing) || X.bytes > 3", "X.shape[1] is not fixed"),
        ("inputs.all(t, t.shape[1] > 1)", "inputs[1].shape[1] is not fixed"),
        ("others.all(t, t.rank == 1)", "others[0].shape is not known"),
    ],
)
def test_what_cannot_be_worked_out_names_what_is_not_known(where: str, expected: str) -> None:
    facts = {
        "X": {"given": True, "shape": [4, None], "rank": 2},
        "W": {"given": True, "shape": [1, 2], "rank": 2, "value": [1.0, 2.0]},
        "B": {"given": False},
        "inputs": [{"given": True, "shape": [4, 4]}, {"given": True, "shape": [4, None]}],
        "others": [{"given": True}],
        "attr": {},
    }
    holds, said = compile_expression(where).decide(facts)
    expected = expected.replace("X has", "X.shape has 2 elements")
    assert holds is None
    assert said.startswith(f"`{where}` cannot be worked out: {expected}")


def test_parameters_that_are_left_out_and_variadic_ones() -> None:
    clip = "g (float[2] x, float m) => (float[2] y) { y = Clip (x, , m) }"
    assert says("'!min.given && max.given && max.rank == 0'", clip, "Clip") == "yes"
    concat = "g (float[2] x, float[3] z) => (float[5] y) { y = Concat <axis = 0> (x, z) }"
    both = "'inputs.size() == 2 && inputs.exists(i, i.shape[0] == 3)'"
    assert says(both, concat, "Concat") == "yes"
    assert says("'inputs.all(i, i.shape[0] == 3)'", concat, "Concat") == (
        "`inputs.all(i, i.shape[0] == 3)` does not hold"
    )


def installed(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Register check functions of this module."""
    points = [EntryPoint(name, value, CHECKS) for name, value in values.items()]
    add_entry_points(monkeypatch, points)


def odd_groups(facts: Mapping[str, Any]) -> str | None:
    return None if facts["attr"]["group"] % 2 else f"{facts['op']} has {facts['attr']['group']} groups"


def needs_bias(facts: Mapping[str, Any]) -> str:
    assert sorted(facts) == ["B", "W", "X", "Y", "attr", "domain", "name", "op", "opset"]
    assert len(facts) == 9
    return "" if facts["B"]["given"] else "no bias"


def failing(facts: Mapping[str, Any]) -> str:
    raise ValueError(facts["no\nsuch"] if "no" in facts else "a reason\nof two lines")


def wrong(_: Mapping[str, Any]) -> bool:
    return False


def test_check_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    here = __name__
    installed(
        monkeypatch,
        odd=f"{here}:odd_groups",
        bias=f"{here}:needs_bias",
        failing=f"{here}:failing",
        wrong=f"{here}:wrong",
    )
    assert verdict(CONV, "[{op: Conv, check: bias}]") == "yes"
    assert verdict(CONV, "[{op: Conv, check: odd}]") == "Conv: Conv has 2 groups"
    assert verdict(CONV, "[{op: Conv, check: failing}]") == (
        "Conv: check failing failed with ValueError: a reason of two lines"
    )
    assert verdict(CONV, "[{op: Conv, check: wrong}]") == "Conv: check wrong gave bool, not a text"


def test_a_check_function_is_asked_when_nothing_else_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, failing=f"{__name__}:failing")
    for other in ("attributes: {group: {max: 1}}", "where: attr.group == 1", "opset: {max: 9}"):
        assert "failing" not in verdict(CONV, f"[{{op: Conv, check: failing, {other}}}]")


def test_check_functions_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, odd_one=f"{__name__}:no_such", text="os:sep")
    content = {
        "target": "t",
        "cost_model": "dla",
        "dtype": "any",
        "ops": [{"op": "Relu", "check": "od_one"}],
    }
    assert lint(content) == [
        "ops[0].check: no such check 'od_one' (did you mean odd_one?); installed: odd_one, text"
    ]
    index = prepared("g (float[2] x) => (float[2] y) { y = Relu (x) }").index
    with pytest.raises(InputError, match=r"^check 'odd_one' of .* cannot be loaded: AttributeError"):
        annotate_graph(index, rules("[{op: Relu, check: odd_one}]"))
    with pytest.raises(InputError, match=r"^check 'text' of .* TypeError: str cannot be called$"):
        annotate_graph(index, rules("[{op: Relu, check: text}]"))


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("__import__('os').system('x')", "there is no function `__import__`"),
        ("X.__class__.__mro__ == 1 && open('x')", "there is no function `open`"),
        ("1 +", "at character 4: something is missing"),
        ("x" * 600, "has 600 characters, at most 500"),
        ("(" * 240 + "1" + ")" * 240, "more than 60 parts are nested in one another"),
    ],
)
def test_expressions_from_anywhere(source: str, complaint: str) -> None:
    try:
        said = compile_expression(source).explain_failure({})
    except ValueError as error:
        said = str(error)
    assert complaint in said
    assert said


def test_regular_expressions_are_linear() -> None:
    assert not matches("(a+)+$", "a" * 5000 + "b")  # a backtracking matcher never comes back
    with pytest.raises(ValueError, match=r"is not a regular expression: look-around"):
        compile_regex("(?=a)")
    with pytest.raises(ValueError, match=r"'\(' is not a regular expression: unclosed group$"):
        compile_regex("(")


def test_facts_of_a_rule_for_any_operator() -> None:
    ops = target("ops: [{op: '*', where: \"opset >= 17 && op != 'Relu'\"}]")
    index = prepared("g (float[2] x) => (float[2] y) { a = Neg (x)\n y = Relu (a) }").index
    assert [str(mark.verdict) for mark in annotate_graph(index, ops)] == [
        "yes",
        "Relu: `opset >= 17 && op != 'Relu'` does not hold",
    ]
