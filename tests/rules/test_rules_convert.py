"""Who quantizes at the border: with `convert: device` lone nodes beside groups are taken there."""

import pytest
from ruling import target
from support import parse

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
