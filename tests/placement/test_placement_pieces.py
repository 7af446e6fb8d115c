"""Parts of the solvers and the checks of answers, against sums and searches of a few lines."""

from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import inf, nan
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from helpers.placement_oracle import chain, ints, problems
from helpers.placement_random import random_problem
from helpers.support import sample_cases
from hypothesis import given
from hypothesis import strategies as st
from large_problems import layered_problem
from placement_searches import UnitGroups, least_load

from byoc.errors import InputError
from byoc.placement import (
    Cost,
    Fusion,
    Occupancy,
    Perturbation,
    Placement,
    Problem,
    Sensitivity,
    Strategy,
    evaluate,
    find_violation,
    limit_time,
    normalize_placement,
    repair_labels,
    run_strategy,
    strategy_display_name,
)
from byoc.placement import _hard_limits as hard_limits
from byoc.placement import _makespan_search as bounds
from byoc.placement import _perturbation as perturbation
from byoc.placement._hard_limits import _group_costs, find_broken_limit, make_feasible, measure_loads
from byoc.placement._list_scheduling import (
    IdleCores,
    IdleIntervals,
    UnlimitedCores,
    _sort_jobs,
    renumber_regions,
)
from byoc.placement._load_frontier import _find_slice, _make_transitions, find_narrow_order
from byoc.placement._perturbation import CostSamples, _Candidates, _divide, _summarize
from byoc.placement._strategy import check_count, check_time_limit, find_requirements
from byoc.placement._unit_groups import HOST
from byoc.placement.strategies import Exhaustive, Makespan, Throughput
from byoc.placement.strategies._makespan import _Search
from byoc.placement.strategies._throughput import _bound_loads, _LoadSearch

TWO = frozenset({"launch", "two devices", "capacity"})


def sum_group_transfers(groups: UnitGroups, labels: list[int]) -> float:
    """Return what the tensors between groups take, each once for each direction and device."""
    total = 0.0
    for tensor in groups.tensors:
        home = 0 if tensor.home == HOST else labels[tensor.home]
        wanted = {labels[reader] for reader in tensor.readers} | ({0} if tensor.is_output else set())
        wanted.discard(home)
        if wanted:
            total += tensor.to_host[home - 1] if home else 0.0
            total += sum(tensor.to_device[device - 1] for device in wanted if device)
    return total


@pytest.mark.parametrize("seed", range(12))
def test_groups_cost_what_their_units_do_however_they_are_put_together(seed: int) -> None:
    problem = random_problem(seed, 9, TWO)
    whole = random_problem(seed, 9, TWO)
    rng = np.random.default_rng(seed)
    groups = UnitGroups.from_problem(whole)
    assert (groups.count, groups.devices) == (problem.units, 2)
    for _ in range(3):
        for _ in range(4):
            labels = rng.integers(0, 3, groups.count).tolist()
            units = groups.spread(labels)
            assert groups.gather(units) == labels
            assert units.tolist() == [labels[group] for group in groups.of_unit.tolist()]
            cost = evaluate(problem, units, np.where(units > 0, np.arange(len(units)), -1))
            assert sum_group_transfers(groups, labels) == pytest.approx(cost.transfer)
            execution = sum(groups.costs[group, label] for group, label in enumerate(labels))
            allowed = problem.costs[np.arange(problem.units), units]
            assert execution == pytest.approx(allowed.sum())
        for group in range(groups.count):
            inside = groups.of_unit == group
            assert groups.memory[group] == pytest.approx(problem.memory[inside].sum(axis=0))
            touching = [n for n, tensor in enumerate(groups.tensors) if group in tensor.ends]
            assert groups.touching[group] == touching
            near = {
                other
                for number in touching
                for tensor in [groups.tensors[number]]
                if tensor.home != HOST
                for other in ([tensor.home] if tensor.home != group else tensor.readers)
            }
            assert groups.neighbours[group] == sorted(near)
        ends = [(tensor.home, tensor.readers, tensor.is_output) for tensor in groups.tensors]
        assert len({*ends}) == len(ends)
        assert all(list(readers) == sorted({*readers} - {home}) for home, readers, _ in ends)
        count = max(1, groups.count // 2)
        cluster = rng.integers(0, count, groups.count).tolist()
        numbers = {number: place for place, number in enumerate(sorted({*cluster}))}
        groups = groups.contract([numbers[number] for number in cluster])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=8), st.sampled_from([1, 2, 3]))
def test_a_job_starts_as_early_as_a_core_is_free_for_it(jobs: list[tuple[int, int]], cores: int) -> None:
    """Found by trying all starts."""
    idle: IdleCores | IdleIntervals = IdleIntervals() if cores == 1 else IdleCores(cores)
    busy: list[list[tuple[int, int]]] = [[] for _ in range(cores)]
    for ready, seconds in jobs:

        def fits(core: list[tuple[int, int]], start: int, seconds: int = seconds) -> bool:
            return all(start + seconds <= begin or start >= end for begin, end in core)

        start = next(t for t in range(ready, 99) if any(fits(core, t) for core in busy))
        assert idle.take(float(ready), float(seconds)) == start
        core = next(core for core in busy if fits(core, start))
        core.append((start, start + seconds))
        assert UnlimitedCores.take(float(ready), float(seconds)) == ready


def test_jobs_of_a_circle_are_left_out() -> None:
    assert _sort_jobs([]) == []
    assert _sort_jobs([{1}, {2}, set()]) == [2, 1, 0]
    assert _sort_jobs([set(), {0}, {0}, {1, 2}]) == [0, 1, 2, 3]
    assert _sort_jobs([set(), {2}, {1}, {2}, {0}]) == [0, 4]
    labels, regions = renumber_regions([0, 2, 1, 2], [-1, 7, 3, 7])
    assert (labels.tolist(), regions.tolist()) == ([0, 2, 1, 2], [-1, 0, 1, 0])
    assert (labels.dtype, regions.dtype) == (np.int64, np.int64)


@pytest.mark.parametrize(
    ("count", "edges", "order"),
    [
        (0, [], []),
        (3, [], [0, 1, 2]),
        (4, [(0, 2), (2, 3), (1, 3)], [0, 2, 3, 1]),
        (4, [(0, 1), (0, 2), (0, 3), (2, 3)], [0, 1, 2, 3]),
        (5, [(0, 4), (0, 1, 2, 3), (1, 2)], [0, 4, 3, 1, 2]),
        (5, [(1, 4), (2, 3)], [0, 1, 4, 2, 3]),
        (4, [(0, 1, 2), (1, 3), (2, 3)], [0, 1, 2, 3]),
    ],
)
def test_the_next_group_opens_fewest_edges_more(
    count: int, edges: list[tuple[int, ...]], order: list[int]
) -> None:
    assert find_narrow_order(count, edges) == order


@given(st.lists(st.integers(-3, 12), min_size=1, max_size=6))
def test_numbers_that_rise_evenly_are_a_slice(numbers: list[int]) -> None:
    table = np.arange(40)
    found = _find_slice(ints(*[number + 3 for number in numbers]))
    steps = {b - a for a, b in pairwise(numbers)}
    assert isinstance(found, slice) == (len(steps) < 2 and min(steps, default=1) > 0)
    assert table[found].tolist() == [number + 3 for number in numbers]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), unique=True, max_size=9))
def test_no_transition_has_a_target_twice(pairs: list[tuple[int, int]]) -> None:
    made = _make_transitions({(True, 2, 5): pairs}) if pairs else []
    assert all((each.is_member, each.steps, each.loss) == (True, 2, 5) for each in made)
    moves = [(a, b) for each in made for a, b in zip(each.source, each.target, strict=True)]
    assert sorted(moves) == sorted(pairs)
    assert all(len({*each.target.tolist()}) == len(each.target) for each in made)
    most = max((sum(b == target for _, b in pairs) for target in range(4)), default=0)
    assert len(made) == most


@pytest.mark.parametrize("seed", range(8))
def test_the_busiest_device_is_occupied_as_long_as_the_longest_unit(seed: int) -> None:
    problem = replace(random_problem(seed, 6, TWO), cores=1 + seed % 3)
    bound = _bound_loads(problem)
    costs = problem.costs.copy()
    costs[:, 0] /= problem.cores
    assert bound >= costs.min(axis=1).max()
    assert bound <= costs[:, 0].sum() + 1e-9  # everything on the host is one placement


THREE = chain([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
GOOD = Placement.from_labels(THREE, ints(1, 1, 0))


def change(**changes: Any) -> Placement:
    return replace(GOOD, **changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"notes": ["a"], "fusions": []}, ""),
        ({"notes": "text"}, "its notes are not a tuple of texts"),
        ({"notes": (1,)}, "its notes are not a tuple of texts"),
        ({"why_host": None}, "its why_host is not a text"),
        ({"fusions": "0"}, "its fusions are not a tuple of whole numbers"),
        ({"fusions": (0.5,)}, "its fusions are not a tuple of whole numbers"),
        ({"fusions": (0,)}, "it chose fusion 0, and there are 0"),
        ({"fusions": (-1,)}, "it chose fusion -1, and there are 0"),
        ({"cost": 1.0}, "its cost is not a Cost of numbers"),
        ({"cost": Cost(1.0, 1.0, True)}, "its cost is not a Cost of numbers"),
        ({"cost": Cost(1.0, 1.0, 1.0, "0")}, "its cost is not a Cost of numbers"),
        ({"cost": Cost(inf, 0.0, 0.0)}, "its cost is not finite"),
        ({"bound": 0}, ""),
        ({"bound": GOOD.cost.total}, ""),
        ({"bound": GOOD.cost.total * 1.01}, "its bound"),
        ({"bound": -1}, "its bound -1 is not a number of seconds, 0 or more, nor None"),
        ({"bound": inf}, "its bound inf is not a number of seconds"),
        ({"bound": nan}, "its bound nan is not a number of seconds"),
        ({"bound": "1"}, "its bound is not a number of seconds, 0 or more, nor None"),
        ({"bound": True}, "its bound is not a number of seconds"),
        ({"measures": {f"m{n}": n for n in range(32)}}, ""),
        ({"measures": {f"m{n}": n for n in range(33)}}, "its measures are not a mapping of at most 32"),
        ({"measures": [1]}, "its measures are not a mapping"),
        ({"measures": {"m" * 40: 1}}, ""),
        ({"measures": {"m" * 41: 1}}, "the name of one of its measures is not that of a variable"),
        ({"measures": {"é": 1}}, "the name of one of its measures"),
        ({"measures": {"a b": 1}}, "the name of one of its measures"),
        ({"measures": {1: 1}}, "the name of one of its measures"),
        ({"measures": {"a": nan}}, "its measure a is not a finite number"),
        ({"measures": {"a": True}}, "its measure a is not a finite number"),
        ({"labels": [0, 0, 0]}, "its labels are not an int64 array"),
        ({"regions": np.zeros(3, np.int32)}, "its regions are not an int64 array"),
        ({"labels": ints(1, 1)}, "its labels have the shape [2], and there are 3 units"),
        ({"labels": ints(2, 1, 0)}, "a label is not one of 0 (the host) to 1"),
        ({"labels": ints(-1, 1, 0)}, "a label is not one of 0 (the host) to 1"),
        ({"regions": ints(0, 0, 0)}, "a unit of an accelerator has no region, or one of the host has"),
        ({"regions": ints(0, -1, -1)}, "a unit of an accelerator has no region"),
        ({"regions": ints(1, 1, -1)}, "its regions are not numbered 0, 1, ..."),
        ({"regions": ints(0, 2, -1)}, "its regions are not numbered 0, 1, ..."),
        ({"regions": ints(1, 0, -1)}, ""),
        ({"labels": ints(1, 0, 1), "regions": ints(0, -1, 0)}, "its regions wait for one another in a"),
    ],
)
def test_the_first_fault_of_an_answer_is_told(changes: dict[str, Any], sentence: str) -> None:
    found = find_violation(THREE, change(**changes))
    assert found.startswith(sentence)
    assert bool(found) == bool(sentence)


def test_fusions_that_are_chosen_share_no_member_and_lie_in_one_region() -> None:
    fusions = (Fusion((0, 1), 1, 1.0), Fusion((1, 2), 1, 1.0), Fusion((0, 2), 1, 1.0))
    problem = replace(THREE, fusions=fusions)
    labels, regions = ints(1, 1, 1), ints(0, 0, 0)

    def find(*chosen: int, regions: Any = regions, labels: Any = labels) -> str:
        return find_violation(problem, Placement(labels, regions, GOOD.cost, fusions=chosen))

    assert find(0) == find(1) == ""
    assert find(0, 1) == "it chose fusion 1, which overlaps another that it chose"
    assert find(2) == "the fusions it chose wait for one another in a circle"
    assert find(3) == "it chose fusion 3, and there are 3"
    elsewhere = "which is not in one region of device 1"
    assert find(1, regions=ints(0, 0, 1)) == f"it chose fusion 1, {elsewhere}"
    assert find(0, regions=ints(0, 0, 1)) == ""
    assert find(0, labels=ints(0, 1, 1), regions=ints(-1, 0, 0)) == f"it chose fusion 0, {elsewhere}"


def test_what_a_plug_in_writes_is_shortened() -> None:
    long = change(notes=tuple(f"{n}" for n in range(21)), why_host="w" * 1001, bound=np.float32(0.5))
    found = normalize_placement(THREE, long)
    assert found.notes == tuple(f"{n}" for n in range(20))
    assert len(found.why_host) == 1000
    assert normalize_placement(THREE, change(why_host="w" * 1000)).why_host == "w" * 1000
    assert (type(found.bound), found.bound) == (float, 0.5)
    assert found.labels is not long.labels
    wrong = normalize_placement(THREE, change(cost=Cost(99.0, 0.0, 0.0)))
    assert wrong.cost == GOOD.cost


@dataclass(frozen=True)
class Limited:
    """Has a limit on its time."""

    name: ClassVar[Any] = "limited"
    time_limit: float = 10.0
    other: int = 3

    def solve(self, problem: Problem) -> Placement:
        problem.seconds[0, 0] = 7.0
        return GOOD


class Nameless:
    """Has a name that fails."""

    @property
    def name(self) -> str:
        raise KeyError


def test_a_strategy_gets_a_copy_that_it_cannot_change() -> None:
    with pytest.raises(InputError, match=r"^strategy limited: failed with ValueError"):
        run_strategy(Limited(), THREE)
    assert THREE.seconds[0, 0] == 1.0
    THREE.seconds[0, 0] = 1.0  # the caller's own may still be written


def test_strategies_are_called_by_their_names_and_limited_where_they_can_be() -> None:
    assert strategy_display_name(Limited()) == "limited"
    assert strategy_display_name(Nameless()) == "Nameless"
    assert strategy_display_name(SimpleNamespace(name="")) == "SimpleNamespace"
    for length in (80, 81):
        assert len(strategy_display_name(SimpleNamespace(name="n" * length))) == 80
    assert limit_time(Limited(), 2.5) == Limited(2.5)
    assert limit_time(Limited(), None) == Limited()
    plain = cast("Strategy", SimpleNamespace(name="plain", time_limit=1.0))
    assert limit_time(plain, 2.0) is plain
    for seconds in (0.0, -1.0, inf, nan):
        with pytest.raises(InputError, match=rf"^time limit {seconds:g}: not a number of seconds above"):
            limit_time(Limited(), seconds)
    for seconds, endless in ((0.0, True), (-1.0, True), (inf, False), (nan, True)):
        with pytest.raises(ValueError, match=rf"^t is {seconds:g}, but must be a number of seconds"):
            check_time_limit("t", seconds, endless)
    check_time_limit("t", inf, True)
    check_time_limit("t", 1e-9)
    check_count("c", 0)
    with pytest.raises(ValueError, match=r"^c is -1, but must be 0 or more$"):
        check_count("c", -1)


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"launch": np.array([0.5])}, {"launch"}),
        ({"must": np.array([False, True, False])}, {"must"}),
        ({"min_nodes": ints(1)}, set()),
        ({"min_nodes": ints(2)}, {"region size"}),
        ({"max_nodes": ints(2**62 - 1)}, {"region size"}),
        ({"max_regions": ints(2**62 - 1)}, {"region count"}),
        ({"capacity": np.array([1e300])}, {"capacity"}),
        ({"fusions": (Fusion((0, 1), 1, 0.0),)}, {"fusions"}),
        ({"connected": np.array([True])}, {"connected"}),
    ],
)
def test_each_requirement_is_found_by_itself(changes: dict[str, Any], needed: set[str]) -> None:
    assert find_requirements(replace(THREE, **changes)) == needed
    assert find_requirements(random_problem(0, 3, frozenset({"two devices"}))) == {"several devices"}


def test_a_regret_is_what_costs_are_over_the_best() -> None:
    costs, best = np.array([2.0, 3.0, 4.0, 5.0]), np.array([2.0, 2.0, 4.0, 4.0])
    assert _divide(costs, best).tolist() == [1.0, 1.5, 1.0, 1.25]
    assert _divide(np.array([3.0, 0.0]), np.zeros(2)).tolist() == [1.0, 1.0]
    found = _summarize(costs, best)
    assert (found.mean, found.worst, found.best) == (pytest.approx(1.1875), 1.5, 0.5)
    near = _summarize(np.array([1 + 9e-7, 1 + 2e-6]), np.ones(2))
    assert near.best == 0.5


@pytest.mark.parametrize("sigma", [0.0, -1.0, 5.1, nan])
def test_a_perturbation_has_a_standard_deviation_above_nothing(sigma: float) -> None:
    with pytest.raises(InputError, match=rf"^perturb {sigma:g}: not a number above 0, and at most 5$"):
        Perturbation(sigma)
    assert (Perturbation(5.0).samples, Perturbation(1e-9).seed) == (32, 0)
    for wrong in ({"samples": 0}, {"seed": -1}):
        with pytest.raises(InputError, match=r"^perturb: needs at least one sample, and a seed of at"):
            Perturbation(1.0, **wrong)
    assert Perturbation(1.0, samples=1, seed=0).samples == 1


def test_samples_are_as_many_as_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturbation, "_MAX_FACTORS", 24)  # three units on two devices: 6 each
    kinds = ["a", "b", "a"]
    assert CostSamples.draw(THREE, kinds, Perturbation(1.0, 4)).count == 4
    with pytest.raises(InputError, match=r"^perturb: at most 4 samples fit in memory for 3 units, not"):
        CostSamples.draw(THREE, kinds, Perturbation(1.0, 5))


def test_units_move_where_the_best_placement_of_a_sample_has_them() -> None:
    ones = np.ones((4, 3, 2))
    ones[1:, :, 1] = 0.01  # on the device nearly nothing, in three samples of four
    samples = CostSamples(THREE, ones, np.ones((4, 1)), np.ones((4, 1)))
    host, device = (Placement.from_labels(THREE, ints(*[label] * 3)) for label in (0, 1))
    found = _Candidates(samples, host)
    assert found.add(device)
    assert not found.add(device)
    assert len(found.placements) == 2
    assert found.best.tolist() == found.costs.min(axis=0).tolist()
    moved, elsewhere = found.count_moves(host)
    assert (moved.tolist(), elsewhere.tolist()) == ([0.75] * 3, [1] * 3)
    back, home = found.count_moves(found.placements[1])
    assert (back.tolist(), home.tolist()) == ([0.25] * 3, [0] * 3)
    groups = [(units.tolist(), device) for units, device in found._find_groups()]
    assert groups[:2] == [([0, 1, 2], 0), ([0, 1, 2], 1)]
    assert groups[2:] == [([unit], device) for unit in range(3) for device in (0, 1)]


def test_nothing_is_elsewhere_where_the_given_placement_is_as_good() -> None:
    samples = CostSamples(THREE, np.ones((2, 3, 2)), np.ones((2, 1)), np.ones((2, 1)))
    found = _Candidates(samples, Placement.from_labels(THREE, ints(0, 0, 0)))
    found.add(Placement.from_labels(THREE, ints(1, 0, 0)))
    moved, _ = found.count_moves(found.placements[0])
    assert moved.tolist() == [0.0] * 3


@pytest.mark.parametrize("occupies", [*Occupancy])
def test_loads_of_a_chain_by_hand(occupies: Occupancy) -> None:
    problem = replace(THREE, occupies=(occupies,), launch=np.array([0.5]), cores=2)
    for labels in product((0, 1), repeat=3):
        placement = Placement.from_labels(problem, ints(*labels))
        host = sum(problem.seconds[unit, 0] for unit in range(3) if not labels[unit]) / 2
        device = sum(problem.seconds[unit, 1] for unit in range(3) if labels[unit])
        device += 0.5 * (int(placement.regions.max()) + 1)
        moved = placement.cost.transfer
        expected = {
            Occupancy.nothing: (host, device),
            Occupancy.host: (host + moved, device),
            Occupancy.device: (host, device + moved),
            Occupancy.link: (host, max(device, moved)),
        }[occupies]
        assert measure_loads(problem, placement.labels, placement.regions).tolist() == pytest.approx(
            list(expected)
        )


WIDE = Problem.build(
    seconds=[[9.0, 1.0, 2.0], [9.0, 1.0, 2.0], [9.0, 1.0, np.inf], [9.0, 1.0, 2.0]],
    producer=[],
    consumers=[],
    is_output=[],
    to_device=np.zeros((0, 2)),
    to_host=np.zeros((0, 2)),
    launch=[0.0, 0.0],
    memory=[[4.0, 4.0], [3.0, 3.0], [2.0, 2.0], [1.0, 1.0]],
    capacity=[6.0, 4.0],
)


@pytest.mark.parametrize(
    ("capacity", "labels", "placed"),
    [
        ([99.0, 9.0], [1, 1, 1, 1], [1, 1, 1, 1]),
        ([6.0, 4.0], [1, 1, 1, 1], [1, 2, 1, 2]),  # one after another, the fastest with room
        ([6.0, 2.0], [1, 1, 1, 1], [1, 0, 1, 2]),
        ([6.0, 4.0], [0, 1, 1, 1], [0, 1, 1, 1]),
        ([5.0, 3.0], [1, 1, 1, 1], [1, 2, 0, 1]),
        ([4.0, 4.0], [2, 2, 0, 2], [2, 1, 0, 1]),
    ],
)
def test_units_that_do_not_fit_go_where_there_is_room(
    capacity: list[float], labels: list[int], placed: list[int]
) -> None:
    problem = replace(WIDE, capacity=np.array(capacity))
    assert make_feasible(problem, ints(*labels)).tolist() == placed


def test_after_some_repairs_all_that_may_goes_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = replace(WIDE, must=np.array([False, True, False, False]))
    monkeypatch.setattr(hard_limits, "_MAX_REPAIRS", 0)
    assert repair_labels(problem, ints(1, 2, 1, 2)).tolist() == [0, 2, 0, 0]
    assert repair_labels(problem, ints(0, 0, 0, 0)).tolist() == [0, 1, 0, 0]


def test_limits_of_the_second_device_are_told_as_such() -> None:
    two = replace(WIDE, max_regions=ints(9, 1), seconds=np.ones((4, 3)), capacity=np.array([99.0, 5.0]))
    regions = ints(0, 1, 2, 3)
    for labels, sentence in (
        ((1, 1, 2, 2), "device 2 has 2 regions, and 1 is the most"),
        ((2, 1, 1, 1), ""),
    ):
        assert find_broken_limit(two, ints(*labels), regions) == sentence
    together = ints(0, 1, 2, 1)
    assert find_broken_limit(two, ints(1, 2, 1, 2), together) == ""
    wide = replace(two, memory=np.full((4, 2), 3.0))
    assert find_broken_limit(wide, ints(1, 2, 1, 2), together) == (
        "device 2 holds 6 bytes, and 5 is its capacity"
    )


@pytest.mark.parametrize(("most", "rounds"), [(0, 1), (7, 1), (10**9, 12)])
def test_rounds_for_samples_are_limited_by_steps_and_one_is_made(
    most: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Relaxation:
        def __init__(self, problem: Problem) -> None:
            self.problem, self.bound = problem, 0.0

        def iterate_labels(self, rounds: int, _: object) -> list[Any]:
            asked.append(rounds)
            return []

        def vary(self, problem: Problem) -> "Relaxation":
            return Relaxation(problem)

    monkeypatch.setattr(perturbation, "LagrangianRelaxation", Relaxation)
    monkeypatch.setattr(perturbation, "_MAX_STEPS", most)
    monkeypatch.setattr(perturbation, "_MAX_EXACT", 0)
    samples = CostSamples(THREE, np.ones((2, 3, 2)), np.ones((2, 1)), np.ones((2, 1)))
    _Candidates(samples, Placement.from_labels(THREE, ints(0, 0, 0))).add_optima()
    assert asked == [rounds] * 3  # for the problem, and for each of two samples


@given(problems(most_units=6, devices=st.integers(1, 2)), st.randoms(use_true_random=False))
def test_a_group_costs_what_its_units_do(problem: Problem, random: Any) -> None:
    numbers = [random.randrange(problem.units) for _ in range(problem.units)]
    group = np.unique(np.array(numbers, np.int64), return_inverse=True)[1]
    costs = _group_costs(problem, group)
    assert costs.shape == (len({*group.tolist()}), problem.devices + 1)
    for number in range(len(costs)):
        for device in range(problem.devices + 1):
            each = [problem.costs[unit, device] for unit in np.flatnonzero(group == number)]
            assert costs[number, device] == pytest.approx(sum(each))


@pytest.mark.parametrize("seed", range(8))
def test_the_least_load_of_many_units_is_nearly_that_of_the_program(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = layered_problem(seed, 400, 1 + seed % 4, share=np.inf)
    exact = least_load(problem)
    monkeypatch.setattr(bounds, "_MOST_TERMS", 0)
    assert exact * 0.995 < least_load(problem) <= exact * (1 + 1e-6)


def test_a_proven_placement_needs_one_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(4, 9, frozenset())
    sensitivity = Sensitivity(problem, Exhaustive().solve(problem), 12)
    monkeypatch.setattr(perturbation, "build_incumbent", lambda *_: pytest.fail("nothing can be better"))
    _ = sensitivity.best
    assert sensitivity.steps == sensitivity.round_steps


@pytest.mark.parametrize("seed", sample_cases(range(12), every=3))
@pytest.mark.parametrize("strategy", [Throughput(), Makespan()])
def test_what_fusions_save_leaves_bounds_sound(
    seed: int, strategy: Throughput | Makespan, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(seed, 5, frozenset({"fusions", "launch", "two devices"}))
    best = strategy.solve(problem)
    for search in (_LoadSearch, _Search):
        monkeypatch.setattr(search, "try_all", lambda _: False)
    searched = strategy.solve(problem)
    assert searched.bound is not None
    assert searched.bound <= best.value * (1 + 1e-9)
