"""Dynamic programming over trees: exact if the graph is a tree, else tree by tree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from byoc.placement._hard_limits import make_feasible
from byoc.placement._placement_cost import evaluate
from byoc.placement._problem import Ints, Problem
from byoc.placement._strategy import ALL_REQUIREMENTS, CHEAPER_ON_HOST, FUSIONS, Placement
from byoc.placement.solvers import ForestSolver, Neighbours, build_induced_forest, build_spanning_forest


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
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - {FUSIONS}
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
