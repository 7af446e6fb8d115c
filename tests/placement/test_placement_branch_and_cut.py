"""Branch and cut step by step: where it begins, what it states and proves, and how it stops."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import chain, ints, limited
from helpers.placement_random import random_problem
from placement_searches import build_incumbent

from byoc.errors import InputError
from byoc.numerics import SearchBudget
from byoc.numerics.solvers import MilpSolution
from byoc.placement import Cost, Fusion, Placement, Problem, find_violation
from byoc.placement._branch_and_cut import (
    _can_improve,
    _count_placeable_units,
    _fusion_cycles,
    _is_exact,
    _keep_fusions_together,
    _MilpSearch,
    _read_labels,
    _units_of_small_regions,
    build_launch_milp,
    find_incumbent,
    select_best,
    solve_exactly,
)
from byoc.placement._form_regions import are_fusions_acyclic
from byoc.placement._placement_milp import (
    build_placement_milp,
    find_compatible_units,
    remove_isolated_units,
)
from byoc.placement.strategies import Exact, Exhaustive


def apart(seconds: list[list[float]], launch: float = 0.0) -> Problem:
    """Units without tensors between them."""
    devices = len(seconds[0]) - 1
    return Problem.build(
        seconds=seconds,
        producer=[],
        consumers=[],
        is_output=[],
        to_device=np.ones((0, devices)),
        to_host=np.ones((0, devices)),
        launch=[launch] * devices,
    )


def row(seconds: list[list[float]], moving: float) -> Problem:
    """Units one after another, on several accelerators."""
    units, devices = len(seconds), len(seconds[0]) - 1
    return Problem.build(
        seconds=seconds,
        producer=range(units - 1),
        consumers=[[unit] for unit in range(1, units)],
        is_output=[False] * (units - 1),
        to_device=np.full((units - 1, devices), moving),
        to_host=np.full((units - 1, devices), moving),
        launch=[0.0] * devices,
    )


def test_the_first_of_the_cheapest_is_best() -> None:
    some = Placement(ints(), ints(), Cost(2.0, 0, 0))
    cheap = Placement(ints(), ints(), Cost(1.0, 0, 0))
    same = Placement(ints(), ints(), Cost(0.5, 0.5, 0))
    assert select_best([None, some, cheap, same, None]) is cheap
    assert select_best([same, some, cheap]) is same
    assert select_best([None]) is select_best([]) is None


@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        (apart([[5, 1, 2], [5, 3, 2], [1, 2, 2]], launch=100), [0, 0, 0]),
        (apart([[5, 1, 2], [5, 3, 2], [1, 2, 2]], launch=1.25), [1, 1, 0]),
        (apart([[5, 2, 1], [5, 2, 2.5], [1, 2, 2]], launch=1.25), [2, 2, 0]),
        (apart([[5, 1, 2], [5, 3, 2], [1, 2, 2]], launch=0.25), [1, 2, 0]),
        # To leave an accelerator for the unit that the host runs faster costs more than it saves.
        (row([[5, 1, inf], [1, 2, 9], [5, 1, 9]], moving=10.0), [1, 1, 1]),
        (row([[5, inf, 1], [1, 9, 2], [5, 9, 1]], moving=10.0), [2, 2, 2]),
    ],
)
def test_the_search_begins_with_the_best_of_simple_placements(
    problem: Problem, labels: list[int]
) -> None:
    found = find_incumbent(problem)
    assert found is not None
    assert found.labels.tolist() == labels


def test_a_beginning_keeps_the_limits_or_is_none() -> None:
    problem = limited(chain([3.0] * 3, [1.0] * 3), max_regions=[1])
    kept = build_incumbent(problem, ints(1, 1, 0))
    mended = build_incumbent(problem, ints(1, 0, 1))
    assert kept is not None
    assert mended is not None
    assert kept.labels.tolist() == [1, 1, 0]
    assert sorted(mended.labels.tolist()) == [0, 0, 1]
    assert kept.why_host == mended.why_host == "the host is cheaper once moving the data is counted"
    both = limited(problem, must=[True, False, True], seconds=[[3, 1], [3, inf], [3, 1]])
    assert build_incumbent(both, ints(1, 0, 1)) is None


LIMITS: list[tuple[dict[str, Any], bool, bool]] = [
    # limits, exact on one accelerator, on two
    ({}, True, True),
    ({"must": True, "capacity": True, "connected": True}, True, True),
    ({"launch": 1.0}, True, False),
    ({"launch": 1.0, "connected": True}, False, False),
    ({"max_regions": 3}, True, False),
    ({"min_nodes": 1}, True, True),
    ({"min_nodes": 2}, False, False),
    ({"max_nodes": 9}, False, False),
    ({"fusions": True}, True, False),
]


@pytest.mark.parametrize(("limits", "on_one", "on_two"), LIMITS)
def test_a_program_says_whether_it_is_exact(limits: dict[str, Any], on_one: bool, on_two: bool) -> None:
    for devices, exact in ((1, on_one), (2, on_two)):
        problem = apart([[2.0] * (1 + devices)] * 3)
        values = {name: np.full(devices, value) for name, value in limits.items()}
        if "must" in limits:
            values |= {"must": np.ones(3, np.bool_), "capacity": np.full(devices, 5.0)}
        if "fusions" in limits:
            values |= {"fusions": (Fusion((0, 1), 1, 1.0),)}
        assert _is_exact(replace(problem, **values)) == exact


@pytest.mark.parametrize(
    ("total", "bound", "slack", "expected"),
    [
        (10.0, 9.0, 0.0, True),
        (10.0, 9.0, 0.5, True),
        (10.0, 9.0, 1.0, False),
        (10.0, 10.0, 0.0, False),
        (10.0, 10.0 - 5e-9, 0.0, False),
        (10.0, 10.0 - 2e-8, 0.0, True),
        (None, 9.0, 0.0, True),
        (None, inf, 0.0, False),
    ],
)
def test_a_gap_beyond_tolerances_leaves_room(
    total: float | None, bound: float, slack: float, expected: bool
) -> None:
    best = None if total is None else Placement(ints(), ints(), Cost(total, 0, 0))
    assert _can_improve(best, MilpSolution(None, bound, True, slack)) == expected


def searched(problem: Problem) -> _MilpSearch:
    return _MilpSearch(problem, None, None)


@pytest.mark.parametrize(
    ("total", "limits", "launches"),
    [
        # Without launches the least is 4 (four units at 1), and a launch costs 0.5.
        (5.0, {}, 3),
        (5.25, {}, 3),
        (5.75, {}, 4),
        (4.25, {}, 1),
        (5.75, {"max_regions": [2, 1]}, 3),
        (9.0, {}, 4),
        (None, {}, 4),
        (5.0, {"launch": [0.0, 0.5]}, 4),
        (5.0, {"fusions": (Fusion((0, 1), 1, 1.0),)}, 4),
    ],
)
def test_no_better_placement_has_more_launches(
    total: float | None, limits: dict[str, Any], launches: int
) -> None:
    best = None if total is None else Placement(ints(), ints(), Cost(total, 0, 0))
    problem = apart([[3, 1, 1]] * 4 + [[0, inf, inf]], launch=0.5)
    values = {name: v if name == "fusions" else np.array(v) for name, v in limits.items()}
    assert searched(replace(problem, **values)).bound_launches(best) == launches


def test_units_that_no_accelerator_takes_are_not_counted() -> None:
    assert _count_placeable_units(apart([[1, inf, 1], [1, inf, inf], [1, 1, 1]])) == 2
    assert _count_placeable_units(apart([[1, inf]])) == 1


def test_labels_are_read_from_the_columns_above_a_half() -> None:
    values = np.array([[0.0, 1.0], [0.9999999, 0.0], [0.0000001, 0.5], [0.0, 0.0]])
    assert _read_labels(values).tolist() == [2, 1, 0, 0]
    assert _read_labels(np.zeros((3, 0))).tolist() == [0, 0, 0]
    assert _read_labels(values).dtype == np.int64


def test_fusions_that_wait_for_one_another_are_found_group_by_group() -> None:
    """Eight units, 0 to 1, 2 to 3 and so on: (0, 3) and (1, 2) wait for one another."""
    crossing = Problem.build(
        seconds=[[3, 1]] * 8,
        producer=[0, 2, 4, 6],
        consumers=[[1], [3], [5], [7]],
        is_output=[False] * 4,
        to_device=[[1]] * 4,
        to_host=[[1]] * 4,
        launch=[0],
        fusions=[Fusion(pair, 1, 0.5) for pair in ((0, 3), (1, 2), (0, 1), (4, 7), (5, 6))],
    )
    assert _fusion_cycles(crossing, [0, 1]) == [[0, 1]]
    assert _fusion_cycles(crossing, [0, 1, 3, 4]) == [[0, 1], [3, 4]]
    assert _fusion_cycles(crossing, [2, 3]) == _fusion_cycles(crossing, [0, 3]) == []


def test_movable_units_of_regions_that_are_too_small() -> None:
    """Regions of 1 and 2 units beside one of 4 nodes in one unit; a unit that must stays."""
    problem = limited(
        chain([3.0] * 6, [1.0] * 6),
        min_nodes=[3],
        size=[1, 1, 1, 1, 1, 4],
        must=[False, False, False, True, False, False],
    )
    assert _units_of_small_regions(problem, ints(1, 0, 1, 1, 0, 1)).tolist() == [0, 2]
    assert _units_of_small_regions(problem, ints(1, 1, 1, 1, 0, 1)).tolist() == []


def test_fusions_are_kept_in_one_region_where_that_is_possible() -> None:
    """1 and 2 follow a unit of the host each, and share a region only if 1 waits for 2's."""
    problem = Problem.build(
        seconds=[[3, 1], [3, 1], [3, inf], [3, 1]],
        producer=[1, 2],
        consumers=[[2], [3]],
        is_output=[False, False],
        to_device=[[0]] * 2,
        to_host=[[0]] * 2,
        launch=[0.5],
        fusions=[Fusion((0, 3), 1, 1.0), Fusion((1, 3), 1, 1.0)],
    )
    labels = ints(1, 1, 0, 1)
    kept = _keep_fusions_together(problem, labels, (0,))
    assert kept is not None
    assert kept.regions.tolist() == [1, 0, -1, 1]
    assert kept.fusions == (0,)
    assert kept.cost.total == 3 + 3 + 2 * 0.5 - 1
    assert _keep_fusions_together(problem, labels, (1,)) is None  # it would wait for itself
    assert _keep_fusions_together(problem, labels, ()) is None
    assert _keep_fusions_together(limited(problem, connected=[True]), labels, (0,)) is None
    assert _keep_fusions_together(limited(problem, max_regions=[1]), labels, (0,)) is None
    assert _keep_fusions_together(limited(problem, max_nodes=[1]), labels, (0,)) is None


def test_a_search_without_time_gives_what_was_known_and_says_so() -> None:
    problem = apart([[3, 1, 1]] * 4, launch=0.5)
    known = Placement.from_labels(problem, ints(0, 0, 0, 0))
    found = solve_exactly(problem, known, SearchBudget(0.0), None)
    assert found is not None
    assert found.notes == (
        "the search was stopped before the optimum was proven: the work of its time limit was done",
    )
    assert found.cost.total <= 12
    assert found.bound is not None
    assert found.bound <= 4.5


@pytest.mark.parametrize(
    ("copies", "bound", "notes"),
    [
        (2, 11, ()),
        (
            40,
            162,
            ("launches and limits of regions are proven in part only: the bound leaves out the rest",),
        ),
    ],
)
def test_what_is_proven_in_part_is_said(copies: int, bound: float, notes: tuple[str, ...]) -> None:
    """Two launches are proven by levels, and that they are three by a program that may be too large."""
    starts = range(0, 4 * copies, 4)
    problem = Problem.build(
        seconds=[[3, 1, inf], [3, inf, 1], [3, inf, 1], [3, 1, inf]] * copies,
        producer=[first + unit for first in starts for unit in (0, 2)],
        consumers=[[first + unit] for first in starts for unit in (1, 3)],
        is_output=[False] * 2 * copies,
        to_device=np.zeros((2 * copies, 2)),
        to_host=np.zeros((2 * copies, 2)),
        launch=[1.0, 1.0],
    )
    found = solve_exactly(problem, find_incumbent(problem), None, None)
    assert found is not None
    assert found.cost.total == 4 * copies + 3
    assert found.bound == pytest.approx(bound, rel=1e-8)
    assert found.notes == notes


def test_the_limit_of_a_search_is_counted() -> None:
    """A limit stops the search at the same place every time; a larger one proves no less."""
    problem = random_problem(10, 14, frozenset({"launch", "capacity", "connected", "four devices"}))
    known = find_incumbent(problem)
    found = [solve_exactly(problem, known, SearchBudget(each), 200) for each in (0.05, 0.05, 0.5)]
    answers = [each for each in found if each is not None and each.bound is not None]
    assert len(answers) == 3
    first, second, longer = answers
    assert first.notes[0].endswith("before the optimum was proven: the work of its time limit was done")
    assert (first.bound, first.labels.tolist()) == (second.bound, second.labels.tolist())
    assert first.bound <= longer.bound <= longer.cost.total <= first.cost.total


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
