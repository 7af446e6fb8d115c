"""Local search over pairs of devices: what both have is split between them anew, as well as can be.

A table finds, for each load of one device, the least load of the other (`LoadFrontier`, with the costs
of the other as losses of profit). Loads of other devices stay as they are, since a tensor from or to
them is moved in either case. The table takes a tensor that starts in the pair to be sent by whichever
device has a part of its ends, as if receiving took as long; what is kept is measured as it is.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import inf

import numpy as np

from byoc.numerics import SearchBudget
from byoc.placement._problem import Occupancy, Problem
from byoc.placement.solvers._load_frontier import MOST_PROFIT, LoadFrontier
from byoc.placement.solvers._load_layers import Edge
from byoc.placement.solvers._load_state import LoadState
from byoc.placement.solvers._unit_groups import HOST, UnitGroups

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
