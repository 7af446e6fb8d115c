"""Local search over labels and regions for a small makespan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Self

import numpy as np

from byoc.placement._form_regions import find_region_components
from byoc.placement._hard_limits import find_broken_limit
from byoc.placement._problem import Problem
from byoc.placement._strategy import find_requirements
from byoc.placement.solvers._list_scheduling import InferenceSchedule, ListScheduler, renumber_regions
from byoc.placement.solvers._neighbours import Neighbours

# A smaller relative gain may be a rounding error.
_LEAST_GAIN = 1e-12


@dataclass(frozen=True, eq=False)
class SearchState:
    """A candidate placement: labels, arbitrary region numbers (-1 = host), and its makespan."""

    labels: list[int]
    regions: list[int]
    seconds: float
    schedule: InferenceSchedule | None

    @classmethod
    def from_labels(cls, scheduler: ListScheduler, labels: list[int], regions: list[int]) -> Self:
        """Schedule a placement; its makespan is inf if its regions form a cycle."""
        schedule = scheduler.schedule(labels, regions)
        return cls(labels, regions, schedule.makespan if schedule else inf, schedule)


Move = tuple[tuple[int, ...], int, int | None]
"""Units, the device they move to, and the region they join there: None = a new one."""


def improve_state(
    problem: Problem, scheduler: ListScheduler, state: SearchState, most: int
) -> tuple[SearchState, int]:
    """Return a state that no single move improves, and the number of schedules computed.
    Stops after `most` schedules with the best state so far. Each move that helps is made at once. Units
    that end late come first, since they are likely to be on the critical path.
    """
    search = _LocalSearch(problem, scheduler, most)
    while True:
        found = search.try_all_moves(state)
        if found is state or search.tried >= most:
            return found, search.tried
        state = found


class _LocalSearch:
    def __init__(self, problem: Problem, scheduler: ListScheduler, most: int) -> None:
        self._problem, self._scheduler, self._most = problem, scheduler, most
        self._around = Neighbours(problem)
        self._allowed: list[list[bool]] = problem.allowed.tolist()
        self._limited = bool(find_requirements(problem) - {"launch", "fusions", "several devices"})
        self._members_of: tuple[SearchState | None, dict[int, tuple[int, ...]]] = None, {}
        self.tried = 0

    def try_all_moves(self, state: SearchState) -> SearchState:
        """Try the moves of every unit and region once."""
        assert state.schedule is not None
        ends: list[float] = state.schedule.end.tolist()
        for unit in sorted(range(self._problem.units), key=lambda unit: (-ends[unit], unit)):
            for move in self._moves(state, unit):
                if self.tried >= self._most:
                    return state
                found = self._apply(state, move)
                if found is not state:
                    state = found
                    break  # the remaining moves belong to the previous state
        return state

    def _moves(self, state: SearchState, unit: int) -> Iterator[Move]:
        """Yield the moves of a unit in its current state."""
        labels, regions = state.labels, state.regions
        near = sorted(self._neighbours(unit))
        together = tuple(sorted({unit, *(other for other in near if labels[other] == labels[unit])}))
        region = regions[unit]
        whole = self._members(state)[region] if region >= 0 else ()
        groups: list[tuple[int, ...]] = [(unit,)]
        groups += [together] if len(together) > 1 else []
        # A region moves only with its first unit.
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

    def _members(self, state: SearchState) -> dict[int, tuple[int, ...]]:
        """Return the units of each region, computed once for each state."""
        if self._members_of[0] is not state:
            members: dict[int, list[int]] = {}
            for unit, region in enumerate(state.regions):
                members.setdefault(region, []).append(unit)
            self._members_of = state, {region: tuple(units) for region, units in members.items()}
        return self._members_of[1]

    def _neighbours(self, unit: int) -> set[int]:
        near = {self._around.producer[tensor] for tensor in self._around.read[unit]}
        for tensor in (*self._around.made[unit], *self._around.read[unit]):
            near.update(self._around.consumers[tensor])
        return near - {unit, -1}

    def _apply(self, state: SearchState, move: Move) -> SearchState:
        """Return the state after a move if it helps and is allowed, else the given state."""
        units, device, join = move
        labels, regions = list(state.labels), list(state.regions)
        new = max(regions) + 1 if join is None else join
        for unit in units:
            labels[unit] = device
            regions[unit] = new if device else -1
        if labels == state.labels and regions == state.regions:
            return state
        self.tried += 1
        found = SearchState.from_labels(self._scheduler, labels, regions)
        if found.seconds < state.seconds * (1 - _LEAST_GAIN) and self._is_allowed(found):
            return found
        return state

    def _is_allowed(self, state: SearchState) -> bool:
        return not self._limited or keeps_limits(self._problem, state.labels, state.regions)


def keeps_limits(problem: Problem, labels: Sequence[int], regions: Sequence[int]) -> bool:
    """Return whether a placement keeps the hard limits, including connected regions."""
    placed, grouped = renumber_regions(labels, regions)
    if find_broken_limit(problem, placed, grouped):
        return False
    bound = np.append(False, problem.connected)[placed]
    pieces = np.unique(find_region_components(problem, grouped)[bound])
    return len(pieces) == len(np.unique(grouped[bound]))
