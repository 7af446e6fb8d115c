"""The states of open tensors after each group of an order, and the transitions between them.

The groups are taken in an order in which few tensors are open at a time: have ends before and after.
What a partial set costs later depends only on which open tensors it has all ends of so far, none, or
some. These states are few in most networks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from byoc.placement._problem import Bools, Floats, Ints
from byoc.placement.solvers._unit_groups import HOST, UnitGroups

# More than the rounding errors of a quotient, in steps, and those of each sum as a share of it.
_ROUNDING, _SUM_ROUNDING = 1e-7, 2.0**-52
# Steps of a group or tensor that no set has, few enough that sums of them fit into 64 bits.
_TOO_MANY = 2.0**40
_SOME = 2


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
