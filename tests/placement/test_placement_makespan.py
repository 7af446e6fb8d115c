"""The makespan: by hand, against all labels, regions and orders, and a checker of its own."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from helpers.placement_dags import limited, random_problem, reordered
from helpers.placement_oracle import (
    chain,
    every_labels,
    labelled,
    partitions,
    problems,
    readers,
    thorough,
)
from helpers.support import sample_cases
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from placement_searches import InferenceSchedule, makespan_lower_bound, restore_order

from byoc.errors import InputError
from byoc.placement import (
    Fusion,
    ListScheduler,
    Placement,
    Problem,
    evaluate,
    find_violation,
    order_canonically,
)
from byoc.placement.strategies import (
    AllSupported,
    HostOnly,
    Makespan,
    MinCut,
    ScheduledPlacement,
    TreeDP,
)


def scheduled(
    problem: Problem, labels: list[int], regions: list[int] | None = None
) -> InferenceSchedule:
    if regions is None:
        regions = Placement.from_labels(problem, np.array(labels, np.int64)).regions.tolist()
    schedule = ListScheduler(problem).schedule(labels, regions)
    assert schedule is not None
    return schedule


def two_branches() -> Problem:
    """Unit 0, then 1 and 2 side by side, then 3; two seconds each, on either side, all in one."""
    return Problem.build(
        seconds=[[2.0, 2.0]] * 4,
        producer=[0, 1, 2, 3],
        consumers=[[1, 2], [3], [3], []],
        is_output=[False, False, False, True],
        to_device=[[0.5]] * 4,
        to_host=[[0.25]] * 4,
        launch=[0.125],
    )


def test_branches_side_by_side_by_hand() -> None:
    """0 to 2 on the host; 2 to 4 there; beside it 2.5 to 4.625 and 0.25 back; then 2 more."""
    problem = two_branches()
    schedule = scheduled(problem, [0, 1, 0, 0])
    assert schedule.makespan == 2 + 0.5 + 0.125 + 2 + 0.25 + 2
    assert schedule.start.tolist() == [0, 2.5, 2, 4.875]
    assert schedule.end.tolist() == [2, 4.625, 4, 6.875]
    assert scheduled(problem, [0, 0, 0, 0]).makespan == 8
    best = Makespan().solve(problem)
    assert best.schedule is not None
    # Better: 0 and 2 on the device, a launch each, and 1 on the host from 2.375 on; or 1 for 2, as 2 is.
    assert best.labels.tolist() in ([1, 0, 1, 0], [1, 1, 0, 0])
    assert best.schedule.makespan == 2.125 + 2.125 + 0.25 + 2
    assert best.cost.total == 8.75
    assert best.notes == (
        "host and accelerators work at once: 6.5 s, against 8.75 s one thing at a time",
    )
    assert MinCut().solve(problem).labels.tolist() == [0, 0, 0, 0]


def test_a_region_is_one_job() -> None:
    """Units 1 and 2 as one region wait for both inputs; as two, the first starts at once."""
    problem = Problem.build(
        seconds=[[4.0, inf], [9.0, 1.0], [9.0, 1.0]],
        producer=[-1, 0],
        consumers=[[1], [2]],
        is_output=[False, False],
        to_device=[[0.0], [0.0]],
        to_host=[[0.0], [0.0]],
        launch=[0.5],
    )
    one = scheduled(problem, [0, 1, 1], [-1, 0, 0])
    assert one.makespan == 4 + 0.5 + 2
    assert one.start.tolist() == [0, 4, 4]
    two = scheduled(problem, [0, 1, 1], [-1, 0, 1])
    assert two.makespan == 4 + 0.5 + 1
    assert two.start.tolist() == [0, 0, 4]


def test_from_accelerator_to_accelerator_by_way_of_the_host() -> None:
    problem = Problem.build(
        seconds=[[9.0, 1.0, inf], [9.0, inf, 1.0]],
        producer=[-1, 0, 1],
        consumers=[[0], [1], []],
        is_output=[False, False, True],
        to_device=[[0.5, 7.0], [7.0, 0.25], [7.0, 7.0]],
        to_host=[[7.0, 7.0], [2.0, 7.0], [7.0, 4.0]],
        launch=[0.0, 0.0],
    )
    assert scheduled(problem, [1, 2]).makespan == 0.5 + 1 + 2 + 0.25 + 1 + 4


def test_a_gap_is_filled() -> None:
    """The host waits for the accelerator from 1 to 5; unit 3, of low rank, runs meanwhile."""
    problem = Problem.build(
        seconds=[[1.0, inf], [9.0, 4.0], [6.0, inf], [3.0, inf]],
        producer=[0, 1],
        consumers=[[1], [2]],
        is_output=[False, False],
        to_device=[[0.0], [0.0]],
        to_host=[[0.0], [0.0]],
        launch=[0.0],
    )
    schedule = scheduled(problem, [0, 1, 0, 0])
    assert schedule.start.tolist() == [0, 1, 5, 1]
    assert schedule.makespan == 11


def test_regions_in_a_circle_have_no_schedule() -> None:
    problem = chain([1.0] * 3, [1.0] * 3)
    assert ListScheduler(problem).schedule([1, 0, 1], [0, -1, 0]) is None
    assert ListScheduler(problem).schedule([1, 0, 1], [0, -1, 1]) is not None


def assert_lawful(
    problem: Problem, labels: list[int], regions: list[int], found: InferenceSchedule
) -> None:
    """Nothing starts before its inputs are there, no device does two jobs at once, nothing is cut."""
    start, end = found.start.tolist(), found.end.tolist()
    jobs: dict[tuple[int, int], list[int]] = {}
    for unit, (label, region) in enumerate(zip(labels, regions, strict=True)):
        jobs.setdefault((label, region if label else -1 - unit), []).append(unit)
    lanes: dict[int, list[tuple[float, float]]] = {}
    for (label, _), units in jobs.items():
        assert len({(start[unit], end[unit]) for unit in units}) == 1
        seconds = sum(problem.seconds[unit, label] for unit in units)
        seconds += problem.launch[label - 1] if label else 0
        assert end[units[0]] - start[units[0]] == pytest.approx(
            seconds, rel=1e-9, abs=1e-9 * end[units[0]]
        )
        if seconds > 0:
            lanes.setdefault(label, []).append((start[units[0]], end[units[0]]))
    for lane in lanes.values():
        assert all(one[1] <= other[0] for one, other in pairwise(sorted(lane)))
    latest = max(end, default=0.0)
    for tensor, producer in enumerate(problem.producer.tolist()):
        home, made = (labels[producer], end[producer]) if producer >= 0 else (0, 0.0)
        away = problem.to_host[tensor, home - 1] if home else 0.0
        if problem.is_output[tensor]:
            latest = max(latest, made + away)
        for unit in readers(problem, tensor):
            label = labels[unit]
            if producer >= 0 and label and (label, regions[unit]) == (home, regions[producer]):
                continue
            moving = (
                0.0 if label == home else away + (problem.to_device[tensor, label - 1] if label else 0)
            )
            assert start[unit] >= (made + moving) * (1 - 1e-12)
    assert found.makespan == pytest.approx(latest, rel=1e-12)


@thorough
@given(labelled(most_units=12))
def test_schedules_are_lawful_and_lie_between_bound_and_sum(
    problem_and_labels: tuple[Problem, np.ndarray],
) -> None:
    problem, labels = problem_and_labels
    labels = np.where(np.isinf(problem.seconds[np.arange(problem.units), labels]), 0, labels)
    bound = makespan_lower_bound(problem)
    singles = np.where(labels > 0, np.arange(problem.units), -1)
    for regions in (Placement.from_labels(problem, labels).regions, singles):
        found = scheduled(problem, labels.tolist(), regions.tolist())
        assert_lawful(problem, labels.tolist(), regions.tolist(), found)
        assert bound <= found.makespan
        assert found.makespan <= evaluate(problem, labels, regions).total * (1 + 1e-12)


class AllOrders:
    """The least makespan of a placement: every order in which its jobs may be taken is tried."""

    def __init__(self, problem: Problem, labels: list[int], regions: list[int]) -> None:
        units = enumerate(zip(labels, regions, strict=True))
        names = [(True, region) if label else (False, unit) for unit, (label, region) in units]
        jobs = list(dict.fromkeys(names))
        job = [jobs.index(name) for name in names]
        self.device = [labels[job.index(number)] for number in range(len(jobs))]
        self.seconds = [float(problem.launch[d - 1]) if d else 0.0 for d in self.device]
        for unit, number in enumerate(job):
            self.seconds[number] += problem.seconds[unit, labels[unit]]
        self.needs: list[list[tuple[int, float]]] = [[] for _ in jobs]
        self.tail = [0.0] * len(jobs)
        for tensor, producer in enumerate(problem.producer.tolist()):
            home, maker = (labels[producer], job[producer]) if producer >= 0 else (0, -1)
            up = float(problem.to_host[tensor, home - 1]) if home else 0.0
            if problem.is_output[tensor] and home:
                self.tail[maker] = max(self.tail[maker], up)
            for unit in readers(problem, tensor):
                if job[unit] != maker:
                    down = float(problem.to_device[tensor, labels[unit] - 1]) if labels[unit] else 0.0
                    moving = 0.0 if labels[unit] == home else up + down
                    self.needs[job[unit]].append((maker, moving))

    def least(self, most: float) -> float:
        """Return the least makespan below `most`, else `most`."""
        self.best = most
        self._go({}, {}, 0.0)
        return self.best

    def _go(self, end: dict[int, float], free: dict[int, float], latest: float) -> None:
        if latest >= self.best:
            return
        if len(end) == len(self.device):
            self.best = latest
            return
        for job, needs in enumerate(self.needs):
            if job in end or any(maker >= 0 and maker not in end for maker, _ in needs):
                continue
            ready = [(end[maker] if maker >= 0 else 0.0) + moving for maker, moving in needs]
            done = max([free.get(self.device[job], 0.0), *ready]) + self.seconds[job]
            self._go(
                {**end, job: done},
                {**free, self.device[job]: done},
                max(latest, done + self.tail[job]),
            )


def slow_makespan(problem: Problem) -> float:
    """The least over all labels, all regions and all orders; cyclic regions have no order."""
    best = inf
    for labels in every_labels(problem):
        placed = [unit for unit, label in enumerate(labels) if label]
        for groups in partitions(placed, list(labels)):
            regions = [-1] * problem.units
            for number, group in enumerate(groups):
                for unit in group:
                    regions[unit] = number
            best = AllOrders(problem, list(labels), regions).least(best)
    return best


def test_against_all_labels_regions_and_orders() -> None:
    ratios, bounds = [], []
    for seed in range(45):
        devices = 1 + seed % 2
        problem = random_problem(seed, 6 - devices, devices, launch=(0.0, 0.5, 2.0)[seed % 3])
        best = slow_makespan(problem)
        placement = Makespan().solve(problem)
        assert placement.schedule is not None
        assert placement.bound is not None
        assert placement.bound <= best
        ratios.append(placement.schedule.makespan / best)
        bounds.append(placement.bound / best)
    assert min(ratios) > 1 - 1e-12
    assert max(ratios) < 1.15
    assert sum(ratio < 1 + 1e-9 for ratio in ratios) >= 40
    assert np.exp(np.mean(np.log(bounds))) > 0.9


@pytest.mark.parametrize("seed", range(40))
def test_a_list_schedule_is_one_of_all_orders(seed: int) -> None:
    problem = random_problem(seed, 6, 2, launch=0.5)
    rng = np.random.default_rng(seed)
    labels = [int(rng.choice(np.flatnonzero(np.isfinite(row)))) for row in problem.seconds]
    regions = Placement.from_labels(problem, np.array(labels)).regions.tolist()
    found = scheduled(problem, labels, regions).makespan
    least = AllOrders(problem, labels, regions).least(inf)
    assert least * (1 - 1e-12) <= found <= 1.5 * least


@pytest.mark.parametrize("seed", sample_cases(range(40), every=3))
def test_never_worse_than_what_adds_up(seed: int) -> None:
    problem = random_problem(seed, 25, 1, launch=(0.0, 1.0)[seed % 2])
    placement = Makespan(restarts=0).solve(problem)
    assert find_violation(problem, placement) == ""
    assert placement.schedule is not None
    for strategy in (HostOnly(), AllSupported(), MinCut(), TreeDP()):
        other = strategy.solve(problem)
        makespan = scheduled(problem, other.labels.tolist(), other.regions.tolist()).makespan
        assert placement.schedule.makespan <= makespan
    labels, regions = placement.labels.tolist(), placement.regions.tolist()
    assert_lawful(problem, labels, regions, placement.schedule)
    assert placement.bound is not None
    assert placement.bound <= placement.schedule.makespan <= placement.cost.total * (1 + 1e-12)


def test_independent_units_are_shared_out() -> None:
    """12 units alike and three devices: four each."""
    problem = Problem.build(
        seconds=[[1.0, 1.0, 1.0]] * 12,
        producer=[],
        consumers=[],
        is_output=[],
        to_device=np.ones((0, 2)),
        to_host=np.ones((0, 2)),
        launch=[0.0, 0.0],
    )
    placement = Makespan().solve(problem)
    assert placement.schedule is not None
    assert placement.schedule.makespan == 4
    assert placement.bound == pytest.approx(4, rel=1e-9)
    assert np.bincount(placement.labels).tolist() == [4, 4, 4]


def test_the_bound_of_a_chain_is_its_path() -> None:
    """On the device 1 + 0.25 + 0.5 + 1 + 1 + 2, transfers, launch and all."""
    problem = chain([4.0, 4.0, 4.0], [1.0, 1.0, 1.0], down=0.25, up=0.5, launch=1.0)
    assert makespan_lower_bound(problem) == pytest.approx(4.75, rel=1e-9)
    placement = Makespan().solve(problem)
    assert placement.schedule is not None
    assert placement.schedule.makespan == 4.75
    assert makespan_lower_bound(chain([], [])) == 0


@thorough
@given(problems(most_units=5, devices=st.integers(0, 2)))
def test_any_costs(problem: Problem) -> None:
    """18 orders of magnitude, ties, nothing to place, connected regions."""
    placement = Makespan(restarts=1).solve(problem)
    assert find_violation(problem, placement) == ""
    assert placement.schedule is not None
    labels, regions = placement.labels.tolist(), placement.regions.tolist()
    assert_lawful(problem, labels, regions, placement.schedule)


@pytest.mark.parametrize("seed", sample_cases(range(30), every=2))
def test_hard_limits_are_kept(seed: int) -> None:
    problem = replace(limited(random_problem(seed, 10, 1 + seed % 2), seed), must=np.zeros(10, bool))
    placement = Makespan(restarts=2).solve(problem)
    assert find_violation(problem, placement) == ""


def test_connected_regions_stay_connected() -> None:
    for seed in range(15):
        problem = replace(random_problem(seed, 10, launch=2.0), connected=np.array([True]))
        placement = Makespan(restarts=2).solve(problem)
        assert find_violation(problem, placement) == ""


def test_a_unit_that_must() -> None:
    problem = replace(chain([1.0, 1.0], [9.0, 9.0], down=9.0, up=9.0), must=np.array([False, True]))
    assert Makespan().solve(problem).labels.tolist() == [0, 1]


def test_what_no_limit_allows_is_refused() -> None:
    problem = replace(
        chain([1.0, 1.0], [9.0, 9.0]), must=np.array([False, True]), min_nodes=np.array([5], np.int64)
    )
    with pytest.raises(InputError, match="no placement keeps all the limits"):
        Makespan().solve(problem)


def test_a_fusion_shortens_its_region() -> None:
    problem = replace(chain([9.0, 9.0], [2.0, 2.0]), fusions=(Fusion((0, 1), 1, 1.5),))
    assert scheduled(problem, [1, 1]).makespan == 2.5
    placement = Makespan().solve(problem)
    assert placement.schedule is not None
    assert placement.schedule.makespan == placement.cost.total == 2.5
    assert placement.fusions == (0,)
    assert placement.bound is not None
    assert placement.bound <= 2.5


def test_the_same_every_time() -> None:
    problem = random_problem(7, 30, 2, launch=0.5)
    one, two = Makespan().solve(problem), Makespan().solve(problem)
    assert one.labels.tolist() == two.labels.tolist()
    assert one.regions.tolist() == two.regions.tolist()


def with_schedule_in_order(
    scheduled: ScheduledPlacement, order: NDArray[np.int64]
) -> ScheduledPlacement:
    """Return a placement given by `placed_back` with its schedule reordered as well."""
    if scheduled.schedule is None:
        return scheduled
    start, end = np.empty_like(scheduled.schedule.start), np.empty_like(scheduled.schedule.end)
    start[order], end[order] = scheduled.schedule.start, scheduled.schedule.end
    return replace(scheduled, schedule=replace(scheduled.schedule, start=start, end=end))


@pytest.mark.parametrize("seed", sample_cases(range(10), every=3))
def test_the_canonical_order_takes_the_order_of_units_away(seed: int) -> None:
    problem = random_problem(seed, 10, 1 + seed % 2)
    other, place = reordered(problem, seed)
    keys = [f"unit {unit}" for unit in range(problem.units)]
    other_keys = [""] * problem.units
    for unit, where in enumerate(place):
        other_keys[where] = keys[unit]

    def solved(given: Problem, names: list[str]) -> ScheduledPlacement:
        ordered, order = order_canonically(given, names)
        placement: Placement = restore_order(given, Makespan().solve(ordered), order)
        assert isinstance(placement, ScheduledPlacement)
        return with_schedule_in_order(placement, order)

    one, two = solved(problem, keys), solved(other, other_keys)
    assert one.schedule is not None
    assert two.schedule is not None
    assert two.labels[place].tolist() == one.labels.tolist()
    assert two.schedule.start[place].tolist() == one.schedule.start.tolist()
    assert_lawful(problem, one.labels.tolist(), one.regions.tolist(), one.schedule)
