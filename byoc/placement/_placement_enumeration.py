"""All placements of small problems: their labels, costs, and the least maximal load of a device."""

from collections.abc import Iterator
from math import inf, prod

import numpy as np

from byoc._dataclasses import dataclass, field
from byoc.numerics import SearchBudget
from byoc.placement._form_regions import choose_fusions, form_regions
from byoc.placement._problem import UNLIMITED, Floats, Ints, Occupancy, Problem

# Search over all regions of given labels, a reference for small problems.

# Seconds on one core of about 3 GHz for a set of units that may be launched, and for its fusions.
_LAUNCH_SECONDS, _FUSION_SECONDS = 2e-5, 2e-4


class SpentBudgetError(Exception):
    """The budget of a search was spent before it had tried everything."""


@dataclass(frozen=True)
class _Continuation:
    """A way to finish: seconds of launches minus savings, and the launches in order.

    The seconds are those of each accelerator, or one sum of all.
    """

    seconds: tuple[float, ...]
    launches: tuple[int, ...] = ()

    def is_as_good_as(self, other: "_Continuation") -> bool:
        """Return whether no accelerator takes more seconds than in another continuation."""
        return all(own <= its for own, its in zip(self.seconds, other.seconds, strict=True))


_Continuations = tuple[_Continuation, ...]


def find_best_regions(problem: Problem, labels: Ints) -> tuple[float, Ints] | None:
    """Return launches minus savings of the best regions for labels, and the regions, int64 (units,).
    None if no regions keep the limits. Tries every order of launches and, where it matters which units
    are launched together, every choice of them: regions that can be launched one after another are
    exactly those whose contraction is acyclic.
    """
    found = _RegionSearch(problem, labels.tolist()).find_continuations()
    return (found[0].seconds[0], _number_launches(problem, found[0])) if found else None


def iterate_region_loads(
    problem: Problem, labels: Ints, budget: SearchBudget
) -> Iterator[tuple[Floats, Ints]]:
    """Yield the regions of labels that no others are better than on all accelerators.

    Each comes with the launches minus savings of each accelerator, float64 (devices,), and the regions,
    int64 (units,), as `find_best_regions` tries them. Raises SpentBudgetError before that is known.
    """
    search = _RegionSearch(problem, labels.tolist(), by_device=True, budget=budget)
    for found in search.find_continuations():
        yield np.array(found.seconds), _number_launches(problem, found)


def _number_launches(problem: Problem, found: _Continuation) -> Ints:
    regions = np.full(problem.units, -1, np.int64)
    for number, launch in enumerate(found.launches):
        regions[[unit for unit in range(problem.units) if launch >> unit & 1]] = number
    return regions


@dataclass(eq=False)
class _RegionSearch:
    """The search state; sets of units are bits of integers."""

    problem: Problem
    labels: list[int]
    by_device: bool = False
    """Whether seconds are of each accelerator, of which no one continuation may be the best."""
    budget: SearchBudget = field(default_factory=SearchBudget)
    before: list[int] = field(init=False)
    """The units whose results each unit needs."""
    known: dict[tuple[int, tuple[int, ...]], _Continuations] = field(default_factory=dict)
    savings: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = [0] * self.problem.units
        for u, v in zip(*(side.tolist() for side in self.problem.edges), strict=True):
            self.before[v] |= 1 << u

    def find_continuations(self) -> _Continuations:
        """Return the best ways to run everything, none if no regions keep the limits."""
        return self.finish(self.run_until_blocked(0), tuple(self.problem.max_regions.tolist()))

    def run_until_blocked(self, done: int, device: int = 0) -> int:
        """Return the units that have run once a device, or the host, has run all it can."""
        for unit, needed in enumerate(self.before):
            if self.labels[unit] == device and not needed & ~done:
                done |= 1 << unit
        return done

    def finish(self, done: int, allowed: tuple[int, ...]) -> _Continuations:
        """Return the best continuations, with so many launches allowed for each accelerator."""
        if done == (1 << self.problem.units) - 1:
            return (_Continuation((0.0,) * (self.problem.devices if self.by_device else 1)),)
        key = done, allowed
        if key not in self.known:
            best: list[_Continuation] = []
            for device, launch in self._next_launches(done):
                for way in self._launch(launch, device, done, allowed):
                    if not any(other.is_as_good_as(way) for other in best):
                        best = [other for other in best if not way.is_as_good_as(other)]
                        best.append(way)
            self.known[key] = tuple(best)
        return self.known[key]

    def _launch(
        self, launch: int, device: int, done: int, allowed: tuple[int, ...]
    ) -> Iterator[_Continuation]:
        left = allowed[device - 1]
        if left <= 0:
            return
        fewer = left if left == UNLIMITED else left - 1
        rest = self.finish(
            self.run_until_blocked(done | launch), (*allowed[: device - 1], fewer, *allowed[device:])
        )
        seconds = float(self.problem.launch[device - 1]) - self._best_saving(launch)
        place = device - 1 if self.by_device else 0
        for each in rest:
            after = (*each.seconds[:place], seconds + each.seconds[place], *each.seconds[place + 1 :])
            yield _Continuation(after, (launch, *each.launches))

    def _next_launches(self, done: int) -> Iterator[tuple[int, int]]:
        """Yield each device with each set of units that it can launch next."""
        problem = self.problem
        for device in range(1, 1 + problem.devices):
            ready = self.run_until_blocked(done, device) & ~done
            if not ready:
                continue
            limited = problem.min_nodes[device - 1] > 1 or problem.max_nodes[device - 1] < UNLIMITED
            fused = any(fusion.device == device for fusion in problem.fusions)
            if not (limited or fused or problem.connected[device - 1]):
                self._spend(_LAUNCH_SECONDS)
                yield device, ready  # waiting never helps
                continue
            launch = ready
            while launch:
                if self._can_launch(launch, device, done):
                    yield device, launch
                launch = (launch - 1) & ready

    def _can_launch(self, launch: int, device: int, done: int) -> bool:
        self._spend(_LAUNCH_SECONDS)
        members = [unit for unit in range(self.problem.units) if launch >> unit & 1]
        nodes = int(self.problem.size[members].sum())
        least, most = (limit[device - 1] for limit in (self.problem.min_nodes, self.problem.max_nodes))
        if not least <= nodes <= most or any(self.before[unit] & ~(done | launch) for unit in members):
            return False
        return not self.problem.connected[device - 1] or self._is_connected(launch, members)

    def _is_connected(self, launch: int, members: list[int]) -> bool:
        reached = 1 << members[0]
        for _ in members:
            for unit in members:
                if self.before[unit] & reached:
                    reached |= 1 << unit
                if reached >> unit & 1:
                    reached |= self.before[unit] & launch
        return reached == launch

    def _best_saving(self, launch: int) -> float:
        if not self.problem.fusions:
            return 0.0
        if launch not in self.savings:
            self._spend(_FUSION_SECONDS)
            members = np.array([launch >> unit & 1 for unit in range(self.problem.units)], np.int64)
            chosen = choose_fusions(self.problem, np.array(self.labels) * members, members - 1)
            self.savings[launch] = sum(self.problem.fusions[number].saving for number in chosen)
        return self.savings[launch]

    def _spend(self, seconds: float) -> None:
        self.budget.spend(seconds)
        if self.budget.is_spent:
            raise SpentBudgetError


# Seconds on one core of about 3 GHz for a tensor or unit of one placement, on one device.
_ITEM_SECONDS = 2e-8


def count_labels(problem: Problem) -> int:
    """Return the number of ways to give each unit a device that takes it."""
    return prod(problem.allowed.sum(axis=1).tolist())


def enumerate_labels(problem: Problem) -> Ints:
    """Return all labels that keep to what devices take and hold, int64 (placements, units)."""
    allowed = [np.flatnonzero(row) for row in problem.allowed]
    labels = np.zeros((count_labels(problem), problem.units), np.int64)
    weight = 1
    for unit, devices in enumerate(allowed):
        labels[:, unit] = devices[np.arange(len(labels)) // weight % len(devices)]
        weight *= len(devices)
    fits = np.ones(len(labels), np.bool_)
    for d in np.flatnonzero(np.isfinite(problem.capacity)):
        taken = (labels == 1 + d) @ problem.memory[:, d]
        fits &= taken <= problem.capacity[d] * (1 + 2.0**-40)
    found: Ints = labels[fits]
    return found


def do_regions_matter(problem: Problem) -> bool:
    """Return whether the choice of regions changes costs, or may break a limit."""
    limits = (
        (problem.min_nodes > 1) | (problem.max_nodes < UNLIMITED) | (problem.max_regions < UNLIMITED)
    )
    return bool(problem.launch.any() or limits.any() or problem.fusions)


def sum_execution(problem: Problem, labels: Ints) -> Floats:
    """Return seconds of execution by device, float64 (placements, 1 + devices), of many placements."""
    found = np.zeros((len(labels), 1 + problem.devices))
    for unit, costs in enumerate(problem.seconds):
        at = labels[:, unit]
        found[np.arange(len(labels)), at] += costs[at]
    return found


def sum_transfers(problem: Problem, labels: Ints) -> Floats:
    """Return seconds of transfers by accelerator, float64 (placements, devices), of many placements."""
    seconds = np.zeros((len(labels), problem.devices))
    for tensor, producer in enumerate(problem.producer.tolist()):
        first, last = problem.consumer_start[tensor : tensor + 2]
        at = labels[:, problem.consumers[first:last]]
        home = labels[:, producer] if producer >= 0 else np.zeros(len(labels), np.int64)
        leaves = ((at != home[:, np.newaxis]).any(axis=1) | problem.is_output[tensor]) & (home > 0)
        seconds[leaves, home[leaves] - 1] += problem.to_host[tensor, home[leaves] - 1]
        for device in range(1, 1 + problem.devices):
            arrives = (at == device).any(axis=1) & (home != device)
            seconds[arrives, device - 1] += problem.to_device[tensor, device - 1]
    return seconds


def find_least_load(problem: Problem, most: float, budget: SearchBudget) -> tuple[Ints, Ints] | None:
    """Return labels and regions of the least maximal load of all placements, int64 (units,) each.

    None if none has a load below `most` seconds. Regions are tried in the order of the loads that their
    labels have at least: with one launch of each device in use, and all savings. Raises
    SpentBudgetError before the answer is known.
    """
    items = (problem.units + problem.tensors) * (1 + problem.devices)
    budget.spend(count_labels(problem) * items * _ITEM_SECONDS)
    labels = enumerate_labels(problem)
    loads, transfers = sum_execution(problem, labels), sum_transfers(problem, labels)
    seconds = loads.sum(axis=1) + transfers.sum(axis=1)
    loads[:, 0] /= problem.cores
    for number, occupies in enumerate(problem.occupies):
        if occupies is Occupancy.device:
            loads[:, 1 + number] += transfers[:, number]
        elif occupies is Occupancy.host:
            loads[:, 0] += transfers[:, number]
    links = [number for number, kind in enumerate(problem.occupies) if kind is Occupancy.link]
    busiest_link = transfers[:, links].max(axis=1, initial=0.0)

    at_least = loads.copy()
    for number, launch in enumerate(problem.launch):
        at_least[:, 1 + number] += launch * (labels == 1 + number).any(axis=1)
    for fusion in problem.fusions:
        chosen = (labels[:, fusion.members] == fusion.device).all(axis=1)
        at_least[:, fusion.device] -= fusion.saving * chosen
    peaks = np.maximum(at_least.max(axis=1), busiest_link)
    peaks[~np.isfinite(seconds)] = inf
    # Of equal loads, the placement of the least cost, and with the most units on the host.
    order = np.lexsort((np.count_nonzero(labels, axis=1), seconds, peaks))
    best: tuple[Ints, Ints] | None = None
    for place in order.tolist():
        if peaks[place] >= most:
            break
        if not do_regions_matter(problem):
            return labels[place], form_regions(problem, labels[place])
        for launches, regions in iterate_region_loads(problem, labels[place], budget):
            on_devices = float((loads[place, 1:] + launches).max(initial=0.0))
            peak = max(float(loads[place, 0]), on_devices, float(busiest_link[place]))
            if peak < most:
                best, most = (labels[place], regions), peak
    return best
