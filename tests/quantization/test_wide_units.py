"""Units in 16 bits: the types and zero points that a target's rules ask for."""

from quantizing import form, groups, network, quantize, ranges

from byoc.rules import load_rules


def test_the_rule_that_takes_the_type_says_what_zero_points_are() -> None:
    """ethos-u55 takes int8 with any zero point, and int16 with 0 alone."""
    model, u55 = network(), load_rules("ethos-u55")
    known = ranges(model)
    narrow = quantize(model, [u55], known, "int8")
    wide = quantize(model, [u55], known, "int16")
    assert {*wide.units} == {*narrow.units}
    assert groups(wide.model, u55).keys() == groups(narrow.model, u55).keys()
    assert form(narrow.model, "r0")[1:] == (-128, "int8")
    assert form(wide.model, "r0")[1:] == (0, "int16")
