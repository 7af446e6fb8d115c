"""Makespan and throughput against all lawful labels and regions (see `objectives`)."""

import pytest
from helpers.support import sample_cases
from objectives import build_problem, find_least_load, measure_ratios
from schedule_oracle import slow_makespan

from byoc.placement.strategies import Makespan, Throughput


@pytest.mark.parametrize("seed", sample_cases(range(60), every=6))
def test_what_can_be_kept_is_found_and_no_bound_is_above_the_optimum(seed: int) -> None:
    problem = build_problem(seed)
    makespan = measure_ratios(problem, Makespan(time_limit=2.0), slow_makespan)
    load = measure_ratios(problem, Throughput(), find_least_load)
    assert (makespan is None) == (load is None)
    assert makespan is None or makespan[0] == pytest.approx(1)
    assert load is None or load == pytest.approx((1, 1))
