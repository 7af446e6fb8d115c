"""Integer programs within a budget of counted work: equal answers every time, no wrong proof."""

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from byoc.numerics import SearchBudget
from byoc.numerics.solvers import MilpBuilder, MilpSolution

ITEMS, KNAPSACKS = 30, 6


def draw_knapsacks(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return gains (items,), weights (knapsacks, items), and capacities (knapsacks,), float64."""
    draw = np.random.default_rng(seed)
    weights = draw.integers(5, 100, (KNAPSACKS, ITEMS)).astype(float)
    gains = weights.sum(axis=0) / KNAPSACKS + draw.integers(0, 30, ITEMS)
    return gains, weights, weights.sum(axis=1) // 2


def solve_within(seconds: float, seed: int) -> tuple[MilpSolution, SearchBudget]:
    """Choose the items of most gain that fit all knapsacks, within so many seconds of counted work."""
    gains, weights, capacities = draw_knapsacks(seed)
    program, budget = MilpBuilder(), SearchBudget(seconds)
    columns = program.add_columns(-gains, np.ones(ITEMS), integral=True)
    for row, capacity in zip(weights, capacities, strict=True):
        program.add_row(float(capacity), columns, row)
    return program.solve(0.0, budget=budget), budget


@pytest.mark.parametrize("seed", [0, 1])
def test_an_ample_budget_finds_the_optimum(seed: int) -> None:
    gains, weights, capacities = draw_knapsacks(seed)
    known = milp(
        -gains,
        integrality=np.ones(ITEMS),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(weights, -np.inf, capacities),
        options={"mip_rel_gap": 0.0},
    )
    found, budget = solve_within(1e9, seed)
    assert found.solved
    assert found.bound == pytest.approx(known.fun, rel=1e-9)
    assert found.values is not None
    assert -gains @ found.values == pytest.approx(known.fun, rel=1e-9)
    assert budget.left < 1e9, "this scipy does not let the work of HiGHS be counted"


@pytest.mark.parametrize("seconds", [0.003, 0.006])
def test_a_spent_budget_leaves_a_valid_bound_and_the_same_answer(seconds: float) -> None:
    optimum = solve_within(1e9, 0)[0].bound
    found, budget = solve_within(seconds, 0)
    assert not found.solved
    assert budget.is_spent
    assert found.bound <= optimum + 1e-6
    again, _ = solve_within(seconds, 0)
    assert found.bound == again.bound
    assert (found.values is None) == (again.values is None)
    if found.values is not None:
        assert found.values.tolist() == again.values.tolist()


def test_a_program_too_large_for_its_budget_is_not_begun() -> None:
    found, budget = solve_within(1e-9, 0)
    assert (found.values, found.bound, found.solved) == (None, -np.inf, False)
    assert budget.is_spent
