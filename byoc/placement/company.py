"""Which units can be in one region with which: what least sizes of regions leave to choose."""

from dataclasses import replace

import numpy as np

from byoc.placement.problem import Bools, Problem

# Sets of units take the square of their number in bits.
_MOST_UNITS = 5_000


def company(problem: Problem, open_to: Bools) -> list[int]:
    """Return for each unit those that it can share a region with, itself too, as bits of a number.

    `open_to`, bool (units,), are the units that the device takes. Two share no region if a path
    between them passes one that it does not take: the region would wait for itself.
    """
    units = problem.units
    beyond, behind = [0] * units, [0] * units  # after each unit, at all and behind a unit not taken
    taken = open_to.tolist()
    edges = list(zip(*(side.tolist() for side in problem.edges), strict=True))
    for u, v in reversed(edges):
        beyond[u] |= beyond[v] | 1 << v
        behind[u] |= behind[v] if taken[v] else beyond[v] | 1 << v
    every = sum(1 << unit for unit in range(units) if taken[unit])
    apart = [0] * units
    for unit in range(units):
        apart[unit] |= behind[unit]
        other = behind[unit] & every
        while taken[unit] and other:
            lowest = other & -other
            apart[lowest.bit_length() - 1] |= 1 << unit
            other ^= lowest
    return [every & ~apart[unit] | 1 << unit if taken[unit] else 0 for unit in range(units)]


def without_lonely(problem: Problem) -> Problem:
    """Return the problem without units on devices where no region they can be in is large enough.

    No placement that keeps the limits is lost. Raises ValueError where a unit that must be on an
    accelerator can be on none.
    """
    if problem.units > _MOST_UNITS:
        return problem
    seconds = problem.seconds.copy()
    for d in np.flatnonzero(problem.min_nodes > 1):
        open_to = problem.allowed[:, 1 + d].copy()
        while True:
            least = int(problem.min_nodes[d])
            sets = company(problem, open_to)
            lonely = [
                unit
                for unit in np.flatnonzero(open_to).tolist()
                if not _reaches(sets[unit], problem.size, least)
            ]
            if not lonely:
                break
            open_to[lonely] = False
        seconds[~open_to, 1 + d] = np.inf
    fusions = tuple(
        fusion
        for fusion in problem.fusions
        if np.isfinite(seconds[list(fusion.members), fusion.device]).all()
    )
    if len(fusions) < len(problem.fusions):
        return problem  # their numbers would change
    return replace(problem, seconds=seconds)


def _reaches(members: int, size: np.ndarray[tuple[int], np.dtype[np.int64]], least: int) -> bool:
    nodes = 0
    while members and nodes < least:
        lowest = members & -members
        nodes += int(size[lowest.bit_length() - 1])
        members ^= lowest
    return nodes >= least
