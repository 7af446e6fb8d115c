"""The least execution and transfer for one accelerator by a minimum cut."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from byoc.errors import InputError
from byoc.placement.cuts import HostDeviceCuts
from byoc.placement.decided import find_persistent_sides
from byoc.placement.limits import repair_labels
from byoc.placement.problem import Problem
from byoc.placement.strategy import (
    CHEAPER_ON_HOST,
    ALL_REQUIREMENTS,
    FUSIONS,
    LAUNCH,
    SEVERAL_DEVICES,
    Placement,
)

# A share of launches in the total that needs no note.
_NEGLIGIBLE = 0.02


@dataclass(frozen=True)
class MinCut:
    """Minimise execution plus transfer exactly, without launches.

    A unit that gains nothing stays on the host, and labels do not depend on the order of the units.
    Regions that break a limit are dissolved; the bound ignores the limits.
    """

    name: ClassVar[str] = "min-cut"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - {LAUNCH, FUSIONS, SEVERAL_DEVICES}

    def solve(self, problem: Problem) -> Placement:
        """Return the placement, bounded by the cut. Raises InputError for several accelerators."""
        if problem.devices > 1:
            raise InputError(
                f"strategy min-cut places on one accelerator and the target has {problem.devices}: "
                "name one of them, or choose a strategy that takes several (all-supported)"
            )
        if not problem.devices:
            labels, value = np.zeros(problem.units, np.int64), math.fsum(problem.seconds[:, 0])
            return Placement.from_labels(problem, labels, value, why_host=CHEAPER_ON_HOST)
        value, on_device = HostDeviceCuts(problem, 1, find_persistent_sides(problem, launch=0.0)).solve()
        labels = repair_labels(problem, on_device.astype(np.int64))
        value -= math.fsum(fusion.saving for fusion in problem.fusions)
        placement = Placement.from_labels(problem, labels, value, why_host=CHEAPER_ON_HOST)
        if placement.cost.launch <= _NEGLIGIBLE * placement.cost.total:
            return placement
        share = placement.cost.launch / placement.cost.total
        note = (
            f"launches make {share:.0%} of the predicted time, and min-cut chose without regard to them"
        )
        return replace(placement, notes=(note,))
