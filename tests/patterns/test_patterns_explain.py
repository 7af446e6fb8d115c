"""Near misses: the reason reported for the deepest partial match."""

import pytest
from helpers.support import prepared

from byoc.errors import YES, refuse
from byoc.patterns import Mark, NearMiss, Pattern, find_near_misses, parse_pattern

ONES = ",".join("1" * 16)
HEAD = f"""g (float[1,4,2,2] x, float[1,4,2,2] z) => (float[1,4,2,2] out)
<float[4,4,1,1] w = {{{ONES}}}, float[4,2,1,1] g = {{1,1,1,1,1,1,1,1}}, float[4] b = {{1,1,1,1}},
 int64[1] one1 = {{1}}, float[9, 1, 1, 1] nine = {{1,2,3,4,5,6,7,8,9}},
 float half = {{0.5}}, float one = {{1}}, float root = {{1.4142}}> {{"""
NORM = "n0 = BatchNormalization (c0, b, b, b, b)"
CONV_BN_RELU = parse_pattern(
    "conv_bn_relu",
    "c = Conv <group = 1> (x, w!, b?)\nn = BatchNormalization(c, s, bias, mean, var)\ny = Relu(n)",
)
GELU = parse_pattern(
    "gelu", "d = Div(x, 1.4142)\ne = Erf(d)\na = Add(e, 1)\nm = Mul(x, a)\ny = Mul(m, 0.5)"
)
NOTHING = Mark(refuse("no"))


def misses(body: str, pattern: Pattern, node: int | None = None, **special: Mark) -> list[NearMiss]:
    index = prepared(f"{HEAD}\n{body}\n}}").index
    marks = [special.get(n.output[0], Mark(YES, "ops[0]")) for n in index.nodes]
    return find_near_misses(index, [pattern], marks, node)


@pytest.mark.parametrize(
    ("body", "pattern", "said"),
    [
        (
            f"c0 = Conv (x, w)\n {NORM}\n r0 = Relu (n0)\n out = Add (r0, n0)",
            CONV_BN_RELU,
            "matched to its second line; the output of BatchNormalization 'n0' has another consumer, "
            "Add 'out'",
        ),
        (
            f"c0 = Conv (x, w)\n {NORM}\n p0 = Abs (n0)\n out = Neg (p0)",
            CONV_BN_RELU,
            "matched to its second line; its next line wants Relu, and BatchNormalization 'n0' is read "
            "by Abs 'p0'",
        ),
        (
            f"c0 = Conv <group = 2> (x, g)\n {NORM}\n out = Relu (n0)",
            CONV_BN_RELU,
            "matched 2 of its 3 lines; Conv 'c0': group is 2, the pattern wants 1",
        ),
        (
            f"k = Identity (x)\n c0 = Conv (k, w)\n {NORM}\n out = Identity (n0)",
            CONV_BN_RELU,
            "matched to its second line; its next line wants Relu, and BatchNormalization 'n0' is read "
            "by Identity 'out'",
        ),
        (
            "d = Div (x, half)\n e = Erf (d)\n a = Add (e, one)\n m = Mul (x, a)\n out = Mul (m, half)",
            GELU,
            "matched 4 of its 5 lines; Div 'd': 'half' is 0.5, the pattern wants 1.4142",
        ),
        (
            "d = Div (x, root)\n e = Erf (d)\n a = Add (e, one)\n m = Mul (x, a)\n out = Mul (m, z)",
            GELU,
            "matched to its fourth line; Mul 'out': 'z' is no constant, the pattern wants 0.5",
        ),
        (
            "d = Div (x, root)\n e = Erf (d)\n a = Add (e, one)\n m = Mul (z, a)\n out = Mul (m, half)",
            GELU,
            "matched 4 of its 5 lines; Div 'd': 'x' is 'z' and 'x'",
        ),
        (
            "c0 = Conv (x, w)\n out = Relu (c0)",
            parse_pattern(
                "p", "c = Conv(x, w)\nn = Neg(c)?\ny = Relu(n)", [("n.given", "it has to be negated")]
            ),
            "matched to its last line; where: it has to be negated",
        ),
        (
            "c0 = Conv (x, w)\n out = Relu (c0)",
            parse_pattern(
                "p", "c = Conv(x, w)\ny = Relu(c)", check=lambda facts: f"no {facts['y']['op']} here"
            ),
            "matched to its last line; check: no Relu here",
        ),
        (
            "c0 = Conv (x, w)\n out = Relu (c0)",
            parse_pattern("p", "c = Conv(x, w)\ny = Relu(c)", check=lambda facts: facts["nothing"]),
            "matched to its last line; check: failed with KeyError: 'nothing'",
        ),
        (
            "a0 = Neg (x)\n b0 = Exp (a0)\n y0 = Add (a0, b0)\n out = Mul (a0, y0)",
            parse_pattern("p", "a = Neg(x)\ny = Add(a, z)\nreturn a, y"),
            "matched to its last line; a path leaves it and comes back through Exp 'b0'",
        ),
        (
            "v, i = TopK (x, one1)\n f = Cast <to = 1> (i)\n out = Neg (f)",
            parse_pattern("p", "v, i = TopK(x, k)\nf = Cast(i)\ny = Relu(f)\nreturn v, y"),
            "matched to its second line; its next line wants Relu, and Cast 'f' is read by Neg 'out'",
        ),
        (
            "n0 = Neg (x)\n v, i = TopK (n0, one1)\n out = Cast <to = 1> (i)",
            parse_pattern("p", "n = Neg(x)\nv, i = TopK(n, k)\ny = Abs(i)\nreturn v, y"),
            "matched to its second line; its next line wants Abs, and TopK 'v' is read by Cast 'out'",
        ),
        (
            "d0 = Dropout (x)\n out = Neg (d0)",
            parse_pattern("p", "d, m = Dropout(x)\ny = Neg(d)\nreturn m, y"),
            "matched 1 of its 2 lines; Dropout 'd0': it makes 1, the pattern wants 2",
        ),
        (
            "d = Div (x, root)\n e = Erf (d)\n out = Abs (e)",
            parse_pattern("p", "d = Div(x, 1.4142)\ne = Erf(d)\nn = Neg(e)?\ny = Relu(n)"),
            "matched to its second line; its next line wants Neg or Relu, and Erf 'e' is read by Abs "
            "'out'",
        ),
        (
            "c0 = Conv (x, w)\n out = Add (c0, nine)",
            parse_pattern("p", "c = Conv(x, w)\ny = Add(c, [1, 2, 3])"),
            "matched to its first line; Add 'out': 'nine' is a constant of 9 elements, the pattern "
            "wants [1, 2, 3]",
        ),
        (
            "c0 = Conv <strides = [2, 1]> (x, w)\n out = Relu (c0)",
            parse_pattern("p", "c = Conv <strides = [2, 2]> (x, w)\ny = Relu(c)"),
            "matched 1 of its 2 lines; Conv 'c0': strides is [2, 1], the pattern wants [2, 2]",
        ),
    ],
)
def test_what_was_in_the_way(body: str, pattern: Pattern, said: str) -> None:
    assert [miss.reason for miss in misses(body, pattern)] == [said]


def test_a_node_that_the_rules_refuse() -> None:
    body = f"c0 = Conv (x, w)\n {NORM}\n out = Relu (n0)"
    (miss,) = misses(body, CONV_BN_RELU, out=NOTHING)
    assert miss.reason == "matched to its second line; Relu 'out' is not taken by the rules: no"
    assert (miss.pattern, miss.node, miss.matched, miss.lines) == ("conv_bn_relu", 1, 2, 3)
    assert (miss.nodes, miss.blocked) == ({0, 1}, 2)
    assert str(miss) == f"conv_bn_relu {miss.reason}"


def test_what_matched_is_no_miss() -> None:
    assert misses(f"c0 = Conv (x, w)\n {NORM}\n out = Relu (n0)", CONV_BN_RELU) == []


def test_nodes_in_another_composite_are_no_misses_unless_asked_for() -> None:
    body = f"c0 = Conv (x, w)\n {NORM}\n out = Neg (n0)"
    index = prepared(f"{HEAD}\n{body}\n}}").index
    smaller = parse_pattern("conv_bn", "c = Conv(x, w)\nn = BatchNormalization(c, s, bias, mean, var)")
    marks = [Mark(YES, "ops[0]")] * 3
    assert find_near_misses(index, [smaller, CONV_BN_RELU], marks) == []
    for node in (0, 1):
        asked = find_near_misses(index, [smaller, CONV_BN_RELU], marks, node)
        assert [miss.pattern for miss in asked] == ["conv_bn_relu"]
    assert find_near_misses(index, [smaller, CONV_BN_RELU], marks, 2) == []


def test_the_node_in_the_way_may_be_asked_for() -> None:
    body = f"c0 = Conv <group = 2> (x, g)\n {NORM}\n out = Relu (n0)"
    (miss,) = misses(body, CONV_BN_RELU, node=0)
    assert miss.blocked == 0


def test_far_from_a_match_is_no_miss() -> None:
    assert misses("a = Neg (x)\n out = Relu (a)", CONV_BN_RELU) == []
