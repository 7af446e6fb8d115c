"""Labels that a rule of thumb gave, made such that they can be."""

import numpy as np

from byoc.placement.limits import exceeds_capacity, repaired
from byoc.placement.problem import Bools, Floats, Ints, Problem
from byoc.placement.regions import connected_parts

# Each round sends units to the host, and few are needed.
_MOST_ROUNDS = 8


def feasible(problem: Problem, labels: Ints) -> Ints:
    """Return labels, int64 (units,), that keep the hard limits and split nothing that cannot be split.

    Units between which a tensor cannot be moved go to the device that is the fastest for all of them
    together. What an accelerator has no memory for goes, in topological order so that
    neighbours stay together, to the fastest accelerator that has room for it (first fit), else to the
    host. Then regions that break a limit are dissolved (`limits.repaired`).
    """
    group = _groups(problem)
    costs = _costs_of_groups(problem, group)
    labels = _together(group, costs, labels)
    if exceeds_capacity(problem, labels).any():
        labels = _spread(problem, group, costs, labels)
    for _ in range(_MOST_ROUNDS):
        labels = repaired(problem, labels)
        split = _split(group, labels)
        if not split.any():
            break
        labels = np.where(split[group] & ~problem.must, 0, labels)
    return labels


def _groups(problem: Problem) -> Ints:
    """Return a number for each unit, int64 (units,), the same for units that cannot be told apart."""
    stuck = np.isinf(problem.to_device).all(axis=1) & np.isinf(problem.to_host).all(axis=1)
    stuck &= (problem.producer >= 0) & (problem.devices > 0)
    entry = stuck[problem.consumed]
    source, target = problem.producer[problem.consumed][entry], problem.consumers[entry]
    return connected_parts(problem.units, source, target, "weak")[1]


def _costs_of_groups(problem: Problem, group: Ints) -> Floats:
    """Return the execution of each group on each device, float64 (groups, 1 + devices)."""
    costs = np.zeros((int(group.max(initial=-1)) + 1, problem.devices + 1))
    np.add.at(costs, group, problem.costs)
    return costs


def _split(group: Ints, labels: Ints) -> Bools:
    """Tell which groups are on several devices."""
    count = int(group.max(initial=-1)) + 1
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(least, group, labels)
    np.maximum.at(most, group, labels)
    split: Bools = least < most
    return split


def _together(group: Ints, costs: Floats, labels: Ints) -> Ints:
    fastest: Ints = costs.argmin(axis=1).astype(np.int64)
    return np.where(_split(group, labels)[group], fastest[group], labels)


def _spread(problem: Problem, group: Ints, costs: Floats, labels: Ints) -> Ints:
    memory = np.zeros((len(costs), problem.devices))
    np.add.at(memory, group, problem.memory)
    room = problem.capacity.copy()
    label_of = np.zeros(len(costs), np.int64)
    label_of[group] = labels
    _, first = np.unique(group, return_index=True)
    for number in np.argsort(first, kind="stable").tolist():
        if not label_of[number]:
            continue
        fits = np.isfinite(costs[number, 1:]) & (memory[number] <= room)
        if not fits[label_of[number] - 1]:
            label_of[number] = (
                1 + np.where(fits, costs[number, 1:], np.inf).argmin() if fits.any() else 0
            )
        if label_of[number]:
            room[label_of[number] - 1] -= memory[number, label_of[number] - 1]
    return label_of[group]
