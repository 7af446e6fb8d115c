"""The default strategy: a placement and a bound at any size, with all costs counted."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from byoc.errors import InputError
from byoc.placement.incumbents import find_incumbent, build_incumbent, select_best
from byoc.placement.limits import find_broken_limit
from byoc.placement.optimum import solve_exactly
from byoc.placement.prices import LagrangianRelaxation
from byoc.placement.problem import Problem
from byoc.placement.strategies.all_supported import AllSupported
from byoc.placement.strategies.faster_ops import FasterOps
from byoc.placement.strategies.faster_ops_transfer import FasterOpsTransfer
from byoc.placement.strategies.host_only import HostOnly
from byoc.placement.strategies.min_cut import MinCut
from byoc.placement.strategies.tree_dp import TreeDP
from byoc.placement.strategy import ALL_REQUIREMENTS, Placement, Strategy, solve_applicable

# Above these numbers of units, strategies that visit units one by one take longer than the rest.
_MOST_FOR_SWEEPS = 20_000
_MOST_FOR_TREES = 3_000


@dataclass(frozen=True)
class LaunchAware:
    """Take the best of all cheap strategies and of Lagrangian minimum cuts, and prove a bound.
    If units times accelerators are at most `small`, a mixed integer program decides (see `exact`),
    limited to `nodes` branch-and-bound nodes so that the answer does not depend on time. Above that,
    `rounds` minimum cuts with Lagrange multipliers on launches, capacity and other limits (see
    `byoc.placement.prices`) give labels and the bound.
    """

    name: ClassVar[str] = "launch-aware"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS
    small: int = 5000
    nodes: int = 200
    rounds: int = 12

    def solve(self, problem: Problem) -> Placement:
        """Return the placement. Raises InputError if none is found that keeps the limits."""
        best = select_best([find_incumbent(problem), *_solve_cheaply(problem)])
        if problem.units * problem.devices <= self.small:
            best = solve_exactly(problem, best, None, self.nodes)
        else:
            best = self._solve_relaxation(problem, best)
        if best is None:
            raise InputError("strategy launch-aware: found no placement that keeps all the limits")
        return best

    def _solve_relaxation(self, problem: Problem, best: Placement | None) -> Placement | None:
        relaxation = LagrangianRelaxation(problem)
        least = best.cost.total if best else float(problem.seconds[:, 0].sum())
        # Multipliers of units converge more slowly than the flow of launches.
        count = 3 * self.rounds if relaxation.has_multipliers else self.rounds
        for labels in relaxation.iterate_labels(count, least):
            best = select_best([best, build_incumbent(problem, labels)])
        if best is None:
            return None
        bound = min(relaxation.bound * (1 - 2.0**-48), best.cost.total)
        return replace(best, notes=(), bound=max(0.0, bound))


def _solve_cheaply(problem: Problem) -> Iterator[Placement]:
    """Yield the placements of the cheap strategies that keep the limits."""
    strategies: list[Strategy] = [HostOnly(), AllSupported(), FasterOps()]
    if problem.devices == 1:
        strategies.append(MinCut())
    if problem.units <= _MOST_FOR_SWEEPS:
        strategies.append(FasterOpsTransfer())
    if problem.units <= _MOST_FOR_TREES:
        strategies.append(TreeDP())
    for placement in solve_applicable(problem, strategies):
        if not find_broken_limit(problem, placement.labels, placement.regions):
            yield placement
