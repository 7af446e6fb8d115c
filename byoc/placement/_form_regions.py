"""Regions formed from labels: units that are compiled and launched as one, and their launch order."""

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from typing import Literal

import numpy as np
import scipy

from byoc._dataclasses import dataclass, field
from byoc.placement._problem import UNLIMITED, Bools, Ints, Problem

# Connected components of small and large graphs that are given by their edges.

# Up to so many edges, Python takes a few milliseconds, and the import of scipy 0.15 s or more.
_MAX_IN_PYTHON = 1000


def find_components(
    nodes: int, source: Ints, target: Ints, connection: Literal["weak", "strong"]
) -> tuple[int, Ints]:
    """Return the number of weakly or strongly connected components, and each node's, int64 (nodes,).

    `source` and `target` are the ends of the edges, int64 (edges,).
    """
    if len(source) <= _MAX_IN_PYTHON:
        edges = zip(source.tolist(), target.tolist(), strict=True)
        if connection == "weak":
            return _join_ends(nodes, edges)
        if _is_acyclic(edges):
            return nodes, np.arange(nodes)
    graph = scipy.sparse.coo_array(
        (np.ones(len(source), np.int8), (source, target)), shape=(nodes, nodes)
    )
    count, component = scipy.sparse.csgraph.connected_components(graph.tocsr(), connection=connection)
    return int(count), component.astype(np.int64)


def _join_ends(nodes: int, edges: Iterable[tuple[int, int]]) -> tuple[int, Ints]:
    """Return the weakly connected components, numbered by their first nodes."""
    joined: dict[int, int] = {}  # a node, and a smaller one of its component

    def find_first(node: int) -> int:
        while node in joined:
            node = joined[node]
        return node

    for ends in edges:
        first, second = sorted(map(find_first, ends))
        if first != second:
            joined[second] = first
    component = np.arange(nodes)
    for node in joined:
        component[node] = find_first(node)
    firsts, numbers = np.unique(component, return_inverse=True)
    return len(firsts), numbers.astype(np.int64)


def _is_acyclic(edges: Iterable[tuple[int, int]]) -> bool:
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for first, second in edges:
        sorter.add(second, first)
    try:
        sorter.prepare()
    except CycleError:
        return False
    return True


# Seconds on one core of about 3 GHz for a unit or an edge, and a device.
_STEP_SECONDS = 1.4e-7


def schedule_launches(problem: Problem, labels: Ints) -> Ints:
    """Return the launch that each unit is part of or follows, int64 (units,), from 1 on.
    A launch takes all units that its device can run by then. The next launch goes to a device on which
    all units are ready that still have the most launches of that device ahead: such a launch is needed
    in any case, and waiting would not add such units. If there is no such device, the one with the
    largest share of them ready is launched (majority merge, as for shortest common supersequences: Jiang
    and Li, SIAM Journal on Computing 24, 1995).
    """
    return _LaunchSchedule(problem, labels).assign_slots()


@dataclass(eq=False)
class _LaunchSchedule:
    problem: Problem
    labels: Ints
    after: list[list[int]] = field(init=False)
    height: list[int] = field(init=False)
    """Launches of its own device from each unit to the end, its own included."""

    def __post_init__(self) -> None:
        source, target = self.problem.edges
        begin = np.searchsorted(source, np.arange(self.problem.units + 1)).tolist()
        following = target.tolist()
        self.after = [following[begin[u] : begin[u + 1]] for u in range(self.problem.units)]
        self.device = self.labels.tolist()
        self.height = self._heights()
        # For each unit, its predecessors that neither ran nor are ready on its own device.
        self.blocked = np.bincount(target, minlength=self.problem.units).tolist()
        self.ready: list[list[int]] = [[] for _ in range(1 + self.problem.devices)]

    def _heights(self) -> list[int]:
        height = [0] * self.problem.units
        for d in range(1, 1 + self.problem.devices):
            beyond = [0] * self.problem.units
            for unit in range(self.problem.units - 1, -1, -1):
                here = self.device[unit] == d
                most = 0
                for other in self.after[unit]:
                    most = max(most, beyond[other] + (not here and self.device[other] == d))
                beyond[unit] = most
                if here:
                    height[unit] = most + 1
        return height

    def assign_slots(self) -> Ints:
        devices = range(1, 1 + self.problem.devices)
        most = max(self.height, default=0) + 1
        left = [[0] * (most + 1) for _ in range(1 + self.problem.devices)]
        for unit, d in enumerate(self.device):
            left[d][self.height[unit]] += 1
        top = [most] * (1 + self.problem.devices)
        slot = [0] * self.problem.units
        begins = [not count for count in self.blocked]
        for unit in range(self.problem.units):
            if begins[unit]:
                self._release(unit, 0, slot)
        launch = 0
        while any(self.ready):
            for d in devices:
                while top[d] and not left[d][top[d]]:
                    top[d] -= 1

            def share(d: int) -> float:
                high = sum(self.height[unit] == top[d] for unit in self.ready[d])
                return high / left[d][top[d]] if top[d] else 0.0

            chosen = max((d for d in devices if self.ready[d]), key=lambda d: (share(d), -d))
            launch += 1
            members, self.ready[chosen] = self.ready[chosen], []
            for unit in members:
                left[chosen][self.height[unit]] -= 1
                slot[unit] = launch
            for unit in members:
                self._finish(unit, launch, slot)
        return np.array(slot, np.int64)

    def _release(self, unit: int, launch: int, slot: list[int]) -> None:
        """Mark a unit as ready, or run it if it is on the host, then the successors this frees."""
        stack = [unit]
        while stack:
            unit = stack.pop()
            d = self.device[unit]
            if not d:
                slot[unit] = launch
                for other in self.after[unit]:
                    self.blocked[other] -= 1
                    if not self.blocked[other]:
                        stack.append(other)
                continue
            self.ready[d].append(unit)
            for other in self.after[unit]:
                if self.device[other] == d:
                    self.blocked[other] -= 1
                    if not self.blocked[other]:
                        stack.append(other)

    def _finish(self, unit: int, launch: int, slot: list[int]) -> None:
        d = self.device[unit]
        for other in self.after[unit]:
            if self.device[other] == d:
                continue  # in the same launch, or unblocked by another unit
            self.blocked[other] -= 1
            if not self.blocked[other]:
                self._release(other, launch, slot)


def form_regions(problem: Problem, labels: Ints) -> Ints:
    """Return the region of every unit, int64 (units,): -1 on the host, else 0.. in launch order.
    Time is divided into slots: each slot belongs to one accelerator, in turn, and the host runs between
    slots. Every unit goes into the earliest slot of its device that its inputs allow,

        slot[v] = the least slot of v's device, from slot[u] + (u on host) on, over all edges u -> v
        slot[v] = max of slot[u]                                                   for v on the host

    The accelerator units of one slot are a *phase*. With one accelerator this is the closed form
    `max(slot[u] + (u on host and v placed))`, and no set of regions is smaller: a path that leaves the
    accelerator and returns to it forces each step up. With several, the smallest set of phases contains
    the shortest common supersequence, which is NP-hard for two or more (Räihä and Ukkonen, Theoretical
    Computer Science 16, 1981): the cyclic schedules that start with each device are tried, and the one
    of `schedule_launches`; the least launch cost wins, then the fewest regions. The result has at most
    `devices` times as many phases as the best.

    No contraction is cyclic: `2 * slot + (on host)` never decreases along an edge, so a cycle would have
    to keep one value, that is, stay in a single phase or on the host.

    A phase with more nodes than a region may have is divided in topological order.

    If regions must be connected, a phase is split into its weakly connected components. This stays
    acyclic: a cycle of the finer contraction, mapped to the coarser acyclic one, would have to stay
    inside one phase, and no edge joins two components of a phase. The number of such regions need not be
    minimal: a unit may be in an earlier phase than the only neighbour it could have joined.
    """
    used = np.unique(labels[labels > 0])
    if not used.size:
        return np.full(problem.units, -1, np.int64)
    if problem.conditions is not None and problem.conditions.network_of is not None:
        return _form_by_network(problem, labels, problem.conditions.network_of)
    slots = [_assign_slots(problem, labels, np.roll(used, -start)) for start in range(len(used))]
    if used.size > 1:
        slots.append(schedule_launches(problem, labels))
    candidates = [_number_regions(problem, labels, each) for each in slots]
    if len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=lambda regions: _launch_cost(problem, labels, regions))


def _form_by_network(problem: Problem, labels: Ints, network_of: Ints) -> Ints:
    """Return the regions of several networks, each formed alone: no launch is of two."""
    regions = np.full(problem.units, -1, np.int64)
    for network in np.unique(network_of[labels > 0]).tolist():
        own = form_regions(problem.plain, np.where(network_of == network, labels, 0))
        regions[own >= 0] = own[own >= 0] + regions.max() + 1
    return regions


def estimate_region_seconds(problem: Problem) -> float:
    """Return the seconds that `form_regions` takes on one core of about 3 GHz."""
    return _STEP_SECONDS * (8 + problem.devices) * (problem.units + len(problem.consumers))


def form_levelled_regions(
    problem: Problem, labels: Ints, together: list[tuple[int, ...]]
) -> Ints | None:
    """Return the fewest phases of one accelerator that keep given units together, int64 (units,).

    Each tuple of `together` shares one level of the closed form of `form_regions`. None if that is
    impossible because a path between such units leaves the accelerator and returns.
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
            return _number_regions(problem, labels, np.array(level, np.int64))
    return None


def is_contraction_acyclic(problem: Problem, regions: Ints) -> bool:
    """Return whether the graph stays acyclic when each region is contracted to one node.

    `regions` is int64 (units,); units of region -1 stay single. Computed from strongly connected
    components, independently of how the regions were formed.
    """
    count = int(regions.max(initial=-1)) + 1
    node = np.where(regions >= 0, regions, count + np.arange(problem.units))
    source, target = (node[side] for side in problem.edges)
    crossing = source != target
    return find_components(count + problem.units, source[crossing], target[crossing], "strong")[0] == (
        count + problem.units
    )


def find_region_components(problem: Problem, regions: Ints) -> Ints:
    """Return the connected component of its region that each unit is in, int64 (units,)."""
    source, target = problem.edges
    joined = (regions[source] >= 0) & (regions[source] == regions[target])
    return find_components(problem.units, source[joined], target[joined], "weak")[1]


def _assign_slots(problem: Problem, labels: Ints, schedule: Ints) -> Ints:
    """Return the slot of every unit; `schedule` are the devices in the order of their slots."""
    first_of_device = np.zeros(1 + problem.devices, np.int64)
    first_of_device[schedule] = 1 + np.arange(len(schedule))
    first = first_of_device[labels]
    source, target = problem.edges
    returns = (labels[source] == 0) & (labels[target] > 0)
    slot: list[int] = first.tolist()
    # Edges are sorted by source in topological order, so slot[u] is final when it is read.
    if len(schedule) == 1:  # any slot fits
        for u, v, step in zip(*problem.listed_edges, returns.tolist(), strict=True):
            least = slot[u] + step
            if least > slot[v]:  # noqa: PLR1730 - a call of max doubles the time
                slot[v] = least
        return np.array(slot, np.int64)
    # Host units fit in any slot: rounding up to a multiple of 1 changes nothing.
    period = np.where(labels[target] > 0, len(schedule), 1)
    for u, v, step, every, origin in zip(
        *problem.listed_edges,
        returns.tolist(),
        period.tolist(),
        first[target].tolist(),
        strict=True,
    ):
        least = slot[u] + step
        least += (origin - least) % every
        if least > slot[v]:  # noqa: PLR1730
            slot[v] = least
    return np.array(slot, np.int64)


def _number_regions(problem: Problem, labels: Ints, slots: Ints) -> Ints:
    """Number the phases, or their components if regions must be connected, in launch order."""
    placed = np.flatnonzero(labels > 0)
    # One key per region; a slot is of one device, whose phases are all split into components, or none.
    key = slots * (problem.units + 1)
    if problem.connected.any():
        source, target = problem.edges
        needs_connection = np.append(False, problem.connected)[labels]
        joined: Bools = needs_connection[source] & (labels[source] == labels[target])
        joined &= slots[source] == slots[target]
        _, component = find_components(problem.units, source[joined], target[joined], "weak")
        key += np.where(needs_connection, component, 0)
    key = _split_large_phases(problem, labels, key, placed)
    _, first, region = np.unique(key[placed], return_index=True, return_inverse=True)
    order = np.lexsort((placed[first], slots[placed[first]]))
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    regions = np.full(problem.units, -1, np.int64)
    regions[placed] = number[region]
    return regions


def _split_large_phases(problem: Problem, labels: Ints, key: Ints, placed: Ints) -> Ints:
    """Return finer keys where a region has more nodes than its device accepts.
    Such a region is divided in topological order, and each part again into its components if regions
    must be connected. Edges inside it lead from earlier parts to later ones only, so the contraction
    stays acyclic.
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
    _, component = find_components(problem.units, source[joined], target[joined], "weak")
    # Parts that need not be connected are not split into components.
    apart = np.where(np.append(False, problem.connected)[labels], component, 0)
    _, dense = np.unique(finer, return_inverse=True)
    return dense * (problem.units + 1) + apart


def _launch_cost(problem: Problem, labels: Ints, regions: Ints) -> tuple[float, int]:
    device = np.zeros(int(regions.max()) + 1, np.int64)
    device[regions[regions >= 0]] = labels[regions >= 0]
    per_device = np.bincount(device, minlength=1 + problem.devices)[1:]
    return float(per_device @ problem.launch), len(device)


# Choice among overlapping fusions for given labels and regions.

# Up to so many candidates are searched exhaustively: at most 2**12 choices.
_MAX_CANDIDATES = 12


def choose_fusions(problem: Problem, labels: Ints, regions: Ints) -> tuple[int, ...]:
    """Return the fusions that save most: disjoint, each in one region, acyclic together.
    Optimal if at most 12 candidates depend on one another (weighted set packing, NP-hard); for more,
    greedy by saving per member (Hurkens and Schrijver, SIAM Journal on Discrete Mathematics 2, 1989:
    within a factor of the number of members).
    """
    open_to = [
        number
        for number, fusion in enumerate(problem.fusions)
        if fusion.saving > 0
        and (labels[list(fusion.members)] == fusion.device).all()
        and not np.ptp(regions[list(fusion.members)])
    ]
    if not open_to:
        return ()
    groups = _group_overlapping(problem, open_to)
    chosen = sorted(number for group in groups for number in _choose(problem, group))
    if are_fusions_acyclic(problem, chosen):
        return tuple(chosen)
    if len(open_to) <= _MAX_CANDIDATES:
        return tuple(sorted(_choose(problem, open_to, acyclic=True)))
    return tuple(sorted(_choose_greedily(problem, chosen, acyclic=True)))


def are_fusions_acyclic(problem: Problem, chosen: list[int]) -> bool:
    """Return whether the graph stays acyclic when each chosen fusion is contracted to one node."""
    groups = np.full(problem.units, -1, np.int64)
    for place, number in enumerate(chosen):
        groups[list(problem.fusions[number].members)] = place
    return is_contraction_acyclic(problem, groups)


def _group_overlapping(problem: Problem, numbers: list[int]) -> list[list[int]]:
    """Group fusions that share members, directly or through other fusions."""
    group_of: dict[int, list[int]] = {}
    for number in numbers:
        met = {id(group_of[m]): group_of[m] for m in problem.fusions[number].members if m in group_of}
        merged = sorted([number, *(other for group in met.values() for other in group)])
        for other in merged:
            for member in problem.fusions[other].members:
                group_of[member] = merged
    return list({id(group): group for group in group_of.values()}.values())


def _choose(problem: Problem, numbers: list[int], acyclic: bool = False) -> list[int]:
    if len(numbers) > _MAX_CANDIDATES:
        return _choose_greedily(problem, numbers, acyclic)
    order = sorted(numbers, key=lambda number: (-problem.fusions[number].saving, number))
    rest = [sum(problem.fusions[number].saving for number in order[i:]) for i in range(len(order))]
    best: tuple[float, list[int]] = (0.0, [])

    def search(place: int, taken: list[int], members: frozenset[int], saved: float) -> None:
        nonlocal best
        if saved > best[0]:
            best = saved, taken
        if place == len(order) or saved + rest[place] <= best[0]:
            return
        fusion = problem.fusions[order[place]]
        if members.isdisjoint(fusion.members):
            more = [*taken, order[place]]
            if not acyclic or are_fusions_acyclic(problem, more):
                search(place + 1, more, members.union(fusion.members), saved + fusion.saving)
        search(place + 1, taken, members, saved)

    search(0, [], frozenset(), 0.0)
    return best[1]


def _choose_greedily(problem: Problem, numbers: list[int], acyclic: bool) -> list[int]:
    def worth(number: int) -> tuple[float, int]:
        fusion = problem.fusions[number]
        return -fusion.saving / len(fusion.members), number

    chosen: list[int] = []
    members: set[int] = set()
    for number in sorted(numbers, key=worth):
        if not members.isdisjoint(problem.fusions[number].members):
            continue
        if acyclic and not are_fusions_acyclic(problem, [*chosen, number]):
            continue
        chosen.append(number)
        members.update(problem.fusions[number].members)
    return chosen
