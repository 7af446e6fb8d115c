"""Expressions: unknown facts, the time they may take, and CEL's own package as a second opinion."""

from typing import Any

import cel
import pytest
from helpers.support import count_calls, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.support.expressions import NoValueError, compile_expression, evaluate

ATOMS = st.sampled_from(
    [
        *("X.shape[0]", "X.shape[1]", "X.shape[2]", "Y.shape[0]", "X.rank", "size(X.shape)", "attr.n"),
        *(
            "0",
            "1",
            "2",
            "3",
            "7",
            "-1",
            "X.elements",
            "Y.elements",
            "attr.f",
            "1.5",
            "'a'",
            "op",
            "[1, 2]",
        ),
        *("X.shape", "Y.shape", "[X.shape[0]]", "X.shape + Y.shape"),
    ]
)
NUMBERS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*/%"), inner),
        st.builds("(-{})".format, inner),
        st.builds("{}({})".format, st.sampled_from(["int", "double", "string", "size"]), inner),
        st.builds("{}.map(d, d {} {})".format, inner, st.sampled_from("+*"), inner),
        st.builds("{}.filter(d, d {} {})".format, inner, st.sampled_from(["==", "!=", "<"]), inner),
        st.builds("({} ? {} : {})".format, st.just("X.shape[0] == 1"), inner, inner),
    ),
    max_leaves=3,
)
COMPARISONS = st.builds(
    "{} {} {}".format, NUMBERS, st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in"]), NUMBERS
)
WALKED = st.builds(
    "{}.{}(d, d {} {})".format,
    st.sampled_from(["X.shape", "Y.shape", "[X.shape[0], 1]", "[1, 2]"]),
    st.sampled_from(["all", "exists", "exists_one", "existsOne"]),
    st.sampled_from(["==", "!=", "<", ">"]),
    ATOMS,
)
TYPES = ["bool", "int", "double", "string", "list"]
TYPED = st.builds(
    "(type({}) {} {})".format,
    ATOMS,
    st.sampled_from(["==", "!="]),
    st.sampled_from(TYPES),
)
CONDITIONS = st.recursive(
    st.one_of(COMPARISONS, WALKED, TYPED, st.sampled_from(["true", "false"])),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["&&", "||", "==", "!="]), inner),
        st.builds("!({})".format, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
    ),
    max_leaves=4,
)


def facts(x: list[int | None], y: list[int | None]) -> dict[str, Any]:
    """Return facts as they are of two tensors of some shapes."""
    found: dict[str, Any] = {"op": "Relu", "attr": {"n": 2, "f": 0.5}}
    for name, shape in (("X", x), ("Y", y)):
        found[name] = {"given": True, "shape": shape, "rank": len(shape)}
        if None not in shape:
            count = 1
            for extent in shape:
                count *= extent or 0
            found[name]["elements"] = count
    return found


@settings(max_examples=examples(1500), deadline=None)
@given(CONDITIONS)
def test_what_holds_of_the_unknown_holds_of_every_size(source: str) -> None:
    expression = compile_expression(source) if len(source) <= 500 else compile_expression("op == 'a'")
    holds, _ = expression.decide(facts([None, 2, None], [None, 2]))
    if holds is None:
        return
    for one in (1, 2, 3, 7, 8):
        for other in (1, 2, 5):
            known = facts([one, 2, other], [other, 2])
            assert expression.decide(known)[0] is holds, (source, one, other)


@settings(max_examples=examples(1500), deadline=None)
@given(st.one_of(CONDITIONS, NUMBERS))
def test_known_facts_give_what_cel_gives(source: str) -> None:
    known = facts([4, 2, 1], [3, 2])
    try:
        wanted = cel.compile(source).execute(known)
    except Exception:  # where CEL's package gives up, a part may decide here: `all` over [0, 1]
        return
    try:
        found = evaluate(compile_expression(source).tree, known)
        assert found == wanted or str(found) == str(wanted) == "nan", source
    except NoValueError as error:
        assert "have no order" in str(error), source  # of true and false there is none here


@pytest.mark.parametrize(
    "source",
    [
        *(
            "X.shape[0] != 1",
            "!(X.shape[0] == 1)",
            "X.shape[0] == 1 ? false : true",
            "X.shape == [1, 2, 3]",
        ),
        *(
            "!(X.shape[0] in [1, 2])",
            "!(1 in X.shape)",
            "X.shape.all(d, d != 7)",
            "X.shape != [1, 2, 3]",
        ),
        *("X.shape[0] == Y.shape[0]", "X.shape[0] == X.shape[2]", "!(7 in X.shape + [1])", "X != Y"),
        *("type(X.shape[0]) != int", "[X.shape[0]] != [1]", "X.shape.map(d, d).exists(d, d > 2)"),
        *("X.shape.filter(d, d == 1).size() == 0", "X.shape.exists_one(d, d == 2)", "X.elements != 3"),
    ],
)
def test_what_is_not_known_makes_nothing_hold(source: str) -> None:
    assert compile_expression(source).decide(facts([None, 2, None], [None, 2]))[0] is None


@pytest.mark.parametrize(
    "source",
    [
        *("X.shape[0] > 1 || X.rank == 3", "X.rank == 3 || X.shape[0] > 1", "X.shape.size() == 3"),
        *(
            "!(X.shape[0] > 1 && X.rank == 2)",
            "X.shape.exists(d, d == 2)",
            "2 in X.shape",
            "X.shape[1] == 2",
        ),
        *(
            "X.shape != [1, 3, 1]",
            "X.shape != Y.shape",
            "!has(X.elements)",
            "X.shape.map(d, 1).size() == 3",
        ),
    ],
)
def test_what_decides_without_the_unknown_counts(source: str) -> None:
    assert compile_expression(source).decide(facts([None, 2, None], [None, 2]))[0] is True


def tensor(number: int) -> dict[str, Any]:
    return {"name": f"x{number}", "shape": [1, 2, 3, 4], "rank": 4, "dtype": "float32"}


LARGE: dict[str, Any] = {
    "B": {"value": [float(i) for i in range(1024)], "name": "n" * 1_000_000},
    "inputs": [tensor(i) for i in range(3000)],
    "attr": {"v": list(range(100_000)), "s": ["a" * 100] * 100_000, "w": ["a" * 100_000] * 100},
    "name": "a" * 1_000_000,
}


@pytest.mark.parametrize(
    "source",
    [
        "B.value.existsOne(a, B.value.existsOne(b, B.value.existsOne(c, a + b + c == 1.0)))",
        "B.value.map(a, B.value.map(b, a)).size() > 3",
        "B.value.map(a, B.value) == B.value.map(a, B.value)",
        "B.value.map(a, B.value.map(b, B.value))",
        "B.value.filter(a, a in B.value).size() > 2000",
        "B.value.map(a, B.value)",
        "inputs.all(t, inputs.all(u, t.rank == u.rank))",
        "inputs.map(t, inputs.map(u, inputs)).size() < 2",
        "attr.v.all(a, a >= 0)",
        "attr.v.all(a, string(a) == 'x' || true)",
        "attr.v.map(a, attr.v + attr.v).size() < 3",
        "attr.v.exists(a, name.contains('aaaaaaaab'))",
        "attr.v.exists(a, (name + name).size() < 3)",
        "attr.s.exists(a, a == name)",
        "attr.s.exists(a, a.matches('((a{1,100}){1,100}){1,10}b'))",
        "attr.s.exists(a, a.matches('[\\\\p{L}]{40}b'))",
        "attr.s.exists(a, a.matches('(a|aa|aaa|aaaa)*b'))",
        "attr.s.exists(a, a.matches('(a{20}){20}b'))",
        "attr.w.exists(a, a.matches('(.*a){30}b'))",
        "name.matches('(a{30}){30}b')",
        "name.matches('.*a.*a.*a.*a.*a.*a.*b')",
        "[name].all(a, [a+a].all(b, [b+b].all(c, [c+c].all(d, [d+d].all(e, [e+e].all(f, f == ''))))))",
    ],
)
def test_no_evaluation_takes_long(source: str) -> None:
    expression = compile_expression(source)
    verdicts: list[object] = []
    count_calls(lambda: verdicts.append(expression.decide(LARGE)[0]), most=600_000)
    assert verdicts[0] is not True


def test_all_of_three_thousand_inputs_can_be_asked() -> None:
    assert compile_expression("inputs.all(t, t.rank == 4 && t.dtype == 'float32')").decide(LARGE)[0]
    assert compile_expression("B.value.all(v, v >= 0.0 && v <= 1023.0)").decide(LARGE)[0]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("X.shape.all(d, d < 3) && W.rank == 1", {"X", "W"}),
        ("op == 'Relu' && X.shape.all(op, op > 0)", {"op", "X"}),
        ("X.shape.all(op, op > 0)", {"X"}),
        ("name != '.all(X,' && X.rank == 1", {"name", "X"}),
        ("type(X.rank) == int && type(X.rank) in [int, double]", {"X"}),
        ("int == 3", {"int"}),  # as a pattern may call it
    ],
)
def test_names(source: str, names: set[str]) -> None:
    assert compile_expression(source).names == names


def test_a_walk_hides_a_fact_only_within() -> None:
    known = {"op": "Relu", "X": {"shape": [1, 2]}}
    assert compile_expression("X.shape.all(op, op > 0) && op == 'Relu'").decide(known)[0]
    assert compile_expression("type(X.shape) == list && type(X.shape[0]) == int").decide(known)[0]


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("X.shape[0] == null", "there is no null; `has(...)` asks whether something is known"),
        ("X.rank == 1 // && false", "at character 13: `// && false` is not allowed"),
        ("{'a': 1}.a == X.rank", "at character 1: `{'a': 1}.a == X.rank` is not allowed"),
        ("1u == X.rank", "at character 2: `u` is out of place"),
        ("X.rank.foo(1) == 2", "there is no method `.foo` with 1 arguments"),
        ("X.shape.all(1, true)", "`.all` takes a name for the elements"),
        ("optional.of(X.rank) == 1", "there is no method `.of` with 1 arguments"),
        ("siz(X.shape) == 1", "there is no function `siz` (did you mean size?)"),
        ("1 +", "at character 4: something is missing"),
        ("(X.rank == 1", "at character 13: `)` is missing"),
        ("X.rank == 1)", "at character 12: `)` is out of place"),
        ("X..rank", "at character 3: a name is missing before `.`"),
        ("a.in == 1", "at character 3: a name is missing before `in`"),
        ("[1, 2", "at character 6: `]` is missing"),
        ("size(X.shape,) == 1", "at character 14: `)` is out of place"),
        ("'abc", "at character 1: `'abc` is not allowed"),
        ("X.rank = 1", "at character 8: `= 1` is not allowed"),
        ("for == 1", "at character 1: `for` is a reserved word"),
        ("x ? y", "at character 6: `:` is missing"),
        ("", "at character 1: something is missing"),
        (r"op == 'a\q'", r"`\q` is no escape sequence"),
        (r"op == '\U00110000'", r"`\U00110000` is no character"),
        (r"op == '\ud800'", r"`\ud800` is no character"),
        ("has(X)", "`has` takes a member"),
        ("9" * 40 + " == X.rank", "beyond the whole numbers of 64 bits"),
        ("-" * 200 + "1 == X.rank", "more than 60 parts are nested in one another"),
        ("-" * 400 + "1", "more than 60 parts are nested in one another"),
        ("!" * 499 + "a", "more than 60 parts are nested in one another"),
        ("1" + "+1" * 200 + " == X.rank", "more than 60 parts are nested in one another"),
        ("(" * 240 + "1" + ")" * 240, "more than 60 parts are nested in one another"),
        ("[" * 240 + "1" + "]" * 240, "more than 60 parts are nested in one another"),
        ("a?1:" * 120 + "1", "more than 60 parts are nested in one another"),
        ("a" + ".b" * 200, "more than 60 parts are nested in one another"),
        ("a" + "[0]" * 150, "more than 60 parts are nested in one another"),
        ("size(" * 80 + "a" + ")" * 80, "more than 60 parts are nested in one another"),
    ],
)
def test_what_is_no_condition(source: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"is not a condition: ") as raised:
        compile_expression(source)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (r"'\n\x41\u0042\U00000043\104\'\\'", "\nABCD'\\"),
        ("r'\\n' + \"b\" + \"\"\"c\"\"\" + '''d'e'''", "\\nbcd'e"),
        ("[1, 2,]", [1, 2]),
        ("[-9223372036854775808, 0x1F]", [-(1 << 63), 31]),
        ("[-0x8000000000000000, - 0x10, 000000000000000000000007]", [-(1 << 63), -16, 7]),
        ("[.5, 1e3, 2.5E-1]", [0.5, 1000.0, 0.25]),
    ],
)
def test_literals(source: str, value: object) -> None:
    assert evaluate(compile_expression(source).tree, {}) == value
