"""Launch schedule of several accelerators by majority merge."""

from dataclasses import dataclass, field

import numpy as np

from byoc.placement.problem import Ints, Problem


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
