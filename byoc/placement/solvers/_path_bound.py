"""A lower bound on the makespan: a path through the graph, cut into what one region can hold.

A region is entered once by any path, so that it holds an interval of the path's units, and with any two
units all units between them. Its job takes all of these. Where it is the only one of its device, its
neighbours on the path are elsewhere, and the tensors between them are moved. The jobs of one path run
one after another. So no makespan is below the cheapest way to cut the path into intervals, each within
the memory of a device, and units of the host between them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from byoc.numerics import SearchBudget
from byoc.placement._problem import UNLIMITED, Bools, Floats, Ints, Occupancy, Problem
from byoc.placement.solvers._host_device_cut import UNDECIDED, HostDeviceCuts

# Larger graphs would need too much memory for their reachability.
_MAX_UNITS = 4000
# Numbers of regions beyond this are not counted.
_MAX_REGIONS = 32
# Seconds of a minimum cut: for itself, and for each unit and consumer, on one core of about 3 GHz.
_CUT_SECONDS, _ITEM_SECONDS = 4e-4, 1.2e-6
# Prices of bytes that are tried for one interval.
_PRICES = 10
# The share of the budget for each path, of what those before have left.
_SHARE = 0.6


@dataclass(frozen=True, eq=False)
class PathProof:
    """A lower bound on the makespan, and how the units lie where the path that proves it is cut."""

    bound: float = 0.0
    """seconds; fusions and rounding errors are left out"""
    orders: tuple[Ints, ...] = ()
    """topological orders of the units, int64 (units,) each, region by region"""


def bound_by_paths(problem: Problem, budget: SearchBudget) -> PathProof:
    """Return the largest lower bound that a few long paths prove within a budget."""
    best, seen = PathProof(), set[bytes]()
    if not problem.devices or not 0 < problem.units <= _MAX_UNITS:
        return best
    follows = find_reachable(problem)
    for path in _list_paths(problem):
        if path.tobytes() not in seen and not budget.is_spent:
            seen.add(path.tobytes())
            share = budget.limit(budget.left * _SHARE)
            found = PathIntervals(problem, path, follows).prove(share)
            # It is infinite where nothing keeps the limits: the search will say so.
            if best.bound < found.bound < np.inf:
                best = found
    return best


def find_reachable(problem: Problem) -> Bools:
    """Return the units that each unit reaches, itself included, bool (units, units)."""
    follows = np.eye(problem.units, dtype=np.bool_)
    source, target = problem.edges
    for number in np.argsort(-source, kind="stable").tolist():
        follows[source[number]] |= follows[target[number]]
    return follows


def _list_paths(problem: Problem) -> Iterator[Ints]:
    """Yield longest paths by several weights of the units, int64 each."""
    fastest = problem.costs.min(axis=1)
    accelerated = problem.costs[:, 1:].min(axis=1)
    accelerated = np.where(np.isfinite(accelerated), accelerated, fastest)
    moved = np.zeros(problem.units)
    made = problem.producer >= 0
    transfers = (problem.to_device + problem.to_host).min(axis=1)
    transfers = np.where(np.isfinite(transfers), transfers, 0.0)
    np.add.at(moved, problem.producer[made], transfers[made])
    memory = problem.memory.min(axis=1)
    for weight in (accelerated, accelerated + moved, memory):
        yield _find_longest_path(problem, weight)


def _find_longest_path(problem: Problem, weight: Floats) -> Ints:
    source, target = (side.tolist() for side in problem.edges)
    length, before = weight.tolist(), [-1] * problem.units
    own = weight.tolist()
    for u, v in zip(source, target, strict=True):  # sorted by the first, in topological order
        if length[u] + own[v] > length[v]:
            length[v], before[v] = length[u] + own[v], u
    unit = max(range(problem.units), key=length.__getitem__)
    path = [unit]
    while before[path[-1]] >= 0:
        path.append(before[path[-1]])
    return np.array(path[::-1], np.int64)


def _list_tensors_between(problem: Problem, path: Ints) -> list[list[int]]:
    """Return the tensors from each unit of a path to the next one, the longest transfers first."""
    place = np.full(problem.units, -1)
    place[path] = np.arange(len(path))
    seconds = problem.to_device.min(axis=1) + problem.to_host.min(axis=1)
    made = np.where(problem.producer >= 0, place[problem.producer], -1)
    tensor = np.repeat(np.arange(len(made)), np.diff(problem.consumer_start))
    is_between = (made[tensor] >= 0) & (place[problem.consumers] == made[tensor] + 1)
    between: list[list[int]] = [[] for _ in path[1:]]
    for each in sorted(set(tensor[is_between].tolist()), key=lambda each: -seconds[each]):
        between[made[each]].append(each)
    return between


@dataclass(frozen=True, eq=False)
class _Kind:
    """Accelerators of equal costs, and what the intervals of the path take there."""

    device: int
    alone: Problem
    """the problem with a host that takes no time"""
    is_single: bool
    """It has one region at most, so that whatever crosses the region's ends leaves the device."""
    is_occupied: bool
    """Transfers are a part of the region."""


class PathIntervals:
    """The intervals of a path, and a lower bound on the time of each as one region."""

    def __init__(self, problem: Problem, path: Ints, follows: Bools) -> None:
        """Bound the intervals by what lies between their ends; `follows` is `find_reachable`."""
        self._problem, self._path, self._follows = problem, path, follows
        self._between = _list_tensors_between(problem, path)
        free = problem.seconds.copy()
        free[:, 0] = 0.0
        alone = replace(problem, seconds=free, must=np.zeros(problem.units, np.bool_))
        self._kinds = [
            _Kind(
                device,
                alone,
                bool(problem.max_regions[device - 1] == 1),
                problem.occupies[device - 1] is Occupancy.device,
            )
            for device in self._find_distinct_devices()
        ]
        tables = [self._measure_intervals(kind) for kind in self._kinds]
        self.seconds: Floats = np.stack(tables)
        """float64 (kinds, path, path): of the interval from one place to another; inf = impossible"""
        self._exact: dict[tuple[int, int, int], Bools] = {}

    def prove(self, budget: SearchBudget) -> PathProof:
        """Return the cheapest way to cut the path; intervals on it are measured until all are."""
        problem = self._problem
        items = problem.units + len(problem.consumers)
        while True:
            value, intervals = self._cut_path()
            waiting = [each for each in intervals if each not in self._exact]
            if not waiting or budget.is_spent:
                sets = [
                    self._exact[each]
                    for each in sorted(intervals, key=_get_place)
                    if each in self._exact
                ]
                return PathProof(value, tuple(_order_units(problem, sets)))
            for each in waiting:
                value, self._exact[each], cuts = self._solve_cuts(*each)
                self.seconds[each] = max(self.seconds[each], value)
                budget.spend(cuts * (_CUT_SECONDS + _ITEM_SECONDS * items))

    def _find_distinct_devices(self) -> list[int]:
        problem = self._problem
        kinds: dict[tuple[object, ...], int] = {}
        for d in range(problem.devices):
            arrays = problem.costs[:, 1 + d], problem.memory[:, d]
            moved = problem.to_device[:, d], problem.to_host[:, d]
            numbers = (problem.launch[d], problem.capacity[d], problem.max_regions[d])
            key = (*(each.tobytes() for each in (*arrays, *moved)), *map(float, numbers))
            kinds.setdefault((*key, problem.occupies[d]), 1 + d)
        return list(kinds.values())

    def _measure_intervals(self, kind: _Kind) -> Floats:
        """Return the seconds of all units between both ends, and of the tensors along the path."""
        problem, path, d = self._problem, self._path, kind.device - 1
        after, before = self._follows[path], self._follows[:, path].T
        costs = problem.costs[:, kind.device]
        refused = ~np.isfinite(costs)

        def add_up(values: Floats) -> Floats:
            total: Floats = (after * values) @ before.T.astype(np.float64)
            return total

        seconds: Floats = add_up(np.where(refused, 0.0, costs)) + float(problem.launch[d])
        seconds[add_up(refused.astype(np.float64)) > 0] = np.inf
        capacity = problem.capacity[d]
        if np.isfinite(capacity):
            seconds[add_up(problem.memory[:, d]) > capacity * (1 + 2.0**-30)] = np.inf
        length = len(path)
        seconds[np.tril_indices(length, -1)] = np.inf
        if not kind.is_single:
            return seconds
        down, up = problem.to_device[:, d], problem.to_host[:, d]
        arriving, leaving = np.zeros(length), np.zeros(length)
        for number, tensors in enumerate(self._between):
            # Transfers beside each other: that of one tensor out of a region and that of another into
            # the next one do not add up. Where they are parts of the regions, the longest ones do.
            moved = tensors if kind.is_occupied else tensors[:1]
            leaving[number] = up[moved].max()
            arriving[number + 1] = down[moved].max()
        found: Floats = seconds + arriving[:, np.newaxis] + leaving
        return found

    def _cut_path(self) -> tuple[float, list[tuple[int, int, int]]]:
        """Return the least cost of the path, and the intervals there: kind, first and last place."""
        problem, length = self._problem, len(self._path)
        kind = self.seconds.argmin(axis=0)
        seconds = np.take_along_axis(self.seconds, kind[np.newaxis], 0)[0]
        host = np.append(0.0, np.cumsum(problem.costs[self._path, 0])).tolist()
        most = int(np.minimum(problem.max_regions, UNLIMITED // (1 + problem.devices)).sum())
        if most > min(_MAX_REGIONS, length):
            return self._cut_freely(seconds, kind)
        value = np.array(host)
        ways: list[Ints] = []
        for _ in range(most):
            through = value[:-1, np.newaxis] + seconds
            first = through.argmin(axis=0)
            reached = np.append(np.inf, through[first, np.arange(length)])
            way = np.where(reached < value, np.append(0, first), -1)
            following = np.minimum(value, reached)
            for end in range(1, length + 1):
                on_host = following[end - 1] + problem.costs[self._path[end - 1], 0]
                if on_host < following[end]:
                    following[end], way[end] = on_host, -2
            value = following
            ways.append(way)
        intervals, end = [], length
        for way in reversed(ways):
            while way[end] == -2:
                end -= 1
            if way[end] >= 0:
                first_place = int(way[end])
                intervals.append((int(kind[first_place, end - 1]), first_place, end - 1))
                end = first_place
        return float(value[length]), intervals

    def _cut_freely(self, seconds: Floats, kind: Ints) -> tuple[float, list[tuple[int, int, int]]]:
        """Return the same for any number of intervals."""
        length = len(self._path)
        value, way = np.zeros(length + 1), np.full(length + 1, -1)
        for end in range(1, length + 1):
            through = value[:end] + seconds[:end, end - 1]
            first = int(through.argmin())
            on_host = value[end - 1] + self._problem.costs[self._path[end - 1], 0]
            value[end], way[end] = min((through[first], first), (on_host, -1))
        intervals, end = [], length
        while end:
            if way[end] >= 0:
                first = int(way[end])
                intervals.append((int(kind[first, end - 1]), first, end - 1))
                end = first
            else:
                end -= 1
        return float(value[length]), intervals

    def _solve_cuts(self, number: int, first: int, last: int) -> tuple[float, Bools, int]:
        """Bound the seconds of a region that holds an interval from below, with a price of bytes.

        Returns them, the units of a region that takes about as long, bool (units,), and the number of
        cuts: several where the cheapest region does not fit.
        """
        kind, path, follows = self._kinds[number], self._path, self._follows
        between = follows[path[first]] & follows[:, path[last]]
        if not (kind.is_single and kind.is_occupied):
            return 0.0, between, 0
        side = np.where(between, 1, UNDECIDED)
        # A region that held a unit before the interval's neighbour would hold that one, too.
        if first:
            side[follows[:, path[first - 1]]] = 0
        if last + 1 < len(path):
            side[follows[path[last + 1]]] = 0
        network = HostDeviceCuts(kind.alone, kind.device, side)
        memory = self._problem.memory[:, kind.device - 1]
        capacity, launch = (
            float(each[kind.device - 1]) for each in (self._problem.capacity, self._problem.launch)
        )
        best, inside = network.solve()
        taken = float(memory[inside].sum())
        if taken <= capacity or not np.isfinite(best):
            return best + launch, inside, 1
        # At this price the bytes above the capacity cost a part of what the region does.
        low, high = 0.0, np.inf
        price = best / taken
        for _ in range(_PRICES):
            value, found = network.solve(unit_price=price * memory)
            best = max(best, value - price * capacity)
            if memory[found].sum() > capacity:
                low = price
            else:
                high, inside = price, found
            price = 4 * price if high == np.inf else (low + high) / 2
        return best + launch, inside, 1 + _PRICES


def _get_place(interval: tuple[int, int, int]) -> int:
    """Return the first place of an interval."""
    return interval[1]


def _order_units(problem: Problem, regions: Sequence[Bools]) -> Iterator[Ints]:
    """Yield orders in which the units of a region are neighbours; others come early, or late."""
    source, target = (side.tolist() for side in problem.edges)
    own = np.full(problem.units, -1)
    for number, inside in enumerate(regions):
        own[inside & (own < 0)] = number
    early = own.tolist()
    for u, v in zip(source, target, strict=True):  # sorted by the first, in topological order
        early[v] = max(early[v], early[u])
    yield np.argsort(early, kind="stable")
    late = np.where(own < 0, len(regions), own).tolist()
    for u, v in zip(reversed(source), reversed(target), strict=True):
        late[u] = min(late[u], late[v])
    yield np.argsort(late, kind="stable")
