"""Reasons for staying on the host come with what would take them away."""

import pytest
from helpers.support import VANILLA, parse

import byoc
from byoc.reporting import make_decision_document


@pytest.mark.parametrize(
    ("model", "reason", "remedy"),
    [
        ("y = Sin(x)", "Sin is not among", "if dla runs Sin, add `op: Sin` to the `ops`"),
        ("y = Relu(x)", "supported, but the host is cheaper", "`--strategy all-supported`"),
    ],
)
def test_a_reason_comes_with_its_remedy(model: str, reason: str, remedy: str) -> None:
    plan = byoc.partition(parse(f"g (float[1,4] x) => (float[1,4] y) {{ {model} }}"), VANILLA).plan
    (found,) = make_decision_document(plan).reasons
    assert found.text.startswith(reason)
    assert remedy in found.remedy


def test_a_rule_that_refuses_is_named_by_its_operator() -> None:
    reasons = make_decision_document(byoc.partition("zoo:shufflenet", "nnpa.yaml").plan).reasons
    found = [each for each in reasons if each.text.startswith("Conv: ")]
    assert found
    places = [[cause.constraint for cause in each.causes if cause.constraint] for each in found]
    assert all(f"widen `{place[0]}`" in each.remedy for each, place in zip(found, places, strict=True))
