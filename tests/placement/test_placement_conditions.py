"""Conditions of problems against slow programs that share no code with byoc.placement."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, permutations, product
from math import inf
from typing import Any

import numpy as np
import pytest
from helpers.placement_oracle import readers

from byoc.errors import InputError
from byoc.placement import (
    Conditions,
    ListScheduler,
    Measure,
    PlacedNetwork,
    Problem,
    add_split,
    find_violation,
    fix_reloads,
    solve_problem,
)
from byoc.placement.strategies import (
    Exact,
    LaunchAware,
    Makespan,
    Throughput,
)

# Problems without launches, each of whose tensors has one consumer: a chain of units, or several chains.


def random_chains(seed: int, units: int, devices: int, **conditions: Any) -> Problem:
    """Units in chains of one to three, with costs in whole seconds."""
    rng = np.random.default_rng(seed)
    seconds = rng.integers(1, 9, (units, 1 + devices)).astype(np.float64)
    seconds[:, 0] += 4
    seconds[:, 1:][rng.random((units, devices)) < 0.15] = inf
    edges = [(unit - 1, unit) for unit in range(1, units) if rng.random() < 0.6]
    tensors = len(edges)
    return Problem.build(
        seconds=seconds,
        producer=[one for one, _ in edges],
        consumers=[[other] for _, other in edges],
        is_output=rng.random(tensors) < 0.2,
        to_device=rng.integers(0, 3, (tensors, devices)).astype(np.float64),
        to_host=rng.integers(0, 3, (tensors, devices)).astype(np.float64),
        launch=np.zeros(devices),
        memory=rng.integers(0, 4, (units, devices)).astype(np.float64),
        conditions=Conditions(**conditions) if conditions else None,
    )


def every_label(problem: Problem) -> Iterator[tuple[int, ...]]:
    """All labels that devices take."""
    return product(
        *([d for d, cost in enumerate(row) if cost < inf] for row in problem.seconds.tolist())
    )


def slow_total(problem: Problem, labels: Sequence[int]) -> float:
    """Seconds of units and tensors, a direct link taken where all tensors together cost less."""
    total = sum(float(problem.seconds[unit, label]) for unit, label in enumerate(labels))
    direct = problem.conditions.direct if problem.conditions else None
    for tensor, producer in enumerate(problem.producer.tolist()):
        home = labels[producer] if producer >= 0 else 0
        ends = {labels[unit] for unit in readers(problem, tensor)} - {home}
        ends |= {0} if problem.is_output[tensor] and home else set()
        if not ends:
            continue
        down = problem.to_device[tensor]
        if not home:
            total += sum(float(down[end - 1]) for end in ends)
            continue
        ways = []
        far = sorted(ends - {0})
        for linked in (each for size in range(len(far) + 1) for each in combinations(far, size)):
            by_host = [end for end in far if end not in linked]
            if linked and direct is None:
                continue
            up = float(problem.to_host[tensor, home - 1]) if by_host or 0 in ends else 0.0
            straight = [] if direct is None else [float(direct[tensor, home - 1, e - 1]) for e in linked]
            ways.append(up + sum(float(down[end - 1]) for end in by_host) + sum(straight))
        total += min(ways)
    return total


def keeps_bytes(problem: Problem, labels: Sequence[int]) -> bool:
    """No engine's device has more bytes than its capacity, those of devices that share it counted."""
    assert problem.conditions is not None
    engines = problem.conditions.engines
    for device in range(1, 1 + problem.devices):
        sharing = {device}
        if engines is not None:
            sharing = {
                other
                for other in range(1, 1 + problem.devices)
                if (engines[other] * engines[device]).any()
            }
        taken = sum(
            problem.memory[unit, label - 1] for unit, label in enumerate(labels) if label in sharing
        )
        if taken > problem.capacity[device - 1]:
            return False
    return True


SHARED = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]]
"""Devices 1 and 2 share an engine; device 3 takes turns on that and another one."""


def check_sum(problem: Problem, best: float) -> None:
    for strategy in (LaunchAware(), Exact()):
        if best == inf:
            with pytest.raises(InputError, match="no placement"):
                solve_problem(problem, strategy, [f"u{unit}" for unit in range(problem.units)])
            continue
        found = solve_problem(problem, strategy, [f"u{unit}" for unit in range(problem.units)])
        assert not find_violation(problem, found)
        assert found.value == pytest.approx(best, rel=1e-9)
        assert found.bound is not None
        assert found.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_sums_with_direct_links_and_shared_memory(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_chains(seed, 4, 3)
    direct = rng.integers(0, 4, (problem.tensors, 3, 3)).astype(np.float64)
    direct[rng.random(direct.shape) < 0.3] = inf
    engines = SHARED if seed % 2 else None
    capacity = np.array([4.0, 5.0, inf]) if seed % 3 else np.full(3, inf)
    conditions = Conditions(direct=direct, engines=engines)
    problem = replace(problem, conditions=conditions, capacity=capacity)
    kept = (labels for labels in every_label(problem) if keeps_bytes(problem, labels))
    check_sum(problem, min(slow_total(problem, labels) for labels in kept))


def slow_reload(problem: Problem, labels: Sequence[int], reload: Sequence[float]) -> float:
    """Seconds to load what is beyond the capacities; devices 1 and 2 share one, the cheapest loads."""
    engines = problem.conditions.engines if problem.conditions else None
    together = [(0,), (1,)] if engines is None else [(0, 1)]
    seconds = 0.0
    for devices in together:
        taken = {
            d: sum(problem.memory[unit, d] for unit, label in enumerate(labels) if label == 1 + d)
            for d in devices
        }
        beyond = max(0.0, sum(taken.values()) - min(problem.capacity[d] for d in devices))
        for d in sorted(devices, key=lambda d: reload[d]):
            part = min(beyond, taken[d])
            beyond -= part
            seconds += part * reload[d] if part else 0.0
    return seconds


@pytest.mark.parametrize("seed", range(6))
def test_weights_beyond_the_memory_are_loaded_anew_where_that_is_cheapest(seed: int) -> None:
    problem = random_chains(seed, 5, 2)
    rng = np.random.default_rng(2000 + seed)
    reload = [float(rng.choice([0.25, 0.5, 1.5])), float(rng.choice([0.25, 0.75, inf]))]
    engines = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]] if seed % 2 else None
    if engines:
        reload[1] = 0.5  # on an engine all have one, or none
    conditions = Conditions(reload=reload, engines=engines)
    problem = replace(problem, capacity=rng.integers(1, 6, 2).astype(np.float64), conditions=conditions)
    costs = [
        slow_total(problem, labels) + slow_reload(problem, labels, reload)
        for labels in every_label(problem)
    ]
    best = min(costs)
    found = solve_problem(problem, LaunchAware(), [f"u{unit}" for unit in range(5)])
    labels = tuple(found.labels.tolist())
    total = slow_total(problem, labels) + slow_reload(problem, labels, reload)
    assert found.value == pytest.approx(total)
    assert found.bound is not None
    assert found.bound <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= found.value <= best * 1.05
    if seed:
        return
    found = solve_problem(problem, Makespan(time_limit=0.1), [f"u{unit}" for unit in range(5)])
    fixed = fix_reloads(problem, found.labels)
    schedule = ListScheduler(fixed).schedule(found.labels.tolist(), found.regions.tolist())
    assert schedule is not None
    assert found.value <= schedule.makespan * (1 + 1e-9)


def test_loading_anew_is_refused_where_it_says_nothing() -> None:
    problem = random_chains(0, 3, 3)
    for conditions, sentence in (
        (Conditions(reload=[1.0, -1.0, 1.0]), "reload has a number that is not from 0"),
        (Conditions(reload=[1.0]), "reload has the shape"),
        (Conditions(reload=[1.0] * 3, other=problem, most=1), "does not count weights"),
        (
            Conditions(reload=[1.0] * 3, engines=[[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1]]),
            "share an engine with a third",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            replace(problem, conditions=conditions)


@pytest.mark.parametrize("seed", range(6))
def test_the_least_cost_within_a_budget(seed: int) -> None:
    own, other = random_chains(seed, 5, 2), random_chains(seed, 5, 2)
    rng = np.random.default_rng(1000 + seed)
    seconds = rng.integers(1, 9, own.seconds.shape).astype(np.float64)
    other = replace(other, seconds=np.where(np.isfinite(own.seconds), seconds, inf))
    both = [(slow_total(own, labels), slow_total(other, labels)) for labels in every_label(own)]
    least, most = min(spent for _, spent in both), max(spent for _, spent in both)
    budget = least + (most - least) * (-0.05 if seed == 3 else 0.1 * (seed % 6))
    problem = replace(own, conditions=Conditions(other=other, most=budget))
    best = min((cost for cost, spent in both if spent <= budget * (1 + 1e-12)), default=inf)
    check_sum(problem, best)
    if best < inf:
        # More placements than are all tried: multipliers and the integer program alone.
        large = _repeat(problem, 3)
        found = solve_problem(
            large, LaunchAware(time_limit=0.5), [f"u{unit}" for unit in range(large.units)]
        )
        assert not find_violation(large, found)
        assert found.bound is not None
        assert found.bound * (1 - 1e-9) <= found.value <= 3 * best * (1 + 1e-9)


def _repeat(problem: Problem, count: int) -> Problem:
    """The same units several times, side by side, with a budget for all."""
    conditions = problem.conditions
    assert conditions is not None
    assert conditions.other is not None
    parts = [_repeat_plain(each, count) for each in (problem.plain, conditions.other)]
    return replace(parts[0], conditions=Conditions(other=parts[1], most=count * conditions.most))


def _repeat_plain(problem: Problem, count: int) -> Problem:
    units = problem.units
    return Problem.build(
        seconds=np.tile(problem.seconds, (count, 1)),
        producer=[made + copy * units for copy in range(count) for made in problem.producer],
        consumers=[
            [unit + copy * units for unit in readers(problem, tensor)]
            for copy in range(count)
            for tensor in range(problem.tensors)
        ],
        is_output=np.tile(problem.is_output, count),
        to_device=np.tile(problem.to_device, (count, 1)),
        to_host=np.tile(problem.to_host, (count, 1)),
        launch=problem.launch,
    )


@pytest.mark.parametrize("seed", range(4))
def test_loads_of_shared_engines(seed: int) -> None:
    problem = random_chains(seed, 4, 3, engines=SHARED)

    def slow_load(labels: Sequence[int]) -> float:
        loads = [0.0] * 3
        for unit, label in enumerate(labels):
            for engine, share in enumerate(SHARED[label]):
                loads[engine] += share * float(problem.seconds[unit, label])
        return max(loads)

    best = min(map(slow_load, every_label(problem)))
    found = solve_problem(problem, Throughput(), [f"u{unit}" for unit in range(problem.units)])
    assert found.value == pytest.approx(best)
    assert found.bound is not None
    assert 0 < found.bound <= best * (1 + 1e-9)


# Makespans with shared engines: every order of units, each as early as its engines allow.

STATES = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
"""Devices 1 and 2 are states of one engine; device 3 splits a unit over that and another one."""


def slow_makespan(problem: Problem, labels: Sequence[int]) -> float:
    return min(
        _place_in_turn(problem, labels, order)
        for order in permutations(range(problem.units))
        if all(
            order.index(made) < order.index(unit)
            for tensor, made in enumerate(problem.producer.tolist())
            for unit in readers(problem, tensor)
        )
    )


def _place_in_turn(problem: Problem, labels: Sequence[int], order: Sequence[int]) -> float:
    busy: list[tuple[float, float, frozenset[int]]] = []
    end = {}
    for unit in order:
        ready = 0.0
        for tensor, made in enumerate(problem.producer.tolist()):
            if unit in readers(problem, tensor):
                ready = max(ready, end[made] + _moving(problem, tensor, labels[made], labels[unit]))
        own = frozenset(np.flatnonzero(problem.engines[labels[unit]]).tolist())
        taken = float(problem.seconds[unit, labels[unit]])
        others = [(a, b) for a, b, engines in busy if engines & own]
        starts = [ready, *(b for _, b in others if b > ready)]
        begin = min(one for one in starts if all(b <= one or one + taken <= a for a, b in others))
        busy.append((begin, begin + taken, own))
        end[unit] = begin + taken
    tails = [0.0]
    for tensor, made in enumerate(problem.producer.tolist()):
        if problem.is_output[tensor] and labels[made]:
            tails.append(end[made] + float(problem.to_host[tensor, labels[made] - 1]))
    return max(*end.values(), *tails)


def _moving(problem: Problem, tensor: int, home: int, there: int) -> float:
    if home == there:
        return 0.0
    up = float(problem.to_host[tensor, home - 1]) if home else 0.0
    return up + (float(problem.to_device[tensor, there - 1]) if there else 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_the_makespan_of_shared_engines(seed: int) -> None:
    problem = random_chains(seed, 4, 3, engines=STATES)
    best = min(slow_makespan(problem, labels) for labels in every_label(problem))
    found = solve_problem(problem, Makespan(), [f"u{unit}" for unit in range(problem.units)])
    assert found.measure is Measure.makespan
    assert found.value == pytest.approx(best)
    assert found.bound is not None
    assert found.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_an_operator_split_over_two_accelerators(seed: int) -> None:
    rng = np.random.default_rng(3000 + seed)
    own = random_chains(seed, 4, 2)
    extents = rng.choice([0, 1, 3, 4, 64], 4).tolist()
    problem = add_split(own, (1, 2), extents)
    for unit, extent in enumerate(extents):
        _, a, b = own.seconds[unit].tolist()
        ends = {k: max(a * k / extent, b * (extent - k) / extent) for k in range(1, extent)}
        least = min(ends.values(), default=inf)
        possible = [inf]
        for share in (k / extent for k, end in ends.items() if end <= least + 1e-12 and end < inf):
            gathered = sum(
                share * (own.to_host[tensor, 0] + own.to_device[tensor, 1])
                + (1 - share) * (own.to_host[tensor, 1] + own.to_device[tensor, 0])
                for tensor in np.flatnonzero(own.producer == unit)
            )
            possible.append(float(least + gathered))
        found = float(problem.seconds[unit, 3])
        assert any(found == pytest.approx(each) for each in possible)
        assert (found == inf) == (least == inf)
    assert problem.to_device[:, 2].tolist() == own.to_device.sum(axis=1).tolist()
    best = min(slow_makespan(problem, labels) for labels in every_label(problem))
    whole = min(slow_makespan(own, labels) for labels in every_label(own))
    assert best <= whole
    found = solve_problem(problem, Makespan(), [f"u{unit}" for unit in range(4)])
    assert found.value == pytest.approx(best)
    assert found.bound is not None
    assert found.bound <= best * (1 + 1e-9)


def test_a_split_is_refused_where_it_cannot_be() -> None:
    problem = random_chains(0, 3, 2)
    for given, pair, sentence in (
        (problem, (1, 3), "over two of 2 accelerators"),
        (problem, (1, 1), "over two of 2 accelerators"),
        (
            replace(problem, conditions=Conditions(engines=[[1, 0], [0, 1], [0, 1]])),
            (1, 2),
            "share an engine",
        ),
        (replace(problem, conditions=Conditions(other=problem, most=99)), (1, 2), "other costs"),
        (replace(problem, conditions=Conditions(reload=[1.0, inf])), (1, 2), "loaded anew"),
    ):
        with pytest.raises(ValueError, match=sentence):
            add_split(given, pair, [4, 4, 4])


# Contention: any set of ready jobs may start whenever one ends.


def contended(
    seconds: Sequence[float], devices: Sequence[int], slow: Sequence[Sequence[float]]
) -> float:
    """The least time in which jobs without order between them end, each on its device."""

    @cache
    def finish(waiting: frozenset[int], running: tuple[tuple[int, float], ...]) -> float:
        if not waiting and not running:
            return 0.0
        best = inf
        free = {*devices} - {devices[job] for job, _ in running}
        choices = [
            [None, *(job for job in waiting if devices[job] == device)] for device in sorted(free)
        ]
        for choice in product(*choices):
            started = [job for job in choice if job is not None]
            now = dict(running) | {job: seconds[job] for job in started}
            if not now:
                continue
            pace = {
                job: 1 + sum(slow[devices[job]][devices[other]] - 1 for other in now if other != job)
                for job in now
            }
            step = min(left * pace[job] for job, left in now.items())
            left = tuple(
                (job, round(rest, 9))
                for job, each in sorted(now.items())
                if (rest := each - step / pace[job]) > 1e-9
            )
            best = min(best, step + finish(waiting - set(started), left))
        return best

    return finish(frozenset(range(len(seconds))), ())


def test_contention_against_every_schedule() -> None:
    ratios = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        slow = rng.uniform(1, 2.6, (3, 3))
        np.fill_diagonal(slow, 1.0)
        seconds = rng.integers(1, 6, (3, 3)).astype(np.float64)
        problem = Problem.build(
            seconds=seconds,
            producer=[],
            consumers=[],
            is_output=[],
            to_device=np.zeros((0, 2)),
            to_host=np.zeros((0, 2)),
            launch=np.zeros(2),
            conditions=Conditions(slowdown=slow),
        )
        best = min(
            contended([seconds[unit, label] for unit, label in enumerate(labels)], labels, slow.tolist())
            for labels in every_label(problem)
        )
        found = solve_problem(problem, Makespan(), [f"u{unit}" for unit in range(3)])
        assert found.bound is not None
        assert found.bound <= best * (1 + 1e-9)
        ratios.append(found.value / best)
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) <= 1.03
    assert np.mean(ratios) <= 1.01


# Rates: a clock that counts whole seconds.


def tick_responses(
    seconds: Sequence[int],
    labels: Sequence[int],
    network_of: Sequence[int],
    networks: Sequence[PlacedNetwork],
) -> list[int]:
    """The slowest response of each network: units in chains, the earliest deadline first."""
    horizon = int(np.lcm.reduce([int(each.period) for each in networks]))
    jobs = []
    for number, network in enumerate(networks):
        own = [unit for unit, its in enumerate(network_of) if its == number]
        jobs += [
            {"units": list(own), "release": at, "due": at + network.response, "network": number}
            for at in range(0, horizon, int(network.period))
        ]
    running: dict[int, tuple[dict[str, Any], int]] = {}
    worst, now = [0] * len(networks), 0
    while any(job["units"] for job in jobs):
        for device, (job, end) in list(running.items()):
            if end == now:
                del running[device]
                job["units"].pop(0)
                if not job["units"]:
                    worst[job["network"]] = max(worst[job["network"]], now - job["release"])
        busy = [id(job) for job, _ in running.values()]
        ready = [job for job in jobs if job["units"] and job["release"] <= now and id(job) not in busy]
        for job in sorted(ready, key=lambda job: job["due"]):
            device = labels[job["units"][0]]
            if device not in running:
                running[device] = job, now + seconds[job["units"][0]]
        now += 1
    return worst


@pytest.mark.parametrize("seed", range(3))
def test_responses_over_a_hyperperiod(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network_of = [0, 0, 1, 1, 2]
    seconds = rng.integers(1, 4, (5, 3)).astype(np.float64)
    periods = rng.permutation([8, 12, 24])
    networks = [PlacedNetwork(name, float(each)) for name, each in zip("abc", periods, strict=True)]
    problem = Problem.build(
        seconds=seconds,
        producer=[0, 2],
        consumers=[[1], [3]],
        is_output=[False, False],
        to_device=np.zeros((2, 2)),
        to_host=np.zeros((2, 2)),
        launch=np.zeros(2),
        conditions=Conditions(networks=tuple(networks), network_of=network_of),
    )
    found = solve_problem(problem, Makespan(time_limit=0.5), list("vwxyz"))
    labels, regions = found.labels.tolist(), found.regions.tolist()
    alone = [unit if label else -1 for unit, label in enumerate(labels)]
    check = ListScheduler(problem).check_rates(labels, alone)
    assert check is not None
    taken = [int(seconds[unit, label]) for unit, label in enumerate(labels)]
    assert list(check.responses) == tick_responses(taken, labels, network_of, networks)
    for device in range(3):
        used = sum(
            taken[unit] / periods[network_of[unit]] for unit in range(5) if labels[unit] == device
        )
        assert check.utilization.get(device, 0.0) == pytest.approx(used)
    assert len({(region, network_of[unit]) for unit, region in enumerate(regions)} - {(-1, 0)}) >= len(
        set(regions) - {-1}
    )


def two_networks(period: float, deadline: float = inf) -> Problem:
    networks = (PlacedNetwork("a", period, deadline), PlacedNetwork("b", period, deadline, weight=2.0))
    return Problem.build(
        seconds=[[9, 2], [9, 3]],
        producer=[-1, -1],
        consumers=[[0], [1]],
        is_output=[False, False],
        to_device=np.zeros((2, 1)),
        to_host=np.zeros((2, 1)),
        launch=[0.5],
        conditions=Conditions(networks=networks, network_of=[0, 1]),
    )


def test_networks_share_no_launch_and_weights_count() -> None:
    found = solve_problem(two_networks(inf), Makespan(), ["a", "b"])
    assert sorted(found.regions.tolist()) == [0, 1]
    assert found.value == pytest.approx(7.0)  # b ends at 3.5 and counts twice; a ends at 6


@pytest.mark.parametrize(
    ("period", "deadline", "message"),
    [
        (20, 3.2, r"no placement keeps the deadline of network b: alone on all devices it takes 3.5 s"),
        (
            3.6,
            inf,
            r"no placement keeps the rates: all devices together would have to work 1\.\d+ times",
        ),
        (
            6.5,
            5,
            r"found that keeps all rates and deadlines; in the closest network \w ends \S+ s after",
        ),
    ],
)
def test_what_cannot_be_kept_is_said(period: float, deadline: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        solve_problem(two_networks(period, deadline), Makespan(), ["a", "b"])


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_of_a_round_with_weights_below_one(seed: int) -> None:
    """Launches count in what is left out while all placements of few units are tried."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.1, 2, 3)
    problem = Problem.build(
        seconds=rng.uniform(1, 4, (3, 2)),
        producer=[],
        consumers=[],
        is_output=[],
        to_device=np.zeros((0, 1)),
        to_host=np.zeros((0, 1)),
        launch=[1.5],
        conditions=Conditions(
            networks=tuple(PlacedNetwork(weight=float(each)) for each in weights),
            network_of=np.arange(3),
        ),
    )

    def end_in_turn(labels: Sequence[int], order: Sequence[int]) -> float:
        free, worst = [0.0, 0.0], 0.0
        for unit in order:
            free[labels[unit]] += float(problem.seconds[unit, labels[unit]]) + 1.5 * labels[unit]
            worst = max(worst, free[labels[unit]] * float(weights[unit]))
        return worst

    best = min(
        end_in_turn(labels, order)
        for labels in product((0, 1), repeat=3)
        for order in permutations(range(3))
    )
    found = solve_problem(problem, Makespan(time_limit=0.5), ["a", "b", "c"])
    assert found.value == pytest.approx(best)
    assert found.bound == pytest.approx(best)
