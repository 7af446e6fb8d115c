"""A lower bound on the maximal load: the devices must cover all groups with sets that they can run.

Column generation (Gilmore and Gomory, Operations Research 9, 1961). Give each group a profit. If all
devices together, each with the set of most profit that it runs within a load, have less profit than all
groups, no placement keeps to that load. The profits come from a linear program over the sets found so
far, in which no set may have more profit than its device; sets of more profit are found by a table
(`LoadFrontier`), and added. Loads are rounded to the nearest step there, which is quick, and right on
average; what profits prove is found with loads rounded down, in more steps.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.numerics import SearchBudget
from byoc.numerics.solvers import MilpBuilder
from byoc.placement._chain_split import find_device_classes
from byoc.placement._load_frontier import MOST_PROFIT, BestSets, LoadFrontier, find_device_edges
from byoc.placement._problem import Floats, Ints, Occupancy, Problem
from byoc.placement._unit_groups import UnitGroups

# Classes of equal devices, and tables of the sets that they can run: what covers are made of.

# Seconds on one core of about 3 GHz: for an entry of a table, and for a transition.
_ENTRY_SECONDS, _TRANSITION_SECONDS = 2.5e-9, 4e-6
# For a state of tensors, and for a group that is put in order.
_STATE_SECONDS, _GROUP_SECONDS = 2e-5, 1e-5
# Entries of the tables where sets are looked for, and steps of loads there and in proofs.
_ENTRIES, _LEAST_STEPS, _MOST_STEPS = 10_000_000, 400, 16_000
_PROOF_STEPS, _REFINEMENT, _MOST_PROOF_STEPS = 8_000, 2, 64_000
# Entries of the largest table of a proof, which needs two at a time.
_MOST_ENTRIES = 16_000_000
_MOST_STATES = 30_000  # of the dynamic program over loads
# More than the rounding errors of a quotient.
_COVER_ROUNDING = 1e-12
# How often more transfers are made free, and how many times as long they may be; the first ones, as a
# share of the load.
_ATTEMPTS, _FACTOR, _SHORTEST = 12, 4.0, 1e-4


@dataclass(frozen=True, eq=False)
class CoverDevices:
    """Equal devices; without tables their transfers are free, and sets may be divided."""

    devices: list[int]
    costs: Floats
    """float64 (groups,): seconds of each group"""
    frontier: LoadFrontier | None = None
    """for finding sets: loads are rounded to the nearest step"""
    proving: LoadFrontier | None = None
    """for proofs: loads are rounded down"""

    @property
    def search_seconds(self) -> float:
        """Seconds that finding sets of most profit takes."""
        if self.frontier is None:
            return 0.0
        transitions = self.frontier.transitions
        return self.frontier.size * _ENTRY_SECONDS + 2 * transitions * _TRANSITION_SECONDS

    @property
    def proof_seconds(self) -> float:
        """Seconds that finding the most profits for a proof takes."""
        if self.proving is None:
            return 0.0
        return self.proving.size * _ENTRY_SECONDS + self.proving.transitions * _TRANSITION_SECONDS

    def bound_profits(self, profit: Ints, step: float, count: int, most: float) -> Floats:
        """Return no less than the profits that all of them have within loads, float64 (count,).

        Loads are below 1, 2, ... steps, each of `step` seconds, and at most `most`; `profit` is int64
        (groups,).
        """
        ends = np.arange(1, count + 1, dtype=np.float64) * step
        if self.proving is None:
            return len(self.devices) * self.divide_groups(profit, ends, most)
        most_profits = self.proving.find_most_profits(profit)
        place = np.arange(count)
        if step != self.proving.step:
            # Loads below the end of a step have no more steps than begin below it.
            place = np.ceil(ends / self.proving.step * (1 + _COVER_ROUNDING)).astype(np.int64) - 1
        within: Floats = most_profits[np.minimum(place, self.proving.steps)].astype(np.float64)
        return within * len(self.devices)

    def divide_groups(self, profit: Ints, loads: Floats, most: float) -> Floats:
        """Return no less than the profit of a set within each load: parts of groups count, too.

        `profit` is int64 (groups,), of 0 or more.
        """
        able = self.costs <= most
        free = able & (self.costs <= 0)
        paid = np.flatnonzero(able & ~free)
        paid = paid[np.argsort(-profit[paid] / self.costs[paid], kind="stable")]
        taken, gained = np.cumsum(self.costs[paid]), np.cumsum(profit[paid])
        found: Floats = np.interp(loads, np.append(0.0, taken), np.append(0.0, gained))
        return found + float(profit[free].sum())

    def refine(self, setup: SearchBudget) -> "CoverDevices | None":
        """Return the same with proofs in finer steps; None where tables or steps are at their limits."""
        if self.frontier is None:
            return self
        steps = _PROOF_STEPS if self.proving is None else self.proving.steps * _REFINEMENT
        affordable = _MOST_ENTRIES // (2 * self.frontier.width)
        if self.proving is None:
            steps = min(steps, affordable)
        if steps > min(_MOST_PROOF_STEPS, affordable) or setup.is_spent:
            return None
        proving = self.frontier.round_down(steps, 2 * _MOST_STATES)
        setup.spend(self.frontier.states * _STATE_SECONDS)
        return None if proving is None else replace(self, proving=proving)


def iterate_cover_devices(
    problem: Problem, groups: UnitGroups, most: float, setup: SearchBudget
) -> Iterator[CoverDevices]:
    """Yield the classes of equal devices, the host last, with tables of sets of at most `most` seconds.

    No table is larger than there is memory for: steps are longer, then the shortest transfers free.
    """
    for devices in find_device_classes(groups, problem.occupies):
        costs, occupies = groups.costs[:, devices[0]], problem.occupies[devices[0] - 1]
        frontier = _build_frontier(groups, devices[0], occupies, most, setup)
        found = CoverDevices(devices, costs, frontier).refine(setup)
        yield found or CoverDevices(devices, costs)
    yield CoverDevices([0], groups.costs[:, 0] / problem.cores)


def _build_frontier(
    groups: UnitGroups, device: int, occupies: Occupancy, most: float, setup: SearchBudget
) -> LoadFrontier | None:
    """Return a frontier within memory's limits; None where there is none, or the budget is spent."""
    least, steps = 0.0, _LEAST_STEPS
    for _ in range(_ATTEMPTS):
        if setup.is_spent:
            return None
        costs, edges = find_device_edges(groups, device, occupies, least)
        found = LoadFrontier.build(
            costs, edges, most, steps=steps, most_states=_MOST_STATES, rounds_down=False
        )
        states = _MOST_STATES if found is None else found.states
        setup.spend(states * _STATE_SECONDS + groups.count * _GROUP_SECONDS)
        affordable = min(_MOST_STEPS, _ENTRIES // max(states, 1))
        if found and steps >= affordable:
            return found
        if found:
            steps = affordable
        else:
            least = max(least * _FACTOR, most * _SHORTEST)
    return None


# Seconds on one core of about 3 GHz for a program, for each of its entries, and each pair of groups.
_PROGRAM_SECONDS, _TERM_SECONDS, _PAIR_SECONDS = 1e-3, 3e-6, 1.2e-8
# Gaps, as shares of the load, that are not worth another search, and that are tried first.
_CLOSE, _FIRST_GAP = 5e-4, 1e-2
# More than the rounding errors of a sum of profits, and those of a linear program.
_ROUNDING, _TOLERANCE = 1e-9, 1e-6
# The share of the best profits so far in those that are tried next; less after sets found in vain.
_INERTIA, _MOST_MISSES = 0.5, 3
# Sets of a class that are looked for with the same profits.
_MOST_SETS = 3
# How many steps below a load a set is looked for whose load, not rounded, is within it.
_TRACES = 8
# A gain of the rate, as a share, that is worth another proof.
_GAIN = 2e-3


@dataclass(eq=False)
class _Target:
    """A load that is to be proven too small, and the profits that were tried for it."""

    load: float
    profit: Ints
    """int64 (groups,): those to try next"""
    best: Ints
    """those of the highest rate"""
    best_rate: float = 0.0
    """their sum over the most that the devices have: about 1, and the load is too small"""
    proven_rate: float = 1.0
    """the least rate that is worth a proof"""
    misses: int = 0
    """how many times no set was found that the last program does not allow"""
    program: Floats | None = None
    """float64 (groups,): the profits of the last program"""
    worth: Floats | None = None
    """float64 (classes,): the most profit of a device in the last program"""


class CoverSearch:
    """The search for profits that prove a bound; what it knows grows from one search to the next."""

    def __init__(self, problem: Problem, groups: UnitGroups, bound: float, setup: SearchBudget) -> None:
        """Begin with a known bound in seconds; a budget of its own is for finding the states."""
        self._setup = setup
        self._problem, self._groups = problem, groups
        self.bound = bound
        """No placement has a smaller maximal load, in seconds; launches and fusions left out."""
        self._span = 0.0
        self._high = math.inf
        self._target: _Target | None = None
        self._classes: list[CoverDevices] = []
        self._sets: list[dict[tuple[int, ...], float]] = []
        self._profit = _scale(groups.costs.min(axis=1))

    def search(self, most: float, known: Sequence[Sequence[int]], budget: SearchBudget) -> None:
        """Improve the bound within a budget.

        `most` is the maximal load of a known placement, in seconds, no more than in the search before;
        `known` are labels of the groups, whose sets are tried first.
        """
        if not self._classes:
            self._span = most
            self._classes = list(iterate_cover_devices(self._problem, self._groups, most, self._setup))
            self._sets = [{} for _ in self._classes]
        if all(each.frontier is None for each in self._classes):
            return
        for labels in known:
            self._add_placement(labels)
        if self._target is not None and self._target.load > most * (1 - _CLOSE):
            self._target = None
        self._high = min(self._high, most)
        while not budget.is_spent and self._high - self.bound > _CLOSE * most:
            if self._target is None:
                further = max(_FIRST_GAP * most, 2 * (most - self._high))
                load = max((self.bound + self._high) / 2, self._high - further)
                self._target = _Target(load, self._profit, self._profit)
            if self._try_profits(self._target, budget):
                if self.bound < self._target.load:
                    self._high = self._target.load
                self._target = None

    def _try_profits(self, target: _Target, budget: SearchBudget) -> bool:
        """Try the next profits for a load; return whether it is done with: proven too small, or not."""
        rate, is_cut = self._find_sets(target, budget)
        if rate > target.best_rate:
            target.best_rate, target.best = rate, target.profit
            self._profit = target.profit
        if target.best_rate > target.proven_rate:
            target.proven_rate = target.best_rate * (1 + _GAIN)
            if self._prove(target, target.best, budget):
                return True
        target.misses = 0 if is_cut else target.misses + 1
        seconds = self._estimate_program_seconds()
        is_affordable = seconds <= budget.left
        budget.spend(min(seconds, budget.left))
        if not is_affordable:
            return False
        value, profit = self._solve_program(target)
        if value <= 1 + _ROUNDING:  # parts of known sets cover everything
            return True
        if target.misses > _MOST_MISSES:
            while not self._prove(target, _scale(profit), budget) and self._refine(budget):
                pass
            return True
        share = max(0.0, 1 - (1 - _INERTIA) * (1 + target.misses))
        smooth = target.best / float(max(target.best.sum(), 1))
        target.profit = _scale(share * smooth + (1 - share) * profit / (float(profit.sum()) or 1.0))
        return False

    def _find_sets(self, target: _Target, budget: SearchBudget) -> tuple[float, bool]:
        """Add the sets of most profit, a few of each class, each without what those before took.

        Returns the sum of all profits over the most that the devices have, and whether a set has more
        than the last program allows.
        """
        within, is_cut = 0.0, target.program is None
        left = target.profit.copy()
        for number, each in enumerate(self._classes):
            if each.frontier is None:
                load = np.array([target.load])
                free = each.divide_groups(target.profit, load, target.load)
                within += len(each.devices) * float(free[0])
                continue
            steps = int(target.load / each.frontier.step)
            is_first = bool((left == target.profit).all())
            best = each.frontier.find_best_sets(target.profit)
            within += len(each.devices) * int(best.profits()[steps])
            budget.spend(each.search_seconds)
            for position in range(min(len(each.devices), _MOST_SETS)):
                if position or not is_first:
                    best = each.frontier.find_best_sets(left)
                    budget.spend(each.search_seconds)
                members = self._trace(number, best, steps, target.load, budget)
                if not members:
                    break
                if target.program is not None and target.worth is not None:
                    profit = float(target.program[members].sum())
                    is_cut |= profit > float(target.worth[number]) * (1 + _TOLERANCE)
                left[members] = -1
        return float(target.profit.sum()) / within if within > 0 else math.inf, is_cut

    def _trace(
        self, number: int, best: BestSets, steps: int, most: float, budget: SearchBudget
    ) -> list[int]:
        """Return and keep the best set that takes `most` seconds, not rounded; [] if none is found."""
        for less in range(min(_TRACES, steps)):
            if budget.is_spent:
                break
            members, _ = best.trace(steps - less)
            budget.spend(best.frontier.trace_seconds)
            load = best.frontier.measure(members)
            if load <= most:
                if members:
                    self._sets[number][tuple(members)] = load
                return members
        return []

    def _prove(self, target: _Target, profit: Ints, budget: SearchBudget) -> bool:
        """Raise the bound to what some profits prove; return whether the load is too small."""
        step = min(each.proving.step for each in self._classes if each.proving)
        count = math.ceil(self._span / step)
        within = np.zeros(count)
        for each in self._classes:
            budget.spend(each.proof_seconds)
            within += each.bound_profits(profit, step, count, self._span)
        enough = np.flatnonzero(within >= float(profit.sum()) * (1 - _ROUNDING))
        self.bound = max(self.bound, min(self._span, float(enough[0] if enough.size else count) * step))
        return self.bound >= target.load

    def _refine(self, budget: SearchBudget) -> bool:
        """Make the steps of proofs finer; return whether that is possible, and left in the budget."""
        if 2 * sum(each.proof_seconds for each in self._classes) > budget.left:
            return False
        refined = [each.refine(self._setup) for each in self._classes]
        self._classes = [each or old for each, old in zip(refined, self._classes, strict=True)]
        return all(refined)

    def _add_placement(self, labels: Sequence[int]) -> None:
        """Add the sets of a placement."""
        for each, sets in zip(self._classes, self._sets, strict=True):
            for device in each.devices if each.frontier else ():
                members = [group for group, label in enumerate(labels) if label == device]
                if members and each.frontier:
                    sets[tuple(members)] = each.frontier.measure(members)

    def _estimate_program_seconds(self) -> float:
        """Return the seconds that the program over all sets takes."""
        terms = sum(len(members) for sets in self._sets for members in sets)
        terms += self._groups.count * sum(each.frontier is None for each in self._classes)
        return _PROGRAM_SECONDS + terms * _TERM_SECONDS + self._groups.count**2 * _PAIR_SECONDS

    def _solve_program(self, target: _Target) -> tuple[float, Floats]:
        """Return the most profit of all groups where that of the devices is 1, and the profits.

        No set found so far within the load has more profit than its device, float64 (groups,).
        """
        program = MilpBuilder()
        classes, count = self._classes, self._groups.count
        devices = sum(len(each.devices) for each in classes)
        profit = program.add_columns(np.full(count, -1.0), 2.0 / devices, False)
        worth = program.add_columns(np.zeros(len(classes)), 1.0, False)
        program.add_row(1.0, worth, [float(len(each.devices)) for each in classes])
        for number, each in enumerate(classes):
            if each.frontier is None:
                able = np.flatnonzero(each.costs <= target.load)
                share = each.costs[able] / target.load
                program.add_rows(0.0, (profit[able], 1.0), (np.full(able.size, worth[number]), -share))
                continue
            for members, load in self._sets[number].items():
                if load <= target.load:
                    columns = np.append(profit[list(members)], worth[number])
                    program.add_row(0.0, columns, np.append(np.ones(len(members)), -1.0))
        values = program.solve().values
        if values is None:
            return 0.0, np.ones(count)
        target.program, target.worth = np.maximum(values[profit], 0.0), values[worth]
        return float(target.program.sum()), target.program


def _scale(profit: Floats) -> Ints:
    """Return profits as integers, rounded down, whose sum is as large as tables take."""
    finite = np.where(np.isfinite(profit), profit, 0.0)
    peak = float(finite.max(initial=0.0)) or 1.0
    shares = finite / peak  # their sum is finite
    scaled: Ints = np.floor(shares / (float(shares.sum()) or 1.0) * (MOST_PROFIT - 1)).astype(np.int64)
    return scaled
