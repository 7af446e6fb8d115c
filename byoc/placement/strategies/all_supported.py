"""The strategy of most runtimes: an accelerator runs everything it supports."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from byoc.placement.limits import repair_labels
from byoc.placement.problem import Problem
from byoc.placement.strategy import ALL_REQUIREMENTS, FUSIONS, LAUNCH, Placement


@dataclass(frozen=True)
class AllSupported:
    """Place each unit on the accelerator where it is fastest, or on the host if none accepts it.

    Regions that break a limit are dissolved.
    """

    name: ClassVar[str] = "all-supported"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - {LAUNCH, FUSIONS}

    def solve(self, problem: Problem) -> Placement:
        """Return the placement, without a bound."""
        # The host is the last resort: slower than every accelerator that accepts the unit.
        seconds = problem.costs.copy()
        seconds[:, 0] = np.finfo(np.float64).max
        labels = repair_labels(problem, seconds.argmin(axis=1).astype(np.int64))
        return Placement.from_labels(
            problem,
            labels,
            notes=("host time, transfers and launches played no part in the choice",),
        )
