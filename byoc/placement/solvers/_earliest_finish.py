"""Placements by the earliest finish of each unit, for the makespan (HEFT).

Units are taken by upward rank, the longest average path from them to the end, and each goes to the
device on which it ends first, into the earliest gap there (Topcuoglu, Hariri and Wu, IEEE Transactions
on Parallel and Distributed Systems 13, 2002). Ranks may be drawn at random around the average ones, and
some units may stay where they are: the same rule makes many starting points, and places a part of a
placement anew.
"""

import random
from collections.abc import Sequence
from math import inf

import numpy as np

from byoc.placement._problem import Ints, Problem
from byoc.placement.solvers._list_scheduling import IdleIntervals
from byoc.placement.solvers._unit_groups import Neighbours

# Seconds to place a unit, or a reader of a tensor, for each device, on one core of about 3 GHz.
_ITEM_SECONDS = 1.5e-6
# Drawn ranks are made of seconds between these parts of the average ones.
_LEAST, _MOST = 0.6, 1.4


class EarliestFinish:
    """Labels of a problem, each unit launched by itself; what transfers occupy is left out."""

    def __init__(self, problem: Problem) -> None:
        """Prepare what all placements share, O(tensors + entries)."""
        self._problem = problem
        self._around = Neighbours(problem)
        self._costs: list[list[float]] = problem.costs.tolist()
        self._launch = [0.0, *problem.launch.tolist()]
        allowed = np.where(problem.allowed, problem.seconds, 0.0)
        self._average: list[float] = (
            allowed.sum(axis=1) / np.maximum(1, problem.allowed.sum(axis=1))
        ).tolist()
        transfers = np.hstack([problem.to_device, problem.to_host])
        transfers = np.where(np.isfinite(transfers), transfers, 0.0)
        self._moving: list[float] = (transfers.sum(axis=1) / max(1, transfers.shape[1])).tolist()
        items = 1 + problem.units + len(problem.consumers)
        self.step_seconds = _ITEM_SECONDS * max(1, problem.devices) * items
        """Seconds that one placement takes on one core of about 3 GHz."""

    def place(self, draw: random.Random | None = None, kept: Sequence[int] | None = None) -> Ints:
        """Return labels, int64 (units,): by average ranks, or by ranks drawn around them.

        `kept` has the device of each unit that stays where it is, and -1 for the others.
        """
        problem = self._problem
        end = [0.0] * problem.units
        labels = [0] * problem.units
        hosts = [IdleIntervals() for _ in range(max(1, min(problem.cores, problem.units)))]
        lanes = [hosts, *([IdleIntervals()] for _ in range(problem.devices))]
        rank = self.rank_units(draw)
        for unit in sorted(range(problem.units), key=lambda unit: (-rank[unit], unit)):
            fixed = -1 if kept is None else kept[unit]
            finish, chosen, lane, ready = inf, 0, hosts[0], inf
            for device, seconds in enumerate(self._costs[unit]):
                if seconds == inf or fixed not in (-1, device):
                    continue
                arrived = self._find_arrival(unit, device, labels, end)
                taken = self._launch[device] + seconds
                for each in lanes[device]:
                    ends = each.find(arrived, taken)[0] + taken
                    if ends < finish:
                        finish, chosen, lane, ready = ends, device, each, arrived
            labels[unit], end[unit] = chosen, finish
            if finish < inf:
                lane.take(ready, self._launch[chosen] + self._costs[unit][chosen])
        return np.array(labels, np.int64)

    def _find_arrival(
        self, unit: int, device: int, labels: Sequence[int], end: Sequence[float]
    ) -> float:
        """Return when all that a unit reads is on a device."""
        around, arrived = self._around, 0.0
        for tensor in around.read[unit]:
            producer = around.producer[tensor]
            home, made = (labels[producer], end[producer]) if producer >= 0 else (0, 0.0)
            if home:
                made += around.to_host[tensor][home - 1] if home != device else 0.0
            if device and home != device:
                made += around.to_device[tensor][device - 1]
            arrived = max(arrived, made)
        return arrived

    def rank_units(self, draw: random.Random | None = None) -> list[float]:
        """Return the seconds of the longest average path from each unit to the end, or drawn ones."""
        around = self._around
        rank = list(self._average)
        if draw is not None:
            rank = [seconds * draw.uniform(_LEAST, _MOST) for seconds in rank]
        for unit in reversed(range(self._problem.units)):
            longest = 0.0
            for tensor in around.made[unit]:
                for reader in around.consumers[tensor]:
                    longest = max(longest, self._moving[tensor] + rank[reader])
            rank[unit] += longest
        return rank
