"""All placements of small problems, for the least makespan."""

from collections.abc import Iterator, Sequence

import numpy as np

from byoc.numerics import SearchBudget
from byoc.placement._problem import Floats, Problem
from byoc.placement.solvers._list_scheduling import ListScheduler
from byoc.placement.solvers._makespan_search import SearchState, keeps_limits
from byoc.placement.solvers._placement_enumeration import enumerate_labels, sum_execution
from byoc.placement.solvers._region_search import SpentBudgetError

# What a placement takes besides its schedule: to form its regions and check the limits.
_CHECK_SECONDS = 1e-3


def find_least_makespan(
    problem: Problem, scheduler: ListScheduler, best: SearchState, budget: SearchBudget
) -> tuple[SearchState, bool]:
    """Return the state of least makespan, `best` if none is less, and whether that is proven.

    All labels and regions are tried, those first whose busiest device takes the least; what takes as
    long as the best so far on one device is left out. Of more than a few jobs it is the least by list
    scheduling, which proves nothing. Raises SpentBudgetError before all are tried.
    """
    proven = True
    labels = enumerate_labels(problem)
    loads = sum_execution(problem, labels)
    loads[:, 0] /= problem.cores
    peaks = loads.max(axis=1, initial=0.0)
    # Of equal makespans, a placement with more units on the host.
    for place in np.lexsort((np.count_nonzero(labels, axis=1), peaks)).tolist():
        if peaks[place] >= best.seconds:
            break
        row = labels[place].tolist()
        for regions in _iterate_regions(problem, row, loads[place]):
            busiest = _add_launches(problem, row, regions, loads[place]).max(initial=0.0)
            if busiest >= best.seconds:
                continue
            budget.spend(scheduler.step_seconds + _CHECK_SECONDS)
            if budget.is_spent:
                raise SpentBudgetError
            schedule, exact = scheduler.schedule_few(row, regions)
            proven &= exact
            if schedule is None or schedule.makespan >= best.seconds:
                continue
            if keeps_limits(problem, row, regions):
                best = SearchState(row, regions, schedule.makespan, schedule)
    return best, proven


def _iterate_regions(problem: Problem, labels: Sequence[int], loads: Floats) -> Iterator[list[int]]:
    """Yield all ways to put units of one device into regions; those on the host have the region -1."""
    pending: list[list[int]] = [[]]
    while pending:
        regions = pending.pop()
        if len(regions) == len(labels):
            yield regions
            continue
        device = labels[len(regions)]
        if not device:
            pending.append([*regions, -1])
            continue
        used = dict(zip(regions, labels, strict=False))
        own = [region for region, its in used.items() if its == device and region >= 0]
        new = len({region for region in regions if region >= 0})
        if len(own) < problem.max_regions[device - 1]:
            pending.append([*regions, new])
        pending.extend([*regions, region] for region in reversed(own))


def _add_launches(
    problem: Problem, labels: Sequence[int], regions: Sequence[int], loads: Floats
) -> Floats:
    """Return the least seconds of each device, float64 (1 + devices,), launches included."""
    result = loads.copy()
    for device in dict(zip(regions, labels, strict=True)).values():
        if device:
            result[device] += problem.launch[device - 1]
    return result
