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

from byoc.placement._problem import Bools, Floats, Problem
from byoc.placement._strategy import Placement
from byoc.placement.solvers import OPTIMALITY_GAP, LagrangianRelaxation, build_incumbent, select_best

# A gain of less than this share of the whole is not worth another cut.
_TOLERANCE = 1e-4
# More than the rounding errors of a few sums.
_MARGIN = 2.0**-40


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
        if self._is_best and not self._can_gain(rows, device, seconds):
            return self.best
        costs = self.problem.seconds.copy()
        costs[list(rows), device] = seconds
        problem = self.problem.replace_seconds(costs)
        relaxation, best = self._relaxed
        labels = best.labels.copy()
        labels[list(rows)] = device
        start = select_best([best, build_incumbent(problem, labels)])
        assert start is not None
        return self._improve(relaxation.vary(problem), start, 1 + self.rounds // 3)

    @cached_property
    def _is_best(self) -> bool:
        """Whether the best placement at the present costs is proven, and no region has a least size."""
        relaxation, best = self._relaxed
        bound = max(relaxation.bound, -math.inf if self.known.bound is None else self.known.bound)
        proven = bound >= best.cost.total * (1 - OPTIMALITY_GAP)
        return bool(proven and (self.problem.min_nodes <= 1).all())

    def _can_gain(self, rows: Sequence[int], device: int, seconds: Floats) -> bool:
        """Return whether some units at other costs may gain; takes what `bound_gain` takes.

        They cannot where each shares its tensors with units alone that stay on the host in any case:
        whatever else is placed, such a unit pays for all its tensors and saves no launch, and that is
        more than it gains.
        """
        problem, column = self.problem, device - 1
        able: Bools = np.array(problem.allowed[:, 1:].any(axis=1))
        able[list(rows)] = True
        sharing = np.bincount(problem.consumed[able[problem.consumers]], minlength=problem.tensors)
        sharing += np.append(able, False)[problem.producer]
        shared, made = sharing > 1, problem.producer >= 0
        has_company = np.zeros(problem.units, np.bool_)
        has_company[problem.consumers[shared[problem.consumed]]] = True
        has_company[problem.producer[shared & made]] = True
        if has_company[list(rows)].any():
            return True
        sent = made & (problem.is_output | (np.diff(problem.consumer_start) > 0))
        paid = np.bincount(
            np.concatenate([problem.consumers, problem.producer[sent]]),
            np.concatenate([problem.to_device[problem.consumed, column], problem.to_host[sent, column]]),
            minlength=problem.units,
        )
        host = problem.seconds[list(rows), 0]
        return bool((host - seconds - paid[list(rows)] > -_MARGIN * host).any())

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
