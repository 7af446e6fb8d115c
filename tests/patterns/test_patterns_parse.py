"""The pattern language: the parsed lines, and the messages about texts that cannot be parsed."""

import re
from dataclasses import astuple

import pytest

from byoc.patterns import parse_pattern


def operand(name: str, optional: bool = False) -> tuple[object, ...]:
    """Return the fields of an operand that is neither constant nor a literal."""
    return (name, optional, False, None, False)


def test_lines_operators_and_operands() -> None:
    text = """
        # a comment, then a line with spaces wherever they may be
        c=Conv( x ,w, b? )
          a = Add | Sum(c, x)

        _y1 = Relu(a)
    """
    pattern = parse_pattern("name", text)
    (form,) = pattern.forms
    assert (pattern.name, form.outputs) == ("name", ("_y1",))
    assert [astuple(line) for line in form.nodes] == [
        (("c",), ("Conv",), (operand("x"), operand("w"), operand("b", True)), 3, (), False, False),
        (("a",), ("Add", "Sum"), (operand("c"), operand("x")), 4, (), False, False),
        (("_y1",), ("Relu",), (operand("a"),), 6, (), False, False),
    ]
    assert pattern.forms[0].root.output == "_y1"
    assert pattern.inputs == ("x", "w", "b")


def test_no_operands() -> None:
    assert parse_pattern("p", "r = RandomNormal()").inputs == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the pattern is empty"),
        ("\n  # nothing\n", "the pattern is empty"),
        ("Relu(x)", "line 1: 'Relu(x)' is not of the form y = Op(a, b?)"),
        ("y = Relu(x) z", "line 1: 'y = Relu(x) z' is not of the form y = Op(a, b?)"),
        ("y = Relu(Neg(x))", "line 1: 'y = Relu(Neg(x))' is not of the form y = Op(a, b?)"),
        ("y z = Split(x)", "line 1: 'y z = Split(x)' is not of the form y = Op(a, b?)"),
        ("y = A||B(x)", "line 1: 'y = A||B(x)' is not of the form y = Op(a, b?)"),
        ("1y = Relu(x)", "line 1: '1y = Relu(x)' is not of the form y = Op(a, b?)"),
        ("y = Relu(x??)", "line 1: 'x??' is not the name of an operand"),
        ("y = Relu(1a)", "line 1: '1a' is not the name of an operand"),
        ("y = Clip(x,,m)", "line 1: '' is not the name of an operand"),
        ("y = Clip(x,)", "line 1: '' is not the name of an operand"),
        ("\ny = Relu(y)", "line 2: 'y' is read before it is made"),
        ("y = Relu(x)\ny = Neg(y)", "line 2: 'y' is made twice"),
        ("a = Relu(b)\nb = Neg(a)", "line 1: 'b' is read before it is made"),
        (
            "a = Relu(x)\n\ny = Neg(x)",
            "line 1: nothing reads 'a', and only the last line makes the output",
        ),
        (
            "y = Relu(x)\nreturn y\nz = Neg(y)\nw = Neg(z)",
            "line 3: nothing can follow the return",  # which is said once
        ),
        ("y = LeakyRelu <alpha = 2..1> (x)", "line 1: alpha: the range 2..1 is empty"),
        ("y = LeakyRelu <alpha = 1..2|5..4> (x)", "line 1: alpha: the range 5..4 is empty"),
        ("y = LeakyRelu <alpha = 3..4|1..2|2..1> (x)", "line 1: alpha: the range 2..1 is empty"),
        ("y = LeakyRelu <alphä = 1> (x)", "line 1: 'alphä = 1' is not of the form attribute = value"),
        ("y = LeakyRelu <alpha> (x)", "line 1: 'alpha' is not of the form attribute = value"),
        ("y = LeakyRelu <alpha = > (x)", "line 1: 'alpha =' is not of the form attribute = value"),
        ("a = Relu(x)\ny = Add(x, a?)", "line 2: 'a?' is made by a line, so it cannot be left out"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_pattern("p", text)
    assert str(caught.value) == message


def test_all_mistakes_of_a_text_at_once() -> None:
    with pytest.raises(ValueError, match=r"^line 1: .*\nline 3: .*\nline 4: .*$"):
        parse_pattern("p", "y := Relu(x)\n\nz = Relu(1a)\nRelu")


def test_ranges_of_an_attribute_in_any_order() -> None:
    pattern = parse_pattern("p", "y = LeakyRelu <alpha = 3..4|1..2|0.5|absent> (x)")
    ((test,),) = (line.attributes for line in pattern.lines)
    assert (test.name, test.ranges, test.values, test.absent) == (
        "alpha",
        ((3, 4), (1, 2)),
        (0.5,),
        True,
    )
    assert parse_pattern("p", "y = LeakyRelu <alpha = 2..2> (x)").lines[0].attributes[0].ranges == (
        (2, 2),
    )


@pytest.mark.parametrize(
    ("written", "values", "ranges"),
    [
        ("1", (1,), ()),
        ("+1", (1,), ()),
        ("-7", (-7,), ()),
        ("1.", (1.0,), ()),
        (".5", (0.5,), ()),
        ("1e3", (1000.0,), ()),
        ("-inf", (float("-inf"),), ()),
        ("9223372036854775807", (2**63 - 1,), ()),
        ("-9223372036854775808", (-(2**63),), ()),
        ("99999999999999999999", (10**20 - 1,), ()),  # of 20 digits
        ("100000000000000000000", (1e20,), ()),  # of 21
        ("[]", ((),), ()),
        ("[1]", ((1,),), ()),
        ("[1, 2.5] | 3", ((1, 2.5), 3), ()),
        ("[[1]", "a number", ()),
        ("[1", "a number", ()),
        ("1]", "a number", ()),
        ("1..2", (), ((1, 2),)),
        ("1 .. 1", (), ((1, 1),)),
        ("-inf..0.5 | 4", (4,), ((float("-inf"), 0.5),)),
        ("2..1", "is empty", ()),
        ("1..", "a number", ()),
        ('"1..2"', ("1..2",), ()),
        ("'a|b' | \"[c]\"", ("a|b", "[c]"), ()),
        ('"a', "is not of the form", ()),
        ("same", 'a text is in quotes: "same"', ()),
        ("same_upper", 'a text is in quotes: "same_upper"', ()),
        ("a1", "'a1' is not a number", ()),
        ("absent", (), ()),
    ],
)
def test_values_of_attributes_have_the_types_that_are_written(
    written: str, values: tuple[object, ...] | str, ranges: tuple[object, ...]
) -> None:
    text = f"y = acme.Op<a = {written}>(x)"
    if isinstance(values, str):
        with pytest.raises(ValueError, match=re.escape(values)) as caught:
            parse_pattern("p", text)
        assert ("in quotes" in str(caught.value)) == ("in quotes" in values)
        return
    (test,) = parse_pattern("p", text).forms[0].nodes[0].attributes
    # By their text: 1 is not 1.0 here.
    assert (repr(test.values), repr(test.ranges)) == (repr(values), repr(ranges))
    assert (test.absent, test.text) == (written == "absent", written)


@pytest.mark.parametrize(
    ("written", "value", "vector", "optional"),
    [
        ("1", (1,), False, False),
        ("1?", (1,), False, True),
        ("-2.5", (-2.5,), False, False),
        ("100000000000000000000", (1e20,), False, False),
        ("[]", (), True, False),
        ("[1, -inf]?", (1, float("-inf")), True, True),
        ("[1", "is not the name of an operand", False, False),
        ("1]", "is not the name of an operand", False, False),
        ("[a]", "'a' is not a number", False, False),
    ],
)
def test_literals_have_the_types_that_are_written(
    written: str, value: tuple[object, ...] | str, vector: bool, optional: bool
) -> None:
    text = f"y = acme.Op(x, {written})"
    if isinstance(value, str):
        with pytest.raises(ValueError, match=value):
            parse_pattern("p", text)
        return
    operand = parse_pattern("p", text).forms[0].nodes[0].operands[1]
    assert repr(operand.value) == repr(value)
    assert (operand.constant, operand.vector, operand.optional) == (True, vector, optional)
    assert operand.name == "y_1"
