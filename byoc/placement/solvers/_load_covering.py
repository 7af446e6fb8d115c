"""A lower bound on the maximal load: the devices must cover all groups with sets that they can run.

Column generation (Gilmore and Gomory, Operations Research 9, 1961). Give each group a profit. If all
devices together, each with the set of most profit that it runs within a load, have less profit than all
groups, no placement keeps to that load. The profits come from a linear program over the sets found so
far, in which no set may have more profit than its device; the sets of most profit are found exactly
(`LoadFrontier`), and added. The sets of most profit, each without what the ones before have taken, are
nearly a placement, from which local search begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from byoc.numerics import SearchBudget
from byoc.numerics.solvers import MilpBuilder
from byoc.placement._problem import Floats, Occupancy, Problem
from byoc.placement.solvers._chain_split import find_device_classes
from byoc.placement.solvers._load_frontier import BestSets, LoadFrontier
from byoc.placement.solvers._unit_groups import UnitGroups

# Seconds on one core of about 3 GHz: for an entry of a table, a transition, and an entry of a program.
_ENTRY_SECONDS, _TRANSITION_SECONDS, _TERM_SECONDS = 4e-9, 8e-6, 1e-6
# For a state of tensors, and for a group that is put in order.
_STATE_SECONDS, _GROUP_SECONDS = 3e-5, 1e-5
_MOST_ENTRIES = 12_000_000
_MOST_STATES = 30_000
# Gaps, as shares of the load, that are not worth another search.
_CLOSE = 5e-4
# More than the rounding errors of a sum of profits.
_ROUNDING = 1e-9
# The share of the best profits so far in those that are tried next.
_INERTIA = 0.5


@dataclass(frozen=True, eq=False)
class _DeviceClass:
    """Equal devices; without a frontier their transfers are free, and sets may be divided."""

    devices: list[int]
    costs: Floats
    frontier: LoadFrontier | None

    def bound_profits(self, profit: Floats, loads: Floats, most: float) -> Floats:
        """Return no less than the profit of a set within each load, where groups may be divided."""
        able = (self.costs <= most) & (profit > 0)
        free = able & (self.costs <= 0)
        paid = np.flatnonzero(able & ~free)
        paid = paid[np.argsort(-profit[paid] / self.costs[paid], kind="stable")]
        taken, gained = np.cumsum(self.costs[paid]), np.cumsum(profit[paid])
        found: Floats = np.interp(loads, np.append(0.0, taken), np.append(0.0, gained))
        return found + float(profit[free].sum())


@dataclass(eq=False)
class _Sets:
    """Sets of groups that a class of devices can run, and the loads that they were found at."""

    loads: list[float] = field(default_factory=list)
    members: dict[tuple[int, ...], int] = field(default_factory=dict)

    def add(self, members: Sequence[int], load: float) -> bool:
        """Add a set; return whether it is new."""
        key = tuple(members)
        number = self.members.setdefault(key, len(self.loads))
        if number < len(self.loads):
            self.loads[number] = min(self.loads[number], load)
            return False
        self.loads.append(load)
        return True


@dataclass(frozen=True, eq=False)
class _Proof:
    """Profits of the groups, and the bound that they prove."""

    profit: Floats
    step: float
    within: Floats
    """The most profit of all devices within 0, 1, ... steps."""

    @property
    def bound(self) -> float:
        """The load below which the devices have less profit than all groups, in seconds."""
        enough = np.flatnonzero(self.within >= self.whole)
        return float(enough[0] if enough.size else len(self.within)) * self.step

    @property
    def whole(self) -> float:
        """The profit of all groups, less rounding errors."""
        return float(self.profit.sum()) * (1 - _ROUNDING)

    def rate(self, load: float) -> float:
        """Return the profit of all groups over that of the devices; above 1 the load is too small."""
        within = float(self.within[min(int(load / self.step), len(self.within) - 1)])
        return self.whole / within if within > 0 else np.inf


class CoverSearch:
    """The search for profits that prove a bound; what it knows grows from one search to the next."""

    def __init__(self, problem: Problem, groups: UnitGroups, bound: float, setup: SearchBudget) -> None:
        """Begin with a known bound in seconds; a budget of its own is for finding the states."""
        self._setup = setup
        self._problem, self._groups = problem, groups
        self.bound = bound
        """No placement has a smaller maximal load, in seconds; launches and fusions left out."""
        self._most = self._high = np.inf
        self._starts: list[tuple[float, list[int]]] = []
        self._device_classes = find_device_classes(groups, problem.occupies)
        self._sets = [_Sets() for _ in range(len(self._device_classes) + 1)]
        self._profit: Floats = groups.costs.min(axis=1)

    def take_starts(self, count: int) -> list[list[int]]:
        """Return labels of the groups to begin with, least outside of sets first; forget them."""
        starts, self._starts = [labels for _, labels in sorted(self._starts)[:count]], []
        return starts

    def search(self, steps: int, most: float, budget: SearchBudget) -> None:
        """Improve the bound within a budget.

        `most` is the maximal load of a known placement, in seconds. Loads are counted in so many steps,
        or fewer where the tables would be large.
        """
        self._most, self._high = most, min(self._high, most)
        classes = self._make_classes(steps)
        if all(each.frontier is None for each in classes) or self._is_close():
            return
        for each, sets in zip(classes, self._sets, strict=True):
            if each.frontier:
                sets.loads = [each.frontier.measure(members) for members in sets.members]
        low, high = self.bound, self._most
        # A load that parts of sets keep to in coarse steps may still be too small in fine ones.
        target = (self._high + high) / 2 if self._high < high else high * (1 - _CLOSE)
        center: _Proof | None = None
        is_smooth, next_profit = True, self._profit
        work = sum(each.frontier.size for each in classes if each.frontier) * _ENTRY_SECONDS
        work += self._count_transitions(classes) * _TRANSITION_SECONDS
        while not budget.is_spent and high - low > _CLOSE * self._most:
            budget.spend(work * (1 + self._groups.devices))
            tried, is_new = self._try_profits(classes, next_profit, target)
            low = self.bound = max(self.bound, tried.bound)
            if center is None or tried.rate(target) > center.rate(target):
                center = tried
                self._profit = center.profit
            if low >= target:
                target = (low + high) / 2
                continue
            value, profit = self._solve_program(classes, target, budget)
            if value <= 1 + _ROUNDING:
                # Covers made of parts of sets keep to this load: no profits prove it too small.
                high = self._high = target
                target = (low + high) / 2
            elif not is_new and not is_smooth:
                return
            is_smooth = is_new
            scale = float(center.profit.sum()) or 1.0
            smooth = center.profit / scale * (float(profit.sum()) or 1.0)
            next_profit = _INERTIA * smooth + (1 - _INERTIA) * profit if is_new else profit

    def _try_profits(
        self, classes: Sequence[_DeviceClass], profit: Floats, target: float
    ) -> tuple[_Proof, bool]:
        """Return the proof by some profits, and whether a set of most profit is new."""
        steps = next(each.frontier.steps for each in classes if each.frontier)
        step = self._most / steps
        within = np.zeros(steps + 1)
        best: dict[int, BestSets] = {}
        for number, each in enumerate(classes):
            if each.frontier:
                best[number] = each.frontier.find_best_sets(profit)
                within += len(each.devices) * best[number].profits()
            else:
                loads: Floats = np.arange(1, steps + 2, dtype=np.float64) * step
                within += len(each.devices) * each.bound_profits(profit, loads, self._most)
        return _Proof(profit, step, within), self._add_sets(classes, profit, best, target)

    def _is_close(self) -> bool:
        return self.bound >= self._most * (1 - _CLOSE)

    def _make_classes(self, steps: int) -> list[_DeviceClass]:
        """Return the classes of devices, the host last, with tables that are not too large."""
        groups, occupies = self._groups, self._problem.occupies
        found = []
        for devices in self._device_classes:
            first = devices[0]
            frontier = self._build_frontier(first, occupies[first - 1], steps)
            found.append(_DeviceClass(devices, groups.costs[:, first], frontier))
        found.append(_DeviceClass([0], groups.costs[:, 0] / self._problem.cores, None))
        # All tables count in the same steps.
        least = min((each.frontier.steps for each in found if each.frontier), default=steps)
        return [
            each
            if each.frontier is None or each.frontier.steps == least
            else _DeviceClass(
                each.devices,
                each.costs,
                self._build_frontier(each.devices[0], occupies[each.devices[0] - 1], least),
            )
            for each in found
        ]

    def _build_frontier(self, device: int, occupies: Occupancy, steps: int) -> LoadFrontier | None:
        """Return the frontier of a device; the cheapest transfers are free if there are many states."""
        least = 0.0
        for _ in range(12):
            if self._setup.is_spent:
                return None
            found = LoadFrontier.build(
                self._groups, device, occupies, self._most, steps, least, _MOST_STATES
            )
            states = sum(layer.states for layer in found.layers) if found else _MOST_STATES
            self._setup.spend(states * _STATE_SECONDS + self._groups.count * _GROUP_SECONDS)
            if found and found.size <= _MOST_ENTRIES:
                return found
            if found:
                steps = max(50, int(steps * _MOST_ENTRIES / found.size * 0.9))
            else:
                least = max(least * 4, self._most * 1e-4)
        return None

    @staticmethod
    def _count_transitions(classes: Sequence[_DeviceClass]) -> int:
        return sum(
            len(layer.transitions) for each in classes if each.frontier for layer in each.frontier.layers
        )

    def _add_sets(
        self,
        classes: Sequence[_DeviceClass],
        profit: Floats,
        found: dict[int, BestSets],
        target: float,
    ) -> bool:
        """Add the best sets, each without what those before took; return whether one is new."""
        labels = np.full(self._groups.count, -1)
        left, is_new = profit.copy(), False
        penalty = -1e-9 * (float(left.max(initial=0.0)) or 1.0)
        for number, each in enumerate(classes):
            if each.frontier is None:
                continue
            step = self._most / each.frontier.steps
            best = found[number]
            for position, device in enumerate(each.devices):
                if position or (labels >= 0).any():
                    best = each.frontier.find_best_sets(left)
                members, taken = best.trace(int(target / step))
                if not members:
                    break
                is_new |= self._sets[number].add(members, taken * step)
                labels[members] = device
                left[members] = penalty
        self._keep_start(labels)
        return is_new

    def _keep_start(self, labels: Floats) -> None:
        """Keep labels of groups, those outside of all sets put on the host or where they are fastest."""
        costs = self._groups.costs
        outside = np.flatnonzero(labels < 0)
        missing = float(costs[outside].min(axis=1).sum())
        order = outside[np.argsort(costs[outside, 0], kind="stable")]
        room = self._most * self._problem.cores
        for group in order.tolist():
            if costs[group, 0] <= room:
                room -= costs[group, 0]
                labels[group] = 0
            else:
                labels[group] = int(costs[group].argmin())
        self._starts.append((missing, labels.tolist()))

    def _solve_program(
        self, classes: Sequence[_DeviceClass], target: float, budget: SearchBudget
    ) -> tuple[float, Floats]:
        """Return the most profit of all groups where that of the devices is 1, and the profits.

        No set found so far within the load has more profit than its device, float64 (groups,).
        """
        program = MilpBuilder()
        count = self._groups.count
        devices = sum(len(each.devices) for each in classes)
        profit = program.add_columns(np.full(count, -1.0), 2.0 / devices, False)
        worth = program.add_columns(np.zeros(len(classes)), 1.0, False)
        program.add_row(1.0, worth, [float(len(each.devices)) for each in classes])
        terms = count
        for number, each in enumerate(classes):
            if each.frontier is None:
                able = np.flatnonzero(each.costs <= target)
                share = each.costs[able] / target
                program.add_rows(0.0, (profit[able], 1.0), (np.full(able.size, worth[number]), -share))
                terms += 2 * len(able)
                continue
            sets = self._sets[number]
            for members, position in sets.members.items():
                if sets.loads[position] <= target:
                    columns = np.append(profit[list(members)], worth[number])
                    program.add_row(0.0, columns, np.append(np.ones(len(members)), -1.0))
                    terms += len(members) + 1
        budget.spend(2e-3 + terms * _TERM_SECONDS)
        values = program.solve(0.0).values
        if values is None:
            return 0.0, np.ones(count)
        found = np.maximum(values[profit], 0.0)
        return float(found.sum()), found
