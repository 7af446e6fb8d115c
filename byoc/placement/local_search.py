"""Local search over labels and regions for the makespan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Self

import numpy as np

from byoc.placement.limits import breach
from byoc.placement.makespan import Schedule, Scheduler, labels_and_regions
from byoc.placement.neighbours import Neighbours
from byoc.placement.problem import Problem
from byoc.placement.regions import components_within
from byoc.placement.strategy import needs

# Less than this is no improvement but rounding.
_LEAST_GAIN = 1e-12


@dataclass(frozen=True, eq=False)
class State:
    """A placement under way: labels, regions with any numbers (-1 = host), and how long it takes."""

    labels: list[int]
    regions: list[int]
    seconds: float
    schedule: Schedule | None

    @classmethod
    def of(cls, scheduler: Scheduler, labels: list[int], regions: list[int]) -> Self:
        """Schedule a placement; it takes inf seconds where its regions form a circle."""
        schedule = scheduler.schedule(labels, regions)
        return cls(labels, regions, schedule.makespan if schedule else inf, schedule)


Move = tuple[tuple[int, ...], int, int | None]
"""Units, the device they go to, and the region they join there: None = a new one."""


def improved(problem: Problem, scheduler: Scheduler, state: State, most: int) -> tuple[State, int]:
    """Return a state that no single move betters, and how many schedules that took.

    After `most` of them it is the best so far. Each move that helps is taken at once. Units that end
    late come first, for what takes long is on the way to the end.
    """
    search = _Search(problem, scheduler, most)
    while True:
        found = search.round(state)
        if found is state or search.tried >= most:
            return found, search.tried
        state = found


class _Search:
    def __init__(self, problem: Problem, scheduler: Scheduler, most: int) -> None:
        self._problem, self._scheduler, self._most = problem, scheduler, most
        self._around = Neighbours(problem)
        self._allowed: list[list[bool]] = problem.allowed.tolist()
        self._limited = bool(needs(problem) - {"launch", "fusions", "several devices"})
        self._gathered: tuple[State | None, dict[int, tuple[int, ...]]] = None, {}
        self.tried = 0

    def round(self, state: State) -> State:
        """Try the moves of every unit and region once."""
        assert state.schedule is not None
        ends: list[float] = state.schedule.end.tolist()
        for unit in sorted(range(self._problem.units), key=lambda unit: (-ends[unit], unit)):
            for move in self._moves(state, unit):
                if self.tried >= self._most:
                    return state
                found = self._after(state, move)
                if found is not state:
                    state = found
                    break  # the other moves were those of the state before
        return state

    def _moves(self, state: State, unit: int) -> Iterator[Move]:
        """Yield moves that begin with one unit, as `state` has it now."""
        labels, regions = state.labels, state.regions
        near = sorted(self._near(unit))
        together = tuple(sorted({unit, *(other for other in near if labels[other] == labels[unit])}))
        region = regions[unit]
        whole = self._members(state)[region] if region >= 0 else ()
        groups: list[tuple[int, ...]] = [(unit,)]
        groups += [together] if len(together) > 1 else []
        # A region moves with its first unit alone.
        groups += [whole] if len(whole) > 1 and whole[0] == unit and whole != together else []
        for group in groups:
            for device in range(self._problem.devices + 1):
                if not all(self._allowed[member][device] for member in group):
                    continue
                joins = {regions[other] for other in near if labels[other] == device} if device else ()
                if device != labels[unit] or (region >= 0 and group != whole):
                    yield group, device, None
                for join in sorted(joins):
                    if join != region:
                        yield group, device, join

    def _members(self, state: State) -> dict[int, tuple[int, ...]]:
        """Return the units of each region, gathered once for each state."""
        if self._gathered[0] is not state:
            members: dict[int, list[int]] = {}
            for unit, region in enumerate(state.regions):
                members.setdefault(region, []).append(unit)
            self._gathered = state, {region: tuple(units) for region, units in members.items()}
        return self._gathered[1]

    def _near(self, unit: int) -> set[int]:
        near = {self._around.producer[tensor] for tensor in self._around.read[unit]}
        for tensor in (*self._around.made[unit], *self._around.read[unit]):
            near.update(self._around.consumers[tensor])
        return near - {unit, -1}

    def _after(self, state: State, move: Move) -> State:
        """Return the state after a move that helps and may be made, else the one before."""
        units, device, join = move
        labels, regions = list(state.labels), list(state.regions)
        new = max(regions) + 1 if join is None else join
        for unit in units:
            labels[unit] = device
            regions[unit] = new if device else -1
        if labels == state.labels and regions == state.regions:
            return state
        self.tried += 1
        found = State.of(self._scheduler, labels, regions)
        if found.seconds < state.seconds * (1 - _LEAST_GAIN) and self._lawful(found):
            return found
        return state

    def _lawful(self, state: State) -> bool:
        return not self._limited or keeps_limits(self._problem, state.labels, state.regions)


def keeps_limits(problem: Problem, labels: Sequence[int], regions: Sequence[int]) -> bool:
    """Tell whether a placement keeps the hard limits, and regions are connected where they must be."""
    placed, grouped = labels_and_regions(labels, regions)
    if breach(problem, placed, grouped):
        return False
    bound = np.append(False, problem.connected)[placed]
    pieces = np.unique(components_within(problem, grouped)[bound])
    return len(pieces) == len(np.unique(grouped[bound]))
