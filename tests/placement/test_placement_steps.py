"""Steps of placing, by hand: neighbours, repairs, the order of launches, and optima under each limit."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from helpers.placement_dags import hub
from helpers.placement_oracle import SlowCost, chain, ints, limited, problems
from helpers.placement_random import FEATURES, random_problem
from helpers.support import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_searches import HostDeviceCuts

from byoc.errors import InputError
from byoc.placement import Fusion, Problem, find_violation, repair_labels
from byoc.placement._chain_split import _find_rectangles
from byoc.placement._form_regions import _LaunchSchedule, schedule_launches
from byoc.placement._hard_limits import (
    _region_gains,
    _units_to_evict,
    find_inseparable_groups,
    make_feasible,
)
from byoc.placement._host_device_cut import UNDECIDED
from byoc.placement._load_covering import CoverDevices, _scale
from byoc.placement._load_frontier import _align_step
from byoc.placement._placement_enumeration import find_best_regions
from byoc.placement._unit_groups import HOST, ForestSolver, GroupTensor, Neighbours, _device_sets
from byoc.placement.strategies import Exact, Exhaustive, FasterOpsTransfer, LaunchAware
from byoc.placement.strategies._baselines import _Sweeper


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


def sum_around(problem: Problem, unit: int, labels: list[int]) -> float:
    """Return the seconds of a unit and of all tensors that it makes or reads; -1 is nowhere."""
    total = float(problem.costs[unit, labels[unit]])
    for tensor in range(problem.tensors):
        start, stop = problem.consumer_start[tensor : tensor + 2].tolist()
        readers, producer = problem.consumers[start:stop].tolist(), int(problem.producer[tensor])
        home = labels[producer] if producer >= 0 else 0
        if unit not in (producer, *readers) or home < 0:
            continue
        wanted = {labels[reader] for reader in readers} - {-1, home}
        if problem.is_output[tensor] and home:
            wanted.add(0)
        if wanted:
            total += problem.to_host[tensor, home - 1] if home else 0.0
            total += sum(problem.to_device[tensor, device - 1] for device in wanted if device)
    return total


@pytest.mark.parametrize(
    ("seed", "devices"), [*product(range(6), (frozenset[str](), frozenset({"two devices"})))]
)
def test_a_unit_pays_for_the_tensors_around_it_on_each_device(
    seed: int, devices: frozenset[str]
) -> None:
    problem = random_problem(seed, 6, devices)
    around, rng = Neighbours(problem), np.random.default_rng(seed)
    for _ in range(20):
        labels = rng.integers(-1, 1 + problem.devices, problem.units).tolist()
        for unit in range(problem.units):
            expected = [
                sum_around(problem, unit, [*labels[:unit], device, *labels[unit + 1 :]])
                for device in range(1 + problem.devices)
            ]
            assert around.seconds_with_transfers(unit, labels) == pytest.approx(expected)


@given(
    st.integers(HOST, 4),
    st.sets(st.integers(0, 4), max_size=3),
    st.booleans(),
)
def test_a_segment_moves_what_it_does_not_hold_all_of(
    home: int, readers: set[int], is_output: bool
) -> None:
    """Segments [start, stop) of five groups; what is in none is on the host."""
    tensor = GroupTensor(home, tuple(sorted(readers - {home})), is_output, (2.0,), (3.0,))
    position = [3, 0, 4, 1, 2]
    places = {position[reader] for reader in tensor.readers}
    at = 9 if home == HOST else position[home]
    rectangles = _find_rectangles(tensor, position, 1, 5)
    for start in range(5):
        for stop in range(start + 1, 6):
            inside = set(range(start, stop))
            expected = 0.0
            if at in inside:
                expected += 3.0 if is_output or places - inside else 0.0
            elif places & inside:
                expected += 2.0
            found = sum(
                sign * seconds
                for (low, high), least, sign, seconds in rectangles
                if low <= start < high and stop >= least
            )
            assert found == expected


@pytest.mark.parametrize(
    ("step", "seconds", "aligned"),
    [
        (1.0, [], 1.0),
        (1.0, [3.5], 3.5 / 4),
        (1.0, [3.0], 1.0),
        (1.0, [2.9], 1.0),  # of fewer than three steps
        (1.0, [3.5, 1.0, 1.1, 1.2, 1.3], 1.0),  # the shortest of equal counts
        (1.0, [3.5, 3.5, 9.0, 8.0, 7.0, 6.5, 5.0, 4.0, 3.0, 2.0], 3.5 / 4),  # a fifth
        (1.0, [3.5, 3.5, 9.0, 8.0, 7.0, 6.5, 5.0, 4.0, 3.0, 2.0, 1.0], 1.0),
    ],
)
def test_a_step_fits_the_commonest_tensor(step: float, seconds: list[float], aligned: float) -> None:
    assert _align_step(step, seconds) == pytest.approx(aligned)


@pytest.mark.parametrize("sweeps", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_after_the_last_sweep_no_unit_is_undecided(sweeps: int, seed: int) -> None:
    problem = random_problem(seed, 9, frozenset({"two devices"}))
    labels = _Sweeper(problem, FasterOpsTransfer(sweeps=sweeps)).run()
    assert min(labels) >= 0
    assert all(np.isfinite(problem.costs[unit, label]) for unit, label in enumerate(labels))


@pytest.mark.parametrize(("devices", "host"), [(1, inf), (2, 2.0)])
def test_what_must_leave_the_host_may_be_on_another_accelerator(devices: int, host: float) -> None:
    problem = Problem.build(
        seconds=[[2.0] + [1.0] * devices],
        producer=[0],
        consumers=[[]],
        is_output=[True],
        to_device=np.ones((1, devices)),
        to_host=np.ones((1, devices)),
        launch=[0.0] * devices,
        must=[True],
    )
    side = np.full(1, UNDECIDED, np.int64)
    assert HostDeviceCuts(problem, 1, side).seconds.tolist() == [[host, 1.0]]


amounts = st.lists(
    st.tuples(st.integers(0, 6), st.one_of(st.integers(0, 8), st.just(inf))), min_size=1, max_size=6
)


@given(amounts, st.integers(1, 12), st.integers(1, 3))
def test_divided_groups_have_the_profit_of_the_best_division(
    each: list[tuple[int, float]], most: int, count: int
) -> None:
    """By the dual: some price of a second, that of one of the groups, leaves the least."""
    profit = np.array([p for p, _ in each], np.int64)
    costs = np.array([float(c) for _, c in each])
    devices = CoverDevices([*range(1, 1 + count)], costs)
    loads = np.arange(0.0, most + 1)
    able = [(p, Fraction(int(c))) for p, c in each if c <= most and p > 0]
    prices = {Fraction(0), *(Fraction(p) / c for p, c in able if c)}
    found = devices.divide_groups(profit, loads, float(most))
    for load, value in zip(loads.tolist(), found.tolist(), strict=True):
        least = min(
            price * Fraction(load) + sum(max(Fraction(0), p - price * c) for p, c in able)
            for price in prices
        )
        assert value == pytest.approx(float(least))
    assert devices.search_seconds == devices.proof_seconds == 0
    bounds = devices.bound_profits(profit, 0.5, 2 * most, float(most))
    again = devices.divide_groups(profit, np.arange(1, 2 * most + 1) * 0.5, float(most))
    np.testing.assert_allclose(bounds, count * again)


@given(st.lists(st.one_of(st.floats(0, 1e300), st.just(inf), st.just(nan)), max_size=6))
def test_profits_are_as_large_as_a_table_takes(profit: list[float]) -> None:
    found = _scale(np.array(profit))
    finite = [each for each in profit if np.isfinite(each)]
    assert found.dtype == np.int64
    assert found.sum() <= 2**28 - 1
    assert [each > 0 for each in found.tolist()] <= [np.isfinite(each) for each in profit]
    if finite and max(finite) > 0:
        assert found.sum() >= 2**28 - 1 - len(profit)
        total = sum(Fraction(each) for each in finite)
        for each, share in zip(profit, found.tolist(), strict=True):
            exact = Fraction(each) / total * (2**28 - 1) if np.isfinite(each) else 0
            assert abs(share - exact) <= 1 + exact * Fraction(1, 2**40)
    else:
        assert not found.any()


SETS_OF_THREE = [some for count in range(4) for some in combinations((1, 2, 3), count)]


@pytest.mark.parametrize(
    ("devices", "level", "home", "held", "expected"),
    [
        (2, 0, 0, (), {(0,): ()}),
        (2, 0, 1, (), {(1,): ()}),
        (2, 0, 0, (1, 2), {(0, 1, 2): (1, 2)}),
        (2, 0, 1, (2,), {(0, 1, 2): (2,)}),  # from one accelerator to another by way of the host
        (2, 1, 0, (), {(0,): (), (0, 1): (1,), (0, 2): (2,)}),
        (2, 1, 2, (), {(2,): (), (0, 2): (), (0, 1, 2): (1,)}),
        (2, 2, 0, (), {(0,): (), (0, 1): (1,), (0, 2): (2,), (0, 1, 2): (1, 2)}),
        (3, 2, 0, (), {(0, *set_): set_ for set_ in SETS_OF_THREE}),
        (3, 2, 0, (2,), {(0, *set_): set_ for set_ in SETS_OF_THREE if 2 in set_}),
    ],
)
def test_sets_of_devices_that_hold_a_tensor(
    devices: int, level: int, home: int, held: tuple[int, ...], expected: dict[Any, Any]
) -> None:
    assert dict(_device_sets(devices, level, home, frozenset(held))) == expected


@pytest.mark.parametrize(("devices", "most"), [(4, 4), (5, 5), (6, 2), (7, 2)])
def test_all_sets_are_tried_for_up_to_five_accelerators(devices: int, most: int) -> None:
    sets = [reached for _, reached in _device_sets(devices, 2, 0, frozenset())]
    assert max(map(len, sets)) == most
    for count in (2, 3):
        solver = ForestSolver(Neighbours(hub(devices, count)))
        assert solver.exact == (devices == most or count == 2)
