"""Ties: what the original selects where keys are as good as equal, and rows found again among others.

Two right executions of a detector may put detections with almost equal scores in another order, or keep
another one of two. So that is tried: the part of the original behind the keys of its selection runs once
more, and the keys are moved by no more than the tolerance allows, such that it selects the rows of the
bundle. If it selects these, its outputs are what the bundle's are compared with, element by element as
always. If it does not, nothing is excused.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import scipy
from google.protobuf.message import EncodeError
from numpy.typing import NDArray

from byoc._dataclasses import dataclass
from byoc.errors import InputError
from byoc.verification._quantization_noise import EPSILON, Thresholds
from byoc.verification._row_selection import IndexChoice, RowSelection, SelectionRuns
from byoc.verification._unit_noise import TieBreak

# Rows of one array found again among those of another, each at most once, within a radius.

Rows = NDArray[np.float64]

_MAX_PAIRS = 1 << 22
_CHUNK = 1 << 22  # numbers compared at once


def match_rows(candidates: Rows, rows: Rows, places: NDArray[np.int64]) -> NDArray[np.int64] | None:
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
    candidates: Rows, rows: Rows
) -> tuple[NDArray[np.int64], NDArray[np.int64], Rows] | None:
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


def _measure_distances(one: Rows, other: Rows) -> Rows:
    """Return the largest difference of a column, for each pair of rows."""
    return np.asarray(np.max(np.abs(one - other), axis=1, initial=0.0))


Array = NDArray[Any]
Numbers = NDArray[np.int64]


# Indices of a selection: which candidates they name, by the places of these in the keys.


@dataclass(frozen=True, eq=False)
class IndexLayout:
    """The meaning of indices: the candidates that they name, by their places in the keys.

    Each of the `lists` has `count` candidates of its own. In `triples` each index is a row of three:
    batch, class and box, as NonMaxSuppression makes it.
    """

    shape: tuple[int, ...]
    lists: int
    count: int
    triples: tuple[int, ...] = ()
    dtype: Any = np.int64

    @property
    def groups(self) -> Numbers | None:
        """The candidates that are ordered together, as a number for each; None for all."""
        return np.arange(self.count) // self.triples[2] if self.triples else None

    def arrange(self, keys: Array) -> Array:
        """Return keys as an array [lists, candidates]."""
        return keys.reshape(self.lists, self.count)

    def decode(self, indices: Array) -> Numbers:
        """Return the candidates of indices, [lists, rows]. Raises ValueError for impossible ones."""
        if self.triples:
            places = tuple(indices.T.astype(np.int64))
            return np.asarray(np.ravel_multi_index(places, self.triples), np.int64)[None]
        return indices.astype(np.int64).reshape(self.lists, -1)

    def encode(self, numbers: Numbers) -> Array:
        """Return the indices of candidates, [lists, rows]."""
        if self.triples:
            return np.stack(np.unravel_index(numbers[0], self.triples), axis=1).astype(self.dtype)
        return numbers.astype(self.dtype).reshape(*self.shape, numbers.shape[1])


def read_index_layout(keys: Array, indices: Array) -> IndexLayout | None:
    """Return the meaning of indices into keys, None if they cannot be such."""
    if indices.dtype.kind not in "iu" or not indices.ndim or not indices.size:
        return None
    dtype = indices.dtype
    if indices.ndim == 1:
        layout = IndexLayout((), 1, keys.size, dtype=dtype)
    elif indices.ndim == keys.ndim and indices.shape[:-1] == keys.shape[:-1]:
        layout = IndexLayout(keys.shape[:-1], prod(keys.shape[:-1]), keys.shape[-1], dtype=dtype)
    elif indices.ndim == 2 and indices.shape[1] == keys.ndim == 3:
        layout = IndexLayout((), 1, keys.size, keys.shape, dtype)
    else:
        return None
    numbers = layout.decode(indices)
    distinct = all(len(np.unique(row)) == len(row) for row in numbers)
    return layout if distinct and numbers.min() >= 0 and numbers.max() < layout.count else None


# Ties: what the original selects where keys of a selection are as good as equal.

Values = Mapping[str, Any]

_RADIUS = 8.0  # tolerances within which rows are looked for; the comparison decides afterwards
_MAX_CANDIDATES = 1 << 16
_MAX_NUMBERS = 1 << 20  # in the rows of all candidates, of a mask for each detection 1,300
_ATTEMPTS = 5  # distances that are tried for a tie
# A part of the model does not run alone, or its outputs have no such rows.
_NOT_ALONE = (InputError, EncodeError, ArithmeticError, LookupError, TypeError, ValueError)
_MAX_INDICES = 4  # tensors that are tried as the indices of a selection


@dataclass(frozen=True, eq=False)
class BrokenTies:
    """The outputs of the original where ties are broken as a bundle breaks them."""

    tie_break: TieBreak
    values: Mapping[str, Array]


def break_ties(  # noqa: PLR0913, PLR0917 - what a comparison knows
    runs: SelectionRuns,
    expected: Values,
    actual: Values,
    wrong: Collection[str],
    thresholds: Thresholds,
    quantized: Collection[str] = frozenset(),
) -> Iterator[BrokenTies]:
    """Yield the original's outputs of each selection whose wrong outputs ties explain.

    `expected` are the outputs of the original, `actual` those of a bundle, and `quantized` names the
    outputs that are quantized integers.
    """
    left = {*wrong}
    for choice in runs.choices:
        if left.isdisjoint(choice.outputs):
            continue
        try:
            found = _read_choice(runs, choice, actual, thresholds)
        except _NOT_ALONE:
            continue
        if found is not None:
            left.difference_update(choice.outputs)
            yield found
    for selection in runs.selections:
        if left.isdisjoint(selection.outputs):
            continue
        try:
            found = TieSearch(runs, selection, expected, actual, thresholds, quantized).search()
        except _NOT_ALONE:
            continue
        if found is not None:
            yield found


def _read_choice(
    runs: SelectionRuns, choice: IndexChoice, actual: Values, thresholds: Thresholds
) -> BrokenTies | None:
    """Return the original's outputs for the indices of a bundle, None unless their keys are tied.

    Keys that are not computed are the same on both sides: only equal ones may change places, and only
    where no order of them is promised.
    """
    recorded = runs.record({choice.keys, choice.indices})
    keys, wanted = recorded[choice.keys], recorded[choice.indices]
    given = choice.read_indices(actual, wanted)
    if given is None or np.array_equal(given, wanted):
        return None
    gap = choice.measure_gap(keys, wanted, given)
    if gap is None or gap > _find_largest_gap(runs, choice.keys, keys, thresholds):
        return None
    if not gap and choice.is_ordered and not _may_reorder(runs, choice.keys, keys, thresholds):
        return None
    values = runs.run(choice.indices, given, choice.outputs)
    return BrokenTies(choice.describe(wanted, given, gap), values)


def _may_reorder(runs: SelectionRuns, name: str, keys: Array, thresholds: Thresholds) -> bool:
    """Return whether keys that are equal here may be selected in any order.

    Two right executions select keys that they compute as these come out. Whole numbers, and what both
    read alike, are equal on both sides, and ONNX has the first one of them.
    """
    return thresholds.any_equal_keys or (str(keys.dtype) in EPSILON and runs.is_computed(name))


def _find_largest_gap(runs: SelectionRuns, name: str, keys: Array, thresholds: Thresholds) -> float:
    """Return the distance within which keys may change places: 0 where both sides read the same."""
    is_moved = str(keys.dtype) in EPSILON and runs.is_computed(name)
    return find_tolerance(keys, thresholds) if is_moved else 0.0


@dataclass(frozen=True, eq=False)
class TieSearch:
    """The search for keys of a selection with which the original selects the rows of a bundle."""

    runs: SelectionRuns
    selection: RowSelection
    expected: Values
    actual: Values
    thresholds: Thresholds
    quantized: Collection[str]

    def search(self) -> BrokenTies | None:
        """Return the original's outputs for such keys, None if there are none."""
        tensors = self.selection.indices
        reads = self.runs.list_reads(self.selection.keys, tensors)
        reads |= {name for tensor in tensors for name in self.runs.list_reads(tensor, self._outputs)}
        recorded = self.runs.record({self.selection.keys, *tensors, *reads})
        keys = recorded[self.selection.keys]
        layouts = [
            (tensor, layout)
            for tensor in tensors
            if (layout := read_index_layout(keys, recorded[tensor])) is not None
        ]
        if str(keys.dtype) not in EPSILON or not _may_reorder(
            self.runs, self.selection.keys, keys, self.thresholds
        ):
            return None
        for tensor, layout in layouts[:_MAX_INDICES]:
            numbers = layout.decode(recorded[tensor])
            chosen = self._find_rows(tensor, layout, numbers)
            if chosen is None or np.array_equal(chosen, numbers):
                continue
            gap = self._find_gap(tensor, layout, numbers, chosen)
            if gap is not None:
                values = self.runs.run(tensor, layout.encode(chosen), self._outputs)
                return BrokenTies(self._describe(numbers, chosen, gap), values)
        return None

    @cached_property
    def _outputs(self) -> Sequence[str]:
        return self.selection.outputs

    @cached_property
    def _keys(self) -> Array:
        return self.runs.record({self.selection.keys})[self.selection.keys]

    def _find_rows(self, tensor: str, layout: IndexLayout, numbers: Numbers) -> Numbers | None:
        """Return the candidates whose rows a bundle has, [lists, rows]; None unless each has one.

        They are looked for among those that the original selects, then among the others, too.
        """
        found = self._match_among(numbers, self.expected, layout, numbers)
        if found is not None:
            return found
        ranked = layout.arrange(self._keys) * (1.0 if self.selection.ascending else -1.0)
        width = sum(np.size(self.expected[name]) for name in self._outputs) // numbers.size
        most = min(_MAX_CANDIDATES, _MAX_NUMBERS // max(width, 1))
        pool = np.stack([_pick_candidates(*pair, most) for pair in zip(ranked, numbers, strict=True)])
        rows = self.runs.run(tensor, layout.encode(pool), self._outputs)
        return self._match_among(pool, rows, layout, numbers)

    def _match_among(
        self, pool: Numbers, rows: Values, layout: IndexLayout, numbers: Numbers
    ) -> Numbers | None:
        """Return the candidates of a pool, whose rows are given, that a bundle has in each place."""
        axes = [self._find_row_axis(name, rows[name], layout) for name in self._outputs]
        candidates = self._join_columns(rows, axes, layout)
        there = self._join_columns(self.actual, axes, layout)
        found = []
        for i, places in enumerate(numbers):
            positions = {number: position for position, number in enumerate(pool[i].tolist())}
            wanted = np.array([positions[number] for number in places.tolist()], np.int64)
            matched = match_rows(candidates[i], there[i], wanted)
            if matched is None:
                return None
            found.append(pool[i][matched])
        return np.stack(found)

    def _find_row_axis(self, name: str, rows: Array, layout: IndexLayout) -> int:
        """Return the axis of an output along which its rows lie. Raises ValueError if there is none."""
        wanted = np.shape(self.expected[name])
        if len(rows.shape) != len(wanted):
            raise ValueError(name)
        differing = [
            i for i, pair in enumerate(zip(rows.shape, wanted, strict=True)) if len({*pair}) > 1
        ]
        fitting = [i for i in range(len(wanted)) if prod(wanted[:i]) == layout.lists]
        axis = differing[0] if differing else fitting[0]
        if len(differing) > 1 or axis not in fitting:
            raise ValueError(name)
        return axis

    def _join_columns(self, values: Values, axes: Sequence[int], layout: IndexLayout) -> Array:
        """Return outputs as one array [lists, rows, columns], in radii of the search."""
        columns = []
        for name, axis in zip(self._outputs, axes, strict=True):
            value = np.asarray(values[name])
            rows = value.astype(np.float64).reshape(layout.lists, value.shape[axis], -1)
            with np.errstate(over="ignore"):
                columns.append(np.nan_to_num(rows / self._find_radius(name), nan=1e300))
        return np.concatenate(columns, axis=2)

    def _find_radius(self, name: str) -> float:
        """Return the largest distance of the elements of two rows that match."""
        expected = np.asarray(self.expected[name])
        tolerance, measure = self.thresholds.limit_for(str(expected.dtype), name in self.quantized)
        if measure == "units":
            return _RADIUS * max(tolerance, 1.0)
        if str(expected.dtype) not in EPSILON:
            return 0.5  # integers that have to be equal
        scale = find_tolerance(expected, self.thresholds)
        return _RADIUS * max(scale, float(np.finfo(np.float64).tiny))

    def _find_gap(
        self, tensor: str, layout: IndexLayout, numbers: Numbers, chosen: Numbers
    ) -> float | None:
        """Return the distance of the keys that change places, None unless they are tied.

        The original selects the chosen rows when no key is moved by more than half of that.
        """
        keys = layout.arrange(self._keys)
        signed = -keys if self.selection.ascending else keys
        kept = np.take_along_axis(keys, numbers, axis=1)
        kept = kept[np.isfinite(kept)]
        most = find_tolerance(kept, self.thresholds) / 2
        groups = layout.groups
        disorder = [_measure_disorder(*pair, groups) for pair in zip(signed, chosen, strict=True)]
        unit = float(EPSILON[str(keys.dtype)]) * float(np.max(np.abs(kept), initial=0.0))
        least = max(disorder) + unit
        if not most or least > most:
            return None
        if not self.runs.is_computed(self.selection.keys):  # only equal ones may change places
            before, after = (np.take_along_axis(keys, each, axis=1) for each in (numbers, chosen))
            most = least if np.array_equal(before, after) else 0.0
        wanted = layout.encode(chosen)
        for reach in np.geomspace(least, most, _ATTEMPTS) if most else ():
            moved = [move_keys(*pair, groups, float(reach)) for pair in zip(signed, chosen, strict=True)]
            if any(one is None for one in moved):
                continue
            found = np.stack([one for one in moved if one is not None]).reshape(self._keys.shape)
            given = -found if self.selection.ascending else found
            if np.array_equal(self.runs.run(self.selection.keys, given, [tensor])[tensor], wanted):
                return 2 * float(reach)
        return None

    def _describe(self, numbers: Numbers, chosen: Numbers, gap: float) -> TieBreak:
        moved = replaced = 0
        for before, after in zip(numbers, chosen, strict=True):
            shared = np.isin(after, before)
            replaced += int(np.sum(~shared))
            moved += int(np.sum(before[np.isin(before, after)] != after[shared]))
        return TieBreak(self.selection.name, tuple(self._outputs), chosen.size, moved, replaced, gap)


def find_tolerance(expected: Array, thresholds: Thresholds) -> float:
    """Return the largest absolute error that is allowed for floats."""
    dtype = str(expected.dtype)
    values = expected.astype(np.float64)
    values = values[np.isfinite(values)]
    magnitude = float(np.max(np.abs(values), initial=0.0))
    span = float(np.ptp(values)) if values.size else 0.0
    return thresholds.relative.get(dtype, 0.0) * thresholds.error_scale(dtype, span, magnitude)


def _pick_candidates(ranked: Array, kept: Numbers, most: int) -> Numbers:
    """Return candidates, the kept ones and those with the least ranks, at most `most` in all."""
    others = np.argsort(ranked, kind="stable")
    others = others[~np.isin(others, kept)]
    return np.concatenate([kept, others[: max(most - len(kept), 0)]])


def _measure_disorder(keys: Array, chosen: Numbers, groups: Numbers | None) -> float:
    """Return by how much keys have to move at least for the chosen ones to be in descending order."""
    values = keys.astype(np.float64)[chosen]
    largest = 0.0
    for members in _divide(chosen, groups):
        part = values[members]
        later = np.maximum.accumulate(part[::-1])[::-1]
        behind = later[later != part] - part[later != part]  # infinities are equal
        largest = max(largest, float(np.max(behind, initial=0.0)) / 2)
    return largest


def move_keys(keys: Array, chosen: Numbers, groups: Numbers | None, reach: float) -> Array | None:
    """Return keys, none moved by more than `reach`, of which the chosen ones come first and in order.

    Chosen keys are moved up as far as the order allows, and all others down by `reach`; so if any such
    keys exist with which they are selected, they are with these. Of equal keys the first candidate is
    selected first. None if the order needs a larger reach.
    """
    wide = keys.astype(np.float64)
    highest, lowest = (wide + reach).astype(keys.dtype), (wide - reach).astype(keys.dtype)
    moved = lowest.copy()
    for members in _divide(chosen, groups):
        before, number = keys.dtype.type(np.inf), -1
        for candidate in chosen[members].tolist():
            value = min(highest[candidate], before)
            if value == before and candidate < number:
                value = np.nextafter(before, keys.dtype.type(-np.inf))
            if value < lowest[candidate]:
                return None
            moved[candidate] = before = value
            number = candidate
    return moved


def _divide(chosen: Numbers, groups: Numbers | None) -> Iterator[Numbers]:
    """Yield the places of the chosen candidates that are ordered together."""
    if groups is None:
        yield np.arange(len(chosen))
    else:
        for group in np.unique(groups[chosen]):
            yield np.flatnonzero(groups[chosen] == group)
