"""Split points: one stretch of the model on the accelerator, the rest on the host.

This is how a network is split between a device and a server (Kang et al., "Neurosurgeon", ASPLOS 2017),
with a second split point where the host takes over again.
"""

from dataclasses import dataclass, replace

import numpy as np

from byoc.placement import Placement, Problem, repair_labels


@dataclass(frozen=True)
class SplitPoint:
    """Chooses the end of the stretch first, then its start, each the best for the other."""

    name: str = "split-point"
    honours: frozenset[str] = frozenset({"launch", "must"})

    def solve(self, problem: Problem) -> Placement:
        """Return the cheapest placement found; with several accelerators it uses the first."""
        units = problem.units
        best = min((place(problem, 0, end) for end in range(units + 1)), key=total)
        end = 1 + int(np.flatnonzero(best.labels).max(initial=-1))
        best = min((place(problem, start, end) for start in range(end + 1)), key=total)
        inside = np.flatnonzero(best.labels)
        stretch = int(np.ptp(inside)) + 1 if inside.size else 0
        return replace(best, measures={"stretch": stretch, "tried": units + end + 2})


def place(problem: Problem, start: int, end: int) -> Placement:
    """Return the placement with the units from `start` to `end` on the accelerator if it takes them."""
    position = np.arange(problem.units)
    inside = (start <= position) & (position < end) & problem.allowed[:, 1]
    labels = repair_labels(problem, inside.astype(np.int64))
    return Placement.from_labels(problem, labels, why_host="it is outside the stretch")


def total(placement: Placement) -> float:
    """Return the seconds of a placement."""
    return placement.cost.total
