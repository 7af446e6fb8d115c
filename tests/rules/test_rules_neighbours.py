"""What stands around a node: the node of a body, and what reads and makes quantized tensors."""

import pytest
from helpers.ruling import target
from helpers.support import parse

from byoc.model import prepare_model
from byoc.rules import Attempt, annotate_graph


def test_each_body_knows_its_node() -> None:
    """Of two nodes with equal bodies the second alone is behind the Neg that sends all to the host."""
    branches = """<
        then_branch = t () => (float[2] p) { p = Relu(a) },
        else_branch = e () => (float[2] q) { q = Relu(a) }
    >"""
    text = f"""g (bool c, float[2] a, float[2] x) => (float[2] y, float[2] z) {{
        y = If (c) {branches}
        n = Neg(x)
        m = ReduceMax <keepdims = 0> (n)
        d = Cast <to = 9> (m)
        z = If (d) {branches}
    }}"""
    index = prepare_model(parse(text), "test").index
    rules = target("host: {after: {ops: Neg}}\nops: [{op: Relu}]")
    found = [
        [bool(annotate_graph(body.index, rules)[0].verdict) for body in index.bodies[number]]
        for number in sorted(index.bodies)
    ]
    assert found == [[True, True], [False, False]]


def find_conversions(text: str, convert: str, ops: str) -> list[str]:
    """Return the names of the outputs of nodes that the accelerator takes as conversions."""
    index = prepare_model(parse(text, opset=21), "test").index
    rules = target(f"quantization: {{convert: {convert}}}\nops: {ops}", dtype=["float32", "uint8"])
    marks = annotate_graph(index, rules)
    where = "quantization.convert"
    return [node.output[0] for node, mark in zip(index.nodes, marks, strict=True) if mark.rule == where]


@pytest.mark.parametrize("zero", ["z", ""])
def test_a_quantization_converts_where_it_stands_between_the_host_and_a_quantized_node(
    zero: str,
) -> None:
    """q is read by the quantized Relu, and y made of its result; nothing is known of what made k."""
    text = f"""g (float[2] x, uint8[2] k) => (uint8[2] u, float[2] v)
        <float s = {{0.5}}, uint8 z = {{0}}> {{
        q = QuantizeLinear(x, s, {zero})
        d = DequantizeLinear(q, s, {zero})
        r = Relu(d)
        p = QuantizeLinear(r, s, {zero})
        y = DequantizeLinear(p, s, {zero})
        v = DequantizeLinear(k, s, z)
        t = Abs(y)
        u = QuantizeLinear(t, s, z)
    }}"""
    assert find_conversions(text, "device", "[{op: Relu, quantized: true}]") == ["q", "y"]
    assert find_conversions(text, "device", "[{op: Abs, quantized: true}]") == ["p"]


def test_what_comes_from_outside_has_no_maker() -> None:
    """And is none of the last node's, whatever that is."""
    text = """g (float[2] x, uint8[2] k) => (float[2] y, float[2] z) <float s = {0.5}, uint8 z0 = {0}> {
        q = QuantizeLinear(x, s, z0)
        d = DequantizeLinear(q, s, z0)
        y = Neg(d)
        e = DequantizeLinear(k, s, z0)
        z = Abs(e)
    }"""
    ops = "[{op: [Neg, Abs], quantized: true}, {op: [Neg, Abs]}]"
    assert find_conversions(text, "between", ops) == []


def test_what_is_quantized_goes_to_a_reader_through_a_dequantization_of_it() -> None:
    """The first reader takes the numbers as they are; the second has them for its zero point."""
    text = """g (float[2] x, uint8[2] k) => (float[2] a, float[2] b, uint8[2] c)
        <float s = {0.5}, uint8 z = {0}> {
        q = QuantizeLinear(x, s, z)
        i = Cast <to = 1> (q)
        a = Relu(i)
        d = DequantizeLinear(k, s, q)
        b = Abs(d)
        e = DequantizeLinear(q, s, z)
        n = Neg(e)
        c = QuantizeLinear(n, s, z)
    }"""
    found = {
        op: "q" in find_conversions(text, "device", f"[{{op: {op}, quantized: true}}]")
        for op in ("Relu", "Abs", "Neg")
    }
    assert found == {"Relu": False, "Abs": False, "Neg": True}


@pytest.mark.parametrize("at", ["e", "r"])
@pytest.mark.parametrize(
    ("scale", "zero", "converts"),
    [("s", "z", True), ("s", "", True), ("t", "z", False), ("s", "v", False)],
)
def test_a_node_between_integers_and_floats_converts_where_its_numbers_are_constant(
    at: str, scale: str, zero: str, converts: bool
) -> None:
    """From the quantized Neg to the Exp in floating point, and back to the Abs."""
    numbers = dict.fromkeys("er", "s, z") | {at: f"{scale}, {zero}"}
    text = f"""g (float[2] x, float t, uint8 v) => (uint8[2] y) <float s = {{0.5}}, uint8 z = {{0}}> {{
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        n = Neg(d)
        p = QuantizeLinear(n, s, z)
        e = DequantizeLinear(p, {numbers["e"]})
        f = Exp(e)
        r = QuantizeLinear(f, {numbers["r"]})
        w = DequantizeLinear(r, s, z)
        a = Abs(w)
        y = QuantizeLinear(a, s, z)
    }}"""
    found = find_conversions(text, "between", "[{op: [Neg, Abs], quantized: true}, {op: Exp}]")
    assert found == [name for name in "er" if converts or name != at]


def test_an_attempt_fits_unless_it_says_otherwise() -> None:
    assert Attempt("ops[0]", ()).fits
    assert Attempt("ops[0]", ()) == Attempt("ops[0]", (), fits=False)
