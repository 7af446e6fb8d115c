"""The Lagrangian relaxation: its cuts, worst paths, steps and bound, by hand and against searches."""

from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import SlowCost, chain, problems, slow_edges
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_searches import HostDeviceCuts, LagrangianRelaxation

from byoc.placement import UNLIMITED, Fusion, Problem

some = settings(max_examples=examples(100), deadline=None)

PRICES = st.sampled_from([0.0, 0.25, 1.0, 3.0])


def apart(seconds: list[list[float]], **limits: Any) -> Problem:
    """Units without tensors between them, launches free."""
    devices = len(seconds[0]) - 1
    return Problem.build(
        seconds=seconds,
        producer=[],
        consumers=[],
        is_output=[],
        to_device=np.ones((0, devices)),
        to_host=np.ones((0, devices)),
        launch=[0.0] * devices,
        **limits,
    )


@some
@given(problems(most_units=6, devices=st.integers(1, 2)), st.data())
def test_a_cut_is_the_least_cost_with_all_its_prices(problem: Problem, data: st.DataObject) -> None:
    units, edges = problem.units, sorted(slow_edges(problem))
    device = data.draw(st.integers(1, problem.devices))

    def draw(values: st.SearchStrategy[float], count: int) -> np.ndarray:
        return np.array(data.draw(st.lists(values, min_size=count, max_size=count)), np.float64)

    on_edge, on_entry = draw(PRICES, len(edges)), draw(PRICES, units)
    on_unit = draw(PRICES | st.just(-0.5), units)
    sides = data.draw(st.lists(st.sampled_from([-1, -1, 0, 1]), min_size=units, max_size=units))
    open_to = problem.allowed[:, device].tolist()
    side = [0 if on == 1 and not accepted else on for on, accepted in zip(sides, open_to, strict=True)]
    cost = SlowCost(problem)

    def priced(labels: tuple[int, ...]) -> float:
        there = [label > 0 for label in labels]
        entering = [
            price for price, (u, v) in zip(on_edge, edges, strict=True) if there[v] and not there[u]
        ]
        return cost(labels) + sum(entering) + float((on_entry + on_unit)[there].sum())

    choices = [
        [0, *([device] if accepted else [])] if on == -1 else [device * on]
        for on, accepted in zip(side, open_to, strict=True)
    ]
    cuts = HostDeviceCuts(problem, device, np.array(side, np.int64))
    value, on_device = cuts.solve(on_edge, on_entry, on_unit)
    best = min(map(priced, product(*choices)))
    chosen = tuple(np.where(on_device, device, 0).tolist())
    assert all(label in choice for label, choice in zip(chosen, choices, strict=True))
    assert value <= best + 1e-12 * abs(best)
    assert value == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert priced(chosen) == pytest.approx(best, rel=1e-9, abs=1e-9)


def slow_worst_path(problem: Problem, on_device: np.ndarray) -> tuple[int, int]:
    """The most entries of any path, and the most edges of a path with so many."""
    best = [(int(on_device[unit]), 0) for unit in range(problem.units)]
    for unit in range(problem.units):
        for u, v in sorted(slow_edges(problem)):
            if v == unit:
                entries, edges = best[u]
                best[v] = max(best[v], (entries + int(on_device[v] and not on_device[u]), edges + 1))
    return max(best)


@some
@given(problems(most_units=8), st.data())
def test_a_worst_path_enters_the_device_most_often(problem: Problem, data: st.DataObject) -> None:
    if not problem.units:
        return
    where = st.lists(st.booleans(), min_size=problem.units, max_size=problem.units)
    on_device = np.array(data.draw(where), np.bool_)
    relaxation = LagrangianRelaxation(problem)
    count, edges, unit = relaxation._worst_path(on_device)
    entries = int(on_device[unit])
    for number in reversed(edges):
        source, target = (int(side[number]) for side in problem.edges)
        assert source == unit
        entries += int(on_device[target] and not on_device[source])
        unit = target
    assert (entries, len(edges)) == (count, len(edges)) == slow_worst_path(problem, on_device)


def test_multipliers_begin_where_only_the_fastest_accelerator_wants_a_unit() -> None:
    """Units gain 6 and 4, 9 and nothing, 2 and 2, nothing and nothing."""
    problem = apart([[10, 4, 6], [10, 1, inf], [3, 1, 1], [1, 5, 2]])
    relaxation = LagrangianRelaxation(problem)
    assert relaxation.unit_multiplier.tolist() == [4, 0, 2, 0]
    assert relaxation.has_multipliers
    alone = apart([[10.0, 4.0]])
    assert not LagrangianRelaxation(alone).has_multipliers
    assert LagrangianRelaxation(alone).unit_multiplier.tolist() == [0]
    assert LagrangianRelaxation(replace(alone, capacity=np.array([5.0]))).has_multipliers
    assert LagrangianRelaxation(replace(alone, max_regions=np.array([2]))).has_multipliers


def test_a_fusions_saving_is_shared_by_its_members() -> None:
    fusions = (Fusion((0, 1), 1, 1.0), Fusion((1, 2, 3), 1, 0.75), Fusion((2, 3), 2, 0.5))
    problem = apart([[3, 1, 1]] * 4, fusions=fusions)
    shares = LagrangianRelaxation(problem).fusion_share
    assert shares.tolist() == [[0.5, 0.5, 0.25, 0.25], [0, 0, 0.25, 0.25]]


@pytest.mark.parametrize(
    ("must", "multipliers", "taken", "expected"),
    [
        # Units wanted twice, once, never are over by 1, 0, -1; a third of a gap of 2, by 1 or 2.
        ([0, 0, 0], [0, 0, 0], [[1, 1, 0], [1, 0, 0]], [2 / 3, 0, 0]),
        ([0, 0, 0], [0, 0, 5], [[1, 1, 0], [1, 0, 0]], [1 / 3, 0, 5 - 1 / 3]),
        ([0, 0, 0], [0, 0, 0.25], [[1, 1, 0], [1, 0, 0]], [1 / 3, 0, 0]),
        ([0, 0, 1], [0, 0, 0.25], [[1, 1, 0], [1, 0, 0]], [1 / 3, 0, 0.25 - 1 / 3]),
        ([0, 0, 1], [0, 0, 0], [[1, 1, 0], [1, 0, 0]], [1 / 3, 0, -1 / 3]),
        ([0, 0, 0], [0, 1, 0], [[0, 1, 0], [0, 0, 0]], None),
    ],
)
def test_a_step_of_the_units_multipliers(
    must: list[int], multipliers: list[float], taken: list[list[int]], expected: list[float] | None
) -> None:
    problem = apart([[10, 4, 6]] * 3, must=np.array(must, np.bool_))
    relaxation = LagrangianRelaxation(problem)
    relaxation.unit_multiplier = np.array(multipliers, np.float64)
    on_device = [np.array(row, np.bool_) for row in taken]
    assert relaxation._step_multipliers(on_device, 2.0, 1 / 3) == (expected is not None)
    assert relaxation.unit_multiplier == pytest.approx(multipliers if expected is None else expected)
    assert relaxation.byte_multiplier.tolist() == relaxation.region_multiplier.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("wanted", "bytes_", "regions", "by_byte", "by_region"),
    [
        # Three units of 2 bytes where 4 fit: half too much of all. Two entries where one is allowed.
        ([1, 0, 1, 0, 1], 0.0, 0.0, 0.5 * 0.25 / 4 / 4.25, 2 * 0.25 / 4.25),
        ([1, 1, 0, 0, 0], 0.0, 0.0, 0.0, 0.0),
        ([1, 0, 0, 0, 0], 0.01, 0.0, 0.01 - 0.25 / 0.5 / 4, 0.0),
        ([0, 0, 0, 0, 0], 0.5, 3.0, 0.5 - 0.25 / 2 / 4, 3.0 - 0.25 / 2),
    ],
)
def test_a_step_of_the_multipliers_of_bytes_and_regions(
    wanted: list[int], bytes_: float, regions: float, by_byte: float, by_region: float
) -> None:
    problem = replace(
        chain([3.0] * 5, [1.0] * 5),
        memory=np.full((5, 1), 2.0),
        capacity=np.array([4.0]),
        max_regions=np.array([1]),
    )
    relaxation = LagrangianRelaxation(problem)
    relaxation.byte_multiplier[:], relaxation.region_multiplier[:] = bytes_, regions
    relaxation._step_multipliers([np.array(wanted, np.bool_)], 1.0, 0.25)
    assert relaxation.byte_multiplier == pytest.approx([max(0.0, by_byte)])
    assert relaxation.region_multiplier == pytest.approx([by_region])
    assert relaxation.unit_multiplier.tolist() == [0] * 5


def test_the_value_of_multipliers_by_hand() -> None:
    """Per device the cheaper of host and accelerator with what it is charged; then the limits' share."""
    problem = apart(
        [[10.0, 4.0, 6.0], [5.0, 1.0, inf], [2.0, 3.0, 9.0]],
        memory=np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]),
        capacity=[4.0, inf],
        max_regions=[2, UNLIMITED],
        fusions=[Fusion((0, 1), 1, 1.0)],
    )
    relaxation = LagrangianRelaxation(problem)
    relaxation.unit_multiplier = np.array([3.0, 2.0, 0.0])
    relaxation.byte_multiplier = np.array([0.25, 0.0])
    relaxation.region_multiplier = np.array([0.125, 0.0])
    value, (one, two) = relaxation._solve_cuts(50)
    # Device 1: 4 + 3 + 0.25 - 0.5 against 10; 1 + 2 + 0.5 - 0.5 against 5; the host for the last.
    first = 6.75 + 3.0 + 2.0
    # Device 2: 6 + 3 against 10; the host for the others.
    second = 9.0 + 5.0 + 2.0
    entries = 0.125 * (relaxation.entry_flow[0] @ one)
    assert one.tolist() == [True, True, False]
    assert two.tolist() == [True, False, False]
    rest = 5.0 + 0.25 * 4.0 + 0.125 * 2
    assert value == pytest.approx(17 + (first + entries - 17) + (second - 17) - rest, rel=1e-12)
    assert relaxation._choose_labels([one, two]).tolist() == [1, 1, 0]
    assert relaxation._choose_labels([~one, two]).tolist() == [2, 0, 1]


@pytest.mark.parametrize("launch", [0.25, 2.0, 5.0])
def test_launches_of_a_chain_are_proven(launch: float) -> None:
    """Two stretches gain 4 and 3, each for one launch; between them the accelerator refuses a unit."""
    problem = chain([3.0, 3.0, 1.0, 4.0], [1.0, 1.0, inf, 1.0], launch=launch)
    best = 11 - max(0.0, 4 - launch) - max(0.0, 3 - launch)
    relaxation = LagrangianRelaxation(problem)
    labels = [each.tolist() for each in relaxation.iterate_labels(12, lambda: best)]
    assert relaxation.bound <= best
    assert relaxation.bound == pytest.approx(best, rel=0.02)
    expected = [int(launch < 4)] * 2 + [0, int(launch < 3)]
    assert expected in labels
