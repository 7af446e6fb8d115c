"""Steps of placing, by hand: neighbours, repairs, the order of launches, and optima under each limit."""

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import SlowCost, chain, ints, limited, problems
from helpers.placement_random import FEATURES, random_problem
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.errors import InputError
from byoc.placement import Fusion, Problem, find_violation, repair_labels
from byoc.placement._form_regions import _LaunchSchedule, schedule_launches
from byoc.placement._hard_limits import (
    _region_gains,
    _units_to_evict,
    find_inseparable_groups,
    make_feasible,
)
from byoc.placement._placement_enumeration import find_best_regions
from byoc.placement._unit_groups import Neighbours
from byoc.placement.strategies import Exact, Exhaustive, LaunchAware


def graph(seconds: list[list[float]], edges: list[tuple[int, int]], moving: float = 1.0) -> Problem:
    devices = len(seconds[0]) - 1
    return Problem.build(
        seconds=seconds,
        producer=[u for u, _ in edges],
        consumers=[[v] for _, v in edges],
        is_output=[False] * len(edges),
        to_device=np.full((len(edges), devices), moving),
        to_host=np.full((len(edges), devices), moving),
        launch=[0.0] * devices,
    )


def test_units_are_grouped_by_the_units_before_them() -> None:
    problem = graph([[1.0, 1.0]] * 6, [(0, 2), (1, 2), (2, 3), (0, 3), (1, 5)])
    assert Neighbours(problem).group_by_depth() == [[0, 1, 4], [2, 5], [3]]
    assert Neighbours(chain([], [])).group_by_depth() == []


def test_a_unit_pays_for_what_it_alone_moves() -> None:
    """Tensors: 0 from the host to units 0 and 1; 1 from 0 to 1 and 2, an output."""
    problem = Problem.build(
        seconds=[[10.0, 1.0, 2.0], [20.0, 3.0, inf], [30.0, 5.0, 6.0]],
        producer=[-1, 0],
        consumers=[[0, 1], [1, 2]],
        is_output=[False, True],
        to_device=[[0.5, 0.25], [4.0, 8.0]],
        to_host=[[99.0, 99.0], [16.0, 32.0]],
        launch=[0.0, 0.0],
    )
    around = Neighbours(problem)
    assert around.transfer_seconds(1, 1, {0, 1}) == 16
    assert around.transfer_seconds(1, 1, {1}) == 0
    assert around.transfer_seconds(1, 2, {0, 1, 2}) == 32 + 4
    assert around.transfer_seconds(1, 0, {0, 1, 2}) == 4 + 8
    for labels, seconds in (
        # Nothing known of others: the input, and the graph's output.
        ((-1, -1, -1), [10, 1 + 0.5 + 16, 2 + 0.25 + 32]),
        # Unit 1 has the input on device 1 already, and wants the output there.
        ((-1, 1, -1), [10 + 0.5 + 4, 1 + 0.5 + 16, 2 + 0.25 + 0.5 + 32 + 4]),
        ((-1, 0, 2), [10 + 8, 1 + 0.5 + 16 + 8, 2 + 0.25 + 32]),
    ):
        assert around.seconds_with_transfers(0, labels) == seconds
    # A reader pays for a tensor's way to it, not where it is already; the unknown maker costs nothing.
    assert around.seconds_with_transfers(2, (0, 1, 0)) == [30 + 4, 5 + 4, 6 + 8 + 4]
    assert around.seconds_with_transfers(2, (1, 0, 0)) == [30 + 16, 5 + 16, 6 + 16 + 8]
    assert around.seconds_with_transfers(2, (-1, 1, 0)) == [30, 5, 6]


@settings(max_examples=examples(100), deadline=None)
@given(problems(most_units=6, devices=st.integers(1, 3), costs=st.integers(0, 9).map(float)), st.data())
def test_seconds_with_transfers_differ_as_the_costs_of_the_placements(
    problem: Problem, data: st.DataObject
) -> None:
    if not problem.units:
        return
    anywhere = st.integers(0, problem.devices)
    labels = data.draw(st.lists(anywhere, min_size=problem.units, max_size=problem.units))
    unit = data.draw(st.integers(0, problem.units - 1))
    found = Neighbours(problem).seconds_with_transfers(unit, labels)
    finite = replace(problem, seconds=np.where(np.isinf(problem.seconds), 0.0, problem.seconds))
    cost = SlowCost(finite)
    moved = [(*labels[:unit], d, *labels[unit + 1 :]) for d in range(1 + problem.devices)]
    for d, seconds in enumerate(found):
        if seconds < inf:
            assert seconds - found[0] == cost(moved[d]) - cost(moved[0])
        else:
            assert problem.seconds[unit, d] == inf


FIVE = chain([3.0] * 5, [1.0] * 5, down=0.5, up=0.25, launch=0.125)


@pytest.mark.parametrize(
    ("limits", "labels", "total"),
    [
        ({}, [1, 1, 1, 1, 1], 5 + 0.75 + 0.125),
        ({"memory": [[1.0]] * 5, "capacity": [5.0]}, [1, 1, 1, 1, 1], 5 + 0.75 + 0.125),
        ({"memory": [[1.0]] * 5, "capacity": [4.0]}, [1, 1, 1, 1, 0], 7 + 0.75 + 0.125),
        ({"memory": [[1.0], [1], [3], [1], [1]], "capacity": [4.0]}, None, 7 + 2 * 0.75 + 0.25),
        ({"max_nodes": [3]}, [1, 1, 1, 1, 1], 5 + 0.75 + 0.25),
        ({"max_nodes": [3], "max_regions": [1]}, None, 9 + 0.75 + 0.125),
        ({"max_nodes": [0]}, [0, 0, 0, 0, 0], 15),
        ({"max_regions": [0]}, [0, 0, 0, 0, 0], 15),
        ({"min_nodes": [6]}, [0, 0, 0, 0, 0], 15),
        ({"min_nodes": [6], "size": [1, 1, 2, 1, 1]}, [1, 1, 1, 1, 1], 5 + 0.75 + 0.125),
        ({"seconds": [[3, 1], [3, 1], [9, inf], [3, 1], [3, 1]]}, [1, 1, 0, 1, 1], 13 + 1.5 + 0.25),
        (
            {"seconds": [[3, 1], [3, 1], [9, inf], [3, 1], [3, 1]], "max_regions": [1]},
            None,
            2 + 9 + 6 + 0.75 + 0.125,
        ),
        (
            {"seconds": [[3, 1], [3, 1], [9, inf], [3, 1], [3, 1]], "min_nodes": [3]},
            [0, 0, 0, 0, 0],
            21,
        ),
        ({"seconds": [[1.0, 3.0]] * 5, "must": [0, 0, 1, 0, 0]}, [0, 0, 1, 0, 0], 7 + 0.75 + 0.125),
        ({"launch": [20.0]}, [0, 0, 0, 0, 0], 15),
    ],
)
def test_the_optimum_under_each_limit(
    limits: dict[str, Any], labels: list[int] | None, total: float
) -> None:
    if "must" in limits:
        limits = limits | {"must": np.array(limits["must"], np.bool_)}
    problem = limited(FIVE, **limits)
    for strategy in (Exhaustive(), Exact(), LaunchAware()):
        found = strategy.solve(problem)
        assert find_violation(problem, found) == ""
        assert found.cost.total == pytest.approx(total, rel=1e-12), strategy.name
        assert labels is None or found.labels.tolist() == labels


@pytest.mark.parametrize("seed", range(50, 53))
@pytest.mark.parametrize(
    "features",
    [
        *({name} for name in FEATURES),
        *({"fusions", other} for other in ("connected", "region size", "two devices")),
        {"region count", "connected", "two devices"},
        set(),
    ],
    ids=lambda features: "+".join(sorted(features)) or "none",
)
def test_the_exact_strategies_find_what_trying_all_finds(features: set[str], seed: int) -> None:
    problem = random_problem(seed, 5, frozenset({"launch", *features}))
    for strategy in (Exact(), LaunchAware()):
        try:
            best = Exhaustive().solve(problem)
        except InputError:
            with pytest.raises(InputError):
                strategy.solve(problem)
            continue
        found = strategy.solve(problem)
        assert find_violation(problem, found) == find_violation(problem, best) == ""
        assert found.cost.total == pytest.approx(best.cost.total, rel=1e-9)
        assert found.bound == pytest.approx(best.cost.total, rel=1e-8)


def test_the_gain_of_a_region_is_its_time_on_the_host_less_that_on_its_device() -> None:
    problem = limited(FIVE, seconds=[[3.0, 1.0], [4.0, 1.0], [3.0, 1.0], [9.0, 1.0], [1.0, 2.0]])
    gains = _region_gains(problem, ints(1, 1, 0, 1, 1), ints(0, 0, -1, 1, 2), ints(1, 1, 1))
    assert gains.tolist() == [2 + 3 - 0.125, 8 - 0.125, -1 - 0.125]


@pytest.mark.parametrize(
    ("capacity", "must", "evicted"),
    [
        (7.5, (), [1]),
        (7.0, (), [1]),
        (6.0, (), [1, 0]),
        (3.0, (), [1, 0]),
        (2.5, (), [1, 0, 4]),
        (6.0, (1,), [0]),
        (6.0, (0, 1), [4, 3]),
    ],
)
def test_units_leave_the_regions_that_save_least_for_their_bytes(
    capacity: float, must: tuple[int, ...], evicted: list[int]
) -> None:
    """Regions 0, 1 and 3, 4 gain as much and hold 5 and 3 bytes; their last units go first."""
    problem = limited(
        FIVE,
        memory=[[4.0], [1.0], [9.0], [2.0], [1.0]],
        capacity=[capacity],
        must=np.isin(np.arange(5), must),
    )
    labels, regions = ints(1, 1, 0, 1, 1), ints(0, 0, -1, 1, 1)
    gain = np.array([3.875, 3.875])
    assert _units_to_evict(problem, labels, regions, gain, 0).tolist() == evicted


def test_repairs_go_on_until_all_limits_are_kept() -> None:
    """Two regions too many for memory: what is left of the first is too small."""
    problem = limited(FIVE, memory=[[1.0]] * 5, capacity=[3.0], min_nodes=[2])
    assert repair_labels(problem, ints(1, 1, 0, 1, 1)).tolist() == [0, 0, 0, 1, 1]
    required = limited(problem, must=[False, True, False, False, False])
    assert repair_labels(required, ints(0, 0, 0, 1, 1)).tolist() == [0, 1, 0, 1, 1]
    refused = limited(FIVE, seconds=[[3, 1], [3, inf], [3, 1], [3, 1], [3, 1]])
    assert repair_labels(refused, ints(1, 1, 1, 0, 0)).tolist() == [1, 0, 1, 0, 0]


def test_units_are_inseparable_by_tensors_that_no_device_can_send_or_take() -> None:
    both = graph([[3.0, 1.0, 1.0]] * 5, [(0, 1), (1, 2), (3, 4)])
    stuck = limited(both, to_device=[[inf] * 2] * 3, to_host=[[inf] * 2, [inf] * 2, [inf, 1.0]])
    groups = find_inseparable_groups(stuck).tolist()
    assert groups[0] == groups[1] == groups[2]
    assert len({groups[0], groups[3], groups[4]}) == 3
    # The fastest for all three is device 2, also for unit 0.
    faster = limited(stuck, seconds=[[3.0, 1, 2], [3, 4, 2], [3, 4, 2], [3, 1, 2], [3, 2, 1]])
    assert make_feasible(faster, ints(1, 2, 2, 1, 2)).tolist() == [2, 2, 2, 1, 2]
    assert make_feasible(faster, ints(0, 0, 0, 0, 0)).tolist() == [0, 0, 0, 0, 0]
    # Together they need 6 bytes: more than device 2 has, then more than both have.
    held = limited(faster, memory=[[2.0, 2.0]] * 5, capacity=[8.0, 5.0])
    assert make_feasible(held, ints(2, 2, 2, 1, 2)).tolist() == [1, 1, 1, 1, 2]
    held = limited(faster, memory=[[2.0, 2.0]] * 5, capacity=[5.0, 5.0])
    assert make_feasible(held, ints(2, 2, 2, 1, 2)).tolist() == [0, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("limits", "labels", "expected"),
    [
        ({}, (1, 1, 0, 1, 1), (0.25, [0, 0, -1, 1, 1])),
        ({}, (0, 0, 0, 0, 0), (0.0, [-1, -1, -1, -1, -1])),
        ({"max_nodes": [1]}, (0, 1, 1, 0, 0), (0.25, [-1, 0, 1, -1, -1])),
        ({"max_regions": [1]}, (1, 1, 0, 1, 1), None),
        ({"min_nodes": [3]}, (1, 1, 0, 1, 1), None),
    ],
)
def test_the_best_regions_of_labels(limits: dict[str, Any], labels: Any, expected: Any) -> None:
    found = find_best_regions(limited(FIVE, **limits), ints(*labels))
    assert (None if found is None else (found[0], found[1].tolist())) == expected


def test_launches_ahead_of_each_unit() -> None:
    """In a row on devices 1, 2, 1, host, 1, 2, 2."""
    problem = graph([[1.0, 1.0, 1.0]] * 7, [(unit, unit + 1) for unit in range(6)])
    labels = ints(1, 2, 1, 0, 1, 2, 2)
    assert _LaunchSchedule(problem, labels).height == [3, 2, 2, 0, 1, 1, 1]
    assert schedule_launches(problem, labels).tolist() == [1, 2, 3, 3, 4, 5, 5]


@pytest.mark.parametrize(
    ("edges", "labels", "slots"),
    [
        # Device 2 waits for unit 1, which lets it launch both of its units at once.
        ([(1, 2)], (2, 1, 2), [2, 1, 2]),
        ([(1, 2)], (1, 2, 1), [2, 1, 2]),
        # Nothing to wait for: the first device, then the next.
        ([], (2, 1, 2, 1), [2, 1, 2, 1]),
        # The host between.
        ([(0, 1), (1, 2)], (1, 0, 1), [1, 1, 2]),
        ([(0, 1), (0, 2), (1, 3), (2, 3)], (0, 1, 2, 0), [0, 1, 2, 2]),
        # Two of three units of device 1 are ready, and one of two of device 2.
        ([(2, 3), (1, 4)], (1, 1, 2, 1, 2), [1, 1, 2, 3, 2]),
        ([(2, 3), (1, 4)], (2, 2, 1, 2, 1), [1, 1, 2, 3, 2]),
    ],
)
def test_launches_by_hand(edges: list[tuple[int, int]], labels: Any, slots: list[int]) -> None:
    problem = graph([[1.0, 1.0, 1.0]] * len(labels), edges)
    assert schedule_launches(problem, ints(*labels)).tolist() == slots


def test_a_fusion_saves_where_it_is_launched_as_one() -> None:
    problem = replace(FIVE, fusions=(Fusion((0, 1), 1, 1.0), Fusion((1, 2), 1, 1.5)))
    for strategy in (Exhaustive(), Exact(), LaunchAware()):
        found = strategy.solve(problem)
        assert found.fusions == (1,)
        assert found.cost.total == pytest.approx(5 + 0.75 + 0.125 - 1.5, rel=1e-12)


@pytest.mark.parametrize("producer", [-1, 0, 2])
def test_units_around_a_tensor_that_no_link_carries_stay_together(producer: int) -> None:
    """What is an input of the graph keeps its readers on the host, and together with no other unit."""
    infinite = np.array([[inf, inf], [1.0, inf], [inf, 2.0]])
    problem = Problem.build(
        seconds=np.ones((5, 3)),
        producer=[producer, 1, 2],
        consumers=[[3, 4], [2], [3]],
        is_output=[False] * 3,
        to_device=infinite,
        to_host=infinite,
        launch=[0.0, 0.0],
    )
    groups = find_inseparable_groups(problem).tolist()
    together = {producer, 3, 4} if producer >= 0 else set()
    pairs = {(a, b) for a in range(5) for b in range(5) if groups[a] == groups[b]}
    assert pairs == {(a, b) for a in range(5) for b in range(5) if a == b or {a, b} <= together}
