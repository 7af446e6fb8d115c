"""The rule file for Ethos-U55, held to the codegen and Vela; `run.py` beside this file asks more."""

from importlib.util import find_spec

import pytest
from vela_agreement import Judged, find_missed_goal, judge
from vela_cases import make_cases

from byoc.rules import load_rules

pytestmark = [
    pytest.mark.ethos_u,
    pytest.mark.skipif(find_spec("ethosu") is None, reason="ethos-u-vela is not installed"),
]


def test_the_rule_file_agrees_with_vela() -> None:
    judged = judge(make_cases()[5::125], load_rules("ethos-u55"), "ethos-u55-256")

    assert len(judged) >= 29
    assert not [one.case.name for one in judged if one.false_accept]


def test_a_false_accept_misses_the_goal() -> None:
    case = make_cases()[0]

    assert find_missed_goal([Judged(case, "", "")]) == ""
    assert "1 false accepts" in find_missed_goal([Judged(case, "no", "")])
    assert find_missed_goal([Judged(case, "", "no")]) == "1 false refusals of 1"
