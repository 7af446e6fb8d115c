"""Incumbents: first feasible placements by simple heuristics."""

from collections.abc import Iterable

import numpy as np

from byoc.placement.limits import find_broken_limit, repair_labels
from byoc.placement.problem import Ints, Problem
from byoc.placement.strategy import CHEAPER_ON_HOST, Placement


def build_incumbent(problem: Problem, labels: Ints, bound: float | None = None) -> Placement | None:
    """Return a placement of labels, repaired if they break a limit; None if that fails."""
    placement = Placement.from_labels(problem, labels, bound, why_host=CHEAPER_ON_HOST)
    if not find_broken_limit(problem, labels, placement.regions):
        return placement
    placement = Placement.from_labels(problem, repair_labels(problem, labels), bound, why_host=CHEAPER_ON_HOST)
    return None if find_broken_limit(problem, placement.labels, placement.regions) else placement


def select_best(placements: Iterable[Placement | None]) -> Placement | None:
    """Return the placement of least cost, the first of equals; None if there is none."""
    best: Placement | None = None
    for placement in placements:
        if placement is not None and (best is None or placement.cost.total < best.cost.total):
            best = placement
    return best


def find_incumbent(problem: Problem) -> Placement | None:
    """Return the best of host only, each accelerator where possible, and the fastest device per unit."""
    host = np.zeros(problem.units, np.int64)
    labels = [host]
    for d in range(1, 1 + problem.devices):
        labels.append(np.where(problem.allowed[:, d], d, host))
        labels.append(np.where(problem.costs[:, d] < problem.costs[:, 0], d, host))
    labels.append(problem.costs.argmin(axis=1).astype(np.int64))
    return select_best(build_incumbent(problem, each) for each in labels)
