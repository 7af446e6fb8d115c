"""Tables of loads: the sets that a device can run, and pairs of devices split by them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import inf

import numpy as np
import pytest
from helpers.placement_oracle import chain
from helpers.placement_random import alike, random_problem
from helpers.support import sample_cases
from placement_searches import LoadFrontier, LoadState, PairSearch, UnitGroups, find_device_edges

from byoc.numerics import SearchBudget
from byoc.placement import Occupancy, Problem

DEVICE = (Occupancy.device,)


def iterate_sets(groups: UnitGroups, frontier: LoadFrontier) -> Iterator[tuple[float, list[int]]]:
    """Yield the load and the members of every set of groups that the first accelerator takes."""
    for inside in product((False, True), repeat=groups.count):
        members = np.flatnonzero(inside)
        if np.isfinite(groups.costs[members, 1]).all():
            yield frontier.measure(members.tolist()), members.tolist()


@pytest.mark.parametrize("seed", sample_cases(range(60), every=4))
@pytest.mark.parametrize("rounds_down", [True, False])
def test_the_sets_of_most_profit_are_those_of_a_search_over_all(seed: int, rounds_down: bool) -> None:
    """Rounded down no set is left out; either way none is better by more than the rounding."""
    problem = alike(random_problem(seed, 8, frozenset({"two devices"})))
    groups = UnitGroups.from_problem(problem)
    least = groups.costs[:, 1]
    most, steps = 1.2 * float(least[np.isfinite(least)].sum() or 1.0), 4_000
    costs, edges = find_device_edges(groups, 1, Occupancy.device, 0.0)
    frontier = LoadFrontier.build(
        costs, edges, most, steps=steps, most_states=10_000, rounds_down=rounds_down
    )
    assert frontier is not None
    assert (
        frontier.step * (frontier.steps - 1) < most * (1 + 1e-9) <= frontier.step * frontier.steps * 1.01
    )
    profit = np.random.default_rng(seed).integers(-200, 1000, groups.count)
    found = frontier.find_most_profits(profit)
    sets = [(load, int(profit[members].sum())) for load, members in iterate_sets(groups, frontier)]
    error = 2 * groups.count + len(edges)
    for limit in range(error, frontier.steps + 1, 97):
        below, above = (
            (limit + shift) * frontier.step for shift in (0 if rounds_down else -error, error)
        )
        within = max(gain for load, gain in sets if load <= below)
        nearly = max(gain for load, gain in sets if load <= above)
        assert within <= found[limit] <= nearly
    if not rounds_down:
        best = frontier.find_best_sets(profit)
        assert best.profits().tolist() == found.tolist()
        for limit in range(error, frontier.steps + 1, 97):
            members, taken = best.trace(limit)
            assert profit[members].sum() == found[limit]
            assert abs(frontier.measure(members) - taken * frontier.step) <= error * frontier.step
            assert taken <= limit


def make_pairs(count: int, seconds: float, transfer: float) -> UnitGroups:
    """Return pairs of groups, each pair with one tensor between its two."""
    return UnitGroups.from_problem(
        Problem.build(
            seconds=[[seconds, seconds]] * (2 * count),
            producer=list(range(0, 2 * count, 2)),
            consumers=[[2 * number + 1] for number in range(count)],
            is_output=[False] * count,
            to_device=[[transfer]] * count,
            to_host=[[transfer]] * count,
            launch=[0],
        )
    )


def test_steps_are_parts_of_the_most_common_transfer() -> None:
    """Transfers of 0.3 s count that, where steps of 0.07 s would count each as 0.35 s."""
    costs, edges = find_device_edges(make_pairs(10, 0.0, 0.3), 1, Occupancy.device, 0.0)
    frontier = LoadFrontier.build(costs, edges, 3.5, steps=50, most_states=1000, rounds_down=False)
    assert frontier is not None
    assert frontier.step == pytest.approx(0.06)
    found = frontier.find_most_profits(np.where(np.arange(20) % 2 == 0, 1, -20))
    assert [int(found[5 * moved]) for moved in range(11)] == list(range(11))
    assert [int(found[5 * moved - 1]) for moved in range(1, 11)] == list(range(10))


def test_a_set_shorter_than_ten_steps_counts_no_more_than_nine() -> None:
    """Beside a group whose steps leave no digits for the others."""
    costs = np.array([1e11, 0.3, 0.3, 0.4 - 1e-6])
    frontier = LoadFrontier.build(costs, [], 1.0, steps=10, most_states=100, rounds_down=True)
    assert frontier is not None
    assert frontier.find_most_profits(np.ones(4, np.int64))[9] == 3


def test_transfers_that_take_too_many_steps_are_in_no_set() -> None:
    costs, edges = find_device_edges(make_pairs(3, 1e-5, 1e305), 1, Occupancy.device, 0.0)
    frontier = LoadFrontier.build(costs, edges, 1e-4, steps=20, most_states=100, rounds_down=True)
    assert frontier is not None
    assert frontier.step == pytest.approx(5e-6)
    assert frontier.find_most_profits(np.array([3, -1, 0, 2, 0, 0]))[-1] == 4


def test_a_pair_with_a_host_that_takes_almost_no_time_is_split() -> None:
    """Its loads, as shares of all of them, would be no finite number."""
    problem = chain([1e-308] * 4, [1.0, 2.0, 3.0, 4.0], down=0.0, up=0.0)
    groups = UnitGroups.from_problem(problem)
    assert PairSearch(problem, groups).improve([0, 1, 0, 1], SearchBudget()) == [0, 0, 0, 0]


@pytest.mark.parametrize("seed", sample_cases(range(60), every=4))
def test_a_pair_of_devices_is_split_as_well_as_can_be(seed: int) -> None:
    """Against every split of the same groups: never a higher load, and the least, but for rounding.

    Where sending takes as long as receiving: the table does not tell these apart.
    """
    problem = random_problem(seed, 8, frozenset({"two devices"}))
    problem = replace(problem, to_host=problem.to_device)
    if seed % 3:
        problem = alike(problem)
    occupies = DEVICE * problem.devices if seed % 2 else ("link", "nothing")[: problem.devices]
    problem = replace(problem, occupies=tuple(map(Occupancy, occupies)), cores=1 + seed % 2)
    groups = UnitGroups.from_problem(problem)
    costs = groups.costs

    def measure(labels: Sequence[int]) -> list[float]:
        if np.isinf(costs[np.arange(groups.count), list(labels)]).any():
            return [inf]
        return LoadState(groups, problem.occupies, problem.cores, labels).loads()

    def find_least(labels: Sequence[int], pair: tuple[int, int]) -> float:
        both = [group for group, label in enumerate(labels) if label in pair]
        best = inf
        for devices in product(pair, repeat=len(both)):
            split = list(labels)
            for group, device in zip(both, devices, strict=True):
                split[group] = device
            loads = measure(split)
            if len(loads) > 1:
                best = min(best, max(loads[device] for device in pair))
        return best

    start = costs.argmin(axis=1).tolist()
    search = PairSearch(problem, groups)
    found = search.improve(start, SearchBudget())
    before, after = measure(start), measure(found)
    assert max(after) <= max(before)
    if seed % 2:  # where transfers occupy nothing or the link, tables count less than the loads are
        for pair in combinations(range(problem.devices + 1), 2):
            peak = max(after[device] for device in pair)
            assert peak <= find_least(found, pair) + 0.02 * max(after) + 1e-12


def test_a_split_of_a_pair_does_not_load_the_host_that_copies() -> None:
    """Splitting would halve the accelerator's load, but the host, already busiest, has to copy."""
    problem = chain([100.0] * 2, [4.0, 4.0], down=9.0, up=9.0)
    problem = replace(
        problem,
        seconds=np.hstack([problem.seconds, problem.seconds[:, 1:]]),
        to_device=np.hstack([problem.to_device] * 2),
        to_host=np.hstack([problem.to_host] * 2),
        launch=np.zeros(2),
        connected=np.zeros(2, np.bool_),
        min_nodes=np.repeat(problem.min_nodes, 2),
        max_nodes=np.repeat(problem.max_nodes, 2),
        max_regions=np.repeat(problem.max_regions, 2),
        memory=np.zeros((2, 2)),
        capacity=np.full(2, inf),
        occupies=(Occupancy.host,) * 2,
    )
    groups = UnitGroups.from_problem(problem)
    assert PairSearch(problem, groups).improve([1, 1], SearchBudget()) == [1, 1]
