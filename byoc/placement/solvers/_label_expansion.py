"""Local search over labels by minimum cuts: any number of units move to one device at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import inf

import numpy as np

from byoc.numerics import SearchBudget
from byoc.numerics.solvers import SINK, SOURCE, find_minimum_cut
from byoc.placement._hard_limits import exceeds_capacity
from byoc.placement._problem import Floats, Ints, Problem
from byoc.placement.solvers._host_device_cut import reduce_arcs
from byoc.placement.solvers._neighbours import Neighbours

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
