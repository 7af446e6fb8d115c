"""Local search over labels and regions for a small makespan."""

import math
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.numerics import SearchBudget
from byoc.numerics.solvers import MilpBuilder
from byoc.placement._form_regions import find_region_components
from byoc.placement._hard_limits import find_broken_limit
from byoc.placement._list_scheduling import InferenceSchedule, ListScheduler, renumber_regions
from byoc.placement._placement_enumeration import (
    SpentBudgetError,
    enumerate_labels,
    sum_execution,
)
from byoc.placement._problem import Floats, Problem
from byoc.placement._strategy import find_requirements
from byoc.placement._unit_groups import Neighbours

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
        return not self._limited or keeps_limits(
            self._problem, state.labels, state.regions, self._scheduler
        )


def keeps_limits(
    problem: Problem,
    labels: Sequence[int],
    regions: Sequence[int],
    scheduler: ListScheduler | None = None,
) -> bool:
    """Return whether a placement keeps the hard limits, connected regions and deadlines among them.

    `scheduler` is one of the problem, where there is one already.
    """
    if problem.conditions is not None and problem.conditions.has_rates:
        found = (scheduler or ListScheduler(problem)).check_rates(labels, regions)
        if found is None or found.describe_miss():
            return False
    placed, grouped = renumber_regions(labels, regions)
    if find_broken_limit(problem, placed, grouped):
        return False
    bound = np.append(False, problem.connected)[placed]
    pieces = np.unique(find_region_components(problem, grouped)[bound])
    return len(pieces) == len(np.unique(grouped[bound]))


# All placements of small problems, for the least makespan.

# What a placement takes besides its schedule: to form its regions and check the limits.
_CHECK_SECONDS = 1e-3


def find_least_makespan(
    problem: Problem, scheduler: ListScheduler, best: SearchState, budget: SearchBudget
) -> tuple[SearchState, bool]:
    """Return the state of least makespan, `best` if none is less, and whether that is proven.

    All labels and regions are tried, those first whose busiest device takes the least; what takes as
    long as the best so far on one device is left out. Of more than a few jobs it is the least by list
    scheduling, which proves nothing. Raises SpentBudgetError before all are tried.
    """
    proven = True
    labels = enumerate_labels(problem)
    loads = sum_execution(problem, labels)
    loads[:, 0] /= problem.cores
    least = _find_least_weight(problem)
    peaks = loads.max(axis=1, initial=0.0)
    # Of equal makespans, a placement with more units on the host.
    for place in np.lexsort((np.count_nonzero(labels, axis=1), peaks)).tolist():
        if peaks[place] * least >= best.seconds:
            break
        row = labels[place].tolist()
        for regions in _iterate_regions(problem, row, loads[place]):
            busiest = _add_launches(problem, row, regions, loads[place]).max(initial=0.0)
            if busiest * least >= best.seconds:
                continue
            budget.spend(scheduler.step_seconds + _CHECK_SECONDS)
            if budget.is_spent:
                raise SpentBudgetError
            schedule, exact = scheduler.schedule_few(row, regions)
            proven &= exact
            if schedule is None or schedule.makespan >= best.seconds:
                continue
            if keeps_limits(problem, row, regions, scheduler):
                best = SearchState(row, regions, schedule.makespan, schedule)
    return best, proven


def _iterate_regions(problem: Problem, labels: Sequence[int], loads: Floats) -> Iterator[list[int]]:
    """Yield all ways to put units of one device into regions; those on the host have the region -1."""
    pending: list[list[int]] = [[]]
    while pending:
        regions = pending.pop()
        if len(regions) == len(labels):
            yield regions
            continue
        device = labels[len(regions)]
        if not device:
            pending.append([*regions, -1])
            continue
        used = dict(zip(regions, labels, strict=False))
        own = [region for region, its in used.items() if its == device and region >= 0]
        new = len({region for region in regions if region >= 0})
        if len(own) < problem.max_regions[device - 1]:
            pending.append([*regions, new])
        pending.extend([*regions, region] for region in reversed(own))


def _add_launches(
    problem: Problem, labels: Sequence[int], regions: Sequence[int], loads: Floats
) -> Floats:
    """Return the least seconds of each device, float64 (1 + devices,), launches included."""
    result = loads.copy()
    for device in dict(zip(regions, labels, strict=True)).values():
        if device:
            result[device] += problem.launch[device - 1]
    return result


# A lower bound on the makespan.

# More than the rounding errors along a path or in a sum of one cost per unit.
_ROUNDING = 2.0**-36
# Costs of a linear program that is solved exactly; else rounds of weights, and how far the first goes.
_MOST_TERMS, _ROUNDS, _STEP = 20_000, 100, 1.0


def makespan_lower_bound(problem: Problem, proven: float = 0.0) -> float:
    """Return a lower bound in seconds on the makespan; see `_list_scheduling` for the model.
    The largest of three values: the longest path, with each unit and tensor where it is cheapest for the
    path; the least load of the busiest device, where units may be divided between devices; and `proven`,
    the seconds that `bound_by_paths` proves.
    """
    alone = problem.relaxed.without_fusions
    load = least_load(alone, problem.engines > 0)
    least = _find_least_weight(problem)
    return max(_longest_path(alone), load, proven) * least * (1 - _ROUNDING)


def _find_least_weight(problem: Problem) -> float:
    """Return the least factor on the end of a network; 1 where there are no networks."""
    networks = () if problem.conditions is None else problem.conditions.networks
    return min((each.weight for each in networks), default=1.0)


def _longest_path(problem: Problem) -> float:
    """Return the length of the longest path, each path at its cheapest.
    `end[v, d]` is a lower bound on the end of v on device d. From a unit on another device, or the host,
    a tensor must be sent and a region launched; from one on the same device, nothing.
    """
    count = problem.devices + 1
    launch = np.append(0.0, problem.launch)
    costs = problem.costs
    transfer = np.empty((problem.tensors, count, count))
    leaving = np.column_stack([np.zeros(problem.tensors), problem.to_host])
    arriving = np.column_stack([np.zeros(problem.tensors), problem.to_device]) + launch
    transfer[:] = leaving[:, :, np.newaxis] + arriving[:, np.newaxis, :]
    transfer[:, np.arange(count), np.arange(count)] = 0.0
    end = np.empty((problem.units, count))
    arrival = np.zeros((problem.units, count)) + launch
    made_by: list[list[int]] = [[] for _ in range(problem.units)]
    for tensor, producer in enumerate(problem.producer.tolist()):
        readers = problem.consumers[problem.consumer_start[tensor] : problem.consumer_start[tensor + 1]]
        if producer < 0:
            arrival[readers] = np.maximum(arrival[readers], transfer[tensor, 0])
        else:
            made_by[producer].append(tensor)
    finish = 0.0
    for unit in range(problem.units):
        end[unit] = arrival[unit] + costs[unit]
        finish = max(finish, float(end[unit].min()))
        for tensor in made_by[unit]:
            readers = problem.consumers[
                problem.consumer_start[tensor] : problem.consumer_start[tensor + 1]
            ]
            reached = (end[unit][:, np.newaxis] + transfer[tensor]).min(axis=0)
            arrival[readers] = np.maximum(arrival[readers], reached)
            if problem.is_output[tensor]:
                finish = max(finish, float((end[unit] + leaving[tensor]).min()))
    return finish


def least_load(problem: Problem, engines: NDArray[Any] | None = None) -> float:
    """Return the least time in which the devices together can run all units, none waiting.
    Each core of the host counts as a device. No transfers, launches or fusions count.
    The linear program for unrelated machines (Lawler and Labetoulle, Journal of the ACM 25, 1978) has
    this dual: a weight of each device, 1 in all, and each unit adds its least weighted cost. Any weights
    prove such a sum, so the result is valid even if the solver stops before the optimum. With `engines`,
    (1 + devices, engines), the shares of its seconds for which a device occupies each engine, it is the
    engines that have weights.
    """
    costs = problem.costs.copy()
    costs[:, 0] /= problem.cores
    if engines is not None and not np.array_equal(engines, np.eye(len(engines))):
        return _least_engine_load(costs, np.asarray(engines, np.float64))
    if np.isfinite(costs).sum() > _MOST_TERMS:
        return max(_sum_least_costs(costs, weight) for weight in _iterate_weights(costs))
    weight = _find_best_weights(costs)
    return _sum_least_costs(costs, weight) if weight.sum() > 0 else 0.0


def _least_engine_load(costs: Floats, engines: Floats) -> float:
    """Return the same where devices occupy engines; of large problems the engines weigh the same."""
    weight = np.ones(engines.shape[1])
    if np.isfinite(costs).sum() <= _MOST_TERMS:
        unit, device = np.nonzero(np.isfinite(costs))
        scale = float(costs[unit, device].max(initial=0.0)) or 1.0
        program = MilpBuilder()
        contribution = program.add_columns(np.full(len(costs), -1.0), 1, False)
        weights = program.add_columns(np.zeros(len(weight)), 1, False)
        for one, at in zip(unit.tolist(), device.tolist(), strict=True):
            shares = -engines[at] * costs[one, at] / scale
            program.add_row(0, [int(contribution[one]), *weights.tolist()], [1.0, *shares.tolist()])
        program.add_row(1, weights, 1)
        values = program.solve().values
        weight = weight if values is None else np.maximum(values[weights], 0.0)
    if not weight.sum() > 0:
        return 0.0
    price = engines @ (weight / weight.sum())
    weighted = np.where(np.isfinite(costs), price, 1.0) * costs  # an infinite cost stays infinite
    return math.fsum(weighted.min(axis=1))


def _find_best_weights(costs: Floats) -> Floats:
    """Return the weights of devices, float64 (1 + devices,), with the greatest sum of least costs."""
    unit, device = np.nonzero(np.isfinite(costs))
    if not unit.size:
        return np.zeros(0)
    scale = float(costs[unit, device].max()) or 1.0
    program = MilpBuilder()
    contribution = program.add_columns(np.full(len(costs), -1.0), 1, False)
    weights = program.add_columns(np.zeros(costs.shape[1]), 1, False)
    program.add_rows(0, (contribution[unit], 1), (weights[device], -costs[unit, device] / scale))
    program.add_row(1, weights, 1)
    values = program.solve().values
    return np.zeros(0) if values is None else np.maximum(values[weights], 0.0)


def _iterate_weights(costs: Floats) -> Iterator[Floats]:
    """Yield weights of devices whose sums of least costs rise, in linear time.

    The more a device takes, the more weight it gets, by factors (Plotkin, Shmoys and Tardos,
    Mathematics of Operations Research 20, 1995).
    """
    weight = np.ones(costs.shape[1])
    for number in range(_ROUNDS):
        yield weight
        chosen = _weigh(costs, weight).argmin(axis=1)
        taken = np.where(np.isfinite(costs), costs, 0.0)[np.arange(len(costs)), chosen]
        loads = np.bincount(chosen, taken, costs.shape[1])
        peak = float(loads.max())
        if not 0 < peak < np.inf:
            return
        weight = weight * np.exp(loads / peak * _STEP / math.sqrt(1 + number))


def _sum_least_costs(costs: Floats, weight: Floats) -> float:
    """Return the sum of each unit's least cost, weighted, in seconds; refused by all, infinite."""
    return math.fsum(_weigh(costs, weight).min(axis=1))


def _weigh(costs: Floats, weight: Floats) -> Floats:
    with np.errstate(invalid="ignore"):  # 0 * inf: refused in any case
        weighted: Floats = np.where(np.isfinite(costs), weight / weight.sum() * costs, np.inf)
    return weighted
