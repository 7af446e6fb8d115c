"""Conditions on dimensions that were given as ranges: they must hold for every size of the range."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from helpers.ruling import rules
from helpers.support import parse

from byoc.model import Dimensions, prepare_model
from byoc.rules import annotate_graph
from byoc.support.expressions import NumberRange, compile_expression

TEXT = "g (float[N,8] x, float[M,8] z) => (float[L,8] y) { y = Concat <axis = 0> (x, z) }"


def say(where: str, **dims: int | str) -> str:
    model = prepare_model(parse(TEXT), "test", given=Dimensions(dims))
    (mark,) = annotate_graph(model.index, rules(f"[{{op: Concat, where: ['{where}']}}]"))
    return str(mark.verdict).removeprefix("Concat: ")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("inputs[0].shape[0] <= 2048", "yes"),
        ("inputs[0].shape[0] < 2048", "inputs[0].shape[0] can be anything from 1 to 2048"),
        ("inputs[0].shape[0] >= 1 && inputs[0].shape[0] != 0", "yes"),
        ("inputs[0].shape[0] == 1024", "inputs[0].shape[0] can be anything from 1 to 2048"),
        ("inputs[0].shape[0] != 1024", "inputs[0].shape[0] can be anything from 1 to 2048"),
        ("!(inputs[0].shape[0] in [0, 4096])", "yes"),
        ("inputs[0].shape[0] in [1, 2048]", "a number in it can be anything from 1 to 2048"),
        ("inputs[0].elements <= 16384 && inputs[0].bytes <= 65536", "yes"),
        ("inputs[0].bytes < 65536", "inputs[0].bytes can be anything from 32 to 65536"),
        ("concat_result.shape[0] <= 2148 && concat_result.shape[0] >= 11", "yes"),
        ("concat_result.shape[0] <= 2147", "concat_result.shape[0] can be anything from 11 to 2148"),
        ("inputs.all(t, t.shape[0] * t.shape[1] < 16385)", "yes"),
        ("inputs[0].shape[0] % 2 == 0", "inputs[0].shape[0] can be anything from 1 to 2048"),
        ("inputs[0].shape[0] > 4096", "`inputs[0].shape[0] > 4096` does not hold"),
        ("has(inputs[0].elements)", "`has(inputs[0].elements)` does not hold"),
        ("inputs[0].shape == [5, 8]", "a number in it can be anything from 1 to 2048"),
        ("inputs[0].shape != [5, 9]", "yes"),
    ],
)
def test_a_condition_holds_for_the_whole_range(where: str, expected: str) -> None:
    said = say(where, N="1..2048", M="10..100")
    assert said == expected or f"cannot be worked out: {expected}" in said


def test_the_open_dimension_is_named() -> None:
    assert say("inputs[0].shape[0] < 4", N="1..8", M=2) == (
        "`inputs[0].shape[0] < 4` cannot be worked out: inputs[0].shape[0] can be anything from 1 to 8 "
        "(--dim N=SIZE)"
    )
    assert say("inputs[0].shape[0] < 4", N="2..3", M="1..2048") == "yes"
    assert say("inputs[0].shape[0] == 3", N="3..3") == "yes"
    assert "shape[0] is not fixed (--dim M=SIZE --dim N=SIZE)" in say("inputs[1].shape[0] < 4", N="2..3")


FORMS = [
    "a {} b", "a + b {} c", "a - b {} c", "a * b {} c", "a / c {} b", "a % c {} b", "-a {} b - c",
    "a * (b - c) {} c", "(a - c) / (b - 9) {} c", "[a, b] == [c, 3] || a {} c",
    "a {} b ? b {} c : a {} c",
    "double(a) / 2.0 {} 2.0", "a in [b, c] || !(a {} c)", "[a, b].all(v, v {} c)", "(a - 5) % 4 {} c",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "==", "!="])
def test_an_answer_for_ranges_is_that_for_each_number(form: str, operator: str) -> None:
    expression = compile_expression(form.replace("{}", operator))
    spans = [(0, 2), (3, 3), (2, 5), (6, 8)]
    answers = set()
    for each in product(spans, repeat=2):
        facts: dict[str, Any] = {"c": 3}
        for name, (low, high) in zip("ab", each, strict=True):
            facts[name] = low if low == high else NumberRange(low, high)
        answer = expression.decide(facts)[0]
        answers.add(answer)
        if answer is not None:
            numbers = (range(low, high + 1) for low, high in each)
            found = {_decide(expression, {"a": a, "b": b, "c": 3}) for a, b in product(*numbers)}
            assert found == {answer}
    assert answers - {None}


def _decide(expression: Any, facts: Mapping[str, Any]) -> bool | None:
    answer: bool | None = expression.decide(facts)[0]
    return answer
