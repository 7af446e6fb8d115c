"""Classes of equal devices, and tables of the sets that they can run: what covers are made of."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from byoc.numerics import SearchBudget
from byoc.placement._problem import Floats, Ints, Occupancy, Problem
from byoc.placement.solvers._chain_split import find_device_classes
from byoc.placement.solvers._load_frontier import LoadFrontier, find_device_edges
from byoc.placement.solvers._unit_groups import UnitGroups

# Seconds on one core of about 3 GHz: for an entry of a table, and for a transition.
_ENTRY_SECONDS, _TRANSITION_SECONDS = 2.5e-9, 4e-6
# For a state of tensors, and for a group that is put in order.
_STATE_SECONDS, _GROUP_SECONDS = 2e-5, 1e-5
# Entries of the tables where sets are looked for, and steps of loads there and in proofs.
_ENTRIES, _LEAST_STEPS, _MOST_STEPS = 10_000_000, 400, 16_000
_PROOF_STEPS, _REFINEMENT, _MOST_PROOF_STEPS = 8_000, 2, 64_000
# Entries of the largest table of a proof, which needs two at a time.
_MOST_ENTRIES = 16_000_000
_MOST_STATES = 30_000
# More than the rounding errors of a quotient.
_ROUNDING = 1e-12
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
            place = np.ceil(ends / self.proving.step * (1 + _ROUNDING)).astype(np.int64) - 1
        within: Floats = most_profits[np.minimum(place, self.proving.steps)].astype(np.float64)
        return within * len(self.devices)

    def divide_groups(self, profit: Ints, loads: Floats, most: float) -> Floats:
        """Return no less than the profit of a set within each load: parts of groups count, too."""
        able = (self.costs <= most) & (profit > 0)
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
