"""A placement of unit groups whose loads are kept up to date move by move."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from byoc.placement._problem import Occupancy
from byoc.placement.solvers._unit_groups import HOST, UnitGroups

# Sums of bytes may exceed the capacity by rounding errors, as in `exceeds_capacity`.
_ROUNDING = 1 + 2.0**-40


class Move(NamedTuple):
    """A group that goes to another device, and what that adds to execution and transfers there."""

    group: int
    source: int
    target: int
    source_transfer: float
    """seconds added to the transfers of the device that it leaves, mostly below 0"""
    target_transfer: float


class LoadState:
    """Labels of groups, and for each device the seconds of execution and transfer, and the bytes.

    Launches, fusions and limits of regions are not seen here.
    """

    def __init__(
        self, groups: UnitGroups, occupies: Sequence[Occupancy], cores: int, labels: Sequence[int]
    ) -> None:
        """Take labels that no device refuses and that need no impossible transfer."""
        self.groups = groups
        self.labels = list(labels)
        self._occupies = ("", *occupies)
        # Each move adds up the host's load, so this is not worked out anew for every one.
        self._by_host = [1 + d for d, kind in enumerate(occupies) if kind is Occupancy.host]
        self._cores = cores
        count = groups.devices + 1
        self.costs: list[list[float]] = groups.costs.tolist()
        self._memory: list[list[float]] = [[0.0, *row] for row in groups.memory.tolist()]
        self._room: list[float] = [inf, *(groups.capacity * _ROUNDING).tolist()]
        self._home = [tensor.home for tensor in groups.tensors]
        self._uses = [len(tensor.readers) + tensor.is_output for tensor in groups.tensors]
        self._down = [(0.0, *tensor.to_device) for tensor in groups.tensors]
        self._up = [(0.0, *tensor.to_host) for tensor in groups.tensors]
        self._touching = groups.touching
        self.execution, self.transfer, self.bytes = [0.0] * count, [0.0] * count, [0.0] * count
        self._readers = [[0] * count for _ in groups.tensors]
        for group, label in enumerate(self.labels):
            self.execution[label] += self.costs[group][label]
            self.bytes[label] += self._memory[group][label]
        for number, tensor in enumerate(groups.tensors):
            readers = self._readers[number]
            for reader in tensor.readers:
                readers[self.labels[reader]] += 1
            home = 0 if tensor.home == HOST else self.labels[tensor.home]
            for device in range(1, count):
                if device == home and readers[device] < self._uses[number]:
                    self.transfer[device] += self._up[number][device]
                elif device != home and readers[device]:
                    self.transfer[device] += self._down[number][device]

    def examine(self, group: int, target: int) -> Move | None:
        """Return the move of a group to another device; None if it is not possible there."""
        source = self.labels[group]
        if self.costs[group][target] == inf:
            return None
        if self.bytes[target] + self._memory[group][target] > self._room[target]:
            return None
        leaving, arriving = -self._transfer_of(group, source), self._transfer_of(group, target)
        if inf in {leaving, arriving}:
            return None
        return Move(group, source, target, leaving, arriving)

    def _transfer_of(self, group: int, device: int) -> float:
        """Return the seconds that a group on a device adds to its transfers, against elsewhere."""
        if not device:
            return 0.0
        added = 0.0
        own = self.labels[group] == device
        for number in self._touching[group]:
            there, home = self._readers[number][device], self._home[number]
            if home == group:
                if there < self._uses[number]:
                    added += self._up[number][device]
                if there:
                    added -= self._down[number][device]
            elif home >= 0 and self.labels[home] == device:
                if there - own == self._uses[number] - 1:
                    added -= self._up[number][device]
            elif there == own:
                added += self._down[number][device]
        return added

    def apply(self, move: Move) -> None:
        """Carry a move out."""
        group, source, target = move[:3]
        self.labels[group] = target
        self.execution[source] -= self.costs[group][source]
        self.execution[target] += self.costs[group][target]
        self.transfer[source] += move.source_transfer
        self.transfer[target] += move.target_transfer
        self.bytes[source] -= self._memory[group][source]
        self.bytes[target] += self._memory[group][target]
        for number in self._touching[group]:
            if self._home[number] != group:
                readers = self._readers[number]
                readers[source] -= 1
                readers[target] += 1

    def loads_after(self, move: Move) -> tuple[float, float, float]:
        """Return the loads of the host, of the device that is left, and of the device that is joined."""
        group, source, target, leaving, arriving = move
        first = self.combine(
            source,
            self.execution[source] - self.costs[group][source],
            self.transfer[source] + leaving,
        )
        second = self.combine(
            target,
            self.execution[target] + self.costs[group][target],
            self.transfer[target] + arriving,
        )
        host = first if source == 0 else second if target == 0 else self.load(0)
        if self._occupies[source] is Occupancy.host:
            host += leaving
        if self._occupies[target] is Occupancy.host:
            host += arriving
        return host, host if source == 0 else first, host if target == 0 else second

    def combine(self, device: int, execution: float, transfer: float) -> float:
        """Return the load of a device with so many seconds of execution and transfer."""
        if device == 0:
            shared = execution / self._cores
            for number in self._by_host:
                shared += self.transfer[number]
            return shared
        kind = self._occupies[device]
        if kind is Occupancy.device:
            return execution + transfer
        return max(execution, transfer) if kind is Occupancy.link else execution

    def load(self, device: int) -> float:
        """Return the load of a device in seconds."""
        return self.combine(device, self.execution[device], self.transfer[device])

    def loads(self) -> list[float]:
        """Return the loads of all devices, the host first."""
        return [self.load(device) for device in range(len(self.execution))]
