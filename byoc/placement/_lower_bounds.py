"""Lower bounds: Lagrangian ones on costs, and one on the makespan by a path through the graph.

The Lagrangian one has limits and launches as multipliers on a graph of any size.

For the makespan, a region is entered once by any path, so that it holds an interval of the path's units,
and with any two units all units between them. Its job takes all of these. Where it is the only one of
its device, its neighbours on the path are elsewhere, and the tensors between them are moved. The jobs of
one path run one after another. So no makespan is below the cheapest way to cut the path into intervals,
each within the memory of a device, and units of the host between them.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy

import numpy as np

from byoc._dataclasses import dataclass, field, replace
from byoc.numerics import SearchBudget
from byoc.placement._branch_and_cut import OPTIMALITY_GAP
from byoc.placement._host_device_cut import UNDECIDED, HostDeviceCuts, find_persistent_sides
from byoc.placement._problem import UNLIMITED, Bools, Floats, Ints, Occupancy, Problem

# Precision of the cuts while multipliers are sought; the last round uses full precision, and so does one
# that comes so near to a known placement.
_COARSE_BITS, _FINE_BITS = 29, 50
_CLOSE = 2.0**-17
# First step size as a share of the gap; larger steps were worse, smaller ones slower.
_STEP = 0.3
# Entries and length of a path in one number: the length takes the lower bits.
_LENGTH_BITS = 24
# Seconds for each unit and consumer in a cut, on one core of about 3 GHz.
_ITEM_SECONDS = 1.5e-6


@dataclass(eq=False)
class LagrangianRelaxation:
    """The Lagrangian relaxation of a placement problem, solved by minimum cuts.
    For any multipliers the minimum cuts give a lower bound.

    - Launches. A device has as many regions as the largest number of times that a path enters it. So
      for any unit flow `lambda` through the graph, from anywhere to anywhere, the launches of a device
      cost at least `launch * sum of lambda[u, v] * (u off the device and v on it)`: an arc `u -> v` of
      a minimum cut. The best flow is approached by averaging the worst paths of the solutions so far
      (fictitious play: Brown, 1951, for zero-sum games; Robinson, Annals of Mathematics 54, 1951).
      Among the paths with the most entries the longest is used, since passing more units cannot lower
      the number of entries.
    - One device for each unit, memory, and the number of regions have multipliers, updated by
      subgradient steps (Held, Wolfe and Crowder, Mathematical Programming 6, 1974).

    A fusion's saving is spread over its members, and each member gets the largest share that any fusion
    offers: disjoint fusions save no more. That regions must be connected, or have some size, is relaxed
    without a multiplier. All of this can only lower the bound, so it stays valid.
    """

    problem: Problem
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    bound: float = -np.inf
    value: float = -np.inf
    """the value of the last cuts, about a lower bound: they are rounded"""
    byte_prices: Floats | None = None
    """float64 (devices,): the first multipliers of memory; 0 unless given"""
    budget: SearchBudget = field(default_factory=SearchBudget)
    """no further round begins where it is spent"""

    def __post_init__(self) -> None:
        """Start with the longest paths, and multipliers at which no unit wants two devices."""
        problem = self.problem
        self.source, self.target = problem.edges
        self.begins, self.ends = self.source.tolist(), self.target.tolist()
        self.has_multipliers = has_multipliers(problem)
        self.fusion_share = _fusion_shares(problem)
        self.cuts = [self._cuts(d) for d in range(1, 1 + problem.devices)]
        shape = (problem.devices, len(self.source))
        self.launch_flow = np.zeros(shape)
        self.entry_flow = np.zeros((problem.devices, problem.units))
        for d in range(problem.devices):
            self._mix_worst_path(d, problem.allowed[:, 1 + d], 1.0)
        self.byte_multiplier = np.zeros(problem.devices)
        if self.byte_prices is not None:
            self.byte_multiplier[:] = np.where(np.isfinite(problem.capacity), self.byte_prices, 0.0)
        self.unit_multiplier = (
            self._initial_unit_multipliers() if problem.devices > 1 else np.zeros(problem.units)
        )
        self.region_multiplier = np.zeros(problem.devices)

    def vary(self, problem: Problem) -> "LagrangianRelaxation":
        """Return the relaxation of the same problem at other costs, begun at these multipliers."""
        other = copy(self)
        other.problem, other.bound, other.value = problem, -np.inf, -np.inf
        other.generator = np.random.default_rng(0)
        other.fusion_share = _fusion_shares(problem)
        other.cuts = [other._cuts(d) for d in range(1, 1 + problem.devices)]
        vars(other).update(self._copy_state())
        return other

    def iterate_labels(
        self, count: int, get_least: Callable[[], float], overshoot: float = 1.0
    ) -> Iterator[Ints]:
        """Yield the labels of each round, int64 (units,), and raise `bound`.

        `get_least` returns the cost of the best placement that is known: there is no further round where
        the bound proves that none is better. Steps are as long as if the bound could rise to `overshoot`
        times that cost.
        """
        finest = (self.bound, self._copy_state())
        is_close = _CLOSE
        for number in range(count):
            value, on_device = self._solve_cuts(_COARSE_BITS)
            self.value = value
            if value > finest[0]:
                finest = value, self._copy_state()
            yield self._choose_labels(on_device)
            if value >= get_least() * (1 - is_close):
                precise, _ = self._solve_cuts(_FINE_BITS)
                self.bound = max(self.bound, precise)
                if self.bound >= get_least() * (1 - OPTIMALITY_GAP):
                    self.value = precise
                    return
                is_close = 0.0  # multipliers have to change before it is worth to look again
            excess = self._step_multipliers(
                on_device, max(overshoot * get_least() - value, 0.0), _STEP / (1 + number)
            )
            for d in range(self.problem.devices):
                self._mix_worst_path(d, on_device[d], 1 / (2 + number))
            if self.budget.is_spent or (not excess and not self.problem.launch.any()):
                break
        vars(self).update(finest[1])
        value, on_device = self._solve_cuts(_FINE_BITS)
        self.value = value
        self.bound = max(self.bound, value)
        yield self._choose_labels(on_device)

    def _cuts(self, d: int) -> HostDeviceCuts:
        problem = self.problem
        if not self.has_multipliers and not problem.fusions:
            return HostDeviceCuts(problem, d, find_persistent_sides(problem, float(problem.launch[0])))
        side = np.where(problem.allowed[:, d], UNDECIDED, 0)
        if problem.devices == 1:
            side[problem.must] = 1
        return HostDeviceCuts(problem, d, side)

    def _solve_cuts(self, bits: int) -> tuple[float, list[Bools]]:
        problem = self.problem
        items = problem.units + len(problem.consumers)
        self.budget.spend(_ITEM_SECONDS * items * len(self.cuts))
        launch = problem.launch + self.region_multiplier
        host = 0.0 if problem.devices == 1 else float(problem.seconds[:, 0].sum())
        value, sides = host, []
        for d, cuts in enumerate(self.cuts):
            unit = (
                self.unit_multiplier
                + self.byte_multiplier[d] * problem.memory[:, d]
                - self.fusion_share[d]
            )
            part, on_device = cuts.solve(
                launch[d] * self.launch_flow[d], launch[d] * self.entry_flow[d], unit, bits
            )
            value += part - host
            sides.append(on_device)
        value -= float(self.unit_multiplier.sum())
        limited = np.isfinite(problem.capacity)
        value -= float(self.byte_multiplier[limited] @ problem.capacity[limited])
        value -= float(
            self.region_multiplier @ np.where(self.region_multiplier > 0, problem.max_regions, 0)
        )
        return value, sides

    def _choose_labels(self, on_device: list[Bools]) -> Ints:
        """Return for each unit the cheapest of the devices whose cut takes it."""
        problem = self.problem
        cost = np.where(np.array(on_device).T, problem.costs[:, 1:], np.inf)
        chosen = 1 + cost.argmin(axis=1)
        return np.where(np.isfinite(cost.min(axis=1)), chosen, 0).astype(np.int64)

    def _mix_worst_path(self, d: int, on_device: Bools, share: float) -> None:
        """Mix the path that enters a device most often into its flow."""
        if not self.problem.launch[d] and self.problem.max_regions[d] == UNLIMITED:
            return
        _, edges, begin = self._worst_path(on_device)
        self.launch_flow[d] *= 1 - share
        self.entry_flow[d] *= 1 - share
        self.launch_flow[d, edges] += share
        self.entry_flow[d, begin] += share

    def _worst_path(self, on_device: Bools) -> tuple[int, list[int], int]:
        """Return the number of entries of a worst path, its edges, and its first unit."""
        one = 1 << _LENGTH_BITS
        enters = ~on_device[self.source] & on_device[self.target]
        step = (enters.astype(np.int64) * one + 1).tolist()
        # Ties are broken at random, so that the flow spreads over equally bad paths.
        coin = (self.generator.random(len(self.source)) < 0.5).tolist()
        height = (on_device.astype(np.int64) * one).tolist()
        through = [-1] * self.problem.units
        edges_up = zip(self.begins, self.ends, step, coin, strict=True)
        for number, (u, v, up, heads) in enumerate(edges_up):
            reached = height[u] + up
            if reached > height[v] or (heads and reached == height[v]):
                height[v], through[v] = reached, number
        unit = max(range(len(height)), key=height.__getitem__)
        count, edges = height[unit] >> _LENGTH_BITS, []
        while through[unit] >= 0:
            edges.append(through[unit])
            unit = self.begins[through[unit]]
        return count, edges, unit

    def _initial_unit_multipliers(self) -> Floats:
        """Return multipliers at which only the fastest accelerator wants a unit, float64 (units,)."""
        costs = self.problem.costs[:, 1:] + self.byte_multiplier * self.problem.memory
        gain = np.maximum(self.problem.seconds[:, :1] - costs, 0.0)
        return np.sort(gain, axis=1)[:, -2].copy()

    def _step_multipliers(self, on_device: list[Bools], gap: float, share: float) -> bool:
        """Take a subgradient step; return whether the multipliers changed."""
        if not self.has_multipliers:
            return False
        problem = self.problem
        where = np.array(on_device).T
        over_unit = where.sum(axis=1) - 1.0 if problem.devices > 1 else np.zeros(problem.units)
        over_unit[(self.unit_multiplier <= 0) & (over_unit < 0) & ~problem.must] = 0
        limited = np.isfinite(problem.capacity)
        taken = (where * problem.memory).sum(axis=0)
        room = np.where(limited, problem.capacity, taken)
        scale = np.maximum(room, 1e-300)
        over_byte = np.where(limited, taken / scale - room / scale, 0.0)
        counts = np.array([self._worst_path(each)[0] for each in on_device], np.float64)
        over_region = np.where(problem.max_regions < UNLIMITED, counts - problem.max_regions, 0.0)
        norm = float(over_unit @ over_unit + over_byte @ over_byte + over_region @ over_region)
        if norm == 0:
            return False
        step = gap * share / norm
        price = self.unit_multiplier + step * over_unit
        self.unit_multiplier = np.where(problem.must, price, np.maximum(price, 0.0))
        self.byte_multiplier = np.maximum(self.byte_multiplier + step * over_byte / scale, 0.0)
        self.region_multiplier = np.maximum(self.region_multiplier + step * over_region, 0.0)
        return True

    def _copy_state(self) -> dict[str, Floats]:
        return {name: getattr(self, name).copy() for name in _STATE}


def has_multipliers(problem: Problem) -> bool:
    """Return whether a problem has multipliers beside those of launches: of limits, or of units."""
    limited = np.isfinite(problem.capacity).any() or (problem.max_regions < UNLIMITED).any()
    return bool(problem.devices > 1 or limited)


_STATE = ("launch_flow", "entry_flow", "unit_multiplier", "byte_multiplier", "region_multiplier")


def _fusion_shares(problem: Problem) -> Floats:
    """Return the largest share of a fusion's saving of each unit, float64 (devices, units)."""
    bonus = np.zeros((problem.devices, problem.units))
    for fusion in problem.fusions:
        share = fusion.saving / len(fusion.members)
        row, members = bonus[fusion.device - 1], list(fusion.members)
        row[members] = np.maximum(row[members], share)
    return bonus


# A lower bound on the makespan: a path through the graph, cut into what one region can hold.


# Larger graphs would need too much memory for their reachability.
_MAX_UNITS = 4000
# Numbers of regions beyond this are not counted.
_MAX_REGIONS = 32
# Seconds of a minimum cut: for itself, and for each unit and consumer, on one core of about 3 GHz.
_CUT_SECONDS, _PATH_SECONDS = 4e-4, 1.2e-6
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
                budget.spend(cuts * (_CUT_SECONDS + _PATH_SECONDS * items))

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
