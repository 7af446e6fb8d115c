"""Placements that cut a topological order into a segment for each device, at the least sum of costs."""

from collections.abc import Iterator, Sequence
from itertools import chain, product

import numpy as np

from byoc.numerics import SearchBudget
from byoc.placement._problem import Floats, Ints, Occupancy, Problem
from byoc.placement.solvers._chain_split import measure_segments
from byoc.placement.solvers._unit_groups import HOST, UnitGroups

# Longer orders are cut into so many blocks of consecutive groups, each on one device.
_MAX_BLOCKS = 600
# Seconds for one entry of a table of segments.
_ENTRY_SECONDS = 4e-8
# How the best cost of a prefix is reached: without the device, or from a shorter prefix and the host.
_SKIPPED, _ON_HOST = -1, -2


def iterate_chain_splits(
    problem: Problem, budget: SearchBudget, orders: Sequence[Ints] = ()
) -> Iterator[Ints]:
    """Yield the labels of the best split of several topological orders, int64 (units,) each.

    `orders` are some more orders of the units, int64 (units,) each.

    An accelerator takes at most one segment of an order, which fits its memory; what is between the
    segments runs on the host. Other limits play no part. Stops when the budget is spent.
    """
    groups = UnitGroups.from_problem(problem)
    sequences = [range(problem.devices), range(problem.devices)[::-1]][: problem.devices]
    seen: set[tuple[int, ...]] = set()
    own = (list(dict.fromkeys(groups.of_unit[order].tolist())) for order in orders)
    for order in chain(own, _list_orders(groups)):
        if budget.is_spent or tuple(order) in seen:
            continue
        seen.add(tuple(order))
        line = _cut_into_blocks(groups, order)
        budget.spend((line.count + 1) ** 2 * problem.devices * _ENTRY_SECONDS)
        blocks = range(line.count)
        tables = [
            measure_segments(line, blocks, 1 + d, Occupancy.device) + problem.launch[d]
            for d in range(problem.devices)
        ]
        for sequence in sequences:
            labels = _split(line.costs[:, 0].tolist(), tables, sequence)
            if labels is not None:
                yield line.spread(labels)


def _split(host: list[float], tables: Sequence[Floats], sequence: Sequence[int]) -> list[int] | None:
    """Return the labels of the split with the least sum of costs; None if there is none.

    `host` holds the cost of each block there, `tables` that of each segment `[i, j)` on each
    accelerator, float64 (blocks + 1, blocks + 1). The segments of the accelerators come in the order of
    `sequence`.
    """
    count = len(host)
    value = np.append(0.0, np.cumsum(host))
    ways: list[Ints] = []
    for device in sequence:
        through = value[:, np.newaxis] + tables[device]
        first = through.argmin(axis=0)
        reached = through[first, np.arange(count + 1)]
        way = np.where(reached < value, first, _SKIPPED)
        value = np.minimum(value, reached)
        for end, seconds in enumerate(host, 1):
            if value[end - 1] + seconds < value[end]:
                value[end], way[end] = value[end - 1] + seconds, _ON_HOST
        ways.append(way)
    if not np.isfinite(value[count]):
        return None
    labels, end = [0] * count, count
    for device, way in zip(reversed(sequence), reversed(ways), strict=True):
        while way[end] == _ON_HOST:
            end -= 1
        if way[end] != _SKIPPED:
            first = int(way[end])
            labels[first:end] = [1 + device] * (end - first)
            end = first
    return labels


def _cut_into_blocks(groups: UnitGroups, order: Sequence[int]) -> UnitGroups:
    """Return the groups in the given order, several of them as one where there are many."""
    width = max(1, -(-groups.count // _MAX_BLOCKS))
    block = [0] * groups.count
    for position, group in enumerate(order):
        block[group] = position // width
    return groups.contract(block)


def _list_orders(groups: UnitGroups) -> Iterator[list[int]]:
    """Yield orders of the groups: by number, depth first, and breadth first, in both directions."""
    yield list(range(groups.count))
    after: list[set[int]] = [set() for _ in range(groups.count)]
    for tensor in groups.tensors:
        if tensor.home != HOST:
            after[tensor.home].update(tensor.readers)
    for take, falling in product((-1, 0), (False, True)):
        waits = [0] * groups.count
        for readers in after:
            for reader in readers:
                waits[reader] += 1
        ready = [group for group in range(groups.count) if not waits[group]]
        order: list[int] = []
        while ready:
            order.append(ready.pop(take))
            for reader in sorted(after[order[-1]], reverse=falling):
                waits[reader] -= 1
                if not waits[reader]:
                    ready.append(reader)
        if len(order) == groups.count:  # groups may wait for one another in a circle
            yield order
