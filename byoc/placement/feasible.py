"""Repair of heuristic labels: hard limits, and tensors that cannot be transferred."""

import numpy as np

from byoc.placement.limits import exceeds_capacity, repair_labels
from byoc.placement.problem import Bools, Floats, Ints, Problem
from byoc.placement.regions import find_components

# Each round sends units to the host; few are needed.
_MOST_ROUNDS = 8


def make_feasible(problem: Problem, labels: Ints) -> Ints:
    """Return labels, int64 (units,), that keep the hard limits and split no inseparable units.
    Units connected by a tensor that cannot be transferred go to the device that is fastest for all of
    them. Units that exceed an accelerator's memory go, in topological order so that neighbours stay
    together, to the fastest accelerator with room for them (first fit), or to the host. Then regions
    that break a limit are dissolved (`limits.repaired`).
    """
    group = _inseparable_groups(problem)
    costs = _group_costs(problem, group)
    labels = _unite_groups(group, costs, labels)
    if exceeds_capacity(problem, labels).any():
        labels = _fit_memory(problem, group, costs, labels)
    for _ in range(_MOST_ROUNDS):
        labels = repair_labels(problem, labels)
        split = _is_split(group, labels)
        if not split.any():
            break
        labels = np.where(split[group] & ~problem.must, 0, labels)
    return labels


def _inseparable_groups(problem: Problem) -> Ints:
    """Return a group number for each unit, int64 (units,), equal for inseparable units."""
    stuck = np.isinf(problem.to_device).all(axis=1) & np.isinf(problem.to_host).all(axis=1)
    stuck &= (problem.producer >= 0) & (problem.devices > 0)
    entry = stuck[problem.consumed]
    source, target = problem.producer[problem.consumed][entry], problem.consumers[entry]
    return find_components(problem.units, source, target, "weak")[1]


def _group_costs(problem: Problem, group: Ints) -> Floats:
    """Return the execution time of each group on each device, float64 (groups, 1 + devices)."""
    costs = np.zeros((int(group.max(initial=-1)) + 1, problem.devices + 1))
    np.add.at(costs, group, problem.costs)
    return costs


def _is_split(group: Ints, labels: Ints) -> Bools:
    """Mark groups that are on several devices, bool (groups,)."""
    count = int(group.max(initial=-1)) + 1
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(least, group, labels)
    np.maximum.at(most, group, labels)
    split: Bools = least < most
    return split


def _unite_groups(group: Ints, costs: Floats, labels: Ints) -> Ints:
    fastest: Ints = costs.argmin(axis=1).astype(np.int64)
    return np.where(_is_split(group, labels)[group], fastest[group], labels)


def _fit_memory(problem: Problem, group: Ints, costs: Floats, labels: Ints) -> Ints:
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
