"""A Lagrangian bound and labels for graphs of any size: limits and launches as multipliers on cuts."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field

import numpy as np

from byoc.numerics import SearchBudget
from byoc.placement._problem import UNLIMITED, Bools, Floats, Ints, Problem
from byoc.placement.solvers._branch_and_cut import OPTIMALITY_GAP
from byoc.placement.solvers._host_device_cut import UNDECIDED, HostDeviceCuts, find_persistent_sides

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
