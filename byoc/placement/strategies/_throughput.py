"""Most inferences per second when several are in flight: the least maximal load of a device."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError
from byoc.numerics import SearchBudget
from byoc.placement._branch_and_cut import build_incumbent
from byoc.placement._chain_split import split_chain
from byoc.placement._form_regions import estimate_region_seconds
from byoc.placement._hard_limits import find_broken_limit
from byoc.placement._load_covering import CoverSearch
from byoc.placement._load_frontier import order_narrowly
from byoc.placement._load_search import Cooling, LoadAnnealer, PairSearch, coarsen
from byoc.placement._makespan_search import least_load
from byoc.placement._placement_enumeration import SpentBudgetError, count_labels, find_least_load
from byoc.placement._problem import Ints, Problem
from byoc.placement._strategy import (
    ALL_REQUIREMENTS,
    CONTENTION,
    DIRECT_LINKS,
    NETWORKS,
    Measure,
    NoPlacementError,
    Placement,
    Strategy,
    check_time_limit,
    solve_applicable,
)
from byoc.placement._unit_groups import UnitGroups
from byoc.placement.strategies._baselines import AllSupported, FasterOps, HostOnly, measure_placement
from byoc.placement.strategies._conditioned import solve_with_conditions
from byoc.placement.strategies._optimizing import LaunchAware

_WHY_HOST = "no device would be occupied for less time with it on the accelerator"
_SIMPLE: tuple[Strategy, ...] = (HostOnly(), AllSupported(), FasterOps())

# Annealing runs: the largest share of the mean load in one cluster, and the temperatures; those after
# the first proof, too.
_RUNS = ((0.1, 1.0, 0.01), (0.3, 1.0, 0.01))
_LATER_RUNS = ((0.1, 3.0, 0.01), (0.3, 0.3, 0.002))
_MOVES, _MOVES_PER_GROUP = 30_000, 3_000
# More than the rounding errors of a sum of one cost per unit.
_ROUNDING = 2.0**-36
# The temperature at which finer groups begin.
_WARM = 0.1
# The share of the budget that is left for each proof, and the runs after it.
_PROOFS = (0.6, _LATER_RUNS), (1.0, ())
# The share of what is left for splitting pairs of devices, from one start.
_PAIRS_SHARE = 0.15
# Seconds on one core of about 3 GHz to make a group coarser, and to sum up its loads before and after.
_COARSENING_SECONDS, _STATE_SECONDS = 1.5e-5, 1.2e-5
# The share of the time limit for launch-aware, which runs where nothing else keeps the limits.
_LAUNCH_AWARE_SHARE = 0.3
# A gap, as a share of the load, that is not worth another search.
_CLOSE = 1e-3
# All of so many labels of so many units are tried, within a share of the time limit.
_FEW_LABELS, _FEW_UNITS, _ENUMERATION_SHARE = 2**14, 30, 0.5


@dataclass(frozen=True)
class Throughput:
    """Minimise the load of the busiest device, so that a pipeline takes inputs as often as possible.

    Where there are few placements all are tried. Otherwise splits of the graph into one segment for each
    device start the search; annealing on coarse groups of units and then on finer ones improves them.
    The bound is that of `CoverSearch`, or of `least_load` where that is larger; the sets that prove it
    are starting points, too.
    """

    name: ClassVar[str] = "throughput"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - {CONTENTION, DIRECT_LINKS, NETWORKS}
    time_limit: float = 10.0
    """Seconds of an ordinary computer, counted by steps (see `SearchBudget`)."""

    def __post_init__(self) -> None:
        """Raise ValueError for a limit that is not above 0."""
        check_time_limit("time_limit", self.time_limit)

    def solve(self, problem: Problem) -> Placement:
        """Return a `PipelinedPlacement`. Raises InputError if none is found that keeps the limits."""
        if problem.conditions is not None:
            return solve_with_conditions(
                problem,
                lambda plain, seconds: Throughput(seconds).solve(plain),
                Measure.load,
                self.time_limit,
            )
        search = _LoadSearch(problem, SearchBudget(self.time_limit))
        search.examine(each.labels for each in solve_applicable(problem, _SIMPLE))
        if search.try_all():
            best = search.best
            if best is None:
                raise NoPlacementError
            return replace(best, bound=best.value * (1 - _ROUNDING), why_host=_WHY_HOST)
        known = _bound_loads(problem.without_fusions)
        search.split()
        search.improve(known, _RUNS)
        if search.best is None:  # labels of small load break a limit: begin with what keeps them all
            limited = LaunchAware(time_limit=self.time_limit * _LAUNCH_AWARE_SHARE)
            for each in solve_applicable(problem, [limited]):
                if not find_broken_limit(problem, each.labels, each.regions):
                    search.keep(each)
        if search.best is None:
            raise InputError("strategy throughput: found no placement that keeps all the limits")
        bound = search.prove(known)
        best = search.best
        return replace(best, bound=min(bound, best.value), why_host=_WHY_HOST)


def _bound_loads(problem: Problem) -> float:
    """Return a lower bound on the maximal load: units may be divided, but each must run somewhere."""
    costs = UnitGroups.from_problem(problem).costs.copy()
    costs[:, 0] /= problem.cores
    return max(least_load(problem), float(costs.min(axis=1).max(initial=0.0)))


class _LoadSearch:
    """The best placement so far, and the search for a better one.

    What prepares annealing and what examines its labels has a budget of its own, so that the search is
    over when either is spent, and takes at most twice its limit.
    """

    def __init__(self, problem: Problem, budget: SearchBudget) -> None:
        self.problem, self.budget = problem, budget
        self._setup = SearchBudget(budget.left)
        self.groups = UnitGroups.from_problem(problem)
        self.best: Placement | None = None
        self._annealer = LoadAnnealer(problem.occupies, problem.cores)
        self._pairs = PairSearch(problem, self.groups)
        self._known: list[list[int]] = []

    def examine(self, candidates: Iterable[Ints]) -> None:
        """Keep the best of some labels, int64 (units,) each, repaired where they break a limit."""
        for labels in candidates:
            self._setup.spend(estimate_region_seconds(self.problem))
            placement = build_incumbent(self.problem, labels)
            if placement is None or not np.isfinite(placement.cost.total):
                continue
            self.keep(placement)

    def keep(self, placement: Placement) -> None:
        """Keep a placement if its maximal load is the least so far."""
        found = measure_placement(self.problem, placement, Measure.load)
        if self.best is None or found.value < self.best.value:
            self.best = replace(found, bound=None, notes=())

    def try_all(self) -> bool:
        """Find the best of all placements; return False if there are too many."""
        problem = self.problem
        if problem.units > _FEW_UNITS or count_labels(problem) > _FEW_LABELS:
            return False
        most = np.inf if self.best is None else self.best.value
        budget = self.budget.limit(self.budget.left * _ENUMERATION_SHARE)
        try:
            found = find_least_load(problem, most, budget)
        except SpentBudgetError:
            return False
        if found is not None:
            labels, regions = found
            # Regions as they form from labels, if they are as good.
            self.examine([labels])
            self.keep(Placement.from_labels(problem, labels, regions=regions))
        return True

    def split(self) -> None:
        """Examine splits of the groups into one segment for each device, in two orders."""
        if self.groups.devices and self.groups.count:
            self._split(self.groups, range(self.groups.count))
            self._split(self.groups, order_narrowly(self.groups))

    def improve(self, bound: float, runs: Sequence[tuple[float, float, float]]) -> None:
        """Search until the budget is spent, the runs are over, or a load is as small as its bound."""
        groups = self.groups
        if not groups.devices or not groups.count:
            return
        mean = float(groups.costs.min(axis=1).sum()) / groups.devices
        for number, (share, hot, cold) in enumerate(runs):
            is_proven = self.best is not None and self.best.value <= bound * (1 + _ROUNDING)
            if is_proven or self._is_over:
                return
            moves = min(_MOVES, _MOVES_PER_GROUP * groups.count)
            self._split_pairs(self._descend(mean * share, Cooling(hot, cold, moves), number))

    def prove(self, bound: float) -> float:
        """Return a lower bound on the maximal load; search for less than the best in between.

        `bound` is a known one, in seconds.
        """
        assert self.best is not None
        alone = self.problem.without_fusions
        groups = UnitGroups.from_problem(alone) if self.problem.fusions else self.groups
        if groups.count and groups.devices and bound < self.best.value < np.inf:
            search = CoverSearch(alone, groups, bound, self._setup)
            for share, runs in _PROOFS:
                budget = self.budget.limit(self.budget.left * share)
                search.search(self.best.value, self._known, budget)
                if search.bound >= self.best.value * (1 - _CLOSE):
                    break
                self.improve(search.bound, runs)
            bound = search.bound
        return max(0.0, bound * (1 - _ROUNDING))

    def _split_pairs(self, labels: list[int]) -> None:
        """Examine labels of the groups, and what splitting pairs of devices makes of them."""
        self.examine([self.groups.spread(labels)])
        if self._is_over:
            return
        budget = self.budget.limit(self.budget.left * _PAIRS_SHARE)
        improved = self._pairs.improve(labels, budget)
        self._known.append(improved)
        if improved != labels:
            self.examine([self.groups.spread(improved)])

    def _descend(self, most: float, cooling: Cooling, seed: int) -> list[int]:
        """Return labels of the groups: split and annealed on coarse groups, then on finer ones."""
        levels: list[tuple[UnitGroups, list[int]]] = []
        groups = self.groups
        while groups.count > 3 * groups.devices and not self._is_over:
            self._setup.spend(groups.count * _COARSENING_SECONDS)
            cluster = coarsen(groups, most)
            coarser = groups.contract(cluster)
            if coarser.count > 0.95 * groups.count:
                break
            levels.append((groups, cluster))
            groups = coarser
        labels = self._split(groups, range(groups.count))
        levels.append((groups, list(range(groups.count))))
        for finer, cluster in reversed(levels):
            labels = [labels[number] for number in cluster]
            if self._is_over:
                continue
            self._setup.spend(finer.count * _STATE_SECONDS)
            _, labels = self._annealer.improve(finer, labels, cooling, seed, self.budget)
            cooling = replace(cooling, hot=min(cooling.hot, _WARM))
        return labels

    @property
    def _is_over(self) -> bool:
        return self.budget.is_spent or self._setup.is_spent

    def _split(self, groups: UnitGroups, order: Sequence[int]) -> list[int]:
        """Return the best split of groups in an order, everything on the host without one."""
        occupies, cores = self.problem.occupies, self.problem.cores
        found = split_chain(groups, order, occupies, cores, self.budget)
        self.examine([] if found is None else [groups.spread(found)])
        return [0] * groups.count if found is None else found
