"""Exhaustive search, a reference for small problems."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from byoc.errors import InputError
from byoc.placement.limits import find_broken_limit
from byoc.placement.partitions import find_best_regions
from byoc.placement.problem import UNLIMITED, Bools, Floats, Ints, Problem
from byoc.placement.regions import form_regions
from byoc.placement.strategy import CHEAPER_ON_HOST, ALL_REQUIREMENTS, Placement

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
        weights = (1 + problem.devices) ** np.arange(problem.units)
        labels = np.arange(count)[:, np.newaxis] // weights % (1 + problem.devices)
        seconds = np.where(_is_valid(problem, labels), _execution_and_transfer(problem, labels), np.inf)
        if not np.isfinite(seconds).any():
            raise InputError("strategy exhaustive: no placement keeps all the limits")
        # Of equal costs, the placement with the most units on the host.
        best = int(np.lexsort((np.count_nonzero(labels, axis=1), seconds))[0])
        if not _regions_matter(problem):
            return Placement.from_labels(problem, labels[best], float(seconds[best]), why_host=CHEAPER_ON_HOST)
        return _search_regions(problem, labels, seconds)


def _is_valid(problem: Problem, labels: Ints) -> Bools:
    """Mark the placements that accelerators accept and have memory for, bool (placements,)."""
    kept = [problem.allowed[np.arange(problem.units), labels].all(axis=1)]
    for d in np.flatnonzero(np.isfinite(problem.capacity)):
        taken = (labels == 1 + d) @ problem.memory[:, d]
        kept.append(taken <= problem.capacity[d] * (1 + 2.0**-40))
    every: Bools = np.all(kept, axis=0)
    return every


def _regions_matter(problem: Problem) -> bool:
    limits = (
        (problem.min_nodes > 1) | (problem.max_nodes < UNLIMITED) | (problem.max_regions < UNLIMITED)
    )
    return bool(problem.launch.any() or limits.any() or problem.fusions)


def _execution_and_transfer(problem: Problem, labels: Ints) -> Floats:
    """Return the costs of many placements: int64 (placements, units) to float64 (placements,)."""
    seconds: Floats = problem.seconds[np.arange(problem.units), labels].sum(axis=1)
    for tensor, producer in enumerate(problem.producer.tolist()):
        first, last = problem.consumer_start[tensor : tensor + 2]
        at = labels[:, problem.consumers[first:last]]
        home = labels[:, producer] if producer >= 0 else np.zeros(len(labels), np.int64)
        leaves = ((at != home[:, np.newaxis]).any(axis=1) | problem.is_output[tensor]) & (home > 0)
        seconds[leaves] += problem.to_host[tensor, home[leaves] - 1]
        for device in range(1, 1 + problem.devices):
            arrives = (at == device).any(axis=1) & (home != device)
            seconds[arrives] += problem.to_device[tensor, device - 1]
    return seconds


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
    if standard.cost.total <= total * (1 + 2.0**-40) and not find_broken_limit(problem, labels[best], formed):
        return standard
    return Placement.from_labels(problem, labels[best], total, why_host=CHEAPER_ON_HOST, regions=regions)
