"""Dynamic programming over trees: exact where the graph is one, tree by tree where it is not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from byoc.placement.feasible import feasible
from byoc.placement.forest import Trees, induced, spanning
from byoc.placement.neighbours import Neighbours
from byoc.placement.objective import evaluate
from byoc.placement.problem import Ints, Problem
from byoc.placement.strategy import CHEAPER_ON_HOST, EVERYTHING, FUSIONS, Placement


@dataclass(frozen=True)
class TreeDP:
    """Place by dynamic programming, in the manner of Collage's placement of operators.

    Collage (Jeon, Park, Liao, Xu, Chen and Jia, PACT 2022, arXiv 2111.00655) adds up costs operator by
    operator along the graph, which is exact where no two paths meet again, and approximate elsewhere.
    Here units and tensors are the nodes of one graph, and minimal sums travel along its edges as in
    Bertele and Brioschi, Nonserial Dynamic Programming, 1972. A tensor is paid for once per
    direction and device there too.

    - Where that graph is a forest (chains and trees are) execution plus transfer is least, exactly, and
      the bound says so.
    - Elsewhere a spanning forest is solved first, without the connections that are the cheapest to
      cut; then, sweep by sweep, a set of units that does form a forest is placed anew, exactly, with all
      others staying where they are (subgraph descent: Hamze and de Freitas, UAI 2004). No sweep raises
      the cost, but what they end in need not be the least.

    Launches are not a sum over the units. They are counted as if each tensor that arrives on an
    accelerator launched a region: exact on a chain that begins with a graph input, too many elsewhere.
    Of the answers with and without, the better one is taken.

    With more than 5 accelerators, no tensor is taken to go to more than two of them but its own.
    Hard limits are kept by moving units afterwards (`byoc.placement.feasible`).
    """

    name: ClassVar[str] = "tree-dp"
    honours: ClassVar[frozenset[str]] = EVERYTHING - {FUSIONS}
    sweeps: int = 4

    def solve(self, problem: Problem) -> Placement:
        """Return the placement; with a bound where the graph is a forest."""
        labels, exact = self._labels(problem)
        bound = _proven(problem, labels) if exact else None
        labels = feasible(problem, labels)
        best = Placement.of(problem, labels, bound, _notes(problem, exact), CHEAPER_ON_HOST)
        if not problem.launch.any():
            return best
        arriving = replace(problem, to_device=problem.to_device + problem.launch)
        labels = feasible(problem, self._labels(arriving)[0])
        other = Placement.of(problem, labels, bound, best.notes, CHEAPER_ON_HOST)
        return min(best, other, key=lambda placement: placement.cost.total)

    def _labels(self, problem: Problem) -> tuple[Ints, bool]:
        """Return labels for execution plus transfer, and whether nothing is less."""
        around = Neighbours(problem)
        trees = Trees(around)
        whole = spanning(around)
        labels = trees.solved(whole, [0] * problem.units)
        if whole.complete:
            return np.array(labels, np.int64), trees.exact
        best = _cost(problem, labels)
        frozen: set[int] = set()
        for _ in range(self.sweeps):
            # What stood still last time moves first.
            order = sorted(range(problem.units), key=lambda unit: (unit not in frozen, unit))
            part = induced(around, order)
            frozen = set(order) - part.free
            labels = trees.solved(part, labels)
            cost = _cost(problem, labels)
            if not cost < best:
                break
            best = cost
        return np.array(labels, np.int64), False


def _cost(problem: Problem, labels: Sequence[int]) -> float:
    """Return execution plus transfer; each unit a region of its own, for those play no part."""
    placed = np.array(labels, np.int64)
    cost = evaluate(problem, placed, np.where(placed > 0, np.arange(problem.units), -1))
    return cost.execution + cost.transfer


def _proven(problem: Problem, labels: Ints) -> float | None:
    if problem.fusions:
        return None
    # The sums along a tree round once per unit and tensor.
    roundings = 4 * (problem.units + problem.tensors)
    return _cost(problem, labels.tolist()) * (1 - math.ldexp(roundings, -53))


def _notes(problem: Problem, exact: bool) -> tuple[str, ...]:
    notes = []
    if not exact:
        notes.append("the graph is no tree, and the choice was exact for one tree of it at a time")
    if problem.launch.any():
        notes.append("launches were counted by the tensors that arrive")
    return tuple(notes)
