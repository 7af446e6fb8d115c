"""Splits of a sequence of groups into one segment for each device, by dynamic programming."""

from collections.abc import Iterator, Sequence
from itertools import chain, product
from math import inf

import numpy as np

from byoc._dataclasses import dataclass
from byoc.numerics import SearchBudget
from byoc.placement._problem import Floats, Ints, Occupancy, Problem
from byoc.placement._unit_groups import HOST, GroupTensor, UnitGroups

# Seconds for one entry of a table of segments.
_ENTRY_SECONDS = 4e-9
# With more combinations of devices left, the devices take their segments in a fixed order.
_MAX_STATES = 300
# Entries of all tables of segments, 8 bytes each, and the tables that one of them is made of.
_MAX_ENTRIES, _WORK_TABLES = 1 << 27, 8


def find_device_classes(groups: UnitGroups, occupies: Sequence[Occupancy]) -> list[list[int]]:
    """Return the accelerators, from 1, in classes of equal costs, memory and capacity."""
    classes: dict[tuple[object, ...], list[int]] = {}
    for d in range(groups.devices):
        costs = tuple((each.to_device[d], each.to_host[d]) for each in groups.tensors)
        own = groups.costs[:, 1 + d].tobytes(), groups.memory[:, d].tobytes(), float(groups.capacity[d])
        classes.setdefault((*own, costs, occupies[d]), []).append(1 + d)
    return list(classes.values())


def split_chain(
    groups: UnitGroups,
    order: Sequence[int],
    occupies: Sequence[Occupancy],
    cores: int,
    budget: SearchBudget,
) -> list[int] | None:
    """Return the labels of the split of `order` with the least maximal load; None if there is none.

    None, too, for more groups than there is memory or time for: the tables grow with their square.

    Each device takes one segment of the order, which may be empty, or none. Where the order is
    topological each segment is one region, and no two wait for one another. The least maximal load
    over all such splits is found exactly if accelerators fall into few classes of equal ones (the
    programme of Tarnawski et al., NeurIPS 2020, section 5, for a graph made a chain).
    """
    classes = find_device_classes(groups, occupies)
    entries = (len(order) + 1) ** 2
    if entries * (len(classes) + _WORK_TABLES) > _MAX_ENTRIES:
        return None
    seconds = entries * _ENTRY_SECONDS * (20 * len(classes) + 4 * groups.devices)
    if seconds > budget.left:
        return None
    budget.spend(seconds)
    many = int(np.prod([len(each) + 1 for each in classes])) * 2 > _MAX_STATES
    tables = [measure_segments(groups, order, each[0], occupies[each[0] - 1]) for each in classes]
    on_host = _sum_segments(groups.costs[list(order), 0]) / cores
    on_host[np.tril_indices(len(on_host), -1)] = inf
    steps = _ChainSteps((*tables, on_host))
    if many:
        kinds = [number for number, each in enumerate(classes) for _ in each]
        found = steps.run_in_order([len(classes), *kinds])
    else:
        found = steps.run_freely([*map(len, classes), 1])
    if found is None:
        return None
    left = [list(each) for each in classes] + [[0]]
    labels = [0] * len(order)
    for kind, low, high in found:
        device = left[kind].pop(0)
        for position in range(low, high):
            labels[order[position]] = device
    return labels


Segment = tuple[int, int, int]
"""The class of a device, and the first and last position, the last excluded."""


@dataclass(frozen=True, eq=False)
class _ChainSteps:
    """Least maximal loads of prefixes, device by device; a table of segments for each class."""

    tables: tuple[Floats, ...]

    def run_freely(self, counts: Sequence[int]) -> list[Segment] | None:
        """Return the best segments with up to `counts` devices of each class, in any order."""
        end = len(self.tables[0]) - 1
        start = np.full(end + 1, inf)
        start[0] = 0.0
        best: dict[tuple[int, ...], Floats] = {(0,) * len(counts): start}
        back: dict[tuple[int, ...], tuple[Floats, Floats]] = {}
        for used in product(*(range(count + 1) for count in counts)):
            if used in best:
                continue
            value, kind, low = np.full(end + 1, inf), np.zeros(end + 1), np.zeros(end + 1)
            for number, count in enumerate(used):
                if not count:
                    continue
                before = best[_use_one(used, number)]
                peak = np.maximum(before[:, np.newaxis], self.tables[number])
                first = peak.argmin(axis=0)
                found = peak[first, np.arange(end + 1)]
                better = found < value
                value = np.where(better, found, value)
                kind, low = np.where(better, number, kind), np.where(better, first, low)
            best[used], back[used] = value, (kind, low)
        used, at = tuple(counts), end
        if not np.isfinite(best[used][end]):
            return None
        segments: list[Segment] = []
        while any(used):
            number, first = int(back[used][0][at]), int(back[used][1][at])
            segments.append((number, first, at))
            used = _use_one(used, number)
            at = first
        return segments[::-1]

    def run_in_order(self, kinds: Sequence[int]) -> list[Segment] | None:
        """Return the best segments of devices that stand in the order of `kinds`."""
        end = len(self.tables[0]) - 1
        value = np.full(end + 1, inf)
        value[0] = 0.0
        firsts = []
        for kind in kinds:
            peak = np.maximum(value[:, np.newaxis], self.tables[kind])
            firsts.append(peak.argmin(axis=0))
            value = peak.min(axis=0)
        if not np.isfinite(value[end]):
            return None
        segments: list[Segment] = []
        at = end
        for kind, first in zip(reversed(kinds), reversed(firsts), strict=True):
            segments.append((kind, int(first[at]), at))
            at = int(first[at])
        return segments[::-1]


def _use_one(left: tuple[int, ...], number: int) -> tuple[int, ...]:
    """Return the counts with one less at `number`."""
    return (*left[:number], left[number] - 1, *left[number + 1 :])


def measure_segments(
    groups: UnitGroups, order: Sequence[int], device: int, occupies: Occupancy
) -> Floats:
    """Return the load of each segment on a device, float64 (positions + 1, positions + 1).

    Entry `[i, j]` is that of positions `i` up to `j`; inf where the device cannot take it.
    """
    count, chain = len(order), list(order)
    position = [0] * count
    for place, group in enumerate(order):
        position[group] = place
    transfers = np.zeros((count + 1, count + 1))
    barred = np.zeros((count + 1, count + 1))
    for tensor in groups.tensors:
        for rows, columns, sign, cost in _find_rectangles(tensor, position, device, count):
            table, amount = (transfers, sign * cost) if cost < inf else (barred, float(sign))
            (top, bottom), left = rows, columns
            table[top, left] += amount
            table[bottom, left] -= amount
    transfers = transfers.cumsum(axis=0).cumsum(axis=1)
    barred = barred.cumsum(axis=0).cumsum(axis=1)
    execution = _sum_segments(groups.costs[chain, device])
    bytes_taken = _sum_segments(groups.memory[chain, device - 1])
    loads = execution
    if occupies is Occupancy.device:
        loads = execution + np.maximum(transfers, 0.0)
    elif occupies is Occupancy.link:
        loads = np.maximum(execution, transfers)
    possible = barred < 0.5
    possible &= bytes_taken <= groups.capacity[device - 1] * (1 + 2.0**-40)
    loads = np.where(possible, loads, inf)
    np.fill_diagonal(loads, 0.0)
    loads[np.tril_indices(count + 1, -1)] = inf
    return loads


def _sum_segments(values: Floats) -> Floats:
    """Return the sum of each segment `[i, j)`, float64 (values + 1, values + 1), inf if one is inf."""
    refused = np.isinf(values)
    total = np.append(0.0, np.cumsum(np.where(refused, 0.0, values)))
    barred = np.append(0, np.cumsum(refused))
    sums: Floats = total[np.newaxis] - total[:, np.newaxis]
    return np.where(barred[np.newaxis] > barred[:, np.newaxis], inf, sums)


Rectangle = tuple[tuple[int, int], int, int, float]
"""First row and row after the last, first column (to the last one), sign, seconds."""


def _find_rectangles(
    tensor: GroupTensor, position: Sequence[int], device: int, count: int
) -> list[Rectangle]:
    """Return the segments `[first, last + 1)` that have a tensor transferred, as signed rectangles."""
    down, up = tensor.to_device[device - 1], tensor.to_host[device - 1]
    readers = sorted(position[reader] for reader in tensor.readers)
    home = count if tensor.home == HOST else position[tensor.home]
    found: list[Rectangle] = []
    before = 0
    for reader in readers:
        # The first reader in the segment is this one; not if the segment has the producer, too.
        found.append(((before, reader + 1), reader + 1, 1, down))
        if tensor.home != HOST and before <= min(reader, home):
            found.append(((before, min(reader, home) + 1), max(reader, home) + 1, -1, down))
        before = reader + 1
    if tensor.home == HOST:
        return found
    if readers or tensor.is_output:
        found.append(((0, home + 1), home + 1, 1, up))
    if readers and not tensor.is_output:
        found.append(((0, min(home, readers[0]) + 1), max(home, readers[-1]) + 1, -1, up))
    return found


# Placements that cut a topological order into a segment for each device, at the least sum of costs.

# Longer orders are cut into so many blocks of consecutive groups, each on one device.
_MAX_BLOCKS = 600
# Seconds for one entry of a table of segments.
_START_ENTRY_SECONDS = 4e-8
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
        budget.spend((line.count + 1) ** 2 * problem.devices * _START_ENTRY_SECONDS)
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
