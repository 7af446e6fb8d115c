"""The problem of precisions against plans: what it says that a choice costs is what the plan costs."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from choosing import find_cost
from helpers.calibrating import wide_inputs, wide_network

from byoc.pipeline import PLANNING, MeetBudget, Options, Request, prepare_variants
from byoc.quantization import Budget, Precision, UnitPrecisions


def test_choices_cost_what_their_plans_cost(tmp_path: Path) -> None:
    """`dla` converts between all three types in its regions, but for tensors with scales by channel."""
    for number, sample in enumerate(wide_inputs(2)):
        np.savez(tmp_path / f"{number}.npz", **sample)
    precision = Precision("int8", data=tmp_path, budget=Budget("dB", 45), method="minmax")
    (state,) = prepare_variants(
        Request(wide_network(), Options("dla", precision=precision, what_if=False))
    )
    assert state.accuracy_test is not None
    units = frozenset(state.precision.units)
    ends = UnitPrecisions(), UnitPrecisions(wide=units), UnitPrecisions(in_float=units)
    budget = MeetBudget(state.accuracy_test, PLANNING)
    plans = [budget.try_precisions(state, each).planned.plan.root for each in ends]
    problem = state.accuracy_test.build_problem(state.settings, plans)
    assert len(problem.units) == len(units) == 4
    for few in product(range(3), repeat=2):
        levels = np.array([few[0], 1, few[1], 2])  # 0 is floating point, 1 in 8 bits, 2 in 16
        plan = budget.try_precisions(state, problem.name_precisions(levels)).planned.plan
        assert find_cost(problem, levels) == pytest.approx(plan.cost.total, rel=1e-4)
