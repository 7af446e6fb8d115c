"""The baseline: no unit is on an accelerator."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from byoc.placement.problem import Problem
from byoc.placement.strategy import ALL_REQUIREMENTS, MUST, Placement


@dataclass(frozen=True)
class HostOnly:
    """Run everything on the host."""

    name: ClassVar[str] = "host-only"
    # Without regions no limit on regions can be broken.
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS - {MUST}

    def solve(self, problem: Problem) -> Placement:
        """Return the placement without regions."""
        return Placement.from_labels(problem, np.zeros(problem.units, np.int64))
