"""Least time with host and accelerators working at the same time."""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from math import inf
from typing import ClassVar

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.numerics import SearchBudget
from byoc.placement._branch_and_cut import find_nearest_placement
from byoc.placement._chain_split import iterate_chain_splits
from byoc.placement._form_regions import find_region_components, form_regions
from byoc.placement._list_scheduling import EarliestFinish, ListScheduler, renumber_regions
from byoc.placement._lower_bounds import bound_by_paths
from byoc.placement._makespan_search import (
    SearchState,
    find_least_makespan,
    improve_state,
    keeps_limits,
    makespan_lower_bound,
)
from byoc.placement._placement_enumeration import SpentBudgetError, count_labels
from byoc.placement._problem import Ints, Problem
from byoc.placement._strategy import (
    ALL_REQUIREMENTS,
    CAPACITY,
    FUSIONS,
    REGION_COUNT,
    Strategy,
    check_count,
    check_time_limit,
    find_requirements,
    solve_applicable,
)
from byoc.placement.strategies._baselines import (
    AllSupported,
    FasterOps,
    FasterOpsTransfer,
    HostOnly,
    ScheduledPlacement,
)
from byoc.placement.strategies._conditioned import describe_assumptions, keep_rates, require_budget
from byoc.placement.strategies._optimizing import LaunchAware, MinCut, TreeDP

# Strategies whose answers are starting points, with the seconds that each takes for a unit or a reader
# of a tensor, on one core of about 3 GHz.
_STARTING_STRATEGIES: tuple[tuple[Strategy, float], ...] = (
    (HostOnly(), 1e-6),
    (AllSupported(), 1.4e-5),
    (FasterOps(), 5e-6),
    (FasterOpsTransfer(), 1.4e-5),
    (MinCut(), 1e-5),
    (TreeDP(), 4e-4),
)
# The same for launch-aware, beyond its time limit, for each accelerator.
_LAUNCH_AWARE_SECONDS = 1e-5
# Placements by earliest finish that are starting points, and the share of the time limit for them.
_LISTED, _LISTED_SHARE = 50, 0.1
# Schedules that a starting point takes as long as, with what forms and checks its regions.
_START_SCHEDULES = 2.0
# The share of the time limit for launch-aware; its answer is one of the starting points.
_LAUNCH_AWARE_SHARE = 0.3
# The share for the bound by paths.
_BOUND_SHARE = 0.4
# The share of the time limit without a gain after which the search ends.
_PATIENCE = 0.05
# A relative distance from the bound that needs no search.
_CLOSE = 1e-9
# All of so many labels of so many units are tried, within a share of the time limit.
_FEW_LABELS, _FEW_UNITS, _ENUMERATION_SHARE = 2**12, 8, 0.5
# More than the rounding errors of a sum of one cost per unit.
_ROUNDING = 2.0**-36


@dataclass(frozen=True)
class Makespan:
    """Minimise the time at which host and accelerators, working side by side, are done.

    The schedules are those of `byoc.placement.ListScheduler`; of few jobs all orders are
    tried, and of few units all placements. Otherwise starting points are the placements of launch-
    aware and of all cheap strategies, and list schedules that give each unit the device on which it
    ends first (`EarliestFinish`), one by average ranks and others by ranks drawn around them. Each
    is taken with its regions, with the connected components of those regions, and with each unit a
    region of its own. Where memory or the number of regions is limited, there are topological
    orders cut into one segment for each accelerator, too.

    The best of these are improved by local search: units, their neighbourhoods and whole regions
    change device, join regions, and leave them. Then parts of the best are changed, and improved
    again: a few units are moved at random, or a neighbourhood of units is placed anew by earliest
    finish; the same ones in every run. The search ends when it has gained nothing for a tenth of
    the time limit, and for as long as it had taken until the last gain. So a longer limit finds
    more, and the answer is never worse than that of launch-aware or a cheap strategy by the same
    measure, unless the problem is so large that the time limit leaves some of them out. The bound
    is that of `makespan_lower_bound`, or the makespan where all was tried; as no sum of all costs
    is below its makespan, it also bounds those sums.
    """

    name: ClassVar[str] = "makespan"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - {FUSIONS}
    time_limit: float = 10.0
    """Seconds of an ordinary computer, counted by steps (see `SearchBudget`)."""
    starts: int = 8
    """Largest number of starting points that are improved."""
    restarts: int = 1000
    """How often, at most, a part of the best answer is changed and improved again."""

    def __post_init__(self) -> None:
        """Raise ValueError for a limit that is not above 0, and numbers below 0."""
        check_time_limit("time_limit", self.time_limit)
        check_count("starts", self.starts)
        check_count("restarts", self.restarts)

    def solve(self, problem: Problem) -> ScheduledPlacement:
        """Return the placement with its schedule; its cost is the sum of all costs, as always.

        Raises NoPlacementError if no placement keeps the limits.
        """
        launch_aware = LaunchAware(time_limit=self.time_limit * _LAUNCH_AWARE_SHARE)
        require_budget(problem, lambda plain, _: launch_aware.solve(plain), self.time_limit)
        scheduler = ListScheduler(problem)
        budget = SearchBudget(self.time_limit)
        alone = problem.relaxed.without_fusions
        proof = bound_by_paths(alone, budget.limit(self.time_limit * _BOUND_SHARE))
        starts = _Starts(problem, scheduler, SearchBudget(self.time_limit))
        beyond = _LAUNCH_AWARE_SECONDS * problem.devices
        is_limited = bool(find_requirements(problem) & {CAPACITY, REGION_COUNT})
        splits = iterate_chain_splits(problem.plain, budget, proof.orders) if is_limited else ()
        strategies = (*_STARTING_STRATEGIES, (launch_aware, beyond))
        seeds = sorted(starts.iterate_states(strategies, splits), key=lambda state: state.seconds)
        if not seeds and problem.conditions is not None and problem.conditions.has_rates:
            seeds = [keep_rates(problem, scheduler, starts.broken, budget)]
        if not seeds:  # begin with what keeps all the limits, if anything does
            host = HostOnly().solve(problem)
            only = find_nearest_placement(problem.plain, host.labels, budget) or host
            seeds = [SearchState.from_labels(scheduler, only.labels.tolist(), only.regions.tolist())]
        search = _Search(problem, scheduler, seeds[0], budget, proof.bound)
        if not search.try_all():
            for seed in _remove_duplicates(seeds)[: self.starts]:
                search.improve(seed)
            generator = random.Random(0)
            earliest = EarliestFinish(problem)
            for number in range(self.restarts):
                if budget.is_spent or search.is_done:
                    break
                if number % 3 == 0:
                    state = _perturb(problem, scheduler, search.best, generator)
                else:
                    state = _replace_part(problem, scheduler, earliest, search.best, generator)
                search.improve(state)
        search.order_jobs(seeds)
        return _attach_schedule(problem, scheduler, search)


class _Search:
    """The best state so far, and when to give up."""

    def __init__(
        self,
        problem: Problem,
        scheduler: ListScheduler,
        best: SearchState,
        budget: SearchBudget,
        proven: float,
    ) -> None:
        self._problem, self._scheduler, self._budget = problem, scheduler, budget
        self._spent = self._spent_at_gain = 0.0
        self._patience = budget.left * _PATIENCE
        self.bound = makespan_lower_bound(problem, proven)
        self.best = best

    def try_all(self) -> bool:
        """Find the best of all placements; return False if there are too many."""
        problem = self._problem
        if problem.units > _FEW_UNITS or count_labels(problem) > _FEW_LABELS:
            return False
        share = self._budget.limit(self._budget.left * _ENUMERATION_SHARE)
        try:
            self.best, proven = find_least_makespan(problem, self._scheduler, self.best, share)
        except SpentBudgetError:
            return False
        if proven:
            self.bound = max(self.bound, self.best.seconds * (1 - _ROUNDING))
        return True

    def order_jobs(self, states: Iterable[SearchState]) -> None:
        """Try all orders of jobs of the best state, and of others, where that is done for few jobs."""
        for state in (self.best, *states):
            schedule, _ = self._scheduler.schedule_few(state.labels, state.regions)
            if schedule is not None and schedule.makespan < self.best.seconds:
                self.best = replace(state, seconds=schedule.makespan, schedule=schedule)

    @property
    def is_done(self) -> bool:
        """Nothing was gained for long, or nothing can be."""
        return self._left <= 0 or self.best.seconds <= self.bound * (1 + _CLOSE)

    @property
    def _left(self) -> float:
        return self._spent_at_gain + max(self._spent_at_gain, self._patience) - self._spent

    def improve(self, state: SearchState) -> None:
        """Improve a state, unless nothing was gained for long, or nothing can be."""
        left = self._left
        schedules = int(min(left, self._budget.left) / self._scheduler.step_seconds)
        if schedules <= 0 or state.schedule is None or self.best.seconds <= self.bound * (1 + _CLOSE):
            return
        found, tried = improve_state(self._problem, self._scheduler, state, schedules)
        self._budget.spend(tried * self._scheduler.step_seconds)
        self._spent += tried * self._scheduler.step_seconds
        if found.seconds < self.best.seconds:
            self.best, self._spent_at_gain = found, self._spent


def _attach_schedule(problem: Problem, scheduler: ListScheduler, search: _Search) -> ScheduledPlacement:
    labels, regions = _number_by_start(scheduler, search.best)
    schedule, _ = scheduler.schedule_few(labels.tolist(), regions.tolist())
    placement = ScheduledPlacement.from_labels(
        problem,
        labels,
        # Sums in different order round differently.
        min(search.bound, schedule.makespan if schedule else inf),
        why_host="nothing ends sooner with it on the accelerator",
        regions=regions,
    )
    if schedule is None:
        return placement
    if problem.conditions is not None:
        return _describe_conditions(problem, scheduler, replace(placement, schedule=schedule))
    note = (
        f"host and accelerators work at once: {schedule.makespan:.3g} s, against "
        f"{placement.cost.total:.3g} s one thing at a time"
    )
    return replace(placement, schedule=schedule, notes=(note,))


def _describe_conditions(
    problem: Problem, scheduler: ListScheduler, placement: ScheduledPlacement
) -> ScheduledPlacement:
    """Return a placement with notes on what its makespan assumes, and how each network fares."""
    conditions = problem.conditions
    assert conditions is not None
    assert placement.schedule is not None
    makespan = f"{placement.schedule.makespan:.4g} s"
    notes = ["host and accelerators work at once, each engine on one job at a time: " + makespan]
    if conditions.slowdown is not None:
        notes.append("what several engines slow another one is added up, and nothing is interrupted")
    if conditions.has_rates:
        found = scheduler.check_rates(placement.labels.tolist(), placement.regions.tolist())
        assert found is not None
        notes.append(
            "deadlines are kept where all networks start at once, the earliest deadline goes first, "
            "and nothing is interrupted"
        )
        notes += [
            f"network {each.name}: slowest response {response:.4g} s of {each.response:.4g} s"
            for each, response in zip(conditions.networks, found.responses, strict=True)
        ]
        busiest = max(found.utilization.values(), default=0.0)
        notes.append(f"the busiest engine computes for {busiest:.1%} of the time")
    notes += describe_assumptions(problem, placement)
    return replace(placement, notes=tuple(notes))


class _Starts:
    """The starting points, as many as there is time for; the host alone is always one."""

    def __init__(self, problem: Problem, scheduler: ListScheduler, budget: SearchBudget) -> None:
        self._problem, self._scheduler, self._budget = problem, scheduler, budget
        self._items = problem.units + len(problem.consumers)
        self.broken: list[SearchState] = []
        """Those of the starting points so far that miss a rate or a deadline."""

    def iterate_states(
        self, strategies: Iterable[tuple[Strategy, float]], splits: Iterable[Ints]
    ) -> Iterator[SearchState]:
        """Yield starting points that keep the hard limits."""
        problem = self._problem
        seconds = _START_SCHEDULES * self._scheduler.step_seconds
        for labels, regions in self._iterate_placements(strategies, splits):
            self._budget.spend(seconds)
            state = SearchState.from_labels(self._scheduler, labels.tolist(), regions.tolist())
            if state.seconds < inf and keeps_limits(
                problem, state.labels, state.regions, self._scheduler
            ):
                yield state
                if self._budget.is_spent:
                    return
            elif problem.conditions is not None and problem.conditions.has_rates:
                self.broken.append(state)
                if self._budget.is_spent:
                    return

    def _iterate_placements(
        self, strategies: Iterable[tuple[Strategy, float]], splits: Iterable[Ints]
    ) -> Iterator[tuple[Ints, Ints]]:
        problem = self._problem
        for labels in self._iterate_whole_networks():
            yield labels, form_regions(problem, labels)
        affordable = (strategy for strategy, each in strategies if self._can_spend(each))
        for placement in solve_applicable(problem.plain, affordable):
            regions = placement.regions
            if problem.conditions is not None:
                regions = form_regions(problem, placement.labels)
            yield from _region_variants(problem, placement.labels, regions)
        if problem.conditions is not None and problem.conditions.other is not None:
            for placement in solve_applicable(problem.conditions.other, [LaunchAware()]):
                regions = form_regions(problem, placement.labels)
                yield from _region_variants(problem, placement.labels, regions)
        for labels in chain(self._iterate_listed(), splits):
            yield from _region_variants(problem, labels, form_regions(problem, labels))

    def _iterate_whole_networks(self) -> Iterator[Ints]:
        """Yield labels with each network on one device, as far as that takes it, or on the host."""
        problem = self._problem
        if problem.conditions is None or problem.conditions.network_of is None:
            return
        of = problem.conditions.network_of
        count = len(problem.conditions.networks)
        if (1 + problem.devices) ** count > _LISTED:
            return
        for devices in product(range(1 + problem.devices), repeat=count):
            wanted = np.array(devices, np.int64)[of]
            takes = problem.allowed[np.arange(problem.units), wanted]
            self._budget.spend(self._scheduler.step_seconds)
            yield np.where(takes, wanted, 0)

    def _iterate_listed(self) -> Iterator[Ints]:
        """Yield labels by earliest finish: by average ranks first, then by ranks drawn around them."""
        earliest = EarliestFinish(self._problem)
        share = self._budget.limit(self._budget.left * _LISTED_SHARE)
        generator = random.Random(1)
        for number in range(_LISTED if self._problem.devices else 0):
            share.spend(earliest.step_seconds)
            if share.is_spent:
                return
            yield earliest.place(generator if number else None)

    def _can_spend(self, seconds: float) -> bool:
        """Spend seconds for each unit and reader, and return True, if they are left."""
        needed = seconds * self._items
        if needed > self._budget.left:
            return False
        self._budget.spend(needed)
        return True


def _region_variants(problem: Problem, labels: Ints, regions: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield the regions as given, split into connected components, and unit by unit."""
    yield labels, regions
    if (labels > 0).any():
        pieces = np.where(labels > 0, find_region_components(problem, regions), -1)
        yield renumber_regions(labels.tolist(), pieces.tolist())
        yield renumber_regions(
            labels.tolist(), np.where(labels > 0, np.arange(problem.units), -1).tolist()
        )


def _remove_duplicates(states: Sequence[SearchState]) -> list[SearchState]:
    """Return the first state with each set of labels, in the given order."""
    found: dict[tuple[int, ...], SearchState] = {}
    for state in states:
        found.setdefault(tuple(state.labels), state)
    return list(found.values())


def _perturb(
    problem: Problem, scheduler: ListScheduler, state: SearchState, generator: random.Random
) -> SearchState:
    """Return a valid state with up to three units moved at random; else the given state."""
    labels, regions = list(state.labels), list(state.regions)
    for unit in generator.sample(range(problem.units), min(3, problem.units)):
        devices = np.flatnonzero(problem.allowed[unit]).tolist()
        labels[unit] = generator.choice(devices) if devices else labels[unit]
        regions[unit] = max(regions) + 1 if labels[unit] else -1
    found = SearchState.from_labels(scheduler, labels, regions)
    valid = found.seconds < inf and keeps_limits(problem, labels, regions, scheduler)
    return found if valid else state


def _replace_part(
    problem: Problem,
    scheduler: ListScheduler,
    earliest: EarliestFinish,
    state: SearchState,
    generator: random.Random,
) -> SearchState:
    """Return a state with a neighbourhood of units placed anew; the given one where none is valid."""
    freed = _draw_neighbourhood(scheduler, generator)
    kept = [-1 if unit in freed else label for unit, label in enumerate(state.labels)]
    labels = earliest.place(generator, kept)
    most = max(state.regions) + 1
    apart = [
        -1 if not label else most + unit if unit in freed else state.regions[unit]
        for unit, label in enumerate(labels.tolist())
    ]
    best = state
    for regions in (apart, form_regions(problem, labels).tolist()):
        found = SearchState.from_labels(scheduler, labels.tolist(), regions)
        is_better = best is state or found.seconds < best.seconds
        if (
            found.seconds < inf
            and is_better
            and keeps_limits(problem, found.labels, found.regions, scheduler)
        ):
            best = found
    return best


def _draw_neighbourhood(scheduler: ListScheduler, generator: random.Random) -> set[int]:
    """Return units around a drawn one, a tenth to a third of all."""
    around, units = scheduler.around, scheduler.problem.units
    count = max(2, int(units * generator.uniform(0.1, 0.35)))
    first = generator.randrange(units)
    found, waiting = {first}, [first]
    for unit in waiting:  # grows as it goes
        near = {around.producer[tensor] for tensor in around.read[unit]} - {-1}
        near.update(*(around.consumers[tensor] for tensor in around.made[unit] + around.read[unit]))
        for other in generator.sample(sorted(near), len(near)):
            if len(found) == count:
                return found
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def _number_by_start(scheduler: ListScheduler, state: SearchState) -> tuple[Ints, Ints]:
    """Number the regions by start time."""
    schedule, _ = scheduler.schedule_few(state.labels, state.regions)
    if schedule is None:
        return renumber_regions(state.labels, state.regions)
    labels, regions = renumber_regions(state.labels, state.regions)
    placed = np.flatnonzero(regions >= 0)
    _, first = np.unique(regions[placed], return_index=True)
    order = np.lexsort((placed[first], schedule.end[placed[first]], schedule.start[placed[first]]))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    regions[placed] = number[regions[placed]]
    return labels, regions
