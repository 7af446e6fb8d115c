"""Local search for balanced loads: moves of single groups, and of all that two devices hold."""

import math
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import inf
from typing import NamedTuple

import numpy as np

from byoc._dataclasses import dataclass, replace
from byoc.numerics import SearchBudget
from byoc.placement._load_frontier import MOST_PROFIT, Edge, LoadFrontier
from byoc.placement._problem import Occupancy, Problem
from byoc.placement._unit_groups import HOST, UnitGroups

# A placement of unit groups whose loads are kept up to date move by move.

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


# Seconds that trying one move takes on one core of about 3 GHz, and more for each tensor it touches.
_MOVE_SECONDS, _TENSOR_SECONDS = 1.6e-6, 0.4e-6
# The power of the loads in the energy: the larger, the nearer to their maximum.
_POWER = 8
# The share of moves that bring a group to the device of a neighbour.
_NEAR = 0.85
# How often the improving loads are summed up anew, against rounding errors that add up.
_REFRESH = 20_000


@dataclass(frozen=True)
class Cooling:
    """Temperatures at the beginning and the end, as shares of the energy, and the number of moves."""

    hot: float
    cold: float
    moves: int


@dataclass(frozen=True, eq=False)
class LoadAnnealer:
    """Simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220, 1983) of device loads.

    The energy is the sum of a power of all loads, a smooth stand-in for their maximum.
    """

    occupies: Sequence[Occupancy]
    cores: int

    def improve(  # noqa: PLR0912 - one loop, in which calls would take half of the time
        self,
        groups: UnitGroups,
        labels: Sequence[int],
        cooling: Cooling,
        seed: int,
        budget: SearchBudget,
    ) -> tuple[float, list[int]]:
        """Return the least maximal load in seconds that was seen, and the labels of the groups there.

        Stops early when the budget is spent.
        """
        state = LoadState(groups, self.occupies, self.cores, labels)
        generator = random.Random(seed)
        best, chosen = max(state.loads()), list(state.labels)
        touched = sum(map(len, groups.touching)) / max(groups.count, 1)
        each = _MOVE_SECONDS + _TENSOR_SECONDS * touched
        moves = int(min(cooling.moves, budget.left / each))
        if not groups.count or not groups.devices or not 0 < best < math.inf:
            return best, chosen
        budget.spend(moves * each)
        scale = 1 / best
        powers = [(load * scale) ** _POWER for load in state.loads()]
        energy = sum(powers)
        decay = (cooling.cold / cooling.hot) ** (1 / max(moves, 1))
        heat = cooling.hot
        near, count = groups.neighbours, groups.count
        for step in range(moves):
            heat *= decay
            group = generator.randrange(count)
            around = near[group]
            if around and generator.random() < _NEAR:
                target = state.labels[around[generator.randrange(len(around))]]
            else:
                target = generator.randrange(groups.devices + 1)
            source = state.labels[group]
            move = None if target == source else state.examine(group, target)
            if move is None:
                continue
            host, first, second = state.loads_after(move)
            try:
                after = energy - powers[0] + (host * scale) ** _POWER
                if source:
                    after += (first * scale) ** _POWER - powers[source]
                if target:
                    after += (second * scale) ** _POWER - powers[target]
            except OverflowError:  # a load that no float of this power holds is no improvement
                continue
            if after > energy and generator.random() >= math.exp((energy - after) / (heat * energy)):
                continue
            state.apply(move)
            energy = after
            for device, load in ((0, host), (source, first), (target, second)):
                powers[device] = (load * scale) ** _POWER
            if step % _REFRESH == 0:
                energy = sum(powers)
            if energy < 1 + groups.devices and max(powers) < 1:
                peak = max(state.loads())
                if peak < best * (1 - 1e-12):
                    best, chosen = peak, list(state.labels)
                    scale = 1 / best
                    powers = [(load * scale) ** _POWER for load in state.loads()]
                    energy = sum(powers)
        # Loads that were updated move by move carry rounding errors.
        return max(LoadState(groups, self.occupies, self.cores, chosen).loads()), chosen


def coarsen(groups: UnitGroups, most_seconds: float) -> list[int]:
    """Return the cluster of each group: pairs with the dearest tensors between them become one.

    Heavy-edge matching as in Karypis and Kumar, SIAM Journal on Scientific Computing 20, 1998; the
    weight of an edge is its transfer over the geometric mean of both executions. A pair takes at most
    `most_seconds` where it is fastest, and fits the memory of an accelerator.
    """
    weight: dict[tuple[int, int], float] = {}
    for tensor in groups.tensors:
        if tensor.home == HOST or not tensor.readers:
            continue
        costs = [cost for cost in (*tensor.to_device, *tensor.to_host) if cost < math.inf]
        share = sum(costs) / max(len(costs), 1) / len(tensor.readers)
        for reader in tensor.readers:
            pair = min(tensor.home, reader), max(tensor.home, reader)
            weight[pair] = weight.get(pair, 0.0) + share
    seconds: list[float] = groups.costs.min(axis=1).tolist()
    tiny = 1e-12 + 1e-6 * sum(seconds) / max(groups.count, 1)

    def sort_key(pair: tuple[int, int]) -> tuple[float, tuple[int, int]]:
        return -weight[pair] / math.sqrt((seconds[pair[0]] + tiny) * (seconds[pair[1]] + tiny)), pair

    cluster = list(range(groups.count))
    paired: set[int] = set()
    for one, other in sorted(weight, key=sort_key):
        if one in paired or other in paired:
            continue
        together = groups.costs[one] + groups.costs[other]
        together[1:][groups.memory[one] + groups.memory[other] > groups.capacity] = math.inf
        if together.min() <= most_seconds and math.isfinite(together[1:].min(initial=math.inf)):
            cluster[other] = one
            paired |= {one, other}
    number: dict[int, int] = {}
    return [number.setdefault(each, len(number)) for each in cluster]


# Local search over pairs of devices: what both have is split between them anew, as well as can be.
#
# A table finds, for each load of one device, the least load of the other (`LoadFrontier`, with the
# costs of the other as losses of profit). Loads of other devices stay as they are, since a tensor
# from or to them is moved in either case. The table takes a tensor that starts in the pair to be
# sent by whichever device has a part of its ends, as if receiving took as long; what is kept is
# measured as it is.

# Seconds on one core of about 3 GHz: for an entry of a table, a state, and a group or tensor; for a
# label that is looked at, and a group or tensor whose load is summed up.
_ENTRY_SECONDS, _STATE_SECONDS, _ITEM_SECONDS = 3.5e-9, 1.3e-5, 2e-5
_LABEL_SECONDS, _SUM_SECONDS = 1e-7, 3e-6
# Steps of loads, and states of a pair that is not split.
_STEPS, _MOST_STATES = 2_000, 6_000
# The highest load that a table has, as a share of the highest of all devices: sums are rounded.
_MARGIN = 1.01
# Splits of a pair that are tried, since the loads of a table are rounded.
_TRIES = 3
# A smaller relative gain may be a rounding error.
_LEAST_GAIN = 1e-9


class PairSearch:
    """Splits pairs of devices until none is better; remembers pairs that were split in vain."""

    def __init__(self, problem: Problem, groups: UnitGroups) -> None:
        """Take the groups of a problem."""
        self._problem, self._groups = problem, groups
        self._occupies = problem.occupies
        self._seen = set[tuple[int, int, bytes]]()

    def improve(self, labels: Sequence[int], budget: SearchBudget) -> list[int]:
        """Return labels of the groups with smaller loads, within a budget.

        The highest pair comes first. A split is kept that lowers the higher load of its pair.
        """
        groups = self._groups
        best = list(labels)
        loads = self._measure(best)
        if not groups.count or not max(loads) < inf:
            return best
        is_better = True
        while is_better and not budget.is_spent:
            is_better = False
            for pair in self._iterate_pairs(loads):
                found = self._split(best, pair, max(loads), budget)
                if found is not None:
                    after = self._measure(found)
                    # A host that copies has another load, too, though it is none of the pair.
                    changed = [load for load, old in zip(after, loads, strict=True) if load != old]
                    peak = max(loads[device] for device in pair) * (1 - _LEAST_GAIN)
                    if changed and max(changed) < peak:
                        best, loads, is_better = found, after, True
                        break
                if budget.is_spent:
                    break
        return best

    def _iterate_pairs(self, loads: Sequence[float]) -> Iterator[tuple[int, int]]:
        """Yield accelerators with another device each, the highest load first, then the widest gap."""

        def sort_key(pair: tuple[int, int]) -> tuple[float, float, tuple[int, int]]:
            low, high = sorted(loads[device] for device in pair)
            return -high, low, pair

        pairs = ((one, other) for other, one in combinations(range(len(loads)), 2))
        yield from sorted(pairs, key=sort_key)

    def _measure(self, labels: Sequence[int]) -> list[float]:
        """Return the loads of all devices in seconds, infinite where memory is exceeded."""
        state = LoadState(self._groups, self._problem.occupies, self._problem.cores, labels)
        loads = state.loads()
        room = [inf, *(self._groups.capacity * (1 + 2.0**-40)).tolist()]
        return [
            inf if taken > most else load
            for load, taken, most in zip(loads, state.bytes, room, strict=True)
        ]

    def _split(
        self, labels: Sequence[int], pair: tuple[int, int], peak: float, budget: SearchBudget
    ) -> list[int] | None:
        """Return the labels with the best split of a pair of devices; None if known or too large."""
        budget.spend(len(labels) * _LABEL_SECONDS)
        both = np.array([label in pair for label in labels])
        key = (*pair, np.where(both, labels, -1).astype(np.int32).tobytes())
        members = np.flatnonzero(both).tolist()
        if key in self._seen or not members:
            return None
        self._seen.add(key)
        found = self._find_splits(members, pair, peak, budget)
        budget.spend((1 + len(found)) * (len(labels) + len(self._groups.tensors)) * _SUM_SECONDS)
        splits = []
        for inside in found:
            split = list(labels)
            for number, group in enumerate(members):
                split[group] = pair[0] if number in inside else pair[1]
            loads = self._measure(split)
            splits.append((max(loads[device] for device in pair), split))
        return min(splits, key=_get_load, default=(0.0, None))[1]

    def _find_splits(
        self, members: Sequence[int], pair: tuple[int, int], peak: float, budget: SearchBudget
    ) -> list[set[int]]:
        """Return the best splits of a pair: the groups of the first device, as places in `members`."""
        one, other = (self._groups.costs[members, device] for device in pair)
        refused = ~np.isfinite(other)
        # More than the peak is not told apart, so that all losses fit into a table.
        limit = 2 * peak
        outside = np.minimum(np.where(refused, 0.0, other), limit)
        if pair[1] == 0:
            outside /= self._problem.cores
        edges, losses = self._find_edges(members, pair)
        total = float(outside.sum() + np.minimum(losses, limit).sum())
        scale = min((MOST_PROFIT - len(members)) / total, sys.float_info.max) if total > 0 else 1.0
        edges = [
            replace(edge, loss=int(min(loss, limit) * scale))
            for edge, loss in zip(edges, losses, strict=True)
        ]
        budget.spend((len(members) + len(edges)) * _ITEM_SECONDS)
        frontier = LoadFrontier.build(
            one,
            edges,
            peak * _MARGIN,
            steps=_STEPS,
            most_states=_MOST_STATES,
            rounds_down=False,
            is_forced=refused,
        )
        budget.spend((frontier.states if frontier else _MOST_STATES) * _STATE_SECONDS)
        if frontier is None or frontier.is_empty:
            return []
        budget.spend(frontier.size * _ENTRY_SECONDS)
        nothing = np.zeros(len(members), np.int64)
        best = frontier.find_best_sets(nothing, -np.floor(outside * scale).astype(np.int64))
        left = -best.profits() / scale
        peaks = np.maximum(np.arange(len(left)) * frontier.step, left)
        chosen = np.argsort(peaks, kind="stable")[:_TRIES]
        budget.spend(len(chosen) * frontier.trace_seconds)
        return [set(best.trace(int(steps))[0]) for steps in chosen if peaks[steps] < limit]

    def _find_edges(
        self, members: Sequence[int], pair: tuple[int, int]
    ) -> tuple[list[Edge], list[float]]:
        """Return the tensors that the split of some groups moves, and what each costs the second device.

        Ends are places in `members`.
        """
        groups = self._groups
        place = {group: number for number, group in enumerate(members)}
        touching = sorted({number for group in members for number in groups.touching[group]})
        edges, losses = [], []
        for tensor in (groups.tensors[number] for number in touching):
            ends = tuple(sorted(place[group] for group in tensor.ends if group in place))
            is_shared = len(ends) < len(tensor.ends) or tensor.is_output or tensor.home == HOST
            if not is_shared and len(ends) < 2:
                continue
            moved = tensor.to_host if tensor.home in place else tensor.to_device
            costs = [
                moved[device - 1] if device and self._occupies[device - 1] is Occupancy.device else 0.0
                for device in pair
            ]
            if any(costs):
                edges.append(Edge(ends, costs[0], is_shared=is_shared))
                losses.append(costs[1])
        return edges, losses


def _get_load(split: tuple[float, list[int] | None]) -> float:
    """Return the higher load of a split."""
    return split[0]
