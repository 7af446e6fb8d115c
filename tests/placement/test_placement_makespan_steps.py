"""The makespan step by step: gaps, ranks, bounds, moves and starting points, by hand."""

import random
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from helpers.placement_dags import random_problem
from helpers.placement_oracle import chain, ints
from placement_searches import SearchState, improve_state, least_load, makespan_lower_bound

from byoc.placement import Fusion, ListScheduler, Problem, find_violation
from byoc.placement._list_scheduling import (
    EarliestFinish,
    IdleIntervals,
    _ScheduledJobs,
    renumber_regions,
)
from byoc.placement._makespan_search import _LocalSearch, _longest_path, keeps_limits
from byoc.placement.strategies import Makespan
from byoc.placement.strategies._makespan import (
    _number_by_start,
    _perturb,
    _region_variants,
    _remove_duplicates,
    _replace_part,
)


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


def branches(launch: float = 0.25) -> Problem:
    """Unit 0 feeds 1 and 2, these 3; 4 s on the host and 1 s on the device, 2 s and 1 s to move."""
    return Problem.build(
        seconds=[[4.0, 1.0]] * 4,
        producer=[0, 1, 2],
        consumers=[[1, 2], [3], [3]],
        is_output=[False] * 3,
        to_device=[[2.0]] * 3,
        to_host=[[1.0]] * 3,
        launch=[launch],
    )


def state_of(problem: Problem, labels: list[int], regions: list[int]) -> SearchState:
    return SearchState.from_labels(ListScheduler(problem), labels, regions)


def test_a_job_takes_the_first_gap_that_holds_it() -> None:
    idle = IdleIntervals()
    jobs = [
        # ready, seconds, start
        (4.0, 2.0, 4.0),  # 0 to 4 and from 6 on are left
        (0.0, 5.0, 6.0),  # too long for the gap
        (1.0, 1.0, 1.0),  # 0 to 1, 2 to 4, from 11 on
        (0.0, 2.0, 2.0),  # fills the gap
        (0.5, 0.0, 0.5),  # takes no time and no room
        (0.5, 0.5, 0.5),
        (0.0, 0.75, 11.0),
        (0.0, 0.5, 0.0),
        (20.0, 1.0, 20.0),
        (0.0, 9.0, 21.0),
        (0.0, 8.25, 11.75),
    ]
    for ready, seconds, start in jobs:
        assert idle.take(ready, seconds) == start


def test_jobs_are_taken_by_the_longest_path_to_the_end() -> None:
    """Ranks: 4 for unit 3, 4 + 4 for 2, 1.25 + 1 + 4 for 1 on the device, 4 + 2 + 6.25 for 0."""
    problem = replace(branches(), is_output=np.array([True, False, False]))
    jobs = _ScheduledJobs(ListScheduler(problem), [0, 1, 0, 0], [-1, 0, -1, -1])
    assert jobs.seconds == [4, 1.25, 4, 4]
    assert jobs.following == [[(1, 2.0), (2, 0.0)], [(3, 1.0)], [(3, 0.0)], []]
    assert jobs.tail == jobs.release == [0, 0, 0, 0]
    assert jobs.order_by_rank() == [0, 2, 1, 3]
    start, end, makespan = jobs.assign_times([0, 2, 1, 3])
    assert (start, end) == ([0, 6, 4, 8.25], [4, 7.25, 8, 12.25])
    assert makespan == 12.25


def test_fusions_make_a_region_shorter() -> None:
    problem = replace(branches(), fusions=(Fusion((0, 1), 1, 0.5), Fusion((2, 3), 1, 0.25)))
    scheduler = ListScheduler(problem)
    whole = scheduler.schedule([1] * 4, [0] * 4)
    parted = scheduler.schedule([1] * 4, [0, 1, 2, 2])
    assert whole is not None
    assert parted is not None
    assert whole.makespan == 4 + 0.25 - 0.75
    assert parted.makespan == 4 + 0.75 - 0.25


def test_inputs_arrive_and_outputs_leave() -> None:
    problem = chain([4.0, 4.0], [1.0, 1.0], down=2.0, up=0.5, launch=0.25)
    jobs = _ScheduledJobs(ListScheduler(problem), [1, 1], [0, 0])
    assert (jobs.release, jobs.tail, jobs.seconds) == ([2.0], [0.5], [2.25])
    schedule = ListScheduler(problem).schedule([1, 1], [0, 0])
    assert schedule is not None
    assert (schedule.start.tolist(), schedule.end.tolist()) == ([2, 2], [4.25, 4.25])
    assert schedule.makespan == 4.75


@pytest.mark.parametrize(
    ("seconds", "load"),
    [
        ([[2.0, 4.0], [4.0, 2.0]], 2.0),
        ([[1.0, 1.0]], 0.5),
        ([[1.0, 3.0]], 0.75),
        ([[5.0, inf], [1.0, 1.0]], 5.0),
        ([[3.0, inf], [2.0, 2.0]], 3.0),
        ([[6.0, 6.0, 6.0]], 2.0),
        ([[inf, 2.0], [inf, 2.0]], 4.0),
        ([[0.0, 0.0]], 0.0),
    ],
)
def test_the_least_load_of_the_busiest_device(seconds: list[list[float]], load: float) -> None:
    must = np.isinf(seconds)[:, 0]
    problem = replace(apart(np.where(np.isinf(seconds) & [True] + [False] * (len(seconds[0]) - 1), 1.0,
                                     seconds).tolist()), must=must)  # fmt: skip
    assert least_load(problem) == pytest.approx(load, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({}, 3.25),  # all on the device, from whose start nothing need move
        ({"launch": np.array([9.0])}, 12.0),  # all on the host
        ({"seconds": np.array([[4.0, 1.0], [4.0, inf], [4.0, 1.0], [4.0, 1.0]])}, 9.5),
        ({"seconds": np.array([[1.0, 4.0], [9.0, 1.0], [9.0, 1.0], [9.0, 1.0]])}, 5.25),
        ({"must": np.array([False, False, False, True]), "launch": np.array([9.0])}, 12.0),
        ({"is_output": np.array([False, False, True])}, 3.25),
    ],
)
def test_the_longest_path_at_its_cheapest(changes: dict[str, Any], path: float) -> None:
    """A move to the device costs 2 and the launch, one to the host 1; a unit 4 or 1."""
    problem = replace(branches(), **changes)
    assert _longest_path(problem) == pytest.approx(path)


def test_the_path_of_a_model_counts_its_inputs_and_outputs() -> None:
    problem = chain([9.0, 9.0], [1.0, 1.0], down=2.0, up=0.5, launch=0.25)
    assert _longest_path(problem) == 4.75
    assert _longest_path(replace(problem, to_host=np.full((3, 1), 99.0))) == 18


def test_fusions_lower_the_bound_by_what_they_save_of_each_unit() -> None:
    problem = branches()
    saving = replace(problem, fusions=(Fusion((0, 1), 1, 0.5), Fusion((1, 3), 1, 1.0)))
    assert makespan_lower_bound(problem) == pytest.approx(3.25, rel=1e-9)
    assert makespan_lower_bound(problem) < 3.25
    assert makespan_lower_bound(saving) == pytest.approx(2.5, rel=1e-9)


def test_regions_are_numbered_in_order_of_appearance() -> None:
    labels, regions = renumber_regions([1, 0, 2, 1, 2], [7, -1, 3, 7, 5])
    assert labels.tolist() == [1, 0, 2, 1, 2]
    assert regions.tolist() == [0, -1, 1, 0, 2]
    assert labels.dtype == regions.dtype == np.int64


@pytest.mark.parametrize(
    ("labels", "regions", "unit", "moves"),
    [
        # On the host: to the device alone or with its neighbours, in a region of their own.
        ([0, 0, 0, 0], [-1] * 4, 1, [((1,), 1, None), ((0, 1, 2, 3), 1, None)]),
        # Beside a region: into it, too.
        ([1, 0, 0, 0], [5, -1, -1, -1], 3, [((3,), 1, None), ((1, 2, 3), 1, None)]),
        (
            [1, 0, 0, 0], [5, -1, -1, -1], 1,
            [((1,), 1, None), ((1,), 1, 5), ((1, 2, 3), 1, None), ((1, 2, 3), 1, 5)],
        ),
        # In a region: out of it, to the host, and the whole of it with its first unit alone.
        (
            [1, 1, 0, 0], [5, 5, -1, -1], 0,
            [((0,), 0, None), ((0,), 1, None), ((0, 1), 0, None)],
        ),
        (
            [1, 1, 0, 1], [5, 5, -1, 5], 1,
            [((1,), 0, None), ((1,), 1, None), ((0, 1, 3), 0, None)],
        ),
        (
            [1, 0, 1, 1], [5, -1, 5, 5], 0,
            [*(((0,), to, None) for to in (0, 1)),
             *(((0, 2), to, None) for to in (0, 1)), ((0, 2, 3), 0, None)],
        ),
        # Beside another region: into that one, alone and as a whole.
        (
            [1, 0, 0, 1], [5, -1, -1, 6], 0,
            [((0,), 0, None)],
        ),
        (
            [1, 1, 0, 0], [5, 6, -1, -1], 0,
            [((0,), 0, None), ((0,), 1, 6), ((0, 1), 0, None), ((0, 1), 1, None), ((0, 1), 1, 6)],
        ),
    ],
)  # fmt: skip
def test_moves_of_a_unit(labels: list[int], regions: list[int], unit: int, moves: list[Any]) -> None:
    problem = branches()
    search = _LocalSearch(problem, ListScheduler(problem), 100)
    assert list(search._moves(state_of(problem, labels, regions), unit)) == moves


def test_units_do_not_move_where_they_are_refused() -> None:
    problem = replace(branches(), seconds=np.array([[4, 1], [4, inf], [4, 1], [4, 1.0]]))
    search = _LocalSearch(problem, ListScheduler(problem), 100)
    state = state_of(problem, [0] * 4, [-1] * 4)
    assert list(search._moves(state, 1)) == []
    assert list(search._moves(state, 0)) == [((0,), 1, None)]


def test_a_search_ends_where_no_move_helps_or_nothing_is_left_to_try() -> None:
    problem = branches()
    scheduler = ListScheduler(problem)
    host = state_of(problem, [0] * 4, [-1] * 4)
    best, tried = improve_state(problem, scheduler, host, 1000)
    assert best.seconds == 4.25
    assert best.labels == [1] * 4
    assert len(set(best.regions)) == 1
    assert tried < 1000
    for most in range(tried):
        found, count = improve_state(problem, scheduler, host, most)
        assert count == most
        assert best.seconds <= found.seconds <= host.seconds
    assert improve_state(problem, scheduler, host, 0)[0] is host


def test_limits_that_a_state_keeps() -> None:
    problem = replace(branches(), max_regions=ints(1))
    assert keeps_limits(problem, [1, 1, 1, 0], [4, 4, 4, -1])
    assert not keeps_limits(problem, [1, 1, 1, 0], [4, 4, 5, -1])
    connected = replace(branches(), connected=np.array([True]))
    assert keeps_limits(connected, [1, 1, 1, 0], [4, 4, 4, -1])
    assert not keeps_limits(connected, [0, 1, 1, 0], [-1, 4, 4, -1])
    assert keeps_limits(connected, [0, 1, 1, 0], [-1, 4, 5, -1])
    assert keeps_limits(branches(), [0, 1, 1, 0], [-1, 4, 4, -1])


def test_ranks_by_hand() -> None:
    """2.5 s for each unit on average and 1.5 s to move: 2.5, 6.5, and 10.5 s to the end."""
    problem = branches()
    assert EarliestFinish(problem).rank_units() == [10.5, 6.5, 6.5, 2.5]
    refused = replace(problem, seconds=np.array([[4, 1], [4, inf], [4, 1], [4, 1.0]]))
    assert EarliestFinish(refused).rank_units()[:2] == [12.0, 8.0]
    stuck = replace(problem, to_device=np.array([[2.0], [inf], [2.0]]))
    assert EarliestFinish(stuck).rank_units()[:3] == [10.5, 5.5, 6.5]
    drawn = EarliestFinish(problem).rank_units(random.Random(1))
    assert drawn != EarliestFinish(problem).rank_units(random.Random(2))
    assert all(
        0.6 * mean <= rank <= 1.4 * mean for rank, mean in zip(drawn, [10.5, 6.5, 6.5, 2.5], strict=True)
    )


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({}, [1, 1, 1, 1]),
        ({"launch": np.array([9.0])}, [0, 0, 0, 0]),
        # The host is busy until 8 when unit 2 could end at 10.5; then 3 ends at 15 there, not at 15.5.
        ({"launch": np.array([3.5])}, [0, 0, 1, 1]),
        # 2 waits for 1 on the host and need not: it moves for 2 s and 1 s and runs for 1.25 s.
        ({"seconds": np.array([[4.0, 9.0], [4.0, 9.0], [4.0, 1.0], [4.0, 9.0]])}, [0, 0, 1, 0]),
        # Unit 3 ends sooner where its inputs are.
        ({"seconds": np.array([[4.0, 1.0], [4.0, 1.0], [4.0, 1.0], [2.0, 3.0]])}, [1, 1, 1, 0]),
        ({"seconds": np.array([[4.0, 1.0], [4.0, 1.0], [4.0, 1.0], [3.0, 3.0]])}, [1, 1, 1, 1]),
    ],
)
def test_each_unit_is_placed_where_it_ends_first(changes: dict[str, Any], labels: list[int]) -> None:
    assert EarliestFinish(replace(branches(), **changes)).place().tolist() == labels


def test_units_that_wait_for_nothing_share_devices_by_their_free_time() -> None:
    assert EarliestFinish(apart([[2.0, 3.0]] * 5)).place().tolist() == [0, 1, 0, 0, 1]
    assert EarliestFinish(apart([[2.0, 3.0]] * 5, launch=2.0)).place().tolist() == [0, 0, 1, 0, 0]


def test_units_share_the_cores_of_the_host() -> None:
    assert EarliestFinish(replace(apart([[2.0, 3.0]] * 4), cores=4)).place().tolist() == [0, 0, 0, 0]
    assert EarliestFinish(replace(apart([[2.0, 3.0]] * 4), cores=2)).place().tolist() == [0, 0, 1, 0]


def test_units_that_are_kept_stay_where_they_are() -> None:
    problem = branches()
    for kept in ([0, -1, -1, -1], [-1, 0, -1, 1], [1, 1, 0, 0]):
        labels = EarliestFinish(problem).place(kept=kept).tolist()
        assert all(label == device for label, device in zip(labels, kept, strict=True) if device >= 0)
    assert EarliestFinish(problem).place(kept=[-1] * 4).tolist() == [1] * 4


def test_starting_points_of_a_placement() -> None:
    problem = replace(branches(), producer=ints(0, 1, 2))
    found = list(_region_variants(problem, ints(0, 1, 1, 0), ints(-1, 0, 0, -1)))
    assert [regions.tolist() for _, regions in found] == [
        [-1, 0, 0, -1],
        [-1, 0, 1, -1],
        [-1, 0, 1, -1],
    ]
    joined = list(_region_variants(problem, ints(1, 1, 0, 0), ints(0, 0, -1, -1)))
    assert [regions.tolist() for _, regions in joined] == [
        [0, 0, -1, -1],
        [0, 0, -1, -1],
        [0, 1, -1, -1],
    ]
    assert len(list(_region_variants(problem, ints(0, 0, 0, 0), ints(-1, -1, -1, -1)))) == 1
    assert all(labels.tolist() == [1, 1, 0, 0] for labels, _ in joined)


def test_the_first_state_with_each_labels_stays() -> None:
    problem = branches()
    one, two = state_of(problem, [1, 1, 0, 0], [0, 0, -1, -1]), state_of(problem, [0] * 4, [-1] * 4)
    same = state_of(problem, [1, 1, 0, 0], [0, 1, -1, -1])
    assert _remove_duplicates([one, two, same]) == [one, two]
    assert _remove_duplicates([two, same, one, two]) == [two, same]


def test_regions_are_numbered_by_their_start() -> None:
    """Units 1 and 2 run at once where there are two accelerators, 1 begins later."""
    problem = Problem.build(
        seconds=[[9.0, 1.0, 1.0]] * 4,
        producer=[-1, -1, 0, 1],
        consumers=[[0], [1], [2], [3]],
        is_output=[False] * 4,
        to_device=[[3.0, 3.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]],
        to_host=[[1.0, 1.0]] * 4,
        launch=[0.0, 0.0],
    )
    scheduler = ListScheduler(problem)
    labels, regions = _number_by_start(scheduler, state_of(problem, [1, 2, 1, 0], [8, 9, 7, -1]))
    assert labels.tolist() == [1, 2, 1, 0]
    assert regions.tolist() == [1, 0, 2, -1]


def test_up_to_three_units_move_at_random_and_limits_are_kept() -> None:
    moved = set()
    for seed in range(8):
        problem = replace(random_problem(seed, 8, 2), max_regions=ints(3, 3))
        scheduler = ListScheduler(problem)
        host = SearchState.from_labels(scheduler, [0] * 8, [-1] * 8)
        generator = random.Random(seed)
        for state in [_perturb(problem, scheduler, host, generator) for _ in range(6)]:
            assert keeps_limits(problem, state.labels, state.regions)
            assert ((np.array(state.labels) > 0) == (np.array(state.regions) >= 0)).all()
            assert problem.allowed[np.arange(8), state.labels].all()
            moved.add(sum(label > 0 for label in state.labels))
        assert host.labels == [0] * 8
    assert moved == {0, 1, 2, 3}


def test_a_neighbourhood_is_placed_anew_and_limits_are_kept() -> None:
    changed = 0
    for seed in range(8):
        problem = replace(random_problem(seed, 12, 2), max_regions=ints(3, 3))
        scheduler, earliest = ListScheduler(problem), EarliestFinish(problem)
        host = SearchState.from_labels(scheduler, [0] * 12, [-1] * 12)
        generator = random.Random(seed)
        for _ in range(6):
            state = _replace_part(problem, scheduler, earliest, host, generator)
            assert keeps_limits(problem, state.labels, state.regions)
            assert ((np.array(state.labels) > 0) == (np.array(state.regions) >= 0)).all()
            assert sum(label > 0 for label in state.labels) <= 5  # a third of all, and one
            changed += state is not host
    assert changed > 8


@pytest.mark.parametrize("seed", range(2))
def test_it_is_no_worse_than_list_schedules(seed: int) -> None:
    """Fifty of them, each unit launched by itself, of graphs that are wide."""
    problem = random_problem(100 + seed, 30, 3)
    scheduler, earliest, draw = ListScheduler(problem), EarliestFinish(problem), random.Random(seed)
    best = inf
    for number in range(50):
        labels = earliest.place(draw if number else None).tolist()
        regions = [unit if label else -1 for unit, label in enumerate(labels)]
        best = min(best, SearchState.from_labels(scheduler, labels, regions).seconds)
    found = Makespan(time_limit=1).solve(problem)
    assert found.schedule is not None
    assert found.schedule.makespan <= best * (1 + 1e-9)


def test_the_work_of_a_search_is_limited() -> None:
    problem = random_problem(1, 12, 2, launch=0.5)
    least = Makespan(starts=0, restarts=0).solve(problem)
    more = Makespan(restarts=3).solve(problem)
    assert least.schedule is not None
    assert more.schedule is not None
    assert more.schedule.makespan < least.schedule.makespan
    assert find_violation(problem, more) == ""
