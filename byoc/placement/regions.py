"""From labels to regions: what is compiled and launched as one."""

from typing import Literal

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from byoc.placement.problem import UNLIMITED, Bools, Ints, Problem
from byoc.placement.turns import patient_slots


def form_regions(problem: Problem, labels: Ints) -> Ints:
    """Return the region of every unit, int64 (units,): -1 on the host, else 0.. in launching order.

    Time is cut into slots: each slot belongs to one accelerator, in turn, and the host runs between
    slots. Every unit goes into the earliest slot of its device that its inputs allow,

        slot[v] = the least slot of v's device, from slot[u] + (u on host) on, over all edges u -> v
        slot[v] = max of slot[u]                                                   for v on the host

    The accelerator units of one slot are a *phase*. With one accelerator this is the closed form
    `max(slot[u] + (u on host and v placed))`, and no set of regions is smaller: each step up is
    forced by a path that leaves the accelerator and returns to it. With several, the fewest phases
    contain the shortest common supersequence, NP-hard from two on (Räihä and Ukkonen, Theoretical
    Computer Science 16, 1981): the turns are tried starting with each device, and in the order of
    `patient_slots`; those with the least launch cost win, then those with the fewest regions. They
    make at most `devices` times as many phases as the best.

    No contraction is cyclic: `2 * slot + (on host)` never falls along an edge, so a cycle would
    have to stay at one value of it, which is a single phase or host units alone.

    A phase of more nodes than a region may have is dealt out in topological order.

    Where regions must be connected, a phase is split into its weakly connected components. That
    stays acyclic: a cycle of the finer contraction, seen in the coarser and acyclic one, has to
    stay inside one phase, and no edge joins two components of a phase. Such regions need not be the
    fewest: a unit may stand in an earlier phase than the only neighbour it could have joined.
    """
    used = np.unique(labels[labels > 0])
    if not used.size:
        return np.full(problem.units, -1, np.int64)
    slots = [_slots(problem, labels, np.roll(used, -turn)) for turn in range(len(used))]
    if used.size > 1:
        slots.append(patient_slots(problem, labels))
    candidates = (_number(problem, labels, each) for each in slots)
    return min(candidates, key=lambda regions: _launch_cost(problem, labels, regions))


def levelled_regions(problem: Problem, labels: Ints, together: list[tuple[int, ...]]) -> Ints | None:
    """Return the fewest phases of one accelerator that keep some of its units together, int64 (units,).

    The least levels of the closed form of `form_regions` with those units on one level; None
    where they cannot be, since a path leaves the accelerator between them and returns.
    """
    source, target = problem.edges
    step = (labels[source] == 0) & (labels[target] > 0)
    edges = list(zip(source.tolist(), target.tolist(), step.tolist(), strict=True))
    level = (labels > 0).astype(np.int64).tolist()
    for _ in range(problem.units + 1):
        before = list(level)
        for u, v, up in edges:
            level[v] = max(level[v], level[u] + up)
        for members in together:
            highest = max(level[member] for member in members)
            for member in members:
                level[member] = highest
        if level == before:
            return _number(problem, labels, np.array(level, np.int64))
    return None


def contraction_is_acyclic(problem: Problem, regions: Ints) -> bool:
    """Tell whether the graph stays acyclic when the units of each region are made one node.

    `regions` is int64 (units,); units of region -1 stay single. Checked by strongly connected
    components, whoever formed the regions.
    """
    count = int(regions.max(initial=-1)) + 1
    node = np.where(regions >= 0, regions, count + np.arange(problem.units))
    source, target = (node[side] for side in problem.edges)
    crossing = source != target
    return connected_parts(count + problem.units, source[crossing], target[crossing], "strong")[0] == (
        count + problem.units
    )


def components_within(problem: Problem, regions: Ints) -> Ints:
    """Return the connected piece of its region that each unit is in, int64 (units,)."""
    source, target = problem.edges
    joined = (regions[source] >= 0) & (regions[source] == regions[target])
    return connected_parts(problem.units, source[joined], target[joined], "weak")[1]


def _slots(problem: Problem, labels: Ints, turns: Ints) -> Ints:
    """Return the slot of every unit; `turns` are the devices in the order of their slots."""
    first_of_device = np.zeros(1 + problem.devices, np.int64)
    first_of_device[turns] = 1 + np.arange(len(turns))
    first = first_of_device[labels]
    source, target = problem.edges
    returns = (labels[source] == 0) & (labels[target] > 0)
    # A host unit may stand anywhere: rounding up to a multiple of 1 leaves its slot alone.
    period = np.where(labels[target] > 0, len(turns), 1)
    slot: list[int] = first.tolist()
    # Edges come by source, and sources in topological order: slot[u] is final when it is read.
    for u, v, step, every, origin in zip(
        source.tolist(),
        target.tolist(),
        returns.tolist(),
        period.tolist(),
        first[target].tolist(),
        strict=True,
    ):
        least = slot[u] + step
        least += (origin - least) % every
        slot[v] = max(slot[v], least)
    return np.array(slot, np.int64)


def _number(problem: Problem, labels: Ints, slots: Ints) -> Ints:
    """Number phases, or their components where they must be connected, by slot, then first unit."""
    source, target = problem.edges
    needs_connection = np.append(False, problem.connected)[labels]
    joined: Bools = needs_connection[source] & (labels[source] == labels[target])
    joined &= slots[source] == slots[target]
    _, component = connected_parts(problem.units, source[joined], target[joined], "weak")
    placed = np.flatnonzero(labels > 0)
    # One key per region: components count from 1, phases have component 0.
    key = slots * (problem.units + 1) + np.where(needs_connection, component + 1, 0)
    key = _split(problem, labels, key, placed)
    _, first, region = np.unique(key[placed], return_index=True, return_inverse=True)
    order = np.lexsort((placed[first], slots[placed[first]]))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    regions = np.full(problem.units, -1, np.int64)
    regions[placed] = number[region]
    return regions


def _split(problem: Problem, labels: Ints, key: Ints, placed: Ints) -> Ints:
    """Return finer keys where a region has more nodes than its device takes.

    Such a region is dealt out in topological order, and each part again into its components where
    they must be connected. Edges inside it run from earlier parts to later ones alone, so that
    the contraction stays acyclic.
    """
    most = np.append(UNLIMITED, problem.max_nodes)[labels]
    if not (most[placed] < UNLIMITED).any():
        return key
    _, region = np.unique(key[placed], return_inverse=True)
    nodes = np.bincount(region, weights=problem.size[placed])
    part, filled = np.zeros(problem.units, np.int64), dict[int, tuple[int, int]]()
    for unit, number in zip(placed.tolist(), region.tolist(), strict=True):
        if nodes[number] > most[unit]:
            begun, full = filled.get(number, (0, 0))
            size = int(problem.size[unit])
            begun, full = (begun + 1, size) if full + size > most[unit] else (begun, full + size)
            filled[number] = begun, full
            part[unit] = begun
    finer = np.full(problem.units, -1, np.int64)
    finer[placed] = region * (problem.units + 1) + part[placed]
    source, target = problem.edges
    joined = np.append(False, problem.connected)[labels][source] & (finer[source] == finer[target])
    _, component = connected_parts(problem.units, source[joined], target[joined], "weak")
    # Units of one part that need no connection are components of their own: tell them by the part.
    apart = np.where(np.append(False, problem.connected)[labels], component + 1, 0)
    _, dense = np.unique(finer, return_inverse=True)
    return dense * (problem.units + 1) + apart


def _launch_cost(problem: Problem, labels: Ints, regions: Ints) -> tuple[float, int]:
    device = np.zeros(int(regions.max()) + 1, np.int64)
    device[regions[regions >= 0]] = labels[regions >= 0]
    per_device = np.bincount(device, minlength=1 + problem.devices)[1:]
    return float(per_device @ problem.launch), len(device)


def connected_parts(
    nodes: int, source: Ints, target: Ints, connection: Literal["weak", "strong"]
) -> tuple[int, Ints]:
    """Return the number of weakly or strongly connected components, and each node's, int64 (nodes,).

    `source` and `target` are the ends of the edges, int64 (edges,).
    """
    graph = coo_array((np.ones(len(source), np.int8), (source, target)), shape=(nodes, nodes))
    count, component = connected_components(graph.tocsr(), connection=connection)
    return int(count), component.astype(np.int64)
