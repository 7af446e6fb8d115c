"""Requirements: what is met, what is missed, and by which value."""

from dataclasses import FrozenInstanceError
from functools import cache
from math import inf, nan
from typing import Any

import pytest
from helpers.cutting import CHAIN, DEVICE_ONLY, HOST_ONLY, cut
from helpers.support import parse
from hypothesis import given, settings
from hypothesis import strategies as st

import byoc
from byoc.bundle import Report
from byoc.reporting import Requirements, check_requirements


@pytest.fixture(scope="module")
def report() -> Report:
    """Two regions of CHAIN that do two thirds of the work, slower than the host alone."""
    return cut(parse(CHAIN)).report


@pytest.mark.parametrize(
    ("requirements", "sentence"),
    [
        (
            {"min_offload": 0.7},
            "66.6667 % of the compute is offloaded; at least 70 % is required (--min-offload)",
        ),
        (
            {"min_offload": 0.66667},
            "66.6667 % of the compute is offloaded; at least 66.667 % is required (--min-offload)",
        ),
        ({"max_regions": 1}, "there are 2 regions; at most 1 is required (--max-regions)"),
        (
            {"require_verified": True},
            "it is not verified: nothing was compiled, since no output was given (-o); verification is "
            "required (--require-verified)",
        ),
    ],
)
def test_what_is_missed_has_the_value_and_the_limit(
    report: Report, requirements: dict[str, Any], sentence: str
) -> None:
    report = report.model_copy(
        update={"compute": report.compute.model_copy(update={"offloaded": 2 / 3})}
    )
    with pytest.raises(byoc.RequirementError) as caught:
        check_requirements([report], Requirements(**requirements))
    assert caught.value.lines == (sentence,)


def test_a_slowdown_is_that_of_the_prediction(report: Report) -> None:
    ratio = report.predicted.seconds / report.predicted.host_only
    assert ratio > 1
    check_requirements([report], Requirements(max_slowdown=ratio))
    with pytest.raises(byoc.RequirementError, match=r"^it is predicted to take .* at most 1 times "):
        check_requirements([report], Requirements(max_slowdown=1.0))


def test_a_slowdown_of_another_measure_is_that_of_what_was_minimized(report: Report) -> None:
    costs = report.predicted.model_copy(update={"measure": "load", "optimized": 1.0, "host_only": 2.0})
    other = report.model_copy(update={"predicted": costs})
    check_requirements([other], Requirements(max_slowdown=0.5))
    with pytest.raises(byoc.RequirementError, match=r"0\.5 times"):
        check_requirements([other], Requirements(max_slowdown=0.49))


@pytest.mark.parametrize(("seconds", "is_met"), [(0.0, True), (1.0, False)])
def test_a_host_that_takes_no_time(report: Report, seconds: float, is_met: bool) -> None:
    costs = report.predicted.model_copy(update={"seconds": seconds, "host_only": 0.0})
    other = report.model_copy(update={"predicted": costs})
    (check,) = Requirements(max_slowdown=1.0).check_report(other)
    assert check.is_met == is_met


def test_every_missed_requirement_is_a_line(report: Report) -> None:
    everything = Requirements(min_offload=1, max_regions=0, max_slowdown=0.1, require_verified=True)
    with pytest.raises(byoc.RequirementError) as caught:
        check_requirements([report], everything)
    names = [line.rsplit("(--", 1)[1].rstrip(")") for line in caught.value.lines]
    assert names == ["min-offload", "max-regions", "max-slowdown", "require-verified"]


@cache
def _cut_host_only() -> Report:
    return cut(parse(HOST_ONLY)).report


@settings(deadline=None)  # the first example cuts the model
@given(offload=st.floats(0, 1), least=st.floats(0, 1), regions=st.integers(0, 5))
def test_limits_are_met_at_their_value(offload: float, least: float, regions: int) -> None:
    plain = _cut_host_only()
    compute = plain.compute.model_copy(update={"offloaded": offload})
    report = plain.model_copy(update={"compute": compute})
    first, second = Requirements(min_offload=least, max_regions=regions).check_report(report)
    assert (first.is_met, second.is_met) == (offload >= least, True)


def test_a_result_checks_itself() -> None:
    result = cut(parse(DEVICE_ONLY))
    result.check(Requirements(min_offload=1.0, max_regions=1))
    result.check(Requirements())
    with pytest.raises(byoc.RequirementError):
        result.check(Requirements(max_regions=0))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"min_offload": 1.5}, "min_offload 1.5: not a share from 0 to 1; 90 % is 0.9"),
        ({"min_offload": nan}, "min_offload nan: not a share from 0 to 1; 90 % is 0.9"),
        ({"max_regions": -1}, "max_regions -1: not a number of at least 0"),
        ({"max_slowdown": 0}, "max_slowdown 0: not a ratio above 0"),
        ({"max_slowdown": inf}, "max_slowdown inf: not a ratio above 0"),
    ],
)
def test_requirements_that_are_none(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(byoc.InputError) as caught:
        Requirements(**wrong)
    assert str(caught.value) == sentence


def test_requirements_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Requirements().max_regions = 3  # type: ignore[misc]
