"""Who quantizes at the border: with `convert: device` lone nodes beside groups are taken there."""

import pytest
from helpers.ruling import target
from helpers.support import parse

from byoc.errors import YES
from byoc.model import prepare_model
from byoc.patterns import Mark, group_units
from byoc.rules import annotate_graph

QDQ = """
g (float[1,2] x, float[1,2] h, float t) => (float[1,2] y, float[1,2] w)
<float s = {0.5}, int8 z = {0}> {
  xq = QuantizeLinear (x, s, z)
  xd = DequantizeLinear (xq, s, z)
  r = Relu (xd)
  rq = QuantizeLinear (r, s, z)
  y = DequantizeLinear (rq, s, z)
  hq = QuantizeLinear (h, s, z)
  hd = DequantizeLinear (hq, s, z)
  k = Tanh (hd)
  kq = QuantizeLinear (k, s, z)
  w = DequantizeLinear (kq, s, z)
}
"""
RELU = "ops: [{op: Relu, quantized: true, dtype: int8}]"


def marks(text: str, rules: str = RELU, convert: str = "device", **keys: object) -> dict[str, Mark]:
    """Return what is said of each node, by what it makes."""
    index = prepare_model(parse(text), "test").index
    found = annotate_graph(index, target(rules, quantization={"convert": convert}, **keys))
    return {node.output[0]: mark for node, mark in zip(index.nodes, found, strict=True)}


def taken(text: str, **options: str) -> list[str]:
    return [name for name, mark in marks(text, **options).items() if mark.verdict]


def test_the_device_takes_what_quantizes_for_its_groups() -> None:
    """Of Relu's group x is quantized and y dequantized; Tanh is on the host, and so is all about it."""
    found = marks(QDQ)
    assert [name for name, mark in found.items() if mark.verdict] == ["xq", "r", "y"]
    assert found["xq"] == found["y"] == Mark(YES, "quantization.convert")


def test_it_forms_units_of_its_own_beside_the_group() -> None:
    index = prepare_model(parse(QDQ), "test").index
    found = annotate_graph(index, target(RELU, quantization={"convert": "device"}))
    units = group_units(index, [], found)
    assert [(unit.nodes, unit.rules) for unit in units if unit.verdict] == [
        ((0,), ("quantization.convert",)),
        ((1, 2, 3), ("ops[0]",)),
        ((4,), ("quantization.convert",)),
    ]


def test_on_the_host_they_stay_there() -> None:
    assert taken(QDQ, convert="host") == ["r"]


def test_a_rule_that_names_them_goes_first() -> None:
    rules = "ops: [{op: Relu, quantized: true, dtype: int8}, {op: QuantizeLinear, dtype: any}]"
    found = marks(QDQ, rules)
    assert [found[name].rule for name in ("xq", "rq", "hq", "y")] == [
        *("ops[1]", "ops[1]", "ops[1]"),
        "quantization.convert",
    ]


def test_what_the_file_keeps_on_the_host_stays_there() -> None:
    found = marks(QDQ, host={"ops": ["QuantizeLinear"]})
    assert not found["xq"].verdict
    assert found["y"].verdict


@pytest.mark.parametrize(("scale", "expected"), [("s", True), ("t", False)])
def test_a_scale_that_is_computed_is_none_to_build_in(scale: str, expected: bool) -> None:
    text = QDQ.replace("QuantizeLinear (x, s, z)", f"QuantizeLinear (x, {scale}, z)")
    assert bool(marks(text)["xq"].verdict) is expected


# Neg and Sigmoid compute in float, Relu and Abs between DequantizeLinear and QuantizeLinear.
BETWEEN = """
g (float[2] x, float[2] h, float t) => (float[2] y, float[2] k)
<float s = {0.5}, int8 z = {0}, float[2] ss = {1, 1}, int8[2] zz = {0, 0}> {
  n = Neg (x)
  nq = QuantizeLinear (n, s, z)
  nd = DequantizeLinear (nq, s, z)
  a = Abs (nd)
  aq = QuantizeLinear (a, s, z)
  ad = DequantizeLinear (aq, s, z)
  y = Sigmoid (ad)
  hq = QuantizeLinear (h, s, z)
  hd = DequantizeLinear (hq, s, z)
  r = Relu (hd)
  rq = QuantizeLinear (r, s, z)
  k = DequantizeLinear (rq, s, z)
}
"""
BOTH = "ops: [{op: [Neg, Sigmoid]}, {op: [Abs, Relu], quantized: true, dtype: int8}]"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("", ""), ["nq", "ad"]),
        (("n = Neg (x)", "n = Tanh (x)"), ["ad"]),  # before it the host computes
        (("a = Abs (nd)", "a = Tanh (nd)"), []),  # between them
        (("y = Sigmoid (ad)", "y = Tanh (ad)"), ["nq"]),
        (("n = Neg (x)", "n = Relu (x)"), ["ad"]),  # taken when it is quantized alone
        (("y = Sigmoid (ad)", "y = Relu (ad)"), ["nq"]),
        (("QuantizeLinear (n, s, z)", "QuantizeLinear (n, t, z)"), ["ad"]),  # a scale that is computed
        (("DequantizeLinear (aq, s, z)", "DequantizeLinear (aq, t, z)"), ["nq"]),
        (("QuantizeLinear (n, s, z)", "QuantizeLinear <axis = 0> (n, ss, zz)"), ["ad"]),  # two of them
        (("DequantizeLinear (aq, s, z)", "DequantizeLinear <axis = 0> (aq, ss, zz)"), ["nq"]),
        (("float[2] k)", "float[2] k, float[2] ad)"), ["nq"]),  # what leaves the model is the host's
        (("y = Sigmoid (ad)", "y = Sigmoid (ad) u = Tanh (ad)"), ["nq"]),  # one reader of two is there
        (("y = Sigmoid (ad)", "y = Sigmoid (ad) u = Neg (ad)"), ["nq", "ad"]),
        (("a = Abs (nd)", "a = Abs (nd) u = Tanh (nd)"), ["nq", "ad"]),  # one is enough
    ],
)
def test_between_operators_of_both_kinds(change: tuple[str, str], expected: list[str]) -> None:
    text = BETWEEN.replace(*change, 1)
    if "u =" in text:
        text = text.replace("float[2] k)", "float[2] k, float[2] u)")
    found = marks(text, BOTH, convert="between")
    kept = [name for name, mark in found.items() if mark.rule == "quantization.convert"]
    assert kept == expected


def test_what_an_input_is_quantized_by_is_between_nothing() -> None:
    """Nor is a node whose number is small, as the first ones are, its maker."""
    text = """
g (float[2] h) => (float[2] y, float[2] o, float[2] k) <float s = {0.5}, int8 z = {0}> {
  y = Neg (h)
  o = Sigmoid (h)
  hq = QuantizeLinear (h, s, z)
  hd = DequantizeLinear (hq, s, z)
  r = Relu (hd)
  rq = QuantizeLinear (r, s, z)
  k = DequantizeLinear (rq, s, z)
}"""
    found = marks(text, BOTH, convert="between")
    assert [name for name, mark in found.items() if mark.verdict] == ["y", "o", "r"]
