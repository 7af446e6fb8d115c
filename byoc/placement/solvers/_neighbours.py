"""The cost of a unit on each device, given the devices of its neighbours."""

from collections.abc import Sequence
from itertools import pairwise

from byoc.placement._problem import Problem


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
