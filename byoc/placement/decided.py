"""Units that are on one side in every optimum: what need not be searched."""

import numpy as np

from byoc.placement.problem import Bools, Floats, Ints, Problem

FREE = -1
# More than the roundings of a handful of sums.
_MARGIN = 2.0**-40


def decided(problem: Problem, launch: float) -> Ints:
    """Return where each unit is in every best placement on one accelerator, int64 (units,).

    1 = on the accelerator, 0 = on the host, -1 = not decided. A unit moves for sure when what it
    gains is more than all that the move can cost whatever the others do: its tensors' transfers,
    and a launch, since one unit's move makes at most one region more. What is decided narrows what
    may happen to the others, so that it is repeated until nothing changes. Only the execution,
    transfers and launches of one accelerator count, and neither limits nor fusions.
    """
    gain = problem.costs[:, 0] - problem.costs[:, 1]
    side = np.full(problem.units, FREE, np.int64)
    ways = _Ways(problem)
    while True:
        joining, leaving = ways.dearest(side)
        margin = _MARGIN * np.abs(np.where(np.isfinite(gain), gain, 0.0))
        free = side == FREE
        joins = free & (gain > joining + launch + margin)
        stays = free & (-gain > leaving + launch + margin)
        if not (joins | stays).any():
            return side
        side[joins], side[stays] = 1, 0


class _Ways:
    """What a unit's move can cost at most in transfers."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.made = problem.producer >= 0
        self.readers = np.diff(problem.consumer_start)

    def dearest(self, side: Ints) -> tuple[Floats, Floats]:
        """Return the most it costs a unit to join and to leave the accelerator, float64 (units,)."""
        problem, made, readers = self.problem, self.made, self.readers
        maker = np.where(made, np.append(side, 0)[problem.producer], 0)
        at = side[problem.consumers]
        there, here = self._count(at == 1), self._count(at == 0)
        down, up = problem.to_device[:, 0], problem.to_host[:, 0]
        # A reader brings the tensor over unless it is there, or has to come for another anyway.
        joins = np.where((maker != 1) & (there == 0), down, 0.0)[problem.consumed]
        held = problem.is_output | (here > 0)
        leaves = np.where((maker != 0) & ~held, up, 0.0)[problem.consumed]
        # The maker sends it over where a reader may be on the other side.
        joins_made = np.where(problem.is_output | (there < readers), up, 0.0)
        leaves_made = np.where(here < readers, down, 0.0)
        return self._sum(joins, joins_made), self._sum(leaves, leaves_made)

    def _count(self, which: Bools) -> Ints:
        return np.bincount(self.problem.consumed[which], minlength=self.problem.tensors)

    def _sum(self, read: Floats, made: Floats) -> Floats:
        problem = self.problem
        units = np.concatenate([problem.consumers, problem.producer[self.made]])
        cost = np.concatenate([read, made[self.made]])
        total: Floats = np.bincount(units, cost, minlength=problem.units).astype(np.float64)
        return total
