"""Optimizing strategies: minimum cut, exact integer programming, and the default, launch-aware."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError
from byoc.numerics import SearchBudget
from byoc.placement._branch_and_cut import (
    OPTIMALITY_GAP,
    build_incumbent,
    find_incumbent,
    select_best,
    solve_exactly,
)
from byoc.placement._chain_split import iterate_chain_splits
from byoc.placement._hard_limits import evaluate, find_broken_limit, make_feasible, repair_labels
from byoc.placement._host_device_cut import HostDeviceCuts, LabelExpansion, find_persistent_sides
from byoc.placement._lower_bounds import LagrangianRelaxation, has_multipliers
from byoc.placement._problem import Bools, Ints, Problem
from byoc.placement._strategy import (
    ALL_REQUIREMENTS,
    CHEAPER_ON_HOST,
    CONDITIONS,
    CONTENTION,
    FUSIONS,
    LAUNCH,
    NETWORKS,
    SEVERAL_DEVICES,
    Measure,
    NoPlacementError,
    Placement,
    Strategy,
    check_count,
    check_time_limit,
    solve_applicable,
)
from byoc.placement._unit_groups import (
    ForestSolver,
    Neighbours,
    build_induced_forest,
    build_spanning_forest,
)
from byoc.placement.strategies._baselines import AllSupported, FasterOps, FasterOpsTransfer, HostOnly

# Dynamic programming over trees: exact if the graph is a tree, else tree by tree.


@dataclass(frozen=True)
class TreeDP:
    """Place by dynamic programming, like Collage's operator placement.
    Collage (Jeon, Park, Liao, Xu, Chen and Jia, PACT 2022, arXiv 2111.00655) adds up costs operator by
    operator along the graph, which is exact if no two paths meet again, and approximate otherwise. Here
    units and tensors are the nodes of one graph, and minimal sums travel along its edges as in Bertele
    and Brioschi, Nonserial Dynamic Programming, 1972. A tensor is paid for once per direction and
    device.

    - If that graph is a forest, as for chains and trees, execution plus transfer is optimal, and the
      bound says so.
    - Otherwise a spanning forest is solved first, without the connections that are the cheapest to cut.
      Then each sweep places a set of units that forms a forest optimally while all others stay (subgraph
      descent: Hamze and de Freitas, UAI 2004). No sweep raises the cost, but the result need not be
      optimal.

    Launches are not a sum over units. They are counted as if each tensor that arrives on an accelerator
    launched a region: exact on a chain that begins with a graph input, too many elsewhere. The better of
    the answers with and without is returned.

    With more than 5 accelerators, a tensor is sent to at most two of them besides its own. Hard limits
    are kept by moving units afterwards (`byoc.placement._hard_limits`).
    """

    name: ClassVar[str] = "tree-dp"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - CONDITIONS - {FUSIONS}
    repairable: ClassVar[bool] = True
    sweeps: int = 4

    def solve(self, problem: Problem) -> Placement:
        """Return the placement, with a bound if the graph is a forest."""
        labels, exact = self._solve_labels(problem)
        bound = _lower_bound(problem, labels) if exact else None
        labels = make_feasible(problem, labels)
        best = Placement.from_labels(
            problem, labels, bound, _describe_limits(problem, exact), CHEAPER_ON_HOST
        )
        if not problem.launch.any():
            return best
        arriving = replace(problem, to_device=problem.to_device + problem.launch)
        labels = make_feasible(problem, self._solve_labels(arriving)[0])
        other = Placement.from_labels(problem, labels, bound, best.notes, CHEAPER_ON_HOST)
        return min(best, other, key=lambda placement: placement.cost.total)

    def _solve_labels(self, problem: Problem) -> tuple[Ints, bool]:
        """Return labels for execution plus transfer, and whether they are optimal."""
        around = Neighbours(problem)
        trees = ForestSolver(around)
        whole = build_spanning_forest(around)
        labels = trees.solve(whole, [0] * problem.units)
        if whole.complete:
            return np.array(labels, np.int64), trees.exact
        best = _execution_and_transfer_cost(problem, labels)
        frozen: set[int] = set()
        for _ in range(self.sweeps):
            # Units that were fixed in the last sweep move first.
            order = sorted(range(problem.units), key=lambda unit: (unit not in frozen, unit))
            part = build_induced_forest(around, order)
            frozen = set(order) - part.free
            labels = trees.solve(part, labels)
            cost = _execution_and_transfer_cost(problem, labels)
            if not cost < best:
                break
            best = cost
        return np.array(labels, np.int64), False


def _execution_and_transfer_cost(problem: Problem, labels: Sequence[int]) -> float:
    """Return execution plus transfer, which do not depend on the regions."""
    placed = np.array(labels, np.int64)
    cost = evaluate(problem, placed, np.where(placed > 0, np.arange(problem.units), -1))
    return cost.execution + cost.transfer


def _lower_bound(problem: Problem, labels: Ints) -> float | None:
    if problem.fusions:
        return None
    # Sums along a tree are rounded once per unit and tensor.
    roundings = 4 * (problem.units + problem.tensors)
    return _execution_and_transfer_cost(problem, labels.tolist()) * (1 - math.ldexp(roundings, -53))


def _describe_limits(problem: Problem, exact: bool) -> tuple[str, ...]:
    notes = []
    if not exact:
        notes.append("the graph is no tree, and the choice was exact for one tree of it at a time")
    if problem.launch.any():
        notes.append("launches were counted by the tensors that arrive")
    return tuple(notes)


# Steps of multipliers from near the optimum would be too short: they aim at so many times the best cost.
_OVERSHOOT = 1.2
# Seconds that moves of many units may take, counted by steps, and the largest share of what is left.
_EXPANSION_SECONDS, _EXPANSION_SHARE = 5.0, 0.6
# The share of the time limit for the integer program where the cuts are to follow.
_PROGRAM_SHARE = 0.7
# A share of launches in the total that needs no note.
_NEGLIGIBLE = 0.02


@dataclass(frozen=True)
class MinCut:
    """Minimise execution plus transfer exactly, without launches.

    A unit that gains nothing stays on the host, and labels do not depend on the order of the units.
    Regions that break a limit are dissolved; the bound ignores the limits.
    """

    name: ClassVar[str] = "min-cut"
    honours: ClassVar[frozenset[str]] = (
        ALL_REQUIREMENTS - CONDITIONS - {LAUNCH, FUSIONS, SEVERAL_DEVICES}
    )
    repairable: ClassVar[bool] = True

    def solve(self, problem: Problem) -> Placement:
        """Return the placement, bounded by the cut.

        Raises InputError for several accelerators, NoPlacementError if no cut is finite.
        """
        if problem.devices > 1:
            raise InputError(
                f"strategy min-cut places on one accelerator and the target has {problem.devices}: "
                "name one of them, or choose a strategy that takes several (all-supported)"
            )
        if not problem.devices:
            labels, value = np.zeros(problem.units, np.int64), math.fsum(problem.seconds[:, 0])
            return Placement.from_labels(problem, labels, value, why_host=CHEAPER_ON_HOST)
        value, on_device = _cut(problem)
        if value == math.inf:
            raise NoPlacementError
        labels = repair_labels(problem, on_device.astype(np.int64))
        if problem.fusions:
            value, _ = _cut(problem.without_fusions)
        placement = Placement.from_labels(problem, labels, value, why_host=CHEAPER_ON_HOST)
        if placement.cost.launch <= _NEGLIGIBLE * placement.cost.total:
            return placement
        share = placement.cost.launch / placement.cost.total
        note = (
            f"launches make {share:.0%} of the predicted time, and min-cut chose without regard to them"
        )
        return replace(placement, notes=(note,))


def _cut(problem: Problem) -> tuple[float, Bools]:
    return HostDeviceCuts(problem, 1, find_persistent_sides(problem, launch=0.0)).solve()


def _solve_with_conditions(
    problem: Problem, solve: Callable[[Problem, float], Placement], time_limit: float
) -> Placement:
    """Return the placement of least total under conditions; `solve` places without any."""
    from byoc.placement.strategies._conditioned import (  # noqa: PLC0415 - most problems have none
        solve_with_conditions,
    )

    return solve_with_conditions(problem, solve, Measure.total, time_limit)


@dataclass(frozen=True)
class Exact:
    """Solve a mixed integer program by branch and cut (HiGHS).
    Proves the optimum for one accelerator at any size that the time limit allows, and for small graphs
    with several accelerators, connected regions, or limits of their size. Otherwise the bound is weaker
    and a note says why.
    """

    name: ClassVar[str] = "exact"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - {CONTENTION, NETWORKS}
    time_limit: float = 10.0
    """Seconds of an ordinary computer, counted by steps (see `SearchBudget`)."""

    def __post_init__(self) -> None:
        """Raise ValueError for a limit that is not above 0."""
        check_time_limit("time_limit", self.time_limit, endless=True)

    def solve(self, problem: Problem) -> Placement:
        """Return the placement.

        Raises NoPlacementError if none keeps the limits, InputError if none was found in time.
        """
        if problem.conditions is not None and problem.conditions.affects_sums(problem):
            return _solve_with_conditions(
                problem,
                lambda plain, seconds: Exact(min(seconds, self.time_limit)).solve(plain),
                self.time_limit,
            )
        problem = problem.plain
        found = solve_exactly(problem, find_incumbent(problem), SearchBudget(self.time_limit), None)
        if found is None:
            raise InputError("strategy exact: found no placement that keeps all the limits")
        return found


# Above these numbers of units, strategies that visit units one by one take longer than the rest.
_MAX_FOR_SWEEPS = 20_000
_MAX_FOR_TREES = 3_000  # units of a problem that is swept over trees
# They do not run, either, where so small a share of the cost is not proven to be needed.
_SMALL_GAP = 1e-3


@dataclass(frozen=True)
class LaunchAware:
    """Take the best that Lagrangian minimum cuts, cheap strategies and an integer program find.
    At most `rounds` minimum cuts with Lagrange multipliers on launches, capacity and other limits (see
    `byoc.placement._lower_bounds`) give labels and a bound; with several accelerators or limits,
    moves of many units at once come before and after (see `byoc.placement._host_device_cut`).
    Where the bound does not prove that a placement is optimal, the cheap strategies follow, and if units
    times accelerators are at most
    `small`, a mixed integer program (see `exact`), of at most `nodes` branch-and-bound nodes. Small
    problems with several accelerators, or limits, begin with that program, and it may take a share of
    the time limit; the cuts follow where it is stopped.

    It chooses as if launches and transfers cost `boundary` times what they do: with more than 1 it cuts
    more rarely, with less more often. The cost of its answer is the true one. A placement on several
    devices has to save at least the share `margin` of what the best single device takes.
    """

    name: ClassVar[str] = "launch-aware"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - {CONTENTION, NETWORKS}
    small: int = 5000
    nodes: int = 200
    rounds: int = 12
    boundary: float = 1.0
    margin: float = 0.0
    time_limit: float = 10.0
    """Seconds of an ordinary computer, counted by steps (see `SearchBudget`)."""

    def __post_init__(self) -> None:
        """Raise ValueError for a factor or limit that is not above 0, and a margin not below 1."""
        if not 0 <= self.margin < 1:
            raise ValueError(f"margin is {self.margin:g}, but must be from 0 to below 1")
        if not 0 < self.boundary < math.inf:
            raise ValueError(f"boundary is {self.boundary:g}, but must be a number above 0")
        check_time_limit("time_limit", self.time_limit, endless=True)
        for name in ("small", "nodes", "rounds"):
            check_count(name, getattr(self, name))

    def solve(self, problem: Problem) -> Placement:
        """Return the placement.

        Raises NoPlacementError if none keeps the limits, InputError if none was found in time.
        """
        if problem.conditions is not None and problem.conditions.affects_sums(problem):
            bare = replace(self, margin=0.0, boundary=1.0)
            return _solve_with_conditions(
                problem,
                lambda plain, seconds: replace(bare, time_limit=seconds).solve(plain),
                self.time_limit,
            )
        problem = problem.plain
        if self.margin:
            return self._solve_with_margin(problem)
        if self.boundary != 1:
            return self._solve_scaled(problem)
        budget, bound, notes = SearchBudget(self.time_limit), 0.0, tuple[str, ...]()
        best = find_incumbent(problem)
        small = problem.units * problem.devices <= self.small
        # Multipliers of limits converge slowly: in small graphs the integer program takes less time.
        is_first = not small or bool(
            problem.units and problem.devices == 1 and not has_multipliers(problem)
        )
        if is_first:
            best, bound = self._solve_relaxation(problem, best, budget)
        if not _is_within(best, bound, OPTIMALITY_GAP) and (best is None or not budget.is_spent):
            sweeps = not _is_within(best, bound, _SMALL_GAP)
            best = select_best([best, *_solve_cheaply(problem, sweeps)])
            if problem.devices > 1 and np.isfinite(problem.capacity).any():
                splits = iterate_chain_splits(problem, budget)
                best = select_best([best, *(build_incumbent(problem, each) for each in splits)])
            if small:
                share = budget.limit(budget.left * (1.0 if is_first else _PROGRAM_SHARE))
                found = solve_exactly(problem, best, share, self.nodes)
                if found is not None:
                    best, notes = found, found.notes
                    bound = max(bound, found.bound or 0.0)
                if share.is_spent and not is_first:
                    best, proven = self._solve_relaxation(problem, best, budget)
                    bound = max(bound, proven)
        if best is None:
            if bound == math.inf:
                raise NoPlacementError
            raise InputError("strategy launch-aware: found no placement that keeps all the limits")
        notes = () if _is_within(best, bound, OPTIMALITY_GAP) else notes
        return replace(best, bound=min(bound, best.cost.total), notes=notes)

    def _solve_with_margin(self, problem: Problem) -> Placement:
        """Return the placement on the best single device unless a mixture saves the margin."""
        found = replace(self, margin=0.0).solve(problem)
        if not problem.units or np.ptp(found.labels) == 0:
            return found
        whole = [
            each
            for each in solve_applicable(problem, [HostOnly(), AllSupported()])
            if np.ptp(each.labels) == 0 and not find_broken_limit(problem, each.labels, each.regions)
        ]
        best = select_best(whole)
        if best is None or found.cost.total < (1 - self.margin) * best.cost.total:
            return found
        saved = 1 - found.cost.total / best.cost.total
        told = f"a mixture of devices is predicted to save {saved:.1%}"
        note = f"{told}, less than the margin of {self.margin:.0%}"
        return replace(best, bound=found.bound, notes=(note,))

    def _solve_scaled(self, problem: Problem) -> Placement:
        """Return the placement for other prices of launches and transfers, at its true cost."""
        scaled = replace(
            problem,
            to_device=self.boundary * problem.to_device,
            to_host=self.boundary * problem.to_host,
            launch=self.boundary * problem.launch,
        )
        found = replace(self, boundary=1.0).solve(scaled)
        # A placement costs at most max(1, boundary) times as much at the scaled prices.
        bound = None if found.bound is None else found.bound / max(1.0, self.boundary)
        note = f"chosen as if launches and transfers cost {self.boundary:g} times what they do"
        return Placement.from_labels(
            problem,
            found.labels,
            bound,
            (*found.notes, note),
            found.why_host,
            found.regions,
            found.fusions,
        )

    def _solve_relaxation(
        self, problem: Problem, best: Placement | None, budget: SearchBudget
    ) -> tuple[Placement | None, float]:
        """Return the best placement and a lower bound of all."""
        expansion = LabelExpansion(
            problem, budget.limit(min(_EXPANSION_SECONDS, budget.left * _EXPANSION_SHARE))
        )
        if has_multipliers(problem):
            start = np.zeros(problem.units, np.int64) if best is None else best.labels
            for labels in expansion.iterate_labels(start):
                best = select_best([best, build_incumbent(problem, labels)])
        relaxation = LagrangianRelaxation(problem, byte_prices=expansion.prices, budget=budget)

        def get_least() -> float:
            return best.cost.total if best else float(problem.seconds[:, 0].sum())

        # Multipliers of units converge more slowly than the flow of launches.
        count = 3 * self.rounds if relaxation.has_multipliers else self.rounds
        for labels in relaxation.iterate_labels(count, get_least, _OVERSHOOT):
            best = select_best([best, build_incumbent(problem, labels)])
        if best is not None and has_multipliers(problem):
            best = select_best([best, build_incumbent(problem, expansion.improve(best.labels))])
        return best, max(0.0, relaxation.bound * (1 - 2.0**-48))


def _is_within(best: Placement | None, bound: float, gap: float) -> bool:
    """Return whether a placement costs more than a bound by at most a share of its cost."""
    return best is not None and best.cost.total - bound <= gap * best.cost.total


def _solve_cheaply(problem: Problem, sweeps: bool) -> Iterator[Placement]:
    """Yield the placements of the cheap strategies that keep the limits.

    `sweeps` asks for those, too, that visit units one by one.
    """
    strategies: list[Strategy] = [HostOnly(), AllSupported(), FasterOps()]
    if problem.devices == 1:
        strategies.append(MinCut())
    if sweeps and problem.units <= _MAX_FOR_SWEEPS:
        strategies.append(FasterOpsTransfer())
    if sweeps and problem.units <= _MAX_FOR_TREES:
        strategies.append(TreeDP())
    for placement in solve_applicable(problem, strategies):
        if not find_broken_limit(problem, placement.labels, placement.regions):
            yield placement
