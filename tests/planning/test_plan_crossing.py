"""Conversions at the border are in what is solved, and in what a plan and its report predict."""

import pytest
from helpers.cutting import planned
from helpers.support import VANILLA, prepared

from byoc.placement.strategies import AllSupported
from byoc.planning import Plan
from byoc.rules import load_rules

# Tanh stays on the host; an image of 4 x 8 x 16 x 16 floats goes to the device, 32 floats come back.
TEXT = """
g (float[4,8,16,16] x) => (float[4,8] y) {
  a = Relu (x)
  p = GlobalAveragePool (a)
  f = Flatten (p)
  y = Tanh (f)
}
"""
SIZE = 4 * 4 * 8 * 16 * 16
LINK, SMALL = 5e-6 + SIZE / 2e9, 5e-6 + 128 / 2e9
# A Transpose reads and writes the tensor once through the host's memory.
TURNED = 2e-6 + 2 * SIZE / 20e9


def plan(activations: str) -> Plan:
    target = load_rules(str(VANILLA))
    layout = target.rules.layout.model_copy(update={"activations": activations})
    rules = target.rules.model_copy(update={"layout": layout})
    return planned(prepared(TEXT), type(target)(target.source, rules, {}, target.folder), AllSupported())


@pytest.mark.parametrize(("activations", "more"), [("NHWC", TURNED), ("NCHW", 0.0)])
def test_a_plan_predicts_what_its_layout_costs(activations: str, more: float) -> None:
    found = plan(activations)
    assert found.regions[0].interface.inputs == ("x",)
    assert found.regions[0].interface.outputs == ("f",)
    assert found.cost.transfer == pytest.approx(LINK + SMALL + more)
    assert found.root.placement.cost.transfer == pytest.approx(found.cost.transfer)
