"""A problem in which some units are where they have to be, and the strategy places the rest."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from byoc.placement import Problem


def pinned(problem: Problem, labels: Mapping[int, int]) -> tuple[Problem, list[int]]:
    """Return a problem in which some units, by number, can only be on the device that is given.

    Fusions whose members can no longer be together are left out; the numbers of those that are left come
    with it.
    """
    everything = list(range(len(problem.fusions)))
    if not labels:
        return problem, everything
    seconds, must = problem.seconds.copy(), problem.must.copy()
    for row, label in labels.items():
        others = np.arange(1, 1 + problem.devices) != label
        seconds[row, 1:][others] = np.inf
        must[row] = label > 0
    left = [
        number
        for number in everything
        if np.isfinite(
            seconds[list(problem.fusions[number].members), problem.fusions[number].device]
        ).all()
    ]
    fusions = tuple(problem.fusions[number] for number in left)
    return replace(problem, seconds=seconds, must=must, fusions=fusions), left
