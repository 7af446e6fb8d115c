"""Composites with DequantizeLinear and QuantizeLinear of their own, by rules for quantized ones."""

from collections.abc import Mapping

import pytest
from helpers.support import prepared

from byoc.errors import YES, refuse
from byoc.model import Model, unshare_dequantize
from byoc.patterns import Mark, Pattern, Unit, find_near_misses, group_units, parse_pattern
from byoc.rules import read_library

QDQ_CONV = parse_pattern("qdq_conv", read_library().get("qdq_conv").pattern)
# It reads what is quantized, and makes what has to be.
HALF = parse_pattern("half", "d = DequantizeLinear(x, s!, z!)\nc = Conv(d, w!)")
BORDERS = ("QuantizeLinear", "DequantizeLinear")
QUANTIZED = Mark(YES, "ops[0]", accepts_plain=False, accepts_quantized=True)
PLAIN = Mark(YES, "ops[1]")
NO = Mark(refuse("no"))


def model(ending: str) -> Model:
    return prepared(
        """g (float[1,2,4,4] x) => (float[1,2,4,4] out)
<float s = {0.1}, int8 z = {0}, int8[2,2,1,1] wq = {1,2,3,4}, float ws = {0.05}> {
 xq = QuantizeLinear (x, s, z)
 xd = DequantizeLinear (xq, s, z)
 wd = DequantizeLinear (wq, ws, z)
 c = Conv (xd, wd)
"""
        + ending
        + "}"
    )


WHOLE = " r = Relu (c)\n yq = QuantizeLinear (r, s, z)\n out = DequantizeLinear (yq, s, z)\n"
OPEN = " r = Relu (c)\n out = Neg (r)\n"


def make_marks(loaded: Model, **special: Mark) -> list[Mark]:
    return [
        special.get(node.output[0], NO if node.op_type in BORDERS else QUANTIZED)
        for node in loaded.index.nodes
    ]


def units(loaded: Model, marks: list[Mark], *patterns: Pattern) -> Mapping[str, Unit]:
    return {
        loaded.index.nodes[unit.nodes[-1]].output[0]: unit
        for unit in group_units(loaded.index, patterns or (QDQ_CONV,), marks)
    }


@pytest.mark.parametrize("border", [NO, PLAIN, Mark(YES, "ops[1]", standalone=False)])
def test_its_own_border_makes_a_group(border: Mark) -> None:
    loaded = unshare_dequantize(model(WHOLE))
    found = units(loaded, make_marks(loaded, xd=border, yq=border))
    unit = found["yq"]
    assert (unit.kind, unit.composite, bool(unit.verdict)) == ("qdq", "qdq_conv", True)
    assert {loaded.index.nodes[n].output[0] for n in unit.nodes} == {"xd", "c", "r", "yq"}
    assert set(unit.rules) == ({"ops[0]"} if border is NO else {"ops[0]", "ops[1]"})


def test_what_is_missing_is_taken_from_around() -> None:
    loaded = unshare_dequantize(
        model(WHOLE.replace("r = Relu (c)\n yq = QuantizeLinear (r", "yq = QuantizeLinear (c"))
    )
    unit = units(loaded, make_marks(loaded), HALF)["yq"]
    assert (unit.kind, unit.composite) == ("qdq", "half")
    assert {loaded.index.nodes[n].output[0] for n in unit.nodes} == {"xd", "c", "yq"}


def test_borders_that_no_rule_takes_need_a_whole_group() -> None:
    loaded = unshare_dequantize(model(OPEN))
    found = units(loaded, make_marks(loaded), HALF)
    assert all(unit.composite is None for unit in found.values())
    misses = find_near_misses(loaded.index, [HALF], make_marks(loaded))
    assert [miss.reason for miss in misses] == [
        "matched to its last line; it is no whole QDQ group: its output 'c' is read by Relu 'r', "
        "not by a QuantizeLinear alone"
    ]


def test_and_a_rule_for_quantized_operators() -> None:
    loaded = unshare_dequantize(model(WHOLE))
    marks = make_marks(loaded, r=PLAIN)
    assert all(unit.composite is None for unit in units(loaded, marks).values())
    (miss,) = find_near_misses(loaded.index, [QDQ_CONV], marks)
    assert miss.reason == (
        "matched to its last line; DequantizeLinear 'xd' is not taken by the rules: no"
    )


def test_a_rule_of_its_own_does_as_well() -> None:
    """Rules that speak of no quantized operators take composites as they take any other."""
    loaded = model(WHOLE)
    unit = units(loaded, [PLAIN] * len(loaded.index.nodes))["yq"]
    assert (unit.kind, unit.composite, len(unit.nodes)) == ("composite", "qdq_conv", 4)
