"""The best sizes of buckets for a distribution of lengths: an exact dynamic program.

An input of a length runs in the smallest bucket that holds it. With buckets b(1) < ... < b(k) the
expected seconds of a call are the sum over them of seconds(b(i)) times the share of lengths that are
above b(i - 1) and at most b(i). The terms depend on neighbours alone, so that the best k buckets up to a
size are found from the best k - 1 up to each smaller one, in O(k n^2) steps for n sizes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from byoc.errors import InputError


@dataclass(frozen=True)
class BucketRow:
    """The best buckets of a number: their sizes, and the seconds that a call is expected to take.

    `padded` is the share of the elements along the dimension that is padding, and `saved` what it saves
    against the row before, which has fewer buckets.
    """

    sizes: tuple[int, ...]
    seconds: float
    padded: float
    saved: float | None = None


def choose_sizes(
    seconds: Mapping[int, float], lengths: Mapping[int, float], max_buckets: int = 8
) -> list[BucketRow]:
    """Return the best buckets of 1, 2, ... up to `max_buckets` sizes, as many as save anything.

    `seconds` has the sizes that a bucket may have, and what a run of that size takes; `lengths` has the
    lengths with their weights. Of equally good choices the one of the smaller sizes is returned. Raises
    InputError where no size holds the longest length, and without lengths.
    """
    sizes = np.array(sorted(seconds))
    costs = np.array([seconds[size] for size in sizes.tolist()])
    known = np.array(sorted(lengths))
    weights = np.array([lengths[length] for length in known.tolist()], np.float64)
    if not known.size or not weights.sum() > 0:
        raise InputError("there are no lengths")
    if not sizes.size or sizes[-1] < known[-1]:
        raise InputError(f"no bucket holds the length {known[-1]}")
    shares = weights / weights.sum()
    below = np.concatenate([[0.0], np.cumsum(shares)])[np.searchsorted(known, sizes, "right")]
    last = int(np.searchsorted(sizes, known[-1]))
    before = np.concatenate([[0.0], below])
    # [i, j]: the bucket of size j behind the one of size i - 1, or behind none where i is 0.
    terms = costs[None, :] * (below[None, :] - before[:, None])
    terms[np.arange(len(sizes) + 1)[:, None] > np.arange(len(sizes))[None, :]] = np.inf
    best = terms[0]
    rows: list[BucketRow] = []
    froms: list[np.ndarray[tuple[int], np.dtype[np.intp]]] = []
    for _ in range(max_buckets):
        end = last + int(np.argmin(best[last:]))
        chosen = _follow(froms, end)
        row = _make_row(sizes[chosen], float(best[end]), known, shares)
        if not rows or row.seconds < rows[-1].seconds:
            saved = rows[-1].seconds - row.seconds if rows else None
            rows.append(replace(row, saved=saved))
        sums = best[:, None] + terms[1:]
        froms.append(np.argmin(sums, axis=0))
        best = sums.min(axis=0)
    return rows


def _follow(froms: Sequence[np.ndarray[tuple[int], np.dtype[np.intp]]], end: int) -> list[int]:
    """Return the places of the sizes that lead to a last one."""
    chosen = [end]
    for each in reversed(froms):
        chosen.append(int(each[chosen[-1]]))
    return chosen[::-1]


def _make_row(
    sizes: np.ndarray[tuple[int], np.dtype[np.int_]],
    seconds: float,
    known: np.ndarray[tuple[int], np.dtype[np.int_]],
    shares: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> BucketRow:
    held = sizes[np.searchsorted(sizes, known)]
    padded = 1 - float((shares * known).sum() / (shares * held).sum())
    return BucketRow(tuple(sizes.tolist()), seconds, padded)


def choose_row(rows: Sequence[BucketRow], seconds_per_bucket: float = 0.0) -> BucketRow:
    """Return the row with the least seconds, each bucket counted with some more; the first of equals."""
    return min(rows, key=lambda row: row.seconds + seconds_per_bucket * len(row.sizes))
