"""The pattern language: the parsed lines, and the messages about texts that cannot be parsed."""

import pytest

from byoc.patterns import Pattern, PatternForm, PatternLine, parse_pattern
from byoc.patterns._pattern_syntax import PatternOperand


def test_lines_operators_and_operands() -> None:
    text = """
        # a comment, then a line with spaces wherever they may be
        c=Conv( x ,w, b? )
          a = Add | Sum(c, x)

        _y1 = Relu(a)
    """
    pattern = parse_pattern("name", text)
    assert pattern == Pattern(
        "name",
        (
            PatternForm(
                (
                    PatternLine(
                        ("c",),
                        ("Conv",),
                        (PatternOperand("x"), PatternOperand("w"), PatternOperand("b", True)),
                        3,
                    ),
                    PatternLine(("a",), ("Add", "Sum"), (PatternOperand("c"), PatternOperand("x")), 4),
                    PatternLine(("_y1",), ("Relu",), (PatternOperand("a"),), 6),
                ),
                ("_y1",),
            ),
        ),
    )
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
