"""What stands around a node: the node of a body, and what reads and makes quantized tensors."""

from helpers.support import parse

from byoc.model import GraphIndex
from byoc.rules import Attempt
from byoc.rules._graph_rules import get_body_node
from byoc.rules._quantization_scheme import converts_at_boundary, converts_between_operators


def indexed(text: str) -> GraphIndex:
    proto = parse(text)
    return GraphIndex.of_model(proto)


def test_each_body_knows_its_node() -> None:
    branches = """<
        then_branch = t () => (float[2] p) { p = Neg(x) },
        else_branch = e () => (float[2] q) { q = Abs(x) }
    >"""
    index = indexed(f"""g (bool c, float[2] x) => (float[2] y, float[2] z) {{
        y = If (c) {branches}
        z = If (c) {branches}
    }}""")
    assert [[get_body_node(body.index) for body in index.bodies[number]] for number in (0, 1)] == [
        [0, 0],
        [1, 1],
    ]


QDQ = """g (float[2] x, uint8[2] k) => (uint8[2] u, float[2] v) <float s = {0.5}, uint8 z = {0}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, )
    r = Relu(d)
    p = QuantizeLinear(r, s, z)
    y = DequantizeLinear(p, s, )
    v = DequantizeLinear(k, s, z)
    t = Relu(y)
    u = QuantizeLinear(t, s, z)
}"""


def test_a_quantization_converts_where_it_stands_between_the_host_and_a_quantized_node() -> None:
    index = indexed(QDQ)
    for number in (1, 4):  # a zero point that is left out by an empty name
        del index.nodes[number].input[2:]
        index.nodes[number].input.append("")
    found = [converts_at_boundary(index, number, {2}.__contains__) for number in range(8)]
    # q is read by the quantized Relu, and y made of its result; nothing is known of what made k.
    assert found == [True, False, False, False, True, False, False, False]
    other = [converts_at_boundary(index, number, {6}.__contains__) for number in range(8)]
    assert other == [False, False, False, True, False, False, False, False]


def test_what_comes_from_outside_has_no_maker() -> None:
    """And is none of the last node's, whatever that is."""
    index = indexed("""g (float[2] x, uint8[2] k) => (float[2] y, float[2] z)
        <float s = {0.5}, uint8 z0 = {0}> {
        q = QuantizeLinear(x, s, z0)
        d = DequantizeLinear(q, s, z0)
        y = Neg(d)
        e = DequantizeLinear(k, s, z0)
        z = Abs(e)
    }""")
    every = [True, True, False, True, True].__getitem__
    found = [converts_at_boundary(index, number, every) for number in range(5)]
    assert found == [False] * 5
    assert not any(converts_between_operators(index, number, every, every) for number in range(5))


def test_what_is_quantized_goes_to_a_reader_through_a_dequantization_of_it() -> None:
    """The first reader takes the numbers as they are; the second has them for its zero point."""
    index = indexed("""g (float[2] x, uint8[2] k) => (float[2] a, float[2] b, float[2] c)
        <float s = {0.5}, uint8 z = {0}> {
        q = QuantizeLinear(x, s, z)
        i = Cast <to = 1> (q)
        a = Relu(i)
        d = DequantizeLinear(k, s, q)
        b = Relu(d)
        e = DequantizeLinear(q, s, z)
        c = Relu(e)
    }""")
    found = [converts_at_boundary(index, 0, {reader}.__contains__) for reader in (2, 4, 6)]
    assert found == [False, False, True]


def test_a_node_between_integers_and_floats_converts_where_its_numbers_are_constant() -> None:
    """From the quantized Neg (2) to the Exp in floating point (4), and back to the Abs (7)."""
    index = indexed("""g (float[2] x, float t, uint8 v) => (float[2] y)
        <float s = {0.5}, uint8 z = {0}> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        n = Neg(d)
        p = QuantizeLinear(n, s, z)
        e = DequantizeLinear(p, s, z)
        f = Exp(e)
        r = QuantizeLinear(f, s, z)
        w = DequantizeLinear(r, s, z)
        y = Abs(w)
    }""")

    def find() -> list[bool]:
        quantized, plain = {2, 8}.__contains__, {5}.__contains__
        return [converts_between_operators(index, number, quantized, plain) for number in range(9)]

    expected = [number in {4, 6} for number in range(9)]
    assert find() == expected
    for number in (4, 6):
        scale, zero = index.nodes[number].input[1:]
        index.nodes[number].input[2] = ""  # left out by an empty name
        assert find() == expected
        for place, name in ((1, "t"), (2, "v")):
            index.nodes[number].input[place] = name
            assert find() == [each in {4, 6} - {number} for each in range(9)]
            index.nodes[number].input[place] = (scale, zero)[place - 1]
    assert find() == expected


def test_an_attempt_fits_unless_it_says_otherwise() -> None:
    assert Attempt("ops[0]", ()).fits
    assert Attempt("ops[0]", ()) == Attempt("ops[0]", (), fits=False)
