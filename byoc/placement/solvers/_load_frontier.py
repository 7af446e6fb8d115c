"""The sets of groups that one device can run within a load, and the one of most profit.

The groups are taken in an order in which few tensors are open at a time: have ends before and after.
What a partial set costs later depends only on which open tensors it has all ends of so far, none, or
some. These states are few in most networks, and a table over states and loads is filled group by group.

Loads are counted in steps, rounded down so that no set is left out: a tensor of which some but not all
ends are in the set is moved once, and each run of groups that are neighbours in the order loses about
one step, whatever its length.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Self

import numpy as np

from byoc.placement._problem import Floats, Ints, Occupancy
from byoc.placement.solvers._unit_groups import HOST, UnitGroups

# More than the rounding errors of a sum of costs, in steps.
_ROUNDING = 1e-7
# Steps of a group or tensor that no set has, few enough that sums of them fit into 64 bits.
_TOO_MANY = 2.0**40
_NOT_YET = -1e300
_ALL, _NONE, _SOME = 1, 0, 2


@dataclass(frozen=True, eq=False)
class _Transition:
    """Ways to go on from some states: with or without the next group."""

    is_member: bool
    steps: int
    """of load that are added; below 0 where a run begins within a step"""
    source: Ints
    target: Ints
    """int64 (moves,) each: states before and after, no target twice"""


@dataclass(frozen=True, eq=False)
class _Layer:
    """A group, the number of states after it, and the transitions to these."""

    group: int
    states: int
    outside: Ints
    """int64: the states without the group"""
    transitions: tuple[_Transition, ...]


@dataclass(frozen=True, eq=False)
class LoadFrontier:
    """The sets of groups whose load on one device is at most a number of steps."""

    order: tuple[int, ...]
    layers: tuple[_Layer, ...]
    steps: int
    _costs: Floats
    _edges: "list[Edge]"

    @classmethod
    def build(  # noqa: PLR0913, PLR0917 - what defines the sets
        cls,
        groups: UnitGroups,
        device: int,
        occupies: Occupancy,
        most_seconds: float,
        steps: int,
        least_transfer: float,
        most_states: int,
    ) -> Self | None:
        """Build the states of a device, from 1; None if there are more than `most_states` in all.

        None, too, where a step is too short for a normal number. Sets of at most `most_seconds`, counted
        in so many steps. Tensors that take less than
        `least_transfer` seconds are free, and all are where transfers do not occupy the device.
        """
        if most_seconds / steps < sys.float_info.min:
            return None
        costs, edges = _find_edges(groups, device, occupies, least_transfer)
        order = _find_order(groups.count, [ends for ends, _ in edges])
        builder = _LayerBuilder(costs, edges, order, most_seconds / steps, steps)
        layers = builder.build(most_states)
        if layers is None:
            return None
        return cls(tuple(order), layers, steps, costs, edges)

    @property
    def size(self) -> int:
        """Number of entries of the tables."""
        return sum(layer.states for layer in self.layers) * (self.steps + 2)

    def measure(self, members: Sequence[int]) -> float:
        """Return the load of a set in seconds, not rounded, without what is free here."""
        inside = set(members)
        load = sum(float(self._costs[group]) for group in members)
        for ends, seconds in self._edges:
            if 0 < sum(group in inside for group in ends) < len(ends):
                load += seconds
        return load

    def find_best_sets(self, profit: Floats) -> "BestSets":
        """Return the sets of most profit; `profit` is float64 (groups,), of each group."""
        # The first column is for -1 steps, which a run that goes on may have: less than 0 s is none.
        width = self.steps + 2
        table = np.full((1, width), _NOT_YET)
        table[0, 1] = 0.0
        tables = [table]
        for layer in self.layers:
            following = np.full((layer.states, width), _NOT_YET)
            for way in layer.transitions:
                value = table[way.source]
                if way.is_member:
                    value += profit[layer.group]
                if way.steps < 0:
                    value[:, -way.steps] = value[:, : 1 - way.steps].max(axis=1)
                first, last = max(way.steps, 0), width + min(way.steps, 0)
                reached = following[way.target, first:last]
                value = value[:, max(-way.steps, 0) : width - first]
                following[way.target, first:last] = np.maximum(reached, value)
            outside = following[layer.outside, :2].max(axis=1)
            following[layer.outside, 1] = outside
            following[layer.outside, 0] = _NOT_YET
            table = following
            tables.append(table)
        return BestSets(self, profit, tables)


@dataclass(frozen=True, eq=False)
class BestSets:
    """The sets of most profit for each load."""

    frontier: LoadFrontier
    profit: Floats
    _tables: list[Floats]

    def profits(self) -> Floats:
        """Return the most profit of a set with at most 0, 1, ... steps, float64 (steps + 1,)."""
        most: Floats = np.maximum.accumulate(self._tables[-1].max(axis=0))[1:]
        return most

    def trace(self, steps: int) -> tuple[list[int], int]:
        """Return the groups of the best set of at most so many steps, and its steps."""
        table = self._tables[-1][:, : steps + 2]
        state, at = (int(each) for each in np.unravel_index(int(table.argmax()), table.shape))
        found, taken = [], at - 1
        for layer, before, after in zip(
            reversed(self.frontier.layers),
            reversed(self._tables[:-1]),
            reversed(self._tables[1:]),
            strict=True,
        ):
            wanted, best = after[state, at], (inf, 0, 0, False)
            for way in layer.transitions:
                here = np.flatnonzero(way.target == state)
                if not here.size:
                    continue
                origin = int(way.source[here[0]])
                gain = self.profit[layer.group] if way.is_member else 0.0
                start = at - way.steps
                lowest = 0 if at <= (not way.is_member) else start
                for begin in range(max(lowest, 0), min(start + 1, before.shape[1])):
                    error = abs(before[origin, begin] + gain - wanted)
                    best = min(best, (error, origin, begin, way.is_member))
            _, state, at, is_member = best
            if is_member:
                found.append(layer.group)
        return found[::-1], taken


Edge = tuple[tuple[int, ...], float]
"""The groups that a tensor connects, and the seconds that a device takes to move it."""


def _find_edges(
    groups: UnitGroups, device: int, occupies: Occupancy, least: float
) -> tuple[Floats, list[Edge]]:
    """Return the seconds of each group, float64 (groups,), and the tensors that may be moved.

    Sending and receiving count alike, at what is cheaper.
    """
    costs, seconds = groups.costs[:, device].copy(), dict[tuple[int, ...], float]()
    for tensor in groups.tensors:
        if occupies is not Occupancy.device or tensor.home == HOST:
            continue
        down, up = tensor.to_device[device - 1], tensor.to_host[device - 1]
        if tensor.is_output:
            costs[tensor.home] += up
        elif tensor.readers:
            ends = tuple(sorted(tensor.ends))
            seconds[ends] = seconds.get(ends, 0.0) + min(down, up)
    return costs, [(ends, each) for ends, each in seconds.items() if each > max(least, 0.0)]


def order_narrowly(groups: UnitGroups) -> list[int]:
    """Return all groups in an order in which few tensors are open at a time."""
    ends = [each.ends for each in groups.tensors if each.home != HOST and each.readers]
    return _find_order(groups.count, ends)


def _find_order(count: int, edges: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the groups so that few edges are open at a time: the next one opens fewest more."""
    touching: list[list[int]] = [[] for _ in range(count)]
    for number, ends in enumerate(edges):
        for group in ends:
            touching[group].append(number)
    left = [len(ends) for ends in edges]
    is_open = [False] * len(edges)
    near: set[int] = set()
    waiting, order = dict.fromkeys(range(count)), list[int]()

    def count_opened(group: int) -> tuple[int, int]:
        opened = sum(not is_open[edge] and left[edge] > 1 for edge in touching[group])
        closed = sum(is_open[edge] and left[edge] == 1 for edge in touching[group])
        return opened - closed, group

    while waiting:
        group = min(near, key=count_opened) if near else next(iter(waiting))
        order.append(group)
        del waiting[group]
        near.discard(group)
        for edge in touching[group]:
            left[edge] -= 1
            is_open[edge] = left[edge] > 0
            near.update(each for each in edges[edge] if each in waiting)
    return order


class _LayerBuilder:
    """The states after each group."""

    def __init__(
        self, costs: Floats, edges: Sequence[Edge], order: Sequence[int], step: float, steps: int
    ) -> None:
        self._order, self._steps = order, steps
        position = {group: place for place, group in enumerate(order)}
        self._touching: list[list[int]] = [[] for _ in order]
        self._last = [max(position[group] for group in ends) for ends, _ in edges]
        self._moving = [int(min(seconds / step, _TOO_MANY) - _ROUNDING) for _, seconds in edges]
        for number, (ends, _) in enumerate(edges):
            for group in ends:
                self._touching[position[group]].append(number)
        with np.errstate(over="ignore"):
            along = costs[list(order)] / step
        self._refused = ~(along < _TOO_MANY)
        total = np.append(0.0, np.cumsum(np.where(self._refused, 0.0, along)))
        self._down = np.floor(total - _ROUNDING).astype(np.int64)
        self._up = np.ceil(total + _ROUNDING).astype(np.int64)

    def build(self, most_states: int) -> tuple[_Layer, ...] | None:
        """Return the layers; None if they have more states than that."""
        layers, total = [], 0
        is_open: list[int] = []
        states: dict[tuple[int, ...], int] = {(0,): 0}
        least = [0]
        for place, group in enumerate(self._order):
            touching = self._touching[place]
            known = set(is_open)
            after = [edge for edge in is_open if self._last[edge] > place]
            after += [edge for edge in touching if edge not in known and self._last[edge] > place]
            following: dict[tuple[int, ...], int] = {}
            lowest: list[int] = []
            moves: dict[tuple[bool, int], list[tuple[int, int]]] = {}
            for state, number in states.items():
                ends = dict(zip(is_open, state[1:], strict=True))
                for is_member in (False, True):
                    if is_member and self._refused[place]:
                        continue
                    code, steps = dict(ends), self._count_steps(place, is_member, bool(state[0]))
                    for edge in touching:
                        before = code.get(edge, int(is_member))
                        if before not in {_SOME, int(is_member)}:
                            steps += self._moving[edge]
                            before = _SOME
                        code[edge] = before
                    if least[number] + steps > self._steps:
                        continue
                    key = (int(is_member), *(code[edge] for edge in after))
                    target = following.setdefault(key, len(following))
                    reached = max(least[number] + steps, -int(is_member))
                    if target == len(lowest):
                        lowest.append(reached)
                    lowest[target] = min(lowest[target], reached)
                    moves.setdefault((is_member, steps), []).append((number, target))
            total += len(following)
            if total > most_states:
                return None
            outside = np.array([each for key, each in following.items() if not key[0]], np.int64)
            layers.append(_Layer(group, len(following), outside, tuple(_make_transitions(moves))))
            is_open, states, least = after, following, lowest
        return tuple(layers)

    def _count_steps(self, place: int, is_member: bool, is_continued: bool) -> int:
        """Return the steps that the group at a place adds by itself."""
        if not is_member:
            return 0
        start = self._down[place] if is_continued else self._up[place]
        return int(self._down[place + 1] - start)


def _make_transitions(moves: dict[tuple[bool, int], list[tuple[int, int]]]) -> list[_Transition]:
    """Return moves between states as transitions, none of which has a target twice."""
    transitions = []
    for (is_member, steps), pairs in moves.items():
        left = pairs
        while left:
            first: dict[int, int] = {}
            rest = []
            for source, target in left:
                if first.setdefault(target, source) != source:
                    rest.append((source, target))
            sources = np.array(list(first.values()), np.int64)
            targets = np.array(list(first), np.int64)
            transitions.append(_Transition(is_member, steps, sources, targets))
            left = rest
    return transitions
