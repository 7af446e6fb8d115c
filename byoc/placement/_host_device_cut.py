"""Minimum cut between the host and one accelerator, and persistency: units fixed in every optimum."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import cycle
from math import inf

import numpy as np

from byoc._dataclasses import dataclass
from byoc.numerics import SearchBudget
from byoc.numerics.solvers import SINK, SOURCE, find_minimum_cut
from byoc.placement._hard_limits import exceeds_capacity
from byoc.placement._problem import Bools, Floats, Ints, Problem
from byoc.placement._unit_groups import Neighbours

UNDECIDED = -1
# More than the rounding errors of a few sums.
_MARGIN = 2.0**-40


def find_persistent_sides(problem: Problem, launch: float) -> Ints:
    """Return the side of each unit that is the same in every optimum, int64 (units,).
    1 = on the accelerator, 0 = on the host, -1 = not decided. A unit is decided if it gains more than
    the move can cost whatever the other units do: the transfers of its tensors, and one launch, as
    moving one unit adds at most one region. Each decision narrows the choices of other units, so this is
    repeated until nothing changes. Counts the execution, transfers and launches of one accelerator only,
    neither limits nor fusions.
    """
    gain = problem.costs[:, 0] - problem.costs[:, 1]
    side = np.full(problem.units, UNDECIDED, np.int64)
    transfers = _TransferBounds(problem)
    while True:
        joining, leaving = transfers.bounds(side)
        margin = _MARGIN * np.abs(np.where(np.isfinite(gain), gain, 0.0))
        free = side == UNDECIDED
        joins = free & (gain > joining + launch + margin)
        stays = free & (-gain > leaving + launch + margin)
        if not (joins | stays).any():
            return side
        side[joins], side[stays] = 1, 0


class _TransferBounds:
    """The largest transfer cost that moving a unit can cause."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.has_producer = problem.producer >= 0
        self.readers = np.diff(problem.consumer_start)

    def bounds(self, side: Ints) -> tuple[Floats, Floats]:
        """Return the largest cost of joining and of leaving the accelerator, float64 (units,) each."""
        problem, has_producer, readers = self.problem, self.has_producer, self.readers
        producer_side = np.where(has_producer, np.append(side, 0)[problem.producer], 0)
        at = side[problem.consumers]
        there, here = self._count(at == 1), self._count(at == 0)
        down, up = problem.to_device[:, 0], problem.to_host[:, 0]
        # A consumer has the tensor sent unless it is there already or another consumer needs it.
        joins = np.where((producer_side != 1) & (there == 0), down, 0.0)[problem.consumed]
        held = problem.is_output | (here > 0)
        leaves = np.where((producer_side != 0) & ~held, up, 0.0)[problem.consumed]
        # The producer has it sent if a consumer may be on the other side.
        joins_made = np.where(problem.is_output | (there < readers), up, 0.0)
        leaves_made = np.where(here < readers, down, 0.0)
        return self._sum(joins, joins_made), self._sum(leaves, leaves_made)

    def _count(self, which: Bools) -> Ints:
        return np.bincount(self.problem.consumed[which], minlength=self.problem.tensors)

    def _sum(self, read: Floats, made: Floats) -> Floats:
        problem = self.problem
        units = np.concatenate([problem.consumers, problem.producer[self.has_producer]])
        cost = np.concatenate([read, made[self.has_producer]])
        total: Floats = np.bincount(units, cost, minlength=problem.units).astype(np.float64)
        return total


_HOST, _DEVICE = SOURCE, SINK


class HostDeviceCuts:
    """The network whose cuts are the placements on the host and accelerator `device`.
    Node 0, the source, is the host and node 1, the sink, the accelerator: an arc is cut, and paid for,
    when its tail is on the host and its head on the accelerator. The other nodes are the undecided
    units, and auxiliary nodes by which a tensor with several consumers is paid for once (Lawler,
    Networks 3, 1973): `down` is on the accelerator as soon as one consumer is, `up` on the host as soon
    as one is. Decided units are merged with the source or the sink.
    """

    def __init__(self, problem: Problem, device: int, side: Ints) -> None:
        """Take the sides of decided units, int64 (units,), -1 = not decided."""
        self.problem = problem
        self.side = side
        # With several accelerators, a unit that must be on one may be on another than this.
        host = problem.costs[:, 0] if problem.devices == 1 else problem.seconds[:, 0]
        self.seconds = np.column_stack([host, problem.costs[:, device]])
        self.free = np.flatnonzero(side == UNDECIDED)
        self.node = side.copy()
        self.node[self.free] = 2 + np.arange(len(self.free))
        self._size = 2 + len(self.free)
        tail, head, cost = self._transfer_arcs(
            problem.to_device[:, device - 1], problem.to_host[:, device - 1]
        )
        paid, self.tail, self.head, self.cost = reduce_arcs(tail, head, cost)
        self.fixed = math.fsum(paid)
        """Cost of the transfers that every placement pays for."""

    @cached_property
    def edges(self) -> tuple[Ints, Ints]:
        """Tail and head of every edge between units, int64 (edges,)."""
        source, target = self.problem.edges
        return self.node[source], self.node[target]

    def solve(
        self,
        edge_price: Floats | None = None,
        entry_price: Floats | None = None,
        unit_price: Floats | None = None,
        bits: int = 50,
    ) -> tuple[float, Bools]:
        """Return a lower bound of the least cost, and the units on the accelerator there, bool (units,).
        The cost is execution plus transfer plus the multipliers: on edges from the host to the
        accelerator, float64 (edges,); on units of the accelerator as if they read from the host, float64
        (units,); and on any unit of the accelerator, float64 (units,).
        """
        extra = np.zeros(self.problem.units)
        for each in (entry_price, unit_price):
            extra += 0.0 if each is None else each
        decided = self.side != UNDECIDED
        fixed = [self.seconds[decided, self.side[decided]], extra[self.side == _DEVICE]]
        arcs = [(self.tail, self.head, self.cost)]
        if edge_price is not None:
            priced = np.flatnonzero(edge_price)
            begin, end = self.edges[0][priced], self.edges[1][priced]
            paid, begin, end, price = reduce_arcs(begin, end, edge_price[priced])
            fixed.append(paid)
            arcs.append((begin, end, price))
        on_host, on_device = self.seconds[self.free, 0], self.seconds[self.free, 1] + extra[self.free]
        cheapest = np.minimum(on_host, on_device)
        fixed.append(cheapest)
        nodes = self.node[self.free]
        host, device = np.full(len(nodes), _HOST), np.full(len(nodes), _DEVICE)
        arcs += [(nodes, device, on_host - cheapest), (host, nodes, on_device - cheapest)]
        joined = [np.concatenate(side) for side in zip(*arcs, strict=True)]
        value, sink_side = find_minimum_cut(self._size, joined, bits=bits)
        labels = self.side == _DEVICE
        labels[self.free] = sink_side[nodes]
        return math.fsum(np.concatenate(fixed)) + self.fixed + value, labels

    def _transfer_arcs(self, to_device: Floats, to_host: Floats) -> tuple[Ints, Ints, Floats]:
        """Return tails, heads and costs of the arcs of transfers."""
        problem, node = self.problem, self.node
        has_producer = problem.producer >= 0
        producer_node = np.where(has_producer, np.append(node, _HOST)[problem.producer], _HOST)
        readers = np.diff(problem.consumer_start)
        ends = node[problem.consumers]
        there = self._tensors_of(ends == _DEVICE)
        wanted = self._tensors_of(ends == _HOST) | problem.is_output
        single = readers == 1
        only = np.zeros(problem.tensors, np.int64)
        only[single] = ends[problem.consumer_start[:-1][single]]
        down = self._consumer_nodes(
            there, np.full(problem.tensors, _DEVICE), single, only, producer_node != _DEVICE
        )
        up = self._consumer_nodes(
            wanted, np.full(problem.tensors, _HOST), single, only, producer_node != _HOST
        )
        arcs = [(producer_node, down, to_device), (up, producer_node, to_host)]
        tensor = problem.consumed
        fan = (down[tensor] > 1) & ~single[tensor]
        arcs.append((down[tensor][fan], ends[fan], np.full(int(fan.sum()), np.inf)))
        fan = (up[tensor] > 1) & ~single[tensor]
        arcs.append((ends[fan], up[tensor][fan], np.full(int(fan.sum()), np.inf)))
        read = readers > 0
        arcs[0] = (producer_node[read], down[read], to_device[read])
        sent = has_producer & (read | problem.is_output)
        arcs[1] = (up[sent], producer_node[sent], to_host[sent])
        tail, head, cost = (np.concatenate(parts) for parts in zip(*arcs, strict=True))
        return tail, head, cost

    def _consumer_nodes(
        self, certain: Bools, where: Ints, single: Bools, only: Ints, matters: Bools
    ) -> Ints:
        """Return the node that represents the consumers of each tensor, adding nodes where needed."""
        new = ~certain & ~single & matters
        collected = np.where(certain, where, only)
        collected[new] = self._size + np.arange(int(new.sum()))
        self._size += int(new.sum())
        return collected

    def _tensors_of(self, which: Bools) -> Bools:
        found = np.zeros(self.problem.tensors, np.bool_)
        found[self.problem.consumed[which]] = True
        return found


def reduce_arcs(tail: Ints, head: Ints, cost: Floats) -> tuple[Floats, Ints, Ints, Floats]:
    """Return the costs of arcs that every cut contains, and the arcs that only some cuts contain."""
    always = (tail == _HOST) & (head == _DEVICE)
    some = ~always & (tail != head) & (head != _HOST) & (tail != _DEVICE) & (cost > 0)
    return cost[always], tail[some], head[some], cost[some]


# Local search over labels by minimum cuts: any number of units move to one device at once.

# Seconds that a cut takes on one core of about 3 GHz for each unit and each consumer of a tensor.
_CUT_SECONDS = 3.0e-6
# Precision of the cuts: their labels are measured exactly afterwards.
_BITS = 34
# How often prices of bytes are changed, and the first step as a share of the mean worth of a byte.
_ROUNDS, _STEP = 24, 2.0
# How often the price is halved at which what moves to a device just fits.
_HALVINGS = 10


@dataclass(eq=False)
class LabelExpansion:
    """Moves of units to one device, each the best of all, by a minimum cut.

    The move keeps each unit where it is or brings it to the given device, whichever sum of execution,
    transfers and prices of bytes is least (alpha-expansion: Boykov, Veksler and Zabih, IEEE
    Transactions on Pattern Analysis and Machine Intelligence 23, 2001). A tensor is paid for once per
    direction and device, as in every placement. Launches play no part.
    """

    problem: Problem
    budget: SearchBudget

    def __post_init__(self) -> None:
        """Prepare what all cuts share."""
        self.prices = np.zeros(self.problem.devices)
        """float64 (devices,): the prices of bytes that `iterate_labels` has reached."""
        self._around = Neighbours(self.problem)
        self._cut_seconds = _CUT_SECONDS * (self.problem.units + len(self.problem.consumers))

    def iterate_labels(self, labels: Ints) -> Iterator[Ints]:
        """Yield labels, int64 (units,), at prices of bytes that make the memory suffice, and improved.

        Each is followed by what moves within the memory make of it, where it fits. Stops when the
        budget is spent.
        """
        problem = self.problem
        limited = np.isfinite(problem.capacity)
        room = np.where(limited, np.maximum(problem.capacity, 1e-300), 1.0)
        worth = self._find_mean_worth()
        for number in range(_ROUNDS if limited.any() else 1):
            labels = self.settle(labels, self.prices)
            yield labels
            if self.budget.is_spent:
                return
            taken = np.array([problem.memory[labels == 1 + d, d].sum() for d in range(len(room))])
            over = np.where(limited, taken / room - 1.0, 0.0)
            step = worth * _STEP / (1 + number) * np.clip(over, -1, 1)
            self.prices = np.maximum(self.prices + step, 0.0)

    def _find_mean_worth(self) -> float:
        """Return the mean gain of a byte on the accelerators, in seconds."""
        problem = self.problem
        gain = np.maximum(problem.seconds[:, 0] - problem.costs.min(axis=1), 0.0)
        total = float(problem.memory.max(axis=1, initial=0.0).sum())
        worth = float(gain.sum()) / total if total else 0.0
        return worth if np.isfinite(worth) else 0.0

    def settle(self, labels: Ints, prices: Floats) -> Ints:
        """Return labels that no move to a device betters, with prices of bytes, float64 (devices,)."""
        return self._repeat_moves(labels, lambda found, device: self.expand(found, device, prices))

    def improve(self, labels: Ints) -> Ints:
        """Return labels that no move within the memory of the devices betters."""
        return self._repeat_moves(labels, self._expand_within_capacity)

    def _repeat_moves(self, labels: Ints, move: Callable[[Ints, int], Ints]) -> Ints:
        """Return the labels after moves to each device in turn, until none changes anything."""
        unchanged = 0
        for device in cycle(range(1 + self.problem.devices)):
            found = move(labels, device)
            unchanged = unchanged + 1 if (found == labels).all() else 0
            labels = found
            if unchanged > self.problem.devices or self.budget.is_spent:
                break
        return labels

    def _expand_within_capacity(self, labels: Ints, device: int) -> Ints:
        """Return the labels after a move to a device that it has the memory for."""
        problem = self.problem
        free = np.zeros(problem.devices)
        found = self.expand(labels, device, free)
        if not device or not exceeds_capacity(problem, found)[device - 1]:
            return found
        moved = (found != labels) & (problem.memory[:, device - 1] > 0)
        gain = np.maximum(problem.costs[moved, labels[moved]] - problem.costs[moved, device], 0.0)
        low, high = 0.0, 2 * float((gain / problem.memory[moved, device - 1]).max(initial=0.0))
        best = labels
        for _ in range(_HALVINGS):
            if self.budget.is_spent:
                break
            price = free.copy()
            price[device - 1] = middle = (low + high) / 2
            found = self.expand(labels, device, price)
            if exceeds_capacity(problem, found)[device - 1]:
                low = middle
            else:
                best, high = found, middle
        return best

    def expand(self, labels: Ints, device: int, prices: Floats) -> Ints:
        """Return the labels, int64 (units,), after the best move of units to a device."""
        self.budget.spend(self._cut_seconds)
        problem = self.problem
        free = (labels != device) & problem.allowed[:, device]
        node = np.where(labels == device, SINK, SOURCE)
        node[free] = 2 + np.arange(int(free.sum()))
        arcs = self._transfer_arcs(labels.tolist(), node.tolist(), device, 2 + int(free.sum()))
        costs = problem.costs.copy()
        costs[:, 1:] += prices * problem.memory
        stays, moves = costs[free, labels[free]], costs[free, device]
        cheapest = np.minimum(stays, moves)
        ends = node[free]
        tail = np.concatenate([arcs.tail, ends, np.full(len(ends), SOURCE)]).astype(np.int64)
        head = np.concatenate([arcs.head, np.full(len(ends), SINK), ends]).astype(np.int64)
        cost = np.concatenate([arcs.cost, stays - cheapest, moves - cheapest])
        _, tail, head, cost = reduce_arcs(tail, head, cost)
        _, sink_side = find_minimum_cut(arcs.size, (tail, head, cost), bits=_BITS)
        changed = labels.copy()
        changed[free] = np.where(sink_side[ends], device, labels[free])
        return changed

    def _transfer_arcs(
        self, labels: Sequence[int], node: Sequence[int], device: int, size: int
    ) -> "_Arcs":
        """Return arcs that are cut exactly where a tensor has to be transferred after the move."""
        around, arcs = self._around, _Arcs(size)
        host = SOURCE if device else SINK
        for tensor, producer in enumerate(around.producer):
            home, made = (labels[producer], node[producer]) if producer >= 0 else (0, host)
            readers = around.consumers[tensor]
            ends: dict[int, list[int]] = {}
            for reader in readers:
                ends.setdefault(labels[reader], []).append(node[reader])
            if around.is_output[tensor]:
                ends.setdefault(0, []).append(host)
            everywhere = [end for there in ends.values() for end in there]
            for there, nodes in ends.items():
                if there and there != device:
                    # Paid if a reader stays there, and the producer is not there any more.
                    arcs.add_from_any(
                        nodes, made if home == there else SINK, around.to_device[tensor][there - 1]
                    )
            if device:
                arcs.add_to_any(made, everywhere, around.to_device[tensor][device - 1])
                arcs.add_from_any(everywhere, made, around.to_host[tensor][device - 1])
            if home and home != device:
                others = [SINK] if ends.keys() - {home} else everywhere
                arcs.add_to_any(made, others, around.to_host[tensor][home - 1])
        return arcs


class _Arcs:
    """Arcs of a network, and its number of nodes; a cut pays for an arc from source to sink side."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.tail: list[int] = []
        self.head: list[int] = []
        self.cost: list[float] = []

    def add_from_any(self, tails: Sequence[int], head: int, cost: float) -> None:
        """Charge once if any of the tails is on the source side, and the head on the sink side."""
        if head == SOURCE or not tails or not cost:
            return
        if len(tails) == 1 or SOURCE in tails:
            self._add(SOURCE if SOURCE in tails else tails[0], head, cost)
            return
        middle, self.size = self.size, self.size + 1
        for tail in tails:
            self._add(tail, middle, inf)
        self._add(middle, head, cost)

    def add_to_any(self, tail: int, heads: Sequence[int], cost: float) -> None:
        """Charge once if the tail is on the source side, and any of the heads on the sink side."""
        if tail == SINK or not heads or not cost:
            return
        if len(heads) == 1 or SINK in heads:
            self._add(tail, SINK if SINK in heads else heads[0], cost)
            return
        middle, self.size = self.size, self.size + 1
        for head in heads:
            self._add(middle, head, inf)
        self._add(tail, middle, cost)

    def _add(self, tail: int, head: int, cost: float) -> None:
        self.tail.append(tail)
        self.head.append(head)
        self.cost.append(cost)
