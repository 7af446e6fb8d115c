"""Placements under conditions: shared engines, direct links, a budget of other costs, rates.

Sums and loads are searched here. Strategies for problems without conditions give starting points, and
bounds of a relaxation; of few placements all are tried, of more some are improved by local search. For
a budget the other costs get a price (a Lagrange multiplier), and the best of the bounds over prices
counts; a mixed integer program with the budget as a row closes the gap of small problems.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from byoc.errors import InputError
from byoc.numerics import SearchBudget
from byoc.placement._conditions import add_costs
from byoc.placement._form_regions import estimate_region_seconds
from byoc.placement._hard_limits import evaluate, find_broken_limit, repair_labels
from byoc.placement._list_scheduling import InferenceSchedule, ListScheduler
from byoc.placement._makespan_search import (
    SearchState,
    improve_state,
    keeps_limits,
    least_load,
    makespan_lower_bound,
)
from byoc.placement._placement_enumeration import count_labels, do_regions_matter, enumerate_labels
from byoc.placement._placement_milp import solve_within
from byoc.placement._problem import Ints, Problem
from byoc.placement._strategy import (
    Measure,
    NoPlacementError,
    Placement,
    solve_applicable,
)
from byoc.placement._unit_groups import Neighbours
from byoc.placement.strategies._baselines import (
    AllSupported,
    FasterOps,
    FasterOpsTransfer,
    HostOnly,
    measure_placement,
)

# All of so many placements are tried.
_FEW_LABELS = 2**10
# Seconds on one core of about 3 GHz to check a placement, besides forming its regions.
_CHECK_SECONDS = 4e-4
# Prices of the other costs that are tried, and the share of the time limit for each.
_PRICES, _PRICE_SHARE = 12, 0.05
# The share of what is left for the integer program of a budget; its units times accelerators at most.
_PROGRAM_SHARE, _MAX_PROGRAM = 0.4, 5000
# A gap, as a share of the value, that is not worth another search.
_CLOSE = 1e-9
# More than the rounding errors of a sum of one cost per unit.
_ROUNDING = 2.0**-36
# Units that are moved at random before the best placement is improved again, and how often at most.
_SHAKEN, _RESTARTS = 3, 200
# It ends after so many of these in a row that find nothing better.
_PATIENCE = 20

Solver = Callable[[Problem, float], Placement]
"""Solves a problem without conditions within so many seconds of an ordinary computer."""


def solve_with_conditions(
    problem: Problem, solve: Solver, measure: Measure, time_limit: float
) -> Placement:
    """Return the best placement by a measure, the total or the load, that keeps limits and conditions.

    `solve` is the strategy for problems without conditions. Raises NoPlacementError where no placement
    keeps all, InputError where none is found.
    """
    require_budget(problem, solve, time_limit * _PRICE_SHARE)
    search = _ConditionedSearch(problem, measure, SearchBudget(time_limit))
    for each in solve_applicable(
        problem.plain, (HostOnly(), AllSupported(), FasterOps(), FasterOpsTransfer())
    ):
        search.examine(each.labels)
    if not search.try_all():
        search.bound_total(solve, time_limit)
        if measure is Measure.load:
            search.bound = least_load(problem.relaxed.without_fusions, problem.engines)
            search.examine_answers([problem.plain], solve, time_limit / 4)
        search.improve()
    best = search.best
    if best is None:
        if search.bound == inf:
            raise NoPlacementError
        raise InputError("no placement was found that keeps all the limits and conditions")
    bound = max(0.0, min(search.bound * (1 - _ROUNDING), best.value))
    return replace(best, bound=bound, notes=tuple(describe_assumptions(problem, best)))


def require_budget(problem: Problem, solve: Solver, seconds: float) -> None:
    """Raise InputError where a solver proves that each placement costs more than the budget."""
    conditions = problem.conditions
    if conditions is None or conditions.other is None:
        return
    least = solve(conditions.other, seconds).bound or 0.0
    if least > conditions.most * (1 + _CLOSE):
        unit = conditions.other_unit and f" {conditions.other_unit}"
        raise InputError(
            f"no placement keeps {conditions.other_name} within {conditions.most:.4g}{unit}: "
            f"{least:.4g}{unit} is the least"
        )


def describe_assumptions(problem: Problem, placement: Placement) -> Iterator[str]:
    """Yield sentences on what the value of a placement under conditions assumes."""
    conditions = problem.conditions
    assert conditions is not None
    if placement.measure is Measure.load and conditions.engines is not None:
        yield "loads are those of engines, and what a device occupies of them is added up"
    if conditions.direct is not None and placement.measure is Measure.total:
        yield "a tensor takes a direct link between accelerators where that is cheaper than the host"
    if conditions.other is not None:
        spent = evaluate(conditions.other, placement.labels, placement.regions).total
        unit = conditions.other_unit and f" {conditions.other_unit}"
        limit = f"within {conditions.most:.4g}{unit}"
        yield f"{conditions.other_name} is {spent:.4g}{unit}, {limit}, all costs added up"


class _ConditionedSearch:
    """The best placement under conditions so far, and a lower bound of all."""

    def __init__(self, problem: Problem, measure: Measure, budget: SearchBudget) -> None:
        self._problem, self._measure, self._budget = problem, measure, budget
        self._step = estimate_region_seconds(problem) + _CHECK_SECONDS
        self._tried: dict[bytes, float] = {}
        self.best: Placement | None = None
        self.bound = 0.0

    def examine(self, labels: Ints) -> float:
        """Return the value of labels, infinite where they break something, and keep them if the best."""
        key = labels.tobytes()
        if key in self._tried:
            return self._tried[key]
        self._budget.spend(self._step)
        found = Placement.from_labels(
            self._problem, labels, why_host="nothing that keeps all conditions costs less"
        )
        value = inf
        if np.isfinite(found.cost.total) and not find_broken_limit(self._problem, labels, found.regions):
            found = measure_placement(self._problem, found, self._measure)
            value = found.value
            if self.best is None or value < self.best.value:
                self.best = found
        self._tried[key] = value
        return value

    def examine_answers(self, problems: Iterable[Problem], solve: Solver, seconds: float) -> None:
        """Examine the placements of problems without conditions, as they are and repaired."""
        for each in problems:
            self._budget.spend(seconds / 2)
            try:
                labels = solve(each, seconds).labels
            except InputError:
                continue
            if self.examine(labels) == inf:
                self.examine(repair_labels(self._problem, labels))

    def try_all(self) -> bool:
        """Find the best of all placements; return False if there are too many."""
        problem = self._problem
        if count_labels(problem) > _FEW_LABELS:
            return False
        for labels in enumerate_labels(problem.plain):
            self.examine(labels)
        if do_regions_matter(problem):  # other regions may be better
            return False
        self.bound = inf if self.best is None else self.best.value
        return True

    def bound_total(self, solve: Solver, time_limit: float) -> None:
        """Find a lower bound of the total, and placements on the way."""
        conditions, problem = self._problem.conditions, self._problem
        assert conditions is not None
        if self._measure is not Measure.total:
            return
        if conditions.other is None:
            self._bound_without_budget(problem.relaxed, solve, time_limit / 3)
            if conditions.direct is not None:
                self.examine_answers([problem.plain], solve, time_limit / 3)
            return
        other = conditions.other
        self._search_prices(problem.relaxed, other, solve, time_limit * _PRICE_SHARE)
        small = problem.units * problem.devices <= _MAX_PROGRAM
        if small and not self._is_proven:
            share = self._budget.limit(self._budget.left * _PROGRAM_SHARE)
            labels, bound = solve_within(problem.relaxed, other, conditions.most, share)
            self.bound = max(self.bound, bound)
            if labels is not None:
                self.examine(labels)

    @property
    def _is_proven(self) -> bool:
        return self.best is not None and self.best.value <= self.bound * (1 + _CLOSE)

    def _bound_without_budget(self, problem: Problem, solve: Solver, seconds: float) -> Placement:
        """Solve a problem without conditions: its bound is one of this one, its labels an answer."""
        self._budget.spend(seconds / 2)
        found = solve(problem, seconds)
        self.bound = max(self.bound, found.bound or 0.0)
        if self.examine(found.labels) == inf:
            self.examine(repair_labels(self._problem, found.labels))
        return found

    def _search_prices(self, own: Problem, other: Problem, solve: Solver, seconds: float) -> None:
        """Raise the bound over prices of the other costs, and examine the answers on the way.

        For any price of 0 or more, the least of own costs plus price times what is spent beyond the
        budget is a lower bound. The next price is where the last answers within the budget and beyond
        it cost the same (the secant method for a multiplier of one limit).
        """
        conditions = self._problem.conditions
        assert conditions is not None
        most = conditions.most
        free = self._bound_without_budget(own, solve, seconds)
        beyond = _measure_both(own, other, free)
        if beyond[1] <= most:
            return
        self._budget.spend(seconds / 2)
        least = solve(other, seconds)
        self.examine(least.labels)
        within = _measure_both(own, other, least)
        for _ in range(_PRICES):
            if within[1] >= beyond[1] or self._budget.is_spent or self._is_proven:
                return
            price = max(0.0, (within[0] - beyond[0]) / (beyond[1] - within[1]))
            self._budget.spend(seconds / 2)
            found = solve(add_costs(own, other, price), seconds)
            self.bound = max(self.bound, (found.bound or 0.0) - price * most)
            self.examine(found.labels)
            point = _measure_both(own, other, found)
            if point in {within, beyond}:
                return
            within, beyond = (point, beyond) if point[1] <= most else (within, point)

    def improve(self) -> None:
        """Improve the best placement by local search, then again with some units moved at random."""
        generator = random.Random(0)
        allowed = [np.flatnonzero(row).tolist() for row in self._problem.allowed]
        groups = _list_groups(self._problem)
        if self.best is None or not groups:
            return
        labels, idle = self.best.labels, 0
        for _ in range(_RESTARTS):
            before = self.best
            self._descend(labels, groups, allowed)
            idle = idle + 1 if self.best is before else 0
            if self._budget.is_spent or self._is_proven or idle > _PATIENCE:
                return
            labels = self.best.labels.copy()
            for unit in generator.sample(range(len(labels)), min(_SHAKEN, len(labels))):
                labels[unit] = generator.choice(allowed[unit]) if allowed[unit] else labels[unit]

    def _descend(
        self, labels: Ints, groups: Sequence[Sequence[int]], allowed: Sequence[Sequence[int]]
    ) -> None:
        value, is_better = self.examine(labels), True
        while is_better:
            is_better = False
            for group in groups:
                for device in sorted(
                    set(allowed[group[0]]).intersection(*map(allowed.__getitem__, group))
                ):
                    if self._budget.is_spent or self._is_proven:
                        return
                    moved = labels.copy()
                    moved[list(group)] = device
                    found = self.examine(moved)
                    if found < value:
                        labels, value, is_better = moved, found, True


def _measure_both(own: Problem, other: Problem, placement: Placement) -> tuple[float, float]:
    """Return the totals of a placement by both costs."""
    labels, regions = placement.labels, placement.regions
    return evaluate(own, labels, regions).total, evaluate(other, labels, regions).total


def _list_groups(problem: Problem) -> list[list[int]]:
    """Return the units that move together: each alone, and each with its neighbours."""
    around = Neighbours(problem)
    groups = [[unit] for unit in range(problem.units)]
    for unit in range(problem.units):
        near = {around.producer[tensor] for tensor in around.read[unit]} - {-1}
        near.update(*(around.consumers[tensor] for tensor in around.made[unit]))
        if near:
            groups.append(sorted({unit, *near}))
    return groups


# Rates and deadlines of several networks.

# The starting points that are improved, those first that miss least.
_STARTS = 8


class RateScheduler(ListScheduler):
    """A scheduler whose makespan says how far rates and deadlines are missed: 1 at most if kept."""

    def schedule(self, labels: Sequence[int], regions: Sequence[int]) -> InferenceSchedule | None:
        """Return the schedule of one round, with that number as its makespan."""
        found = super().schedule(labels, regions)
        if found is None or found.makespan == inf:
            return found
        rates = self.check_rates(labels, regions)
        return None if rates is None else replace(found, makespan=rates.find_excess())


def keep_rates(
    problem: Problem, scheduler: ListScheduler, states: Sequence[SearchState], budget: SearchBudget
) -> SearchState:
    """Return a state that keeps rates, deadlines and limits, found from states that do not.

    Raises InputError with the reason where there is none, or none is found.
    """
    prove_possible(problem)
    conditions = problem.conditions
    assert conditions is not None
    rates = RateScheduler(problem)
    # Limits are checked by this problem, which has no rates: else no step on the way would be allowed.
    without = tuple(replace(each, period=inf, deadline=inf) for each in conditions.networks)
    free = replace(problem, conditions=replace(conditions, networks=without))
    half = budget.limit(budget.left / 2)
    seeds = []
    for each in states:
        half.spend(rates.step_seconds)
        if keeps_limits(free, each.labels, each.regions, rates):
            seeds.append(SearchState.from_labels(rates, each.labels, each.regions))
        if half.is_spent:
            break
    seeds.sort(key=lambda state: state.seconds)
    best: SearchState | None = None
    for seed in seeds[:_STARTS]:
        if seed.schedule is None or seed.seconds == inf or budget.is_spent:
            continue
        share = budget.limit(budget.left / 2)
        found, tried = improve_state(free, rates, seed, int(share.left / rates.step_seconds))
        budget.spend(tried * rates.step_seconds)
        best = found if best is None or found.seconds < best.seconds else best
        if keeps_limits(problem, best.labels, best.regions, scheduler):
            return SearchState.from_labels(scheduler, best.labels, best.regions)
    closest = None if best is None else scheduler.check_rates(best.labels, best.regions)
    miss = "" if closest is None else f"; in the closest {closest.describe_miss()}"
    raise InputError(f"no placement was found that keeps all rates and deadlines{miss}")


def prove_possible(problem: Problem) -> None:
    """Raise InputError with a sentence where a rate or a deadline cannot be kept by any placement."""
    conditions = problem.conditions
    assert conditions is not None
    assert conditions.network_of is not None
    relaxed = problem.relaxed.without_fusions
    for number, network in enumerate(conditions.networks):
        least = makespan_lower_bound(select_units(relaxed, conditions.network_of == number))
        if least > network.response * (1 + 1e-9):
            raise InputError(
                f"no placement keeps the deadline of network {network.name}: alone on all devices it "
                f"takes {least:.4g} s or more, and {network.response:.4g} s is its deadline"
            )
    periods = np.array([each.period for each in conditions.networks])[conditions.network_of]
    busy = replace(relaxed, seconds=relaxed.seconds / periods[:, np.newaxis])
    load = least_load(busy, problem.engines > 0)
    if load > 1 + 1e-9:
        raise InputError(
            f"no placement keeps the rates: all devices together would have to work {load:.3g} times as "
            "long as there is time"
        )


def select_units(problem: Problem, chosen: Ints) -> Problem:
    """Return the part of a problem without conditions and fusions that has some units.

    `chosen` is bool (units,); a tensor of the part has all its ends there, or is an input.
    """
    rows = np.flatnonzero(chosen)
    number = np.full(problem.units + 1, -1, np.int64)
    number[rows] = np.arange(len(rows))
    start = problem.consumer_start.tolist()
    kept, consumers = [], []
    for tensor, producer in enumerate(problem.producer.tolist()):
        ends = problem.consumers[start[tensor] : start[tensor + 1]]
        own = [int(number[end]) for end in ends.tolist() if chosen[end]]
        if own or (producer >= 0 and chosen[producer]):
            kept.append(tensor)
            consumers.append(own)
    return Problem.build(
        seconds=problem.seconds[rows],
        producer=number[problem.producer[kept]],
        consumers=consumers,
        is_output=problem.is_output[kept],
        to_device=problem.to_device[kept],
        to_host=problem.to_host[kept],
        launch=problem.launch,
        must=problem.must[rows],
        size=problem.size[rows],
        min_nodes=problem.min_nodes,
        max_nodes=problem.max_nodes,
        max_regions=problem.max_regions,
        memory=problem.memory[rows],
        capacity=problem.capacity,
        connected=problem.connected,
        occupies=problem.occupies,
        cores=problem.cores,
    )
