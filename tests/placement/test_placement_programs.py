"""The integer programs of a problem by themselves: they cost the optimum, or less where relaxed."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from helpers.placement_oracle import chain, limited
from helpers.placement_random import random_problem

from byoc.errors import InputError
from byoc.placement import (
    Placement,
    Problem,
    find_violation,
)
from byoc.placement._branch_and_cut import _is_exact, _read_labels, build_launch_milp
from byoc.placement._form_regions import are_fusions_acyclic
from byoc.placement._placement_milp import (
    build_placement_milp,
    find_compatible_units,
    remove_isolated_units,
)
from byoc.placement.strategies import Exact, Exhaustive

SETS = [
    {"launch"},
    {"launch", "two devices"},
    {"launch", "connected"},
    {"launch", "connected", "two devices"},
    {"launch", "region size"},
    {"launch", "region count"},
    {"launch", "fusions"},
    {"launch", "fusions", "connected"},
    {"must", "capacity"},
    {"must", "capacity", "two devices"},
    {"region size", "three devices"},
    {"must", "region count", "region size"},
]


def drawn(features: set[str], seed: int) -> Problem:
    """Return a problem of four or five units."""
    units = 4 if "three devices" in features or "two devices" in features else 5
    for number in range(100 * seed, 100 * seed + 100):
        problem = random_problem(number, units, frozenset(features))
        if problem.units == units and len(problem.edges[0]) >= 3:
            return problem
    raise AssertionError


def least(problem: Problem) -> float:
    try:
        return Exhaustive().solve(problem).cost.total
    except InputError:
        return inf


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("features", SETS, ids=lambda features: "+".join(sorted(features)))
def test_a_program_of_launches_is_exact(features: set[str], seed: int) -> None:
    problem = drawn(features, seed)
    best = least(problem)
    launches = problem.units
    if seed and best < inf:  # no more launches than the best placement has
        launches = max(1, int(Exhaustive().solve(problem).regions.max()) + 1)
    program, columns, constant = build_launch_milp(problem, launches)
    solution = program.solve(constant)
    assert solution.bound <= best
    if solution.values is None:
        assert best == inf
        return
    chosen = np.flatnonzero(solution.values[columns.fused].max(axis=1, initial=0.0) > 0.5).tolist()
    if not are_fusions_acyclic(problem, chosen):
        return
    assert solution.bound == pytest.approx(best, rel=1e-8)
    regions = columns.read_regions(solution.values)
    labels = _read_labels(solution.values[columns.placed])
    found = Placement.from_labels(problem, labels, regions=regions, fusions=tuple(chosen))
    assert find_violation(problem, found) == ""
    assert found.cost.total == pytest.approx(best, rel=1e-8)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("features", SETS, ids=lambda features: "+".join(sorted(features)))
def test_a_program_of_levels_is_exact_or_a_relaxation(features: set[str], seed: int) -> None:
    problem = drawn(features, seed)
    best = least(problem)
    program, columns, constant = build_placement_milp(problem, problem.units)
    solution = program.solve(constant)
    assert solution.bound <= best
    if solution.values is None:
        assert best == inf
        return
    chosen = np.flatnonzero(solution.values[columns.fused] > 0.5).tolist()
    if _is_exact(problem) and are_fusions_acyclic(problem, chosen):
        assert solution.bound == pytest.approx(best, rel=1e-8)
    free, _, constant = build_placement_milp(problem, problem.units, count_launches=False)
    without = replace(
        problem,
        launch=np.zeros_like(problem.launch),
        min_nodes=np.zeros_like(problem.min_nodes),
        max_regions=np.full_like(problem.max_regions, 2**62),
        connected=np.zeros_like(problem.connected),
        fusions=(),
    )
    assert free.solve(constant).bound == pytest.approx(least(without), rel=1e-8)


@pytest.mark.parametrize("devices", [frozenset[str](), frozenset({"two devices"})])
def test_a_program_keeps_to_the_number_of_regions(devices: frozenset[str]) -> None:
    """Launches are free, so that nothing else keeps it from more."""
    tried = 0
    for seed in range(400):
        problem = random_problem(seed, 5, frozenset({"region count"}) | devices)
        unlimited = replace(problem, max_regions=np.full_like(problem.max_regions, 2**62))
        best = least(problem)
        if problem.units < 4 or least(unlimited) > best * 0.99:
            continue
        program, columns, constant = build_launch_milp(problem, problem.units)
        solution = program.solve(constant)
        assert solution.values is not None
        assert solution.bound == pytest.approx(best, rel=1e-8)
        regions = columns.read_regions(solution.values)
        labels = _read_labels(solution.values[columns.placed])
        for device in range(1, 1 + problem.devices):
            count = len({*regions[labels == device].tolist()})
            assert count <= problem.max_regions[device - 1]
        tried += 1
        if tried == 3:
            return
    raise AssertionError("no number of regions was a limit")


def test_units_too_lonely_for_a_region_are_left_out() -> None:
    """0, 1 | 2 | 3, 4, 5 in a row, and the accelerator refuses 2: no region spans it."""
    problem = limited(chain([3.0] * 6, [1.0, 1.0, inf, 1.0, 1.0, 1.0]), min_nodes=[3])
    assert find_compatible_units(problem, problem.allowed[:, 1]) == [
        0b11,
        0b11,
        0,
        0b111000,
        0b111000,
        0b111000,
    ]
    assert remove_isolated_units(problem).allowed[:, 1].tolist() == [False] * 3 + [True] * 3
    with pytest.raises(ValueError, match="unit 0 must be on an accelerator"):
        remove_isolated_units(limited(problem, must=[True] + [False] * 5))


def test_branches_keep_each_other_company() -> None:
    """1 and 2 both follow 0, which the accelerator refuses."""
    problem = Problem.build(
        seconds=[[3, inf], [3, 1], [3, 1]],
        producer=[0],
        consumers=[[1, 2]],
        is_output=[False],
        to_device=[[1]],
        to_host=[[1]],
        launch=[0],
        min_nodes=[2],
    )
    assert find_compatible_units(problem, problem.allowed[:, 1]) == [0, 0b110, 0b110]
    assert Exact().solve(problem).labels.tolist() == [0, 1, 1]
