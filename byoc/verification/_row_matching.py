"""Rows of one array found again among those of another, each at most once, within a radius."""

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MAX_PAIRS = 1 << 22
_CHUNK = 1 << 22  # numbers compared at once


def match_rows(candidates: Array, rows: Array, places: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return for each row the number of its candidate, None where some have none of their own.

    Both arrays have shape [rows, columns]. Columns are divided by the radius: a row matches a candidate
    where no column differs by more than 1. `places` are the candidates expected in each place; a row
    that is within an eighth of the radius of these keeps them, and of the others the sum of the
    distances is the least.
    """
    found = np.full(len(rows), -1, np.int64)
    common = min(len(rows), len(places))
    still = _measure_distances(candidates[places[:common]], rows[:common]) <= 1 / 8
    found[:common][still] = places[:common][still]
    moved = np.flatnonzero(found < 0)
    if not moved.size:
        return found
    free = np.setdiff1d(np.arange(len(candidates)), found)
    pairs = _find_pairs(candidates[free], rows[moved])
    if pairs is None or len(moved) > len(free):
        return None
    ones, others, distances = pairs
    # a pair of distance 0 must not be lost as an empty element
    graph = scipy.sparse.csr_array((1 + distances, (ones, others)), shape=(len(moved), len(free)))
    try:
        matched, partners = scipy.sparse.csgraph.min_weight_full_bipartite_matching(graph)
    except ValueError:  # there is none
        return None
    found[moved[matched]] = free[partners]
    return found


def _find_pairs(
    candidates: Array, rows: Array
) -> tuple[NDArray[np.int64], NDArray[np.int64], Array] | None:
    """Return all pairs of a row and a candidate that match, with their distances; None if too many."""
    best: tuple[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]] | None = None
    for column in range(rows.shape[1]):
        order = np.argsort(candidates[:, column], kind="stable")
        values = candidates[order, column]
        first = np.searchsorted(values, rows[:, column] - 1, "left")
        last = np.searchsorted(values, rows[:, column] + 1, "right")
        count = int(np.sum(last - first))
        if best is None or count < best[0]:
            best = count, order, first, last
    if best is None or best[0] > _MAX_PAIRS:
        return None
    count, order, first, last = best
    lengths = last - first
    ones = np.repeat(np.arange(len(rows)), lengths)
    starts = np.repeat(first - np.cumsum(lengths) + lengths, lengths)
    others = order[starts + np.arange(count)]
    distances = np.empty(count)
    step = max(_CHUNK // rows.shape[1], 1)
    for begin in range(0, count, step):
        part = slice(begin, begin + step)
        distances[part] = _measure_distances(candidates[others[part]], rows[ones[part]])
    close = distances <= 1
    return ones[close], others[close], distances[close]


def _measure_distances(one: Array, other: Array) -> Array:
    """Return the largest difference of a column, for each pair of rows."""
    return np.asarray(np.max(np.abs(one - other), axis=1, initial=0.0))
