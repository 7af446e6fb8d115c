"""Views of a problem for searches: costs around a unit, groups of units, forests solved exactly."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache, partial
from itertools import combinations, pairwise
from math import inf
from typing import Self

import numpy as np
import scipy

from byoc._dataclasses import dataclass
from byoc.placement._hard_limits import find_inseparable_groups
from byoc.placement._problem import Floats, Ints, Problem

# The cost of a unit on each device, given the devices of its neighbours.


class Neighbours:
    """The tensors around each unit as Python lists, faster than arrays for one unit at a time."""

    def __init__(self, problem: Problem) -> None:
        """Build the lists, O(tensors + entries)."""
        self._problem = problem
        self.devices = problem.devices
        start = problem.consumer_start.tolist()
        consumers = problem.consumers.tolist()
        self.producer: list[int] = problem.producer.tolist()
        """The producing unit of each tensor, -1 = the host."""
        self.consumers: list[list[int]] = [consumers[first:last] for first, last in pairwise(start)]
        """The consuming units of each tensor."""
        self.is_output: list[bool] = problem.is_output.tolist()
        self.to_device: list[list[float]] = problem.to_device.tolist()
        self.to_host: list[list[float]] = problem.to_host.tolist()
        self.seconds: list[list[float]] = problem.costs.tolist()
        self.made: list[list[int]] = [[] for _ in range(problem.units)]
        """The tensors that each unit produces."""
        self.read: list[list[int]] = [[] for _ in range(problem.units)]
        """The tensors that each unit consumes."""
        for tensor, producer in enumerate(self.producer):
            if producer >= 0:
                self.made[producer].append(tensor)
            for unit in self.consumers[tensor]:
                self.read[unit].append(tensor)

    def group_by_depth(self) -> list[list[int]]:
        """Return the units by depth: the largest number of units before them on a path."""
        depth = [0] * self._problem.units
        for unit, target in zip(*(side.tolist() for side in self._problem.edges), strict=True):
            depth[target] = max(depth[target], depth[unit] + 1)
        levels: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
        for unit, level in enumerate(depth):
            levels[level].append(unit)
        return levels

    def transfer_seconds(self, tensor: int, home: int, wanted: set[int]) -> float:
        """Return the seconds that bring a tensor from the device `home` to all of `wanted`."""
        elsewhere = wanted - {home}
        if not elsewhere:
            return 0.0
        leaving = self.to_host[tensor][home - 1] if home else 0.0
        return leaving + sum(self.to_device[tensor][d - 1] for d in sorted(elsewhere) if d)

    def seconds_with_transfers(self, unit: int, labels: Sequence[int]) -> list[float]:
        """Return the seconds of a unit on each device including the transfers of its tensors.
        `labels` holds the device of every unit, or -1 if unknown: such a unit needs no transfers and its
        results cost nothing to bring. The unit's own label has no effect.
        """
        if self.devices == 1:
            return self._sum_for_one_device(unit, labels)
        total = list(self.seconds[unit])
        for tensor in self.made[unit]:
            wanted = {labels[reader] for reader in self.consumers[tensor]} - {-1}
            if self.is_output[tensor]:
                wanted.add(0)
            for device in range(len(total)):
                total[device] += self.transfer_seconds(tensor, device, wanted)
        for tensor in self.read[unit]:
            producer = self.producer[tensor]
            home = labels[producer] if producer >= 0 else 0
            if home < 0:
                continue
            others = {labels[reader] for reader in self.consumers[tensor] if reader != unit} - {-1}
            if self.is_output[tensor]:
                others.add(0)
            for device in range(len(total)):
                total[device] += self.transfer_seconds(tensor, home, others | {device})
        return total

    def _sum_for_one_device(self, unit: int, labels: Sequence[int]) -> list[float]:
        """Return the same sums for the host and a single accelerator, without sets."""
        host, device = self.seconds[unit]
        for tensor in self.made[unit]:
            ends = [labels[reader] for reader in self.consumers[tensor]]
            if 1 in ends:
                host += self.to_device[tensor][0]
            if self.is_output[tensor] or 0 in ends:
                device += self.to_host[tensor][0]
        for tensor in self.read[unit]:
            producer = self.producer[tensor]
            home = labels[producer] if producer >= 0 else 0
            if home < 0:
                continue
            ends = [labels[reader] for reader in self.consumers[tensor] if reader != unit]
            if home:
                host += self.to_host[tensor][0]
                if self.is_output[tensor] or 0 in ends:
                    device += self.to_host[tensor][0]
            else:
                device += self.to_device[tensor][0]
                if 1 in ends:
                    host += self.to_device[tensor][0]
        return [host, device]


HOST = -1
"""The home, a group's number, of tensors from outside the graph. As a device the host is 0."""


@dataclass(frozen=True)
class GroupTensor:
    """Tensors of one group with the same readers, as one."""

    home: int
    """the group that produces them, or `HOST`"""
    readers: tuple[int, ...]
    """the other groups that read them, in rising order"""
    is_output: bool
    """the host needs them, too"""
    to_device: tuple[float, ...]
    """seconds from the host to each accelerator"""
    to_host: tuple[float, ...]
    """seconds from each accelerator to the host"""

    @property
    def ends(self) -> tuple[int, ...]:
        """The groups that produce or read them."""
        return self.readers if self.home == HOST else (self.home, *self.readers)


@dataclass(frozen=True, eq=False)
class UnitGroups:
    """Groups of units, each on one device: sums of their costs, and the tensors between them.

    Groups are numbered by their first units, so that edges mostly lead to higher numbers.
    """

    costs: Floats
    """float64 (groups, 1 + devices): seconds of execution; inf where a unit is not allowed."""
    memory: Floats
    """float64 (groups, devices): bytes."""
    capacity: Floats
    """float64 (devices,): bytes; inf = no limit."""
    tensors: tuple[GroupTensor, ...]
    of_unit: Ints
    """int64 (units,): the group of each unit."""

    @classmethod
    def from_problem(cls, problem: Problem) -> Self:
        """Return the groups of units that tensors that cannot be transferred hold together."""
        return cls._from_numbers(problem, find_inseparable_groups(problem))

    @classmethod
    def _from_numbers(cls, problem: Problem, group: Ints) -> Self:
        _, first, number = np.unique(group, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(len(first))
        of_unit: Ints = rank[number]
        costs = np.zeros((len(first), 1 + problem.devices))
        memory = np.zeros((len(first), problem.devices))
        np.add.at(costs, of_unit, problem.costs)
        np.add.at(memory, of_unit, problem.memory)
        start, consumers = problem.consumer_start.tolist(), of_unit[problem.consumers].tolist()
        readers = [consumers[low:high] for low, high in pairwise(start)]
        home = np.append(of_unit, HOST)[problem.producer].tolist()
        there, back = problem.to_device, problem.to_host
        tensors = _merge_tensors(
            zip(home, readers, problem.is_output.tolist(), there, back, strict=True)
        )
        return cls(costs, memory, problem.capacity, tensors, of_unit)

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.costs)

    @property
    def devices(self) -> int:
        """Number of accelerators."""
        return len(self.capacity)

    @cached_property
    def touching(self) -> list[list[int]]:
        """The tensors that each group produces or reads, by group."""
        touching: list[list[int]] = [[] for _ in range(self.count)]
        for number, tensor in enumerate(self.tensors):
            for group in tensor.ends:
                touching[group].append(number)
        return touching

    @cached_property
    def neighbours(self) -> list[list[int]]:
        """The groups that share an edge with each group, in rising order."""
        near: list[set[int]] = [set() for _ in range(self.count)]
        for tensor in self.tensors:
            if tensor.home == HOST:
                continue
            for reader in tensor.readers:
                near[tensor.home].add(reader)
                near[reader].add(tensor.home)
        return [sorted(groups) for groups in near]

    def contract(self, cluster: Sequence[int]) -> Self:
        """Return coarser groups: all groups of one cluster become one.

        `cluster` holds a number of 0, 1, ... for each group.
        """
        of = np.array(cluster, np.int64)
        count = int(of.max(initial=-1)) + 1
        costs, memory = np.zeros((count, 1 + self.devices)), np.zeros((count, self.devices))
        np.add.at(costs, of, self.costs)
        np.add.at(memory, of, self.memory)
        parts = (
            (
                HOST if each.home == HOST else cluster[each.home],
                [cluster[reader] for reader in each.readers],
                each.is_output,
                np.array(each.to_device),
                np.array(each.to_host),
            )
            for each in self.tensors
        )
        return type(self)(costs, memory, self.capacity, _merge_tensors(parts), of[self.of_unit])

    def spread(self, labels: Sequence[int]) -> Ints:
        """Return the label of each unit, int64 (units,), from those of the groups."""
        placed: Ints = np.array(labels, np.int64)[self.of_unit]
        return placed

    def gather(self, labels: Ints) -> list[int]:
        """Return the label of each group: that of its first unit."""
        _, first = np.unique(self.of_unit, return_index=True)
        found: list[int] = labels[first].tolist()
        return found


TensorParts = tuple[int, list[int], bool, Floats, Floats]
"""Home, readers, whether it is an output, seconds to each device and back."""


def _merge_tensors(parts: Iterable[TensorParts]) -> tuple[GroupTensor, ...]:
    """Return the tensors that may have to be transferred, those with the same ends as one."""
    there: dict[tuple[int, tuple[int, ...], bool], Floats] = {}
    back: dict[tuple[int, tuple[int, ...], bool], Floats] = {}
    for home, readers, is_output, to_device, to_host in parts:
        key = home, tuple(sorted(set(readers) - {home})), is_output
        if not key[1] and (home == HOST or not is_output):
            continue
        there[key] = there.get(key, 0.0) + to_device
        back[key] = back.get(key, 0.0) + to_host
    return tuple(
        GroupTensor(*key, tuple(there[key].tolist()), tuple(back[key].tolist())) for key in there
    )


# Dynamic programming for the least cost along forests of units and tensors.

# With more accelerators, only sets of up to two are tried for a tensor.
_MAX_DEVICES_TRIED = 5

CopyChoice = tuple[int, tuple[int, ...]]
"""The home of a tensor, and all devices that hold a copy."""
CopySets = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""Sets of devices that hold a tensor, each with the accelerators that it is sent to."""
CopyOption = tuple[float, int, tuple[int, ...]]
"""Seconds, and the choice that costs them."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Units and tensors, and connections between them that form no cycle."""

    free: frozenset[int]
    """The units to place; the others keep their labels."""
    kept: list[list[int]]
    """The free consumers of each tensor that the forest connects to it."""
    dropped: list[frozenset[int]]
    """The free consumers of each tensor that the forest leaves out."""
    complete: bool
    """Whether all units are free and no connection is left out."""


def build_spanning_forest(around: Neighbours) -> Forest:
    """Return a forest of all units without the connections that are the cheapest to cut."""
    sets = scipy.cluster.hierarchy.DisjointSet(range(len(around.seconds) + len(around.producer)))
    units = len(around.seconds)
    for tensor, producer in enumerate(around.producer):
        if producer >= 0:
            sets.merge(producer, units + tensor)
    connections = [
        (-min(map(sum, zip(around.to_device[tensor], around.to_host[tensor], strict=True)), default=0.0),
         unit, tensor)
        for tensor, readers in enumerate(around.consumers)
        for unit in readers
    ]  # fmt: skip
    kept: list[list[int]] = [[] for _ in around.producer]
    dropped: list[set[int]] = [set() for _ in around.producer]
    for _, unit, tensor in sorted(connections):
        if sets.merge(unit, units + tensor):
            kept[tensor].append(unit)
        else:
            dropped[tensor].add(unit)
    return Forest(frozenset(range(units)), kept, [frozenset(d) for d in dropped], not any(dropped))


def build_induced_forest(around: Neighbours, order: Sequence[int]) -> Forest:
    """Return a forest of as many units as possible, in the given order, with all their connections."""
    units = len(around.seconds)
    sets = scipy.cluster.hierarchy.DisjointSet(range(units + len(around.producer)))
    free = set()
    for unit in order:
        tensors = [units + tensor for tensor in (*around.made[unit], *around.read[unit])]
        if len({sets[tensor] for tensor in tensors}) == len(tensors):
            free.add(unit)
            for tensor in tensors:
                sets.merge(unit, tensor)
    kept = [[unit for unit in readers if unit in free] for readers in around.consumers]
    return Forest(frozenset(free), kept, [frozenset()] * len(kept), len(free) == units)


class ForestSolver:
    """Minimises execution plus transfer over a forest."""

    def __init__(self, around: Neighbours) -> None:
        """Take the units and tensors of a problem."""
        self._around = around
        self._device_sets = lru_cache(maxsize=None)(partial(_device_sets, around.devices))
        many = around.devices > _MAX_DEVICES_TRIED and max(map(len, around.consumers), default=0) > 2
        self.exact = not many
        """Whether every set of devices is tried for each tensor."""

    def solve(self, forest: Forest, labels: Sequence[int]) -> list[int]:
        """Return labels that are optimal for the free units; the others keep theirs."""
        return _ForestPass(self._around, self._device_sets, forest, labels).compute_labels()


def _device_sets(devices: int, level: int, home: int, held: frozenset[int]) -> CopySets:
    """Return the possible sets of devices that hold a tensor, and the accelerators it is sent to.
    `level` consumers (2 means two or more) choose their device; `home` and `held` hold a copy in any
    case.
    """
    largest = level if level < 2 else 2 if devices > _MAX_DEVICES_TRIED else devices + 1
    found = {}
    for count in range(largest + 1):
        for opened in combinations(range(devices + 1), count):
            there = held | {home, *opened}
            if home and len(there) > 1:
                there |= {0}  # it leaves an accelerator through the host
            key = tuple(sorted(there))
            found[key] = tuple(device for device in key if device not in (0, home))
    return tuple(found.items())


class _ForestPass:
    """One pass up the trees and one pass down."""

    def __init__(
        self,
        around: Neighbours,
        sets: Callable[[int, int, frozenset[int]], CopySets],
        forest: Forest,
        labels: Sequence[int],
    ) -> None:
        self._around, self._device_sets, self._forest = around, sets, forest
        self._labels = list(labels)
        self._sum = [list(row) for row in around.seconds]
        # The parent unit of each tensor and the parent tensor of each unit.
        self._parent_unit: dict[int, int] = {}
        self._parent_tensor: dict[int, int] = {}
        self._roots: list[int] = []
        # The best choice for each label of the parent unit.
        self._best: dict[int, list[CopyChoice]] = {}

    def compute_labels(self) -> list[int]:
        order = self._root_trees()
        for tensor in reversed(order):
            above = self._parent_unit[tensor]
            message, self._best[tensor] = self._price_subtree(tensor)
            self._sum[above] = [a + b for a, b in zip(self._sum[above], message, strict=True)]
        for root in self._roots:
            costs = self._sum[root]
            self._labels[root] = costs.index(min(costs))
        for tensor in order:
            self._descend(tensor)
        return self._labels

    def _root_trees(self) -> list[int]:
        """Root every tree at its first unit; return the tensors, parents before children."""
        order: list[int] = []
        for root in sorted(self._forest.free):
            if root in self._parent_tensor:
                continue
            self._roots.append(root)
            waiting = [root]
            while waiting:
                unit = waiting.pop()
                for tensor in (*self._around.made[unit], *self._around.read[unit]):
                    if tensor in self._parent_unit or unit in self._forest.dropped[tensor]:
                        continue
                    self._parent_unit[tensor] = unit
                    order.append(tensor)
                    below = self._below(tensor)
                    self._parent_tensor.update(dict.fromkeys(below, tensor))
                    waiting += below
        return order

    def _below(self, tensor: int) -> list[int]:
        above, producer = self._parent_unit[tensor], self._around.producer[tensor]
        free = [producer] if producer in self._forest.free else []
        return [unit for unit in (*free, *self._forest.kept[tensor]) if unit != above]

    def _options(self, tensor: int) -> list[CopyOption]:
        """Return the cost of a tensor and its subtree for each home and each set of devices."""
        around, above = self._around, self._parent_unit[tensor]
        producer = around.producer[tensor]
        readers = [unit for unit in self._forest.kept[tensor] if unit != above]
        free = self._forest.free
        held = {self._labels[unit] for unit in around.consumers[tensor] if unit not in free}
        if around.is_output[tensor]:
            held.add(0)
        below = [self._sum[unit] for unit in readers]
        if producer in self._forest.free:
            homes = range(around.devices + 1)
            at_home = [0.0] * len(homes) if producer == above else self._sum[producer]
        else:
            home = self._labels[producer] if producer >= 0 else 0
            homes, at_home = range(home, home + 1), [0.0] * (around.devices + 1)
        level = min(len(readers) + (producer != above), 2)
        down, up = around.to_device[tensor], around.to_host[tensor]
        options = []
        for home in homes:
            for there, reached in self._device_sets(level, home, frozenset(held)):
                cost = at_home[home]
                if home and len(there) > 1:
                    cost += up[home - 1]
                for device in reached:
                    cost += down[device - 1]
                for row in below:
                    cost += min([row[device] for device in there])
                options.append((cost, home, there))
        return options

    def _price_subtree(self, tensor: int) -> tuple[list[float], list[CopyChoice]]:
        """Return the least seconds for each label of the parent unit, and the choices that give them."""
        least = [inf] * (self._around.devices + 1)
        best: list[CopyChoice] = [(0, (0,))] * len(least)
        made_above = self._around.producer[tensor] == self._parent_unit[tensor]
        for cost, home, there in self._options(tensor):
            for device in (home,) if made_above else there:
                if cost < least[device]:
                    least[device], best[device] = cost, (home, there)
        return least, best

    def _descend(self, tensor: int) -> None:
        """Label the units below a tensor, given the label of the parent unit."""
        producer = self._around.producer[tensor]
        home, there = self._best[tensor][self._labels[self._parent_unit[tensor]]]
        for unit in self._below(tensor):
            row = self._sum[unit]
            self._labels[unit] = home if unit == producer else min(there, key=row.__getitem__)
