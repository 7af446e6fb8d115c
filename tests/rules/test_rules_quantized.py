"""Rules that speak of operators between DequantizeLinear and QuantizeLinear."""

import pytest
from ruling import target
from support import parse

from byoc.graph.load import prepare
from byoc.rules.annotate import annotate
from byoc.verdict import Mark

QDQ = """
g (uint8[1,2,4,4] x, float[1,2,4,4] f) => ({out}) <
  float s = {{{scale}}}, uint8 z = {{{zero}}}, int8[3,2,1,1] wq = {{1, 2, 3, 4, 5, 6}},
  {weights}, int32[3] bq = {{1, 2, 3}}, float[3] bs = {{1, 1, 1}}, int32[3] bz = {{0, 0, 0}}
> {{
  xd = DequantizeLinear (x, s, z)
  wd = DequantizeLinear <axis = 0> (wq, ws, wz)
  bd = DequantizeLinear <axis = 0> (bq, bs, bz)
  c = Conv ({data}, wd, bd)
  r = Relu (c)
  y = QuantizeLinear (r, s, z)
}}
"""
CHANNELS = "float[3] ws = {1, 1, 1}, int8[3] wz = {0, 0, 0}"
ONE = "float ws = {1}, int8 wz = {0}"
OUT = "uint8[1,3,4,4] y"


def said(  # noqa: PLR0917
    rule: str,
    weights: str = CHANNELS,
    scale: str = "0.5",
    zero: str = "3",
    data: str = "xd",
    out: str = OUT,
) -> list[Mark]:
    """Return what is said of Conv and Relu."""
    text = QDQ.format(weights=weights, scale=scale, zero=zero, data=data, out=out)
    index = prepare(parse(text), "test").index
    found = dict(
        zip((node.op_type for node in index.nodes), annotate(index, target(rule)), strict=False)
    )
    return [found["Conv"], found["Relu"]]


def conv(tensors: str, **options: str) -> str:
    rule = f"ops: [{{op: Conv, quantized: true, dtype: [uint8, int8, int32], tensors: {{{tensors}}}}}]"
    return str(said(rule, **options)[0].verdict).removeprefix("Conv: ")


def test_the_dtypes_are_those_of_the_outer_side() -> None:
    rule = "ops: [{op: [Conv, Relu], quantized: true, dtype: uint8, tensors: {}}]"
    first, second = said(rule)
    assert (
        str(first.verdict)
        == "Conv: W is int8 outside; supported: uint8; B is int32 outside; supported: uint8"
    )
    assert second == Mark(second.verdict, "ops[0]", plain=False, quantized=True)
    assert conv("W: {dtype: int8}, B: {dtype: int32}") == "yes"
    assert conv("W: {dtype: uint8}") == "W is int8 outside; supported: uint8"


def test_floats_inside_a_composite_are_not_held_to_a_dtype() -> None:
    """Conv's output goes to Relu: whether a group forms around both is for the grouper to see."""
    rule = "ops: [{op: [Conv, Relu], quantized: true, dtype: [int8, uint8, int32]}]"
    assert all(mark.verdict and mark.quantized and not mark.plain for mark in said(rule))
    rule = "ops: [{op: Relu, quantized: true, dtype: int8}]"
    assert str(said(rule)[1].verdict) == "Relu: Y is uint8 outside; supported: int8"


def test_an_operator_may_be_taken_both_ways() -> None:
    rule = "ops: [{op: Conv}, {op: Conv, quantized: true, dtype: any, level: must}]"
    mark = said(rule)[0]
    assert (mark.rule, mark.must, mark.plain, mark.quantized) == ("ops[0]", False, True, True)
    rule = "ops: [{op: Conv, quantized: true, dtype: any, standalone: false}, {op: Conv}]"
    mark = said(rule)[0]
    assert (mark.rule, mark.standalone, mark.plain, mark.quantized) == ("ops[0]", False, True, True)
    mark = said("ops: [{op: Conv}]")[0]
    assert (mark.plain, mark.quantized) == (True, False)


@pytest.mark.parametrize(
    ("tensors", "options", "expected"),
    [
        ("W: {quantized: {per_channel: true}}", {}, "yes"),
        (
            "W: {quantized: {per_channel: false}}",
            {},
            "W has a scale for each channel, which is not supported",
        ),
        ("W: {quantized: {per_channel: false}}", {"weights": ONE}, "yes"),
        (
            "W: {quantized: {per_channel: true}}",
            {"weights": ONE},
            "W has one scale for all channels, which is not supported",
        ),
        ("W: {quantized: {symmetric: true}}", {}, "yes"),
        ("W: {quantized: {symmetric: false}}", {}, "the zero point of W must not be 0"),
        ("X: {quantized: {symmetric: true}}", {}, "the zero point of X must be 0"),
        ("X: {quantized: {symmetric: true}}", {"zero": "0"}, "yes"),
        ("X: {quantized: {power_of_two: true}}", {}, "yes"),
        (
            "X: {quantized: {power_of_two: true}}",
            {"scale": "0.3"},
            "the scale of X must be a power of two",
        ),
        ("X: {quantized: {power_of_two: false}}", {}, "the scale of X must not be a power of two"),
        ("Y: {quantized: {power_of_two: true}}", {"scale": "0.3"}, "yes"),
        ("X: {quantized: {power_of_two: true}}", {"data": "f"}, "yes"),
        ("X: {quantized: {}}", {}, "yes"),
    ],
)
def test_quantization(tensors: str, options: dict[str, str], expected: str) -> None:
    assert conv(tensors, **options) == expected


def test_an_output_that_is_not_quantized_alone() -> None:
    """Relu's output is given out in floating point, too: it is a float like any other."""
    rule = "ops: [{op: Relu, quantized: true, dtype: int8}]"
    mark = said(rule, out="uint8[1,3,4,4] y, float[1,3,4,4] r")[1]
    assert mark.verdict
    assert mark.quantized


def test_a_constant_that_is_not_quantized() -> None:
    text = """
        g (int8[2] x) => (int8[2] y) <float s = {1}, int8 z = {0}, float[2] w = {1, 2}> {
          d = DequantizeLinear (x, s, z)
          a = Add (d, w)
          y = QuantizeLinear (a, s, z)
        }"""
    rule = target("ops: [{op: Add, quantized: true, dtype: int8, tensors: {B: {quantized: {}}}}]")
    index = prepare(parse(text), "test").index
    assert str(annotate(index, rule)[1].verdict) == "Add: B is not quantized"
