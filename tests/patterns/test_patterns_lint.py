"""Messages about patterns with unknown operators, and about patterns that can never match."""

from dataclasses import astuple

import pytest

from byoc.patterns import parse_pattern


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y = Convv(x, w)", "line 1: ONNX has no operator 'Convv' (did you mean Conv?)"),
        ("y = Relu(x, b)", "line 1: the number of operands of Relu is 2, at most 1 is possible"),
        ("y = Relu(x, b?)", "line 1: the number of operands of Relu is 2, at most 1 is possible"),
        ("y = Clip|Relu(x, b)", "line 1: the number of operands of Relu is 2, at most 1 is possible"),
        ("y = Conv(x)", "line 1: the number of operands of Conv is 1, at least 2 is possible"),
        ("y = Relu(x, ...)", "line 1: '...': Relu can have no further operands"),
        ("a, b = Relu(x)", "line 1: the number of outputs of Relu is 2, at most 1 is possible"),
        (
            "y = Conv <kernal_shape = 1> (x, w)",
            "line 1: Conv has no attribute 'kernal_shape' (did you mean kernel_shape?)",
        ),
        ("y = Relu|Tanh <alpha = 1> (x)", "line 1: Relu and Tanh have no attribute 'alpha'"),
        ("y = Elu <alpha = 1, alpha = 2> (x)", "line 1: alpha is there twice"),
        ("y = Elu <alpha = big> (x)", "line 1: 'big' is not a number; a text is in quotes: \"big\""),
        ("y = Elu <alpha> (x)", "line 1: 'alpha' is not of the form attribute = value"),
        ("y = Elu <alpha = 2..1> (x)", "line 1: alpha: the range 2..1 is empty"),
        ("y = Relu|Relu(x)", "line 1: 'Relu' is there twice"),
        ("y = *|Relu(x)", "line 1: '*' stands for any operator, so there are no others beside it"),
        ("y = If(x)", "line 1: If has bodies, and no pattern matches a node that has some"),
        (
            "y = Constant()",
            "line 1: a Constant is never matched: write a name with '!', or its value",
        ),
        (
            "a = Mul(w!, 0.5)\ny = Add(x, a)",
            "line 1: all operands are constants, and what is known before the model runs is never",
        ),
        ("a = Relu(x)\ny = Neg(z)\nreturn a, y", "line 1: 'a' is not connected to the last line"),
        ("a = Relu(x)\nb = Neg(a)\nreturn a", "line 2: nothing reads 'b', and it is not returned"),
        ("a = Relu(x)\nreturn b", "return: no line makes 'b'"),
        ("a = Relu(x)\nreturn a, a", "return: 'a' is there twice"),
        ("a = Relu(x)\nreturn a\nb = Neg(a)", "line 3: nothing can follow the return"),
        ("_ = Relu(x)", "line 1: no output has a name"),
        ("a = Relu(_)", "line 1: '_' is not the name of an operand"),
        ("a = Relu(x)\ny = Conv(a, a!)", "line 2: 'a!' is made by a line, so it is not a constant"),
        ("a = Add(x, 1)\ny = Add(a, a_1)", "line 1: the name 'a_1' is kept for a literal"),
        ("a = Relu(x)?\nb = Neg(a)?", "at least one line must not be optional"),
        ("a = Relu(x?)?\nb = Neg(a)", "line 1: the first operand of an optional line takes its place"),
        ("a, b = Split(x)?\nc = Add(a, b)", "line 1: an optional line makes one output"),
        ("a = Mul(x, 1e)", "line 1: '1e' is not the name of an operand"),
        ("a = Reshape(x, [1, x])", "line 1: 'x' is not a number; a text is in quotes: \"x\""),
    ],
)  # fmt: skip
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_pattern("p", text)
    assert message in str(caught.value)


def test_variants_and_conditions_name_their_places() -> None:
    with pytest.raises(ValueError) as caught:
        parse_pattern("p", ["y = Relu(x)", "y = Relu(x, z)"], ["x.rank ==", ("q.rank == 4", "why")])
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == [
        "pattern[1]",
        "where[0]",
    ]
    with pytest.raises(ValueError, match=r"where\[0\]: nothing in the pattern is called 'q'"):
        parse_pattern("p", "y = Relu(x)", ["q.rank == 4"])


def test_no_pattern_at_all() -> None:
    with pytest.raises(ValueError, match="the pattern is empty"):
        parse_pattern("p", [])


def test_what_a_line_says() -> None:
    text = (
        """y = Conv<group = 1|2..4|absent, auto_pad="SAME, (UPPER)", pads = [0, 0]> (x, w!, b?!)  # it"""
    )
    (line,) = parse_pattern("p", text).lines
    assert [astuple(test) for test in line.attributes] == [
        ("group", (1,), ((2, 4),), True, "1|2..4|absent"),
        ("auto_pad", ("SAME, (UPPER)",), (), False, '"SAME, (UPPER)"'),
        ("pads", ((0, 0),), (), False, "[0, 0]"),
    ]
    # The name; whether it is optional, and constant; the value; whether that is a list.
    assert [astuple(operand) for operand in line.operands] == [
        ("x", False, False, None, False),
        ("w", False, True, None, False),
        ("b", True, True, None, False),
    ]


def test_literals() -> None:
    (line,) = parse_pattern("p", "y = Clip(x, -1e-3?, [+inf, 2])").lines
    assert [astuple(operand) for operand in line.operands[1:]] == [
        ("y_1", True, True, (-0.001,), False),
        ("y_2", False, True, (float("inf"), 2), True),
    ]


def test_an_operator_of_another_domain_is_taken_on_trust() -> None:
    assert parse_pattern("p", "y = com.acme.Fused <mode = 'x'> (x, y1, ...)").lines[0].ops == (
        "com.acme.Fused",
    )


def test_hostile_texts_take_no_time() -> None:
    for text in (
        "y = " + "A|" * 9000,
        "y = Relu(" + "[" * 9000,
        "y = Relu <a = '" + "x" * 9000,
        "#" * 19_000,
    ):
        with pytest.raises(ValueError):
            parse_pattern("p", text)
    with pytest.raises(ValueError, match="characters"):
        parse_pattern("p", "y" * 20_001)
    with pytest.raises(ValueError, match="lines"):
        parse_pattern("p", "\n".join(f"a{i}x = Relu(x)" for i in range(101)))
