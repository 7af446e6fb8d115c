"""Exhaustive search over labels and regions, a reference for small problems."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from byoc.errors import InputError
from byoc.placement._form_regions import form_regions
from byoc.placement._hard_limits import find_broken_limit
from byoc.placement._problem import Floats, Ints, Problem
from byoc.placement._strategy import ALL_REQUIREMENTS, CHEAPER_ON_HOST, Placement
from byoc.placement.solvers import (
    do_regions_matter,
    enumerate_labels,
    find_best_regions,
    sum_execution,
    sum_transfers,
)

_MOST = 2**16


@dataclass(frozen=True)
class Exhaustive:
    """Try every placement of up to 16 units on one accelerator, or of fewer on several.

    The regions are the best that the limits allow, whether `form_regions` would form them or not.
    """

    name: ClassVar[str] = "exhaustive"
    honours: ClassVar[frozenset[str]] = ALL_REQUIREMENTS

    def solve(self, problem: Problem) -> Placement:
        """Return the best placement. Raises InputError if there are too many, or none is valid."""
        count = (1 + problem.devices) ** problem.units
        if count > _MOST:
            raise InputError(
                f"strategy exhaustive tries at most {_MOST} placements (16 units with one "
                f"accelerator); {problem.units} units and {problem.devices} accelerators have "
                f"{1 + problem.devices}^{problem.units}: choose another strategy"
            )
        labels = enumerate_labels(problem)
        seconds = sum_execution(problem, labels).sum(axis=1) + sum_transfers(problem, labels).sum(axis=1)
        if not np.isfinite(seconds).any():
            raise InputError("strategy exhaustive: no placement keeps all the limits")
        # Of equal costs, the placement with the most units on the host.
        best = int(np.lexsort((np.count_nonzero(labels, axis=1), seconds))[0])
        if not do_regions_matter(problem):
            return Placement.from_labels(
                problem, labels[best], float(seconds[best]), why_host=CHEAPER_ON_HOST
            )
        return _search_regions(problem, labels, seconds)


def _search_regions(problem: Problem, labels: Ints, seconds: Floats) -> Placement:
    """Return the best placement including launches, savings and limits on regions."""
    used = np.stack([(labels == 1 + d).any(axis=1) for d in range(problem.devices)], axis=1)
    at_least = seconds + used @ problem.launch
    for fusion in problem.fusions:
        at_least -= fusion.saving * (labels[:, fusion.members] == fusion.device).all(axis=1)
    best, total, regions = -1, np.inf, labels[0]
    for number in np.lexsort((np.count_nonzero(labels, axis=1), at_least)).tolist():
        if at_least[number] >= total:
            break
        found = find_best_regions(problem, labels[number])
        if found is not None and seconds[number] + found[0] < total:
            best, total, regions = number, float(seconds[number]) + found[0], found[1]
    if best < 0:
        raise InputError("strategy exhaustive: no placement keeps all the limits")
    formed = form_regions(problem, labels[best])
    # Prefer the regions that `form_regions` gives if they are as good.
    standard = Placement.from_labels(problem, labels[best], total, why_host=CHEAPER_ON_HOST)
    if standard.cost.total <= total * (1 + 2.0**-40) and not find_broken_limit(
        problem, labels[best], formed
    ):
        return standard
    return Placement.from_labels(problem, labels[best], total, why_host=CHEAPER_ON_HOST, regions=regions)
