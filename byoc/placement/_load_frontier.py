"""The sets of groups that one device can run within a load, and the one of most profit.

A table over the states of open tensors (`LayerBuilder`) and over loads is filled group by group. Loads
are counted in steps, profits are integers, so that sums of them are exact.
"""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.placement._problem import Bools, Floats, Ints, Occupancy
from byoc.placement._unit_groups import HOST, UnitGroups

# The states of open tensors after each group of an order, and the transitions between them.
#
# The groups are taken in an order in which few tensors are open at a time: have ends before and
# after. What a partial set costs later depends only on which open tensors it has all ends of so
# far, none, or some. These states are few in most networks.

# More than the rounding errors of a quotient, in steps, and those of each sum as a share of it.
_ROUNDING, _SUM_ROUNDING = 1e-7, 2.0**-52
# Steps of a group or tensor that no set has, few enough that sums of them fit into 64 bits.
_TOO_MANY = 2.0**40
_SOME = 2  # code of an edge with groups on both sides, beside 0 (none) and 1 (all)


@dataclass(frozen=True)
class Edge:
    """A tensor that a device moves if some, but not all, of its ends are in the set there."""

    ends: tuple[int, ...]
    """groups, in rising order"""
    seconds: float
    """of the device that has the set"""
    loss: int = 0
    """profit that is lost when those outside of the set move it"""
    is_shared: bool = False
    """It has other ends, too: the set and those outside of it each move it if they have an end."""


@dataclass(frozen=True, eq=False)
class Transition:
    """Moves from some states to those after the next group, with or without it in the set."""

    is_member: bool
    steps: int
    """of load that are added; below 0 where a run begins within a step"""
    loss: int
    """of profit"""
    source: Ints
    target: Ints
    """int64 (moves,) each: states before and after, no target twice"""

    @cached_property
    def rows(self) -> tuple[Ints | slice, Ints | slice]:
        """Both as indices of a table's rows: as slices, which are not copied, where they are even."""
        return _find_slice(self.source), _find_slice(self.target)


@dataclass(frozen=True, eq=False)
class Layer:
    """A group, the number of states after it, and the transitions to these."""

    group: int
    states: int
    outside: Ints
    """int64: the states without the group, if loads are rounded down"""
    transitions: tuple[Transition, ...]

    @cached_property
    def moves(self) -> tuple[Ints, Ints, Ints]:
        """The target, the source, and the transition of each move, int64 (moves,) each."""
        sizes = [len(each.target) for each in self.transitions]
        numbers: Ints = np.repeat(np.arange(len(sizes)), sizes)
        targets: Ints = np.concatenate([each.target for each in self.transitions])
        sources: Ints = np.concatenate([each.source for each in self.transitions])
        return targets, sources, numbers


def order_narrowly(groups: UnitGroups) -> list[int]:
    """Return all groups in an order in which few tensors are open at a time."""
    ends = [each.ends for each in groups.tensors if each.home != HOST and each.readers]
    return find_narrow_order(groups.count, ends)


def find_narrow_order(count: int, edges: Sequence[tuple[int, ...]]) -> list[int]:
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


class LayerBuilder:
    """Builds the states after each group.

    Loads are counted in steps. Rounded down, no set counts more than it takes: a run of groups that
    are neighbours in the order counts the whole steps between its ends, and so loses at most two,
    whatever its length; each tensor loses at most one. Otherwise the ends of runs are rounded to the
    nearest step, and tensors up: sets would have many transfers that count nothing.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what defines the sets
        self,
        costs: Floats,
        is_forced: Bools,
        edges: Sequence[Edge],
        order: Sequence[int],
        step: float,
        steps: int,
        rounds_down: bool,
    ) -> None:
        """Take the groups' seconds, inf = never in a set, and bool (groups,): in every set."""
        self._order, self._steps, self._edges = order, steps, edges
        self._rounds_down = rounds_down
        self._is_forced = is_forced[list(order)].tolist()
        position = {group: place for place, group in enumerate(order)}
        self._touching: list[list[int]] = [[] for _ in order]
        self._last = [max(position[group] for group in edge.ends) for edge in edges]
        rounding = (0 if rounds_down else 1) - _ROUNDING
        self._moving = [int(min(edge.seconds / step, _TOO_MANY) + rounding) for edge in edges]
        for number, edge in enumerate(edges):
            for group in edge.ends:
                self._touching[position[group]].append(number)
        with np.errstate(over="ignore"):
            along = costs[list(order)] / step
        # A group that no set has room for would cost the sums after it their digits.
        self._refused = (~(along < steps + 1)).tolist()
        total = np.append(0.0, np.cumsum(np.where(self._refused, 0.0, along)))
        error = _ROUNDING + _SUM_ROUNDING * len(order) * float(total[-1])
        up = np.ceil(total + error) if rounds_down else np.rint(total)
        down = np.floor(total - error) if rounds_down else up
        self._down: list[int] = down.astype(np.int64).tolist()
        self._up: list[int] = up.astype(np.int64).tolist()

    def build(self, most_states: int) -> tuple[Layer, ...] | None:
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
            moves: dict[tuple[bool, int, int], list[tuple[int, int]]] = {}
            for state, number in states.items():
                ends = dict(zip(is_open, state[1:], strict=True))
                for is_member in (False, True):
                    if self._refused[place] if is_member else self._is_forced[place]:
                        continue
                    code = dict(ends)
                    steps = self._count_steps(place, bool(state[0])) if is_member else 0
                    moved, loss = self._close(touching, code, is_member)
                    steps += moved
                    if least[number] + steps > self._steps:
                        continue
                    run = int(is_member and self._rounds_down)
                    key = (run, *(code[edge] for edge in after))
                    target = following.setdefault(key, len(following))
                    reached = max(least[number] + steps, -run)
                    if target == len(lowest):
                        lowest.append(reached)
                    lowest[target] = min(lowest[target], reached)
                    moves.setdefault((is_member, steps, loss), []).append((number, target))
            total += len(following)
            if total > most_states:
                return None
            outside = [each for key, each in following.items() if self._rounds_down and not key[0]]
            transitions = tuple(_make_transitions(moves))
            layers.append(Layer(group, len(following), np.array(outside, np.int64), transitions))
            is_open, states, least = after, following, lowest
        return tuple(layers)

    def _close(self, touching: Sequence[int], code: dict[int, int], is_member: bool) -> tuple[int, int]:
        """Enter a group into the codes of its edges; return the steps and the loss that this adds."""
        steps = loss = 0
        for number in touching:
            edge, before = self._edges[number], code.get(number)
            after = int(is_member) if before in {None, int(is_member)} else _SOME
            code[number] = after
            if after == before:
                continue
            is_moved = edge.is_shared or after == _SOME
            if is_moved and (is_member or not edge.is_shared):
                steps += self._moving[number]
            if is_moved and (not is_member or not edge.is_shared):
                loss += edge.loss
        return steps, loss

    def _count_steps(self, place: int, is_continued: bool) -> int:
        """Return the steps that the group at a place adds by itself."""
        start = self._down[place] if is_continued else self._up[place]
        return self._down[place + 1] - start


def _find_slice(numbers: Ints) -> Ints | slice:
    """Return the slice of numbers that rise by equal steps, else the numbers."""
    found = numbers.tolist()
    rise = found[1] - found[0] if len(found) > 1 else 1
    if rise < 1 or found != list(range(found[0], found[-1] + 1, rise)):
        return numbers
    return slice(found[0], found[-1] + 1, rise)


def _make_transitions(moves: dict[tuple[bool, int, int], list[tuple[int, int]]]) -> list[Transition]:
    """Return moves between states as transitions, none of which has a target twice."""
    transitions = []
    for (is_member, steps, loss), pairs in moves.items():
        left = pairs
        while left:
            first: dict[int, int] = {}
            rest = []
            for source, target in left:
                if first.setdefault(target, source) != source:
                    rest.append((source, target))
            sources = np.array(list(first.values()), np.int64)
            targets = np.array(list(first), np.int64)
            transitions.append(Transition(is_member, steps, loss, sources, targets))
            left = rest
    return transitions


MOST_PROFIT = 2**28
"""The sum of the absolute values of all profits, and of all losses, is at most this."""
_NOT_YET = -(2**30)
"""Less than any profit, and far enough from the least 32-bit integer for all losses."""

# Seconds on one core of about 3 GHz to find the set of a load, for each group.
_TRACE_SECONDS = 5e-6
# A step is made to fit the most common tensor if that has this share of all, and takes so many steps.
_COMMON, _LEAST_STEPS = 0.2, 3

Table = NDArray[np.int32]
"""The most profit by state and load, int32 (states, steps + 2), the first column for -1 steps: a run of
groups that goes on may have so little, where loads are rounded down."""


@dataclass(frozen=True, eq=False)
class LoadFrontier:
    """The sets of groups whose load on one device is at most a number of steps."""

    layers: tuple[Layer, ...]
    steps: int
    step: float
    """seconds"""
    _costs: Floats
    _edges: Sequence[Edge]

    @classmethod
    def build(  # noqa: PLR0913 - what defines the sets
        cls,
        costs: Floats,
        edges: Sequence[Edge],
        most_seconds: float,
        *,
        steps: int,
        most_states: int,
        rounds_down: bool,
        is_forced: Bools | None = None,
    ) -> Self | None:
        """Build the states of a device; None if there are more than `most_states` in all.

        None, too, where a step is too short for a normal number. Sets of groups with costs in seconds,
        float64 (groups,), inf = refused, of at most `most_seconds`, counted in so many steps, or a few
        more. Groups of `is_forced`, bool (groups,), are in every set. With `rounds_down` no set is left
        out; otherwise loads are rounded to the nearest step.
        """
        step = most_seconds / steps
        if step < sys.float_info.min:
            return None
        step = _align_step(step, [edge.seconds for edge in edges if edge.seconds <= most_seconds])
        steps = math.ceil(most_seconds / step)
        forced = np.zeros(len(costs), np.bool_) if is_forced is None else is_forced
        order = find_narrow_order(len(costs), [edge.ends for edge in edges])
        layers = LayerBuilder(costs, forced, edges, order, step, steps, rounds_down).build(most_states)
        return None if layers is None else cls(layers, steps, step, costs, edges)

    def round_down(self, steps: int, most_states: int) -> Self | None:
        """Return the same in other steps, with loads rounded down; None as of `build`."""
        most = self.step * self.steps
        return self.build(
            self._costs, self._edges, most, steps=steps, most_states=most_states, rounds_down=True
        )

    @property
    def states(self) -> int:
        """Number of states of all tables."""
        return sum(layer.states for layer in self.layers)

    @property
    def is_empty(self) -> bool:
        """Whether no set with the groups that are forced into it is within the steps."""
        return any(not layer.states for layer in self.layers)

    @property
    def size(self) -> int:
        """Number of entries of all tables."""
        return self.states * (self.steps + 2)

    @property
    def width(self) -> int:
        """Largest number of states of a table."""
        return max((layer.states for layer in self.layers), default=1)

    @property
    def transitions(self) -> int:
        """Number of transitions of all layers."""
        return sum(len(layer.transitions) for layer in self.layers)

    @cached_property
    def _ends(self) -> tuple[Ints, Ints, Ints, Floats]:
        """The ends of all edges, where those of each begin, their number, and its seconds."""
        sizes = np.array([len(edge.ends) for edge in self._edges], np.int64)
        ends = np.array([group for edge in self._edges for group in edge.ends], np.int64)
        start = np.append(0, np.cumsum(sizes))[:-1]
        return ends, start, sizes, np.array([edge.seconds for edge in self._edges])

    @property
    def trace_seconds(self) -> float:
        """Seconds that finding the set of a load takes in a filled table."""
        return len(self.layers) * _TRACE_SECONDS

    def measure(self, members: Sequence[int]) -> float:
        """Return the load of a set in seconds, not rounded, without what is free here."""
        load = float(self._costs[list(members)].sum())
        if not self._edges:
            return load
        inside = np.zeros(len(self._costs), np.int64)
        inside[list(members)] = 1
        ends, start, sizes, seconds = self._ends
        taken = np.add.reduceat(inside[ends], start)
        return load + float(seconds[(taken > 0) & (taken < sizes)].sum())

    def find_most_profits(self, profit: Ints) -> Ints:
        """Return the most profit of a set with at most 0, 1, ... steps, int64 (steps + 1,).

        `profit` is int64 (groups,); sets are not known afterwards, so that less memory is needed.
        """
        return _find_most(_take_last(self._iterate_tables(profit, None)))

    def find_best_sets(self, profit: Ints, outside: Ints | None = None) -> "BestSets":
        """Return the sets of most profit of a frontier whose loads are rounded to the nearest step.

        `profit` is int64 (groups,), of each group in the set; `outside` the same, of those outside.
        """
        tables = list(self._iterate_tables(profit, outside))
        return BestSets(self, profit, outside, tables)

    def _iterate_tables(self, profit: Ints, outside: Ints | None) -> Iterator[Table]:
        """Yield the table before the first group, and that after each."""
        width = self.steps + 2
        table = np.full((1, width), _NOT_YET, np.int32)
        table[0, 1] = 0
        yield table
        for layer in self.layers:
            following = np.full((layer.states, width), _NOT_YET, np.int32)
            for move in layer.transitions:
                gain = _count_gain(layer.group, move.is_member, move.loss, profit, outside)
                source, target = move.rows
                first, back = max(move.steps, 0), max(-move.steps, 0)
                value = table[source, : width - first]
                value = value + np.int32(gain) if gain or back else value
                if back:
                    value[:, back] = value[:, : back + 1].max(axis=1)
                    value = value[:, back:]
                reached = following[target, first : width - back]
                if isinstance(target, slice):
                    np.maximum(reached, value, out=reached)
                else:
                    following[target, first : width - back] = np.maximum(reached, value)
            if layer.outside.size:
                following[layer.outside, 1] = following[layer.outside, :2].max(axis=1)
                following[layer.outside, 0] = _NOT_YET
            table = following
            yield table


@dataclass(frozen=True, eq=False)
class BestSets:
    """The sets of most profit for each load."""

    frontier: LoadFrontier
    profit: Ints
    outside: Ints | None
    _tables: list[Table]

    def profits(self) -> Ints:
        """Return the most profit of a set with at most 0, 1, ... steps, int64 (steps + 1,)."""
        return _find_most(self._tables[-1])

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
            wanted = int(after[state, at])
            targets, sources, numbers = layer.moves
            for place in np.flatnonzero(targets == state).tolist():
                move, origin = layer.transitions[numbers[place]], int(sources[place])
                start = at - move.steps
                if start < 1:
                    continue
                gain = _count_gain(layer.group, move.is_member, move.loss, self.profit, self.outside)
                if int(before[origin, start]) + gain == wanted:
                    state, at = origin, start
                    if move.is_member:
                        found.append(layer.group)
                    break
        return found[::-1], taken


def _align_step(step: float, seconds: Sequence[float]) -> float:
    """Return a step, at most as long, of which the most common tensors take a whole number.

    Networks repeat: where many tensors take as long, all would be rounded alike, and errors add up.
    """
    common, count = max(Counter(seconds).items(), key=_get_count, default=(0.0, 0))
    if count < len(seconds) * _COMMON or common < step * _LEAST_STEPS:
        return step
    return common / math.ceil(common / step)


def _get_count(item: tuple[float, int]) -> tuple[int, float]:
    """Return the sort key of seconds and their count: of equal counts the shortest comes first."""
    return item[1], -item[0]


def _count_gain(group: int, is_member: bool, loss: int, profit: Ints, outside: Ints | None) -> int:
    if is_member:
        return int(profit[group]) - loss
    return -loss if outside is None else int(outside[group]) - loss


def _find_most(table: Table) -> Ints:
    most: Ints = np.maximum.accumulate(table.max(axis=0))[1:].astype(np.int64)
    return most


def _take_last(tables: Iterator[Table]) -> Table:
    """Return the last table; those before are forgotten."""
    last = next(tables)
    for last in tables:  # noqa: B007 - only the last one counts
        pass
    return last


def find_device_edges(
    groups: UnitGroups, device: int, occupies: Occupancy, least: float
) -> tuple[Floats, list[Edge]]:
    """Return the seconds of each group on a device, from 1, float64 (groups,), and what may be moved.

    Sending and receiving count alike, at what is cheaper. Tensors of at most `least` seconds are free,
    and all are where transfers do not occupy the device.
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
    return costs, [Edge(ends, each) for ends, each in seconds.items() if each > max(least, 0.0)]
