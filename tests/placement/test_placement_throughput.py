"""The maximal load: by hand, against every placement, and the search for a small one."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import inf
from types import FrameType
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import chain, labelled, problems, readers, thorough
from helpers.placement_random import FEATURES, alike, random_problem
from helpers.support import sample_cases
from hypothesis import given
from hypothesis import strategies as st
from placement_searches import (
    LoadState,
    UnitGroups,
    find_device_classes,
    form_regions,
    measure_loads,
    split_chain,
)

from byoc.errors import InputError
from byoc.numerics import SearchBudget
from byoc.placement import Fusion, Measure, Occupancy, Problem, find_violation
from byoc.placement.strategies import Exhaustive, HostOnly, Throughput, measure_placement

DEVICE = (Occupancy.device,)


def slow_loads(
    problem: Problem, labels: list[int], regions: list[int], saved: Sequence[float] | None = None
) -> list[float]:
    """The load of each device, unit by unit and tensor by tensor, less what fusions save on each."""
    execution = [0.0, *(-each for each in saved or [0.0] * problem.devices)]
    moving = [0.0] * (problem.devices + 1)
    for unit, label in enumerate(labels):
        execution[label] += problem.seconds[unit, label]
    for region in set(regions) - {-1}:
        device = labels[regions.index(region)]
        execution[device] += problem.launch[device - 1]
    for tensor, producer in enumerate(problem.producer.tolist()):
        home = labels[producer] if producer >= 0 else 0
        ends = {labels[unit] for unit in readers(problem, tensor)}
        ends |= {0} if problem.is_output[tensor] else set()
        for device in ends - {home, 0}:
            moving[device] += problem.to_device[tensor, device - 1]
        if home and ends - {home}:
            moving[home] += problem.to_host[tensor, home - 1]
    loads = [execution[0] / problem.cores]
    for device, kind in enumerate(problem.occupies, 1):
        if kind == "host":
            loads[0] += moving[device]
        added = moving[device] if kind == "device" else 0.0
        load = execution[device] + added
        loads.append(max(load, moving[device]) if kind == "link" else load)
    return loads


def occupying(problem: Problem, seed: int, cores: int = 1) -> Problem:
    """The same with transfers that occupy something, which differs by device."""
    kinds = list(Occupancy)
    occupies = tuple(kinds[(seed + device) % len(kinds)] for device in range(problem.devices))
    return replace(problem, occupies=occupies, cores=cores)


def test_loads_by_hand() -> None:
    """The host makes 0 and reads 2; the device runs 1 and 2, 1 + 2 s, with a launch."""
    problem = chain([4.0, 4.0, 4.0], [1.0, 1.0, 2.0], down=0.5, up=0.25, launch=0.125)
    labels, regions = np.array([0, 1, 1]), np.array([-1, 0, 0])
    found = {
        kind: measure_loads(replace(problem, occupies=(kind,)), labels, regions).tolist()
        for kind in Occupancy
    }
    assert found[Occupancy.nothing] == [4, 3.125]
    assert found[Occupancy.device] == [4, 3.125 + 0.75]
    assert found[Occupancy.host] == [4.75, 3.125]
    assert found[Occupancy.link] == [4, 3.125]
    slow = replace(problem, to_device=problem.to_device * 10, occupies=(Occupancy.link,), cores=2)
    assert measure_loads(slow, labels, regions).tolist() == [2, 5.25]
    fused = replace(problem, fusions=(Fusion((1, 2), 1, 1.5),))
    assert measure_loads(fused, labels, regions, (0,)).tolist() == [4, 1.625]


@thorough
@given(labelled(most_units=10), st.integers(0, 3), st.integers(1, 3))
def test_loads_are_those_of_a_slow_sum(
    given_labels: tuple[Problem, np.ndarray], seed: int, cores: int
) -> None:
    problem, labels = given_labels
    problem = occupying(problem, seed, cores)
    labels = np.where(np.isinf(problem.seconds[np.arange(problem.units), labels]), 0, labels)
    regions = form_regions(problem, labels)
    expected = slow_loads(problem, labels.tolist(), regions.tolist())
    assert measure_loads(problem, labels, regions).tolist() == pytest.approx(expected, rel=1e-12)


@thorough
@given(problems(most_units=8, devices=st.integers(1, 3)), st.integers(0, 3), st.randoms())
def test_loads_are_kept_up_to_date_move_by_move(problem: Problem, seed: int, rng: object) -> None:
    problem = occupying(replace(problem, launch=np.zeros(problem.devices)), seed)
    groups = UnitGroups.from_problem(problem)
    state = LoadState(groups, problem.occupies, 1, [0] * groups.count)
    for _ in range(20 if groups.count else 0):
        group, target = rng.randrange(groups.count), rng.randrange(problem.devices + 1)  # type: ignore[attr-defined]
        if target == state.labels[group]:
            continue
        move = state.examine(group, target)
        moved = list(state.labels)
        moved[group] = target
        labels = groups.spread(moved)
        expected = slow_loads(problem, labels.tolist(), np.where(labels > 0, labels, -1).tolist())
        if move is None:
            assert max(expected) == inf
            continue
        after = state.loads_after(move)
        state.apply(move)
        size = 1e-9 * max(expected)
        assert state.loads() == pytest.approx(expected, rel=1e-9, abs=max(size, 1e-9))
        ends = (expected[0], expected[move.source], expected[move.target])
        assert after == pytest.approx(ends, rel=1e-9, abs=max(size, 1e-9))


def spread_over_kinds(problem: Problem, alike: int) -> Problem:
    """Return a problem of eight kinds of devices, or of five with two of each: too many to combine."""
    kinds = np.repeat(np.arange(8 if alike == 1 else 5), alike)
    source = kinds % problem.devices
    limits = ("capacity", "connected", "min_nodes", "max_nodes", "max_regions")
    by_device = ("memory", "to_device", "to_host", *limits)
    arrays = {name: getattr(problem, name)[..., source] for name in by_device}
    seconds = problem.seconds[:, 1 + source] * (1 + kinds / 8)
    return replace(
        problem,
        **arrays,
        seconds=np.column_stack([problem.seconds[:, 0], seconds]),
        launch=np.zeros(len(kinds)),
        occupies=DEVICE * len(kinds),
    )


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("seed", sample_cases(range(30), every=2))
def test_a_chain_is_split_as_well_as_can_be(seed: int, in_order: bool) -> None:
    """Every way to give each device, the host too, one segment of the order.

    Where there are too many combinations of devices, the host is first, and equal devices are in a row.
    """
    problem = random_problem(
        seed, 4 if in_order else 7, frozenset({"two devices", "capacity"} if seed % 2 else {"must"})
    )
    problem = occupying(problem, seed)
    if in_order:
        problem = spread_over_kinds(problem, alike=2 if seed % 3 == 0 else 1)
    elif seed % 3 == 0:  # two alike
        problem = replace(
            problem,
            seconds=np.repeat(problem.seconds[:, [0, -1]], [1, problem.devices], axis=1),
            memory=np.repeat(problem.memory[:, :1], problem.devices, axis=1),
            to_device=np.repeat(problem.to_device[:, :1], problem.devices, axis=1),
            to_host=np.repeat(problem.to_host[:, :1], problem.devices, axis=1),
            capacity=np.repeat(problem.capacity[:1], problem.devices),
            occupies=DEVICE * problem.devices,
        )
    groups = UnitGroups.from_problem(problem)
    order = list(range(groups.count))
    classes = find_device_classes(groups, problem.occupies)
    rank = {device: at for at, device in enumerate([0, *(d for each in classes for d in each)])}
    best = inf
    for labels in product(range(problem.devices + 1), repeat=groups.count):
        ends = [label for at, label in enumerate(labels) if not at or labels[at - 1] != label]
        if len(set(ends)) < len(ends) or (in_order and ends != sorted(ends, key=rank.__getitem__)):
            continue
        units = groups.spread(labels)
        taken = [problem.memory[units == 1 + d, d].sum() for d in range(problem.devices)]
        refused = np.isinf(problem.costs[np.arange(problem.units), units]).any()
        if not refused and (np.array(taken) <= problem.capacity).all():
            where = np.where(units > 0, units, -1).tolist()
            # A host that copies has no load of its own in a split.
            loads = slow_loads(replace(problem, launch=np.zeros(problem.devices)), units.tolist(), where)
            if Occupancy.host in problem.occupies:
                loads[0] = problem.seconds[units == 0, 0].sum()
            best = min(best, *[max(loads)])
    found = split_chain(groups, order, problem.occupies, 1, SearchBudget())
    if found is None:
        assert best == inf
        return
    units = groups.spread(found)
    loads = slow_loads(
        replace(problem, launch=np.zeros(problem.devices)),
        units.tolist(),
        np.where(units > 0, units, -1).tolist(),
    )
    if Occupancy.host in problem.occupies:
        loads[0] = problem.seconds[units == 0, 0].sum()
    assert max(loads) == pytest.approx(best, rel=1e-9)


def test_equal_devices_are_one_class() -> None:
    problem = random_problem(3, 6, frozenset({"three devices"}))
    groups = UnitGroups.from_problem(problem)
    assert find_device_classes(groups, problem.occupies) == [[1], [2], [3]]
    paired = replace(
        problem,
        seconds=problem.seconds[:, [0, 1, 2, 1]],
        memory=problem.memory[:, [0, 1, 0]],
        to_device=problem.to_device[:, [0, 1, 0]],
        to_host=problem.to_host[:, [0, 1, 0]],
    )
    groups = UnitGroups.from_problem(paired)
    assert find_device_classes(groups, paired.occupies) == [[1, 3], [2]]
    assert find_device_classes(groups, (*DEVICE, *paired.occupies[1:])) == [[1], [2], [3]]


def test_groups_are_held_together_by_tensors_that_cannot_be_moved() -> None:
    problem = chain([1.0] * 4, [2.0, 3.0, 4.0, 5.0], down=1.0, up=2.0)
    stuck = problem.to_device.copy()
    stuck[2] = inf  # from 1 to 2
    back = problem.to_host.copy()
    back[2] = inf
    groups = UnitGroups.from_problem(replace(problem, to_device=stuck, to_host=back))
    assert groups.of_unit.tolist() == [0, 1, 1, 2]
    assert groups.costs.tolist() == [[1, 2], [2, 7], [1, 5]]
    assert [(each.home, each.readers, each.is_output) for each in groups.tensors] == [
        (-1, (0,), False), (0, (1,), False), (1, (2,), False), (2, (), True)
    ]  # fmt: skip
    assert groups.neighbours == [[1], [0, 2], [1]]
    pair = groups.contract([0, 0, 1])
    assert pair.costs.tolist() == [[3, 9], [1, 5]]
    assert [(each.home, each.readers) for each in pair.tensors] == [(-1, (0,)), (0, (1,)), (1, ())]
    assert pair.of_unit.tolist() == [0, 0, 0, 1]
    assert pair.gather(pair.spread([1, 0])) == [1, 0]


def least_load_of_all(problem: Problem) -> float:
    """The least maximal load over all labels, with the regions that form.

    Labels come in the order of their execution alone, which transfers and launches only add to.
    """
    every = np.array(list(product(range(problem.devices + 1), repeat=problem.units)), np.int64)
    costs = problem.costs[np.arange(problem.units), every]
    every, costs = every[np.isfinite(costs).all(axis=1)], costs[np.isfinite(costs).all(axis=1)]
    each = [np.where(every == device, costs, 0.0).sum(axis=1) for device in range(problem.devices + 1)]
    execution = np.maximum(each[0] / problem.cores, np.max(each[1:], axis=0))
    best = inf
    for place in np.argsort(execution).tolist():
        if execution[place] > best * (1 + 1e-9):
            break
        regions = form_regions(problem, every[place])
        best = min(best, float(measure_loads(problem, every[place], regions).max()))
    return best


@pytest.fixture
def without_trying_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems are solved as large ones are."""
    monkeypatch.setattr("byoc.placement.strategies._throughput._FEW_LABELS", 0)


@pytest.mark.usefixtures("without_trying_all")
@pytest.mark.parametrize("seed", sample_cases(range(40), every=3))
def test_the_bound_holds_and_the_answer_is_near(seed: int) -> None:
    features = frozenset({FEATURES[7 + seed % 2]} if seed % 4 else {"launch"})
    problem = occupying(random_problem(seed, 7 - seed % 2, features), seed, 1 + seed % 2)
    best = least_load_of_all(problem)
    placement = Throughput(time_limit=0.1).solve(problem)
    assert find_violation(problem, placement) == ""
    assert placement.measure is Measure.load
    assert placement.bound is not None
    assert placement.bound <= best * (1 + 1e-12)
    assert best * (1 - 1e-12) <= placement.value <= best * 1.02


@pytest.mark.usefixtures("without_trying_all")
@pytest.mark.parametrize("seed", [*sample_cases(range(60), every=3), 2062])
def test_limits_are_kept(seed: int) -> None:
    """What cannot be kept is refused; what all labels and regions keep is found.

    In problem 2062 a pair has a group that only one of the two takes, above the load of both.
    """
    features = frozenset(FEATURES[(seed * 5 + step) % 7] for step in range(3)) | {"two devices"}
    problem = occupying(random_problem(seed, 7, features), seed)
    try:
        placement = Throughput(time_limit=0.2).solve(problem)
    except InputError:
        return
    assert find_violation(problem, placement) == ""
    assert placement.bound is not None
    assert placement.bound <= placement.value
    try:
        other = measure_placement(problem, Exhaustive().solve(problem), Measure.load)
    except InputError:
        return
    assert placement.bound <= other.value * (1 + 1e-12)


@pytest.mark.usefixtures("without_trying_all")
@pytest.mark.parametrize("seed", sample_cases(range(60), every=3))
def test_equal_devices_are_loaded_as_little_as_can_be(seed: int) -> None:
    """All labels of 60 problems: the bound holds, and is near."""
    problem = alike(random_problem(seed, 7, frozenset({"two devices"})))
    problem = replace(problem, launch=np.zeros(problem.devices))
    best = least_load_of_all(problem)
    placement = Throughput(time_limit=0.2).solve(problem)
    assert placement.bound is not None
    assert placement.bound <= best * (1 + 1e-12)
    assert placement.value == pytest.approx(best, rel=1e-9)
    assert placement.bound >= 0.5 * best


def test_the_same_every_time_and_within_the_limit() -> None:
    problem = occupying(random_problem(5, 40, frozenset({"three devices"})), 2)
    one, two = Throughput(time_limit=0.3).solve(problem), Throughput(time_limit=0.3).solve(problem)
    assert one.labels.tolist() == two.labels.tolist()
    host = measure_placement(problem, HostOnly().solve(problem), Measure.load)
    assert one.value <= host.value


def test_devices_whose_transfers_the_host_does_not_do_cost_its_load_nothing() -> None:
    def count_lines(devices: int) -> int:
        problem = Problem.build(
            seconds=np.ones((2, 1 + devices)),
            producer=[0],
            consumers=[[1]],
            is_output=[False],
            to_device=np.ones((1, devices)),
            to_host=np.ones((1, devices)),
            launch=np.zeros(devices),
            occupies=[Occupancy.device] * devices,
        )
        state = LoadState(UnitGroups.from_problem(problem), problem.occupies, 1, [0, 0])
        lines = 0

        def watch(_: FrameType, event: str, __: object) -> Any:
            nonlocal lines
            lines += event == "line"
            return watch

        before = sys.gettrace()
        sys.settrace(watch)
        try:
            state.load(0)
        finally:
            sys.settrace(before)
        return lines

    assert count_lines(200) == count_lines(2) > 0


def test_tables_that_no_memory_holds_are_not_made() -> None:
    problem = chain(np.ones(4000), np.ones(4000))
    groups, budget = UnitGroups.from_problem(problem), SearchBudget(1.0)
    assert split_chain(groups, range(groups.count), problem.occupies, 1, budget) is None
    assert budget.left == 1.0
