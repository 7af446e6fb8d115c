"""The least execution and transfer for one accelerator, as a minimum cut."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from byoc.errors import InputError
from byoc.placement.flow import Network, minimum_cut
from byoc.placement.problem import Floats, Problem
from byoc.placement.strategy import CHEAPER_ON_HOST, Placement

# A share of the total that is not worth a word.
_NEGLIGIBLE = 0.02


@dataclass(frozen=True)
class MinCut:
    """Place so that execution plus transfer is least, exactly; launches are not counted.

    A unit that gains nothing stays on the host, and labels do not depend on the order of the units.
    """

    name: ClassVar[str] = "min-cut"

    def solve(self, problem: Problem) -> Placement:
        """Return the placement, bounded by the cut. Raises InputError for several accelerators."""
        if problem.devices > 1:
            raise InputError(
                f"strategy min-cut places on one accelerator and the target has {problem.devices}: "
                "name one of them, or choose a strategy that takes several (all-supported)"
            )
        cheapest = problem.seconds.min(axis=1)
        fixed = math.fsum(cheapest)
        gain = math.fsum(problem.seconds[:, 0] - cheapest)
        if gain == 0:
            labels = np.zeros(problem.units, np.int64)
            return Placement.of(problem, labels, fixed, why_host=CHEAPER_ON_HOST)
        # The known cut is the host alone.
        value, on_device = minimum_cut(_network(problem, cheapest), ceiling=gain)
        labels = on_device[: problem.units].astype(np.int64)
        placement = Placement.of(problem, labels, fixed + value, why_host=CHEAPER_ON_HOST)
        if placement.cost.launch <= _NEGLIGIBLE * placement.cost.total:
            return placement
        share = placement.cost.launch / placement.cost.total
        note = (
            f"launches make {share:.0%} of the predicted time, and min-cut chose without regard to them"
        )
        return replace(placement, notes=(note,))


def _network(problem: Problem, cheapest: Floats) -> Network:
    """Return the network whose cuts are the placements, but for the `cheapest` of each unit.

    The source side is the host, the sink side the accelerator: an arc is cut, and paid for, when
    its tail is on the host and its head on the accelerator. Nodes are the units, source and sink,
    and what lets a tensor with several consumers be paid for once (Lawler, Networks 3, 1973):
    `down`, on the accelerator as soon as one consumer is, and `up`, on the host as soon as one is.
    """
    units, tensors = problem.units, problem.tensors
    source, sink = units, units + 1
    unit = np.arange(units)
    endless = np.full(len(problem.consumers), np.inf)
    made = problem.producer >= 0
    producer = np.where(made, problem.producer, source)
    readers = np.diff(problem.consumer_start)
    shared = readers > 1
    # An arc straight to or from the only consumer does the same as an extra node, and is cheaper.
    only = np.full(tensors, source)
    only[readers == 1] = problem.consumers[problem.consumer_start[:-1][readers == 1]]
    extra = units + 2 + np.arange(tensors)
    down = np.where(shared, extra, only)
    up = np.where(shared, extra + tensors, only)
    # The host wants an output whatever its consumers do; what the host makes needs no way back.
    wanted = np.where(problem.is_output, source, up)
    returning = made & (problem.is_output | (readers > 0))
    fan = shared[problem.consumed]
    fan_up = (shared & returning & ~problem.is_output)[problem.consumed]
    arcs = [
        (np.full(units, source), unit, problem.seconds[:, 1] - cheapest),
        (unit, np.full(units, sink), problem.seconds[:, 0] - cheapest),
        (producer[readers > 0], down[readers > 0], problem.to_device[readers > 0, 0]),
        (down[problem.consumed][fan], problem.consumers[fan], endless[fan]),
        (wanted[returning], producer[returning], problem.to_host[returning, 0]),
        (problem.consumers[fan_up], up[problem.consumed][fan_up], endless[fan_up]),
    ]
    tail, head, capacity = (np.concatenate(parts) for parts in zip(*arcs, strict=True))
    return Network(units + 2 + 2 * tensors, source, sink, tail, head, capacity)
