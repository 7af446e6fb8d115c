"""Persistency: units that are on the same side in every optimal placement."""

import numpy as np

from byoc.placement.problem import Bools, Floats, Ints, Problem

UNDECIDED = -1
# More than the rounding errors of a few sums.
_MARGIN = 2.0**-40


def find_persistent_sides(problem: Problem, launch: float) -> Ints:
    """Return the side of each unit that is the same in every optimum, int64 (units,).
    1 = on the accelerator, 0 = on the host, -1 = not decided. A unit is decided if it gains more than
    the move can cost whatever the other units do: the transfers of its tensors, and one launch, as
    moving one unit adds at most one region. Each decision narrows the choices of other units, so this is
    repeated until nothing changes. Counts the execution, transfers and launches of one accelerator only,
    neither limits nor fusions.
    """
    gain = problem.costs[:, 0] - problem.costs[:, 1]
    side = np.full(problem.units, UNDECIDED, np.int64)
    transfers = _TransferBounds(problem)
    while True:
        joining, leaving = transfers.bounds(side)
        margin = _MARGIN * np.abs(np.where(np.isfinite(gain), gain, 0.0))
        free = side == UNDECIDED
        joins = free & (gain > joining + launch + margin)
        stays = free & (-gain > leaving + launch + margin)
        if not (joins | stays).any():
            return side
        side[joins], side[stays] = 1, 0


class _TransferBounds:
    """The largest transfer cost that moving a unit can cause."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.has_producer = problem.producer >= 0
        self.readers = np.diff(problem.consumer_start)

    def bounds(self, side: Ints) -> tuple[Floats, Floats]:
        """Return the largest cost of joining and of leaving the accelerator, float64 (units,) each."""
        problem, has_producer, readers = self.problem, self.has_producer, self.readers
        producer_side = np.where(has_producer, np.append(side, 0)[problem.producer], 0)
        at = side[problem.consumers]
        there, here = self._count(at == 1), self._count(at == 0)
        down, up = problem.to_device[:, 0], problem.to_host[:, 0]
        # A consumer has the tensor sent unless it is there already or another consumer needs it.
        joins = np.where((producer_side != 1) & (there == 0), down, 0.0)[problem.consumed]
        held = problem.is_output | (here > 0)
        leaves = np.where((producer_side != 0) & ~held, up, 0.0)[problem.consumed]
        # The producer has it sent if a consumer may be on the other side.
        joins_made = np.where(problem.is_output | (there < readers), up, 0.0)
        leaves_made = np.where(here < readers, down, 0.0)
        return self._sum(joins, joins_made), self._sum(leaves, leaves_made)

    def _count(self, which: Bools) -> Ints:
        return np.bincount(self.problem.consumed[which], minlength=self.problem.tensors)

    def _sum(self, read: Floats, made: Floats) -> Floats:
        problem = self.problem
        units = np.concatenate([problem.consumers, problem.producer[self.has_producer]])
        cost = np.concatenate([read, made[self.has_producer]])
        total: Floats = np.bincount(units, cost, minlength=problem.units).astype(np.float64)
        return total
