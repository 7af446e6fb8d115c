"""All placements of small problems: their labels, costs, and the least maximal load of a device."""

from math import inf, prod

import numpy as np

from byoc.numerics import SearchBudget
from byoc.placement._form_regions import form_regions
from byoc.placement._problem import UNLIMITED, Floats, Ints, Occupancy, Problem
from byoc.placement.solvers._region_search import iterate_region_loads

# Seconds on one core of about 3 GHz for a tensor or unit of one placement, on one device.
_ITEM_SECONDS = 2e-8


def count_labels(problem: Problem) -> int:
    """Return the number of ways to give each unit a device that takes it."""
    return prod(problem.allowed.sum(axis=1).tolist())


def enumerate_labels(problem: Problem) -> Ints:
    """Return all labels that keep to what devices take and hold, int64 (placements, units)."""
    allowed = [np.flatnonzero(row) for row in problem.allowed]
    labels = np.zeros((count_labels(problem), problem.units), np.int64)
    weight = 1
    for unit, devices in enumerate(allowed):
        labels[:, unit] = devices[np.arange(len(labels)) // weight % len(devices)]
        weight *= len(devices)
    fits = np.ones(len(labels), np.bool_)
    for d in np.flatnonzero(np.isfinite(problem.capacity)):
        taken = (labels == 1 + d) @ problem.memory[:, d]
        fits &= taken <= problem.capacity[d] * (1 + 2.0**-40)
    found: Ints = labels[fits]
    return found


def do_regions_matter(problem: Problem) -> bool:
    """Return whether the choice of regions changes costs, or may break a limit."""
    limits = (
        (problem.min_nodes > 1) | (problem.max_nodes < UNLIMITED) | (problem.max_regions < UNLIMITED)
    )
    return bool(problem.launch.any() or limits.any() or problem.fusions)


def sum_execution(problem: Problem, labels: Ints) -> Floats:
    """Return seconds of execution by device, float64 (placements, 1 + devices), of many placements."""
    found = np.zeros((len(labels), 1 + problem.devices))
    for unit, costs in enumerate(problem.seconds):
        at = labels[:, unit]
        found[np.arange(len(labels)), at] += costs[at]
    return found


def sum_transfers(problem: Problem, labels: Ints) -> Floats:
    """Return seconds of transfers by accelerator, float64 (placements, devices), of many placements."""
    seconds = np.zeros((len(labels), problem.devices))
    for tensor, producer in enumerate(problem.producer.tolist()):
        first, last = problem.consumer_start[tensor : tensor + 2]
        at = labels[:, problem.consumers[first:last]]
        home = labels[:, producer] if producer >= 0 else np.zeros(len(labels), np.int64)
        leaves = ((at != home[:, np.newaxis]).any(axis=1) | problem.is_output[tensor]) & (home > 0)
        seconds[leaves, home[leaves] - 1] += problem.to_host[tensor, home[leaves] - 1]
        for device in range(1, 1 + problem.devices):
            arrives = (at == device).any(axis=1) & (home != device)
            seconds[arrives, device - 1] += problem.to_device[tensor, device - 1]
    return seconds


def find_least_load(problem: Problem, most: float, budget: SearchBudget) -> tuple[Ints, Ints] | None:
    """Return labels and regions of the least maximal load of all placements, int64 (units,) each.

    None if none has a load below `most` seconds. Regions are tried in the order of the loads that their
    labels have at least: with one launch of each device in use, and all savings. Raises
    SpentBudgetError before the answer is known.
    """
    items = (problem.units + problem.tensors) * (1 + problem.devices)
    budget.spend(count_labels(problem) * items * _ITEM_SECONDS)
    labels = enumerate_labels(problem)
    loads, transfers = sum_execution(problem, labels), sum_transfers(problem, labels)
    seconds = loads.sum(axis=1) + transfers.sum(axis=1)
    loads[:, 0] /= problem.cores
    for number, occupies in enumerate(problem.occupies):
        if occupies is Occupancy.device:
            loads[:, 1 + number] += transfers[:, number]
        elif occupies is Occupancy.host:
            loads[:, 0] += transfers[:, number]
    links = [number for number, kind in enumerate(problem.occupies) if kind is Occupancy.link]
    busiest_link = transfers[:, links].max(axis=1, initial=0.0)

    at_least = loads.copy()
    for number, launch in enumerate(problem.launch):
        at_least[:, 1 + number] += launch * (labels == 1 + number).any(axis=1)
    for fusion in problem.fusions:
        chosen = (labels[:, fusion.members] == fusion.device).all(axis=1)
        at_least[:, fusion.device] -= fusion.saving * chosen
    peaks = np.maximum(at_least.max(axis=1), busiest_link)
    peaks[~np.isfinite(seconds)] = inf
    # Of equal loads, the placement of the least cost, and with the most units on the host.
    order = np.lexsort((np.count_nonzero(labels, axis=1), seconds, peaks))
    best: tuple[Ints, Ints] | None = None
    for place in order.tolist():
        if peaks[place] >= most:
            break
        if not do_regions_matter(problem):
            return labels[place], form_regions(problem, labels[place])
        for launches, regions in iterate_region_loads(problem, labels[place], budget):
            on_devices = float((loads[place, 1:] + launches).max(initial=0.0))
            peak = max(float(loads[place, 0]), on_devices, float(busiest_link[place]))
            if peak < most:
                best, most = (labels[place], regions), peak
    return best
