"""Sensitivity: what the best placement of a problem gains when some of its costs change.

The problem is relaxed once (`byoc.placement.solvers._lagrangian`). Each question begins at the
multipliers found there, so that one minimum cut or a few answer it, instead of a search from nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

from byoc.placement._problem import Floats, Problem
from byoc.placement._strategy import Placement
from byoc.placement.solvers import LagrangianRelaxation, build_incumbent, select_best

# A gain of less than this share of the whole is not worth another cut.
_TOLERANCE = 1e-4


@dataclass(eq=False)
class Sensitivity:
    """A problem and a placement of it, to be compared with placements at other costs.

    `rounds` limits the minimum cuts, for each accelerator, by which multipliers are sought; a question
    takes a third of them at most. `steps` counts what has been done: units and entries of tensors, for
    each cut.
    """

    problem: Problem
    known: Placement
    rounds: int
    steps: int = 0

    @property
    def round_steps(self) -> int:
        """The steps of a round: a minimum cut for each accelerator."""
        return self.problem.devices * (self.problem.units + len(self.problem.consumers))

    @cached_property
    def best(self) -> Placement:
        """The best placement that is known at the present costs."""
        return self._relaxed[1]

    @cached_property
    def _relaxed(self) -> tuple[LagrangianRelaxation, Placement]:
        relaxation = LagrangianRelaxation(self.problem)
        return relaxation, self._improve(relaxation, self.known, self.rounds)

    def bound_gain(self, rows: Sequence[int], device: int, seconds: Floats) -> float:
        """Return about the most that some units at other costs on an accelerator can gain.

        `seconds`, float64 (rows,), are these costs. Any placement at them can be made one at the present
        costs with the units on the host: that takes what they take longer there, what is moved for them,
        and a launch for each, since a unit divides a region in two at most.
        """
        problem, column = self.problem, device - 1
        inside = np.zeros(problem.units, np.bool_)
        inside[list(rows)] = True
        read = np.unique(problem.consumed[inside[problem.consumers]])
        made = np.append(inside, False)[problem.producer]
        back = problem.to_host[read].max(axis=1, initial=0.0)
        there = problem.to_device[made, column]
        slower = np.maximum(problem.seconds[list(rows), 0] - seconds, 0.0)
        launches = len(rows) * float(problem.launch[column])
        return math.fsum([*slower, *back, *there, launches])

    def solve_changed(self, rows: Sequence[int], device: int, seconds: Floats) -> Placement:
        """Return the best placement that is found with some units at other costs on an accelerator.

        It is never worse than the present one. `seconds` is float64 (rows,).
        """
        costs = self.problem.seconds.copy()
        costs[list(rows), device] = seconds
        problem = self.problem.replace_seconds(costs)
        relaxation, best = self._relaxed
        labels = best.labels.copy()
        labels[list(rows)] = device
        start = select_best([best, build_incumbent(problem, labels)])
        assert start is not None
        return self._improve(relaxation.vary(problem), start, 1 + self.rounds // 3)

    def _improve(self, relaxation: LagrangianRelaxation, best: Placement, rounds: int) -> Placement:
        """Return the best of a placement and those that some rounds of a relaxation find."""
        problem = relaxation.problem
        known = {best.labels.tobytes()}

        def get_least() -> float:
            return best.cost.total

        for labels in islice(relaxation.iterate_labels(rounds, get_least), rounds):
            self.steps += self.round_steps
            if labels.tobytes() not in known:
                known.add(labels.tobytes())
                best = select_best([best, build_incumbent(problem, labels)]) or best
            if relaxation.value >= best.cost.total * (1 - _TOLERANCE):
                break
        return best
