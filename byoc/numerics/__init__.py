"""Numerical helpers that several rooms share: measures of accuracy, limits of searches, sorting."""

from collections.abc import Collection, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from math import inf, isnan, log10, nan, sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "SearchBudget",
    "compute_cosine",
    "compute_powers",
    "compute_same_class_share",
    "compute_signal_to_noise",
    "convert_to_db",
    "find_cycle",
    "fit_proportions",
    "merge_groups",
    "round_up",
    "sort_topologically",
]

Array = NDArray[np.generic]


def compute_signal_to_noise(expected: Array, actual: Array) -> float:
    """Return the signal-to-noise ratio in dB: 10 log10 of the expected power over that of the error.

    It is infinite if both arrays are equal, -infinite if only zeros are expected or the error is
    infinite, and NaN if a value is NaN, if infinity is expected where there is another value, or if the
    shapes differ.
    """
    return convert_to_db(*compute_powers(expected, actual))


def compute_powers(expected: Array, actual: Array) -> tuple[float, float]:
    """Return the sums of squares of the expected values and of the error, which add up over samples.

    Infinity has no error where infinity of the same sign is expected. Both are NaN if the shapes differ.
    """
    if expected.shape != actual.shape:
        return nan, nan
    wanted, got = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # the sums are infinite or NaN then
        error = np.where(got == wanted, 0.0, got - wanted)
        return float(np.sum(wanted**2)), float(np.sum(error**2))


def convert_to_db(signal: float, noise: float) -> float:
    """Return the ratio of two powers in dB, NaN if one is NaN or both are infinite."""
    if isnan(signal) or isnan(noise):
        return nan
    if noise == 0:
        return inf
    ratio = signal / noise
    return -inf if ratio == 0 else 10 * log10(ratio)


def compute_cosine(expected: Array, actual: Array) -> float:
    """Return the cosine of the angle between two arrays as vectors; 1 if both are zero.

    It is NaN if the shapes differ or a length is no finite number.
    """
    one, other = (array.astype(np.float64).ravel() for array in (expected, actual))
    if one.shape != other.shape:
        return nan
    with np.errstate(over="ignore", invalid="ignore"):
        # Not `@`: the threads of a BLAS library take far longer for it than one does.
        lengths = sqrt(float(np.sum(one * one))) * sqrt(float(np.sum(other * other)))
        if not lengths:
            return 1.0 if not one.any() and not other.any() else 0.0
        return float(np.sum(one * other)) / lengths


def compute_same_class_share(expected: Array, actual: Array) -> float:
    """Return the share of rows (all axes but the last) whose largest element has the same position.

    A row with a NaN has no largest element.
    """
    if expected.shape != actual.shape or not expected.size or not expected.ndim:
        return nan
    same = np.argmax(expected, axis=-1) == np.argmax(actual, axis=-1)
    known = ~np.any(np.isnan(expected) | np.isnan(actual), axis=-1)
    return float(np.mean(same & known))


# Topological order with keys, disjoint sets, and rounding up.


def sort_topologically(
    predecessors: Sequence[Collection[int]], keys: Sequence[Any] | None = None
) -> list[int]:
    """Return the nodes 0, 1, ... in topological order, of those that are ready the smallest key first.

    The keys are distinct; without them, a key is the node's number. Nodes on a cycle, and those after
    one, are left out.
    """
    if keys is None and all(not before or max(before) < i for i, before in enumerate(predecessors)):
        return list(range(len(predecessors)))
    waiting = [0] * len(predecessors)
    after: list[list[int]] = [[] for _ in predecessors]
    for node, before in enumerate(predecessors):
        for other in before:
            waiting[node] += 1
            after[other].append(node)
    nodes = list(range(len(predecessors)))
    if keys is not None:
        nodes.sort(key=keys.__getitem__)
    rank = [0] * len(nodes)  # numbers are compared in less time than keys
    for place, node in enumerate(nodes):
        rank[node] = place
    ready = [rank[node] for node, count in enumerate(waiting) if not count]
    heapify(ready)
    order = []
    while ready:
        node = nodes[heappop(ready)]
        order.append(node)
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                heappush(ready, rank[other])
    return order


def find_cycle(predecessors: Sequence[Iterable[int]]) -> list[int]:
    """Return the nodes of a cycle; empty if there is none."""
    try:
        TopologicalSorter(dict(enumerate(predecessors))).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def merge_groups(count: int, groups: Iterable[Sequence[int]]) -> list[int]:
    """Return for each of the numbers 0..count-1 the least of its set, each group being in one set."""
    parent = list(range(count))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = number = parent[parent[number]]
        return number

    for group in groups:
        for other in group[1:]:
            least, most = sorted((root(group[0]), root(other)))
            parent[most] = least
    return [root(number) for number in range(count)]


def round_up(size: int, multiple: int) -> int:
    """Return the least multiple of a number that is not below `size`."""
    return -(-size // multiple) * multiple


class SearchBudget:
    """Seconds that searches may take on an ordinary computer, counted by their steps, never measured.

    Each search says what it does (`spend`), at the seconds that such steps take on one core of about
    3 GHz. On another computer, or a busy one, the search takes longer, and finds the same.
    """

    def __init__(self, seconds: float = inf, whole: Self | None = None) -> None:
        """Allow so many seconds; what is spent is taken from `whole`, too."""
        self._left = seconds
        self._whole = whole

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0."""
        within = self._left if self._whole is None else min(self._left, self._whole.left)
        return max(within, 0.0)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def spend(self, seconds: float) -> None:
        """Take the seconds of a step away."""
        self._left -= seconds
        if self._whole is not None:
            self._whole.spend(seconds)

    def limit(self, seconds: float) -> "SearchBudget":
        """Return a part of this budget, of at most so many seconds."""
        return SearchBudget(seconds, self)


_MAX_SCALINGS = 50  # iterations usually converge earlier


def fit_proportions(
    shares: NDArray[np.float64],
    seconds: NDArray[np.float64],
    goals: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Scale seconds of tasks, float64 (tasks,), until those of each region add up to its goal.

    `shares` are how often each region has each task, float64 (regions, tasks); `goals` are the seconds
    of regions, float64 (regions,). A task is scaled by the mean factor of the regions that have it,
    weighted by its seconds there: iterative proportional fitting. Tasks without seconds stay so.
    """
    for _ in range(_MAX_SCALINGS):
        parts = shares * seconds
        sums = parts.sum(axis=1)
        factors = np.divide(goals, sums, out=np.ones_like(goals), where=sums > 0)
        weights = parts.sum(axis=0)
        means = np.divide(factors @ parts, weights, out=np.ones_like(seconds), where=weights > 0)
        if np.allclose(means, 1.0, rtol=1e-9):
            break
        seconds = seconds * means
    return seconds
