"""What most runtimes do: an accelerator gets whatever it can run."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from byoc.placement.limits import repaired
from byoc.placement.problem import Problem
from byoc.placement.strategy import EVERYTHING, FUSIONS, LAUNCH, Placement


@dataclass(frozen=True)
class AllSupported:
    """Place each unit on the accelerator where it is fastest, on the host if none takes it.

    Regions that break a limit are taken away again.
    """

    name: ClassVar[str] = "all-supported"
    honours: ClassVar[frozenset[str]] = EVERYTHING - {LAUNCH, FUSIONS}

    def solve(self, problem: Problem) -> Placement:
        """Return the placement; it proves no bound."""
        # The host stands last resort: below every accelerator that takes the unit, above a refusal.
        seconds = problem.costs.copy()
        seconds[:, 0] = np.finfo(np.float64).max
        labels = repaired(problem, seconds.argmin(axis=1).astype(np.int64))
        return Placement.of(
            problem,
            labels,
            notes=("host time, transfers and launches played no part in the choice",),
        )
