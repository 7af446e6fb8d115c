"""Dynamic programming for the least cost along forests of units and tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from math import inf

import scipy

from byoc.placement.solvers._unit_groups import Neighbours

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
            message, self._best[tensor] = self._message(tensor)
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

    def _message(self, tensor: int) -> tuple[list[float], list[CopyChoice]]:
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
