"""Compatibility of units: whether two of them can share a region of a device."""

from dataclasses import replace

import numpy as np

from byoc.placement.problem import Bools, Ints, Problem

# The sets take the square of the number of units in bits.
_MOST_PRUNED = 5_000


def find_compatible_units(problem: Problem, open_to: Bools) -> list[int]:
    """Return for each unit the set of units it can share a region with, itself included, as bits.
    `open_to`, bool (units,), marks the units that the device accepts. Two units are incompatible if a
    path between them passes a unit that the device does not accept: the region would wait for itself.
    """
    units = problem.units
    # Successors of each unit: all, and those after a unit that the device does not accept.
    beyond, behind = [0] * units, [0] * units
    accepted = open_to.tolist()
    edges = list(zip(*(side.tolist() for side in problem.edges), strict=True))
    for u, v in reversed(edges):
        beyond[u] |= beyond[v] | 1 << v
        behind[u] |= behind[v] if accepted[v] else beyond[v] | 1 << v
    every = sum(1 << unit for unit in range(units) if accepted[unit])
    apart = [0] * units
    for unit in range(units):
        apart[unit] |= behind[unit]
        other = behind[unit] & every
        while accepted[unit] and other:
            lowest = other & -other
            apart[lowest.bit_length() - 1] |= 1 << unit
            other ^= lowest
    return [every & ~apart[unit] | 1 << unit if accepted[unit] else 0 for unit in range(units)]


def remove_isolated_units(problem: Problem) -> Problem:
    """Return the problem without units on devices where all their possible regions are too small.
    No placement that keeps the limits is lost. Raises ValueError if a unit that must be on an
    accelerator has no device left.
    """
    if problem.units > _MOST_PRUNED:
        return problem
    seconds = problem.seconds.copy()
    for d in np.flatnonzero(problem.min_nodes > 1):
        open_to = problem.allowed[:, 1 + d].copy()
        while True:
            least = int(problem.min_nodes[d])
            sets = find_compatible_units(problem, open_to)
            isolated = [
                unit
                for unit in np.flatnonzero(open_to).tolist()
                if not _has_nodes(sets[unit], problem.size, least)
            ]
            if not isolated:
                break
            open_to[isolated] = False
        seconds[~open_to, 1 + d] = np.inf
    fusions = tuple(
        fusion
        for fusion in problem.fusions
        if np.isfinite(seconds[list(fusion.members), fusion.device]).all()
    )
    if len(fusions) < len(problem.fusions):
        return problem  # their numbers would change
    return replace(problem, seconds=seconds)


def _has_nodes(members: int, size: Ints, least: int) -> bool:
    nodes = 0
    while members and nodes < least:
        lowest = members & -members
        nodes += int(size[lowest.bit_length() - 1])
        members ^= lowest
    return nodes >= least
