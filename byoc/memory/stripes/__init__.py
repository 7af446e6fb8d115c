"""Striped execution: cascades of row-wise layers that keep only some rows of their tensors in memory.

A plan gives the bands of rows in order, and for each tensor a window in the arena. The result of a layer
may lie over rows of its operand that nobody reads any more, so the arena can be smaller than both.

Between two cascades, everything still to be read is stored completely, so a cut is good where that is
little; inside a cascade all its windows are live at once, so short cascades are good. The path of cuts
from the first unit to the last that minimizes its most expensive cascade is found by bisection on bytes.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from math import gcd

import numpy as np
from numpy.typing import NDArray

from byoc._dataclasses import dataclass, replace
from byoc.memory.stripes._row_clock import (
    CascadeClock,
    RowCounts,
    StorageLiveRange,
    WindowPacker,
    WindowPacking,
    build_clock,
    find_live_rows,
    find_scratch_live_range,
    find_storage_live_ranges,
)
from byoc.memory.stripes._striping_problem import (
    ALL_ROWS,
    SAME_ROW,
    LayerMode,
    OperandRows,
    RowBand,
    RowLayer,
    RowNetwork,
    RowTensor,
    RowUnit,
    RowUnits,
    RowWindow,
    StripedPlan,
    build_row_units,
)

__all__ = [
    "ALL_ROWS",
    "SAME_ROW",
    "LayerMode",
    "OperandRows",
    "RowBand",
    "RowLayer",
    "RowNetwork",
    "RowTensor",
    "RowWindow",
    "StripedPlan",
    "stripe",
]

_NEAR = 0.01
"""Budgets closer to one another than this part are one."""
_EFFORT = 250_000
"""Moments of cascades that are looked at for one budget; DenseNet-121 takes 0.5 million for all."""
_WORK, _CASCADE = 200_000_000, 4_000_000
"""Moments times storages that are looked at for all budgets, and for one cascade (DenseNet-121: 168 and
2.7 million); a storage takes as long as so many moments more:"""
_STORAGE = 100  # what visiting a storage takes beside its moments, in moments
_UNKNOWN = 1 << 60
_MORE = (1.0, 1.02, 1.05)
"""Budgets from the least on, whose ways may be packed better."""
_PATIENCE = 12
"""After so many longer cascades in a row that are too dear, none cheaper than the last, none fits."""


class CascadeCuts:
    """The units of a network in order, and the cost of cascades."""

    def __init__(self, units: RowUnits) -> None:
        """Start without any known cost."""
        self.units = units
        self.clocks: dict[tuple[int, int], CascadeClock] = {}
        self.costs: dict[tuple[int, int], int] = {}
        self.effort = self.allowed = 0
        self.left = _WORK
        self.is_cut_short = False

    @cached_property
    def bytes_across(self) -> NDArray[np.int64]:
        """For each position the bytes live between the units before it and those from it on."""
        count = len(self.units.units)
        change = np.zeros(count + 2, dtype=np.int64)
        np.add.at(change, self.first_cut, self.size)
        np.subtract.at(change, self.end_cut, self.size)
        return np.cumsum(change)[: count + 1]

    @cached_property
    def size(self) -> NDArray[np.int64]:
        """For each storage its bytes."""
        return np.array([each.rows * each.row_bytes for each in self.units.storages], dtype=np.int64)

    @cached_property
    def first_cut(self) -> NDArray[np.int64]:
        """For each storage the first cut at which it is live."""
        return np.array([each.maker + 1 for each in self.units.storages], dtype=np.int64)

    @cached_property
    def end_cut(self) -> NDArray[np.int64]:
        """For each storage the first cut after `first_cut` at which it is no longer live."""
        after = len(self.units.units) + 1
        last = [after if each.kept else each.last + 1 for each in self.units.storages]
        return np.array(last, dtype=np.int64)

    @cached_property
    def steps(self) -> list[int]:
        """For each position the rows of all units before it."""
        return [0, *accumulate(unit.steps for unit in self.units.units)]

    @cached_property
    def touches(self) -> list[int]:
        """For each position the storages used by the units before it, counted once for each unit."""
        return [0, *accumulate(map(len, self.touched))]

    @cached_property
    def touched(self) -> list[list[int]]:
        """For each unit the storages that it reads or makes."""
        found: list[list[int]] = [[] for _ in self.units.units]
        for number, storage in enumerate(self.units.storages):
            for unit in storage.touched:
                found[unit].append(number)
        return found

    def get_clock(self, first: int, end: int) -> CascadeClock:
        """Return the clock of a cascade."""
        if (first, end) not in self.clocks:
            self.clocks[first, end] = build_clock(self.units, first, end)
        return self.clocks[first, end]

    def get_cost(self, first: int, end: int) -> int:
        """Return the peak of a cascade in bytes; a value too large to fit if the effort is used up."""
        if (first, end) not in self.costs:
            if end > first + 1 and self._is_too_much(first, end):
                return _UNKNOWN
            self.costs[first, end] = self._cost(first, end)
        return self.costs[first, end]

    def _is_too_much(self, first: int, end: int) -> bool:
        """Tell whether the effort is used up or the cascade is too long."""
        work = self._work(first, end)
        self.is_cut_short |= work > min(_CASCADE, self.left)
        return work > min(_CASCADE, self.left) or self.effort > self.allowed

    def _work(self, first: int, end: int) -> int:
        moments = self.steps[end] - self.steps[first]
        return (moments + _STORAGE) * (self.touches[end] - self.touches[first])

    def _cost(self, first: int, end: int) -> int:
        clock = self.get_clock(first, end)
        self.effort += len(clock.moments)
        self.left -= self._work(first, end)
        counts = RowCounts.count(clock)
        scratch = np.array([unit.scratch for unit in self.units.units[first:end]], dtype=np.int64)
        total = scratch[clock.moments - first]
        through = np.flatnonzero((self.first_cut <= first) & (self.end_cut > end))
        total += int(self.size[through].sum())
        for number in {number for unit in range(first, end) for number in self.touched[unit]}:
            storage = self.units.storages[number]
            if self.first_cut[number] <= first and self.end_cut[number] > end:
                continue
            rows = find_live_rows(storage, self.units, counts)
            live = rows.end - rows.first
            if self.first_cut[number] > first and self.end_cut[number] <= end:
                live = np.where(live > 0, live.max(initial=0), 0)
            total += live * storage.row_bytes
        return int(total.max(initial=0))

    def find_paths(self) -> list[list[int]]:
        """Return paths as lists of cuts, first and last position included, cheapest first.

        The cheapest path is not always the one that packs best, so more expensive ones found on the way
        are included.
        """
        count = len(self.units.units)
        low = int(max(self.bytes_across[0], self.bytes_across[count]))
        ways = [list(range(count + 1))]
        high = self.path_cost(ways[0])
        while high > low * (1 + _NEAR):
            budget = int((low * high) ** 0.5)
            found = self.find_path_within(budget)
            if found:
                ways.append(found)
                high = self.path_cost(found)
            else:
                low = budget + 1
        for more in _MORE:
            ways += self.find_both_paths(int(high * more))
        return sorted({tuple(way): way for way in ways if way}.values(), key=self.path_cost)

    @cached_property
    def valleys(self) -> list[int]:
        """Positions with fewer live bytes than their neighbours, and the first and last position."""
        cut, last = self.bytes_across, len(self.bytes_across) - 1
        return [
            at
            for at in range(last + 1)
            if at in (0, last) or (cut[at] <= cut[at - 1] and cut[at] <= cut[at + 1])
        ]

    def path_cost(self, way: Sequence[int]) -> int:
        """Return the cost of the most expensive cascade on a path."""
        return max((self.get_cost(a, b) for a, b in pairwise(way)), default=0)

    def find_path_within(self, budget: int) -> list[int]:
        """Return a path on which no cascade exceeds the budget, empty if none is found.

        Cascades of a few lengths, growing by a factor, are tried first, then all.
        """
        self.allowed = self.effort + _EFFORT
        return self._find_path(budget, few=True) or self._find_path(budget, few=False)

    def find_both_paths(self, budget: int) -> list[list[int]]:
        """Return the paths found with few and with all lengths of cascades, empty if none is found."""
        self.allowed = self.effort + _EFFORT
        return [self._find_path(budget, few=True), self._find_path(budget, few=False)]

    def _find_path(self, budget: int, few: bool) -> list[int]:
        count = len(self.units.units)
        good = [at for at in self.valleys if self.bytes_across[at] <= budget]
        before = {0: 0}
        pending = [0]
        while pending and count not in before:
            at = max(pending)
            pending.remove(at)
            rising, last = 0, 0
            ends = good[bisect_right(good, at) :]
            for end in _sample_ends(ends) if few else ends:
                if end in before:
                    continue
                cost = self.get_cost(at, end)
                if cost <= budget:
                    before[end] = at
                    pending.append(end)
                rising = rising + 1 if cost > budget and cost >= last else 0
                last = cost
                if rising == _PATIENCE:
                    break
        if count not in before:
            return []
        way = [count]
        while way[-1]:
            way.append(before[way[-1]])
        return way[::-1]


def _sample_ends(ends: Sequence[int]) -> list[int]:
    """Return the first, second, third, fourth, sixth, eighth, twelfth, ... and the last one."""
    numbers = {len(ends)}
    for power in range(len(ends).bit_length()):
        numbers |= {1 << power, 3 << power}
    return [ends[n - 1] for n in sorted(numbers) if 1 <= n <= len(ends)]


# Planning of striped execution: from layers and tensors to bands and windows.


_WAYS = 8
"""Ways to cut a network that are packed at once,"""
_TRIED = 3
"""those of them for which more orders of packing are tried,"""
_ORDERS = 600
"""and how many orders."""
_MEETINGS = 200_000
"""Pairs of storages of all these ways; one way of DenseNet-121 has 11,850."""


def stripe(
    tensors: Iterable[RowTensor],
    layers: Iterable[RowLayer],
    inputs: Iterable[str],
    outputs: Iterable[str],
    alignment: int = 1,
) -> StripedPlan:
    """Choose cascades, the order of their bands, and windows that need the smallest arena found.

    `layers` are in an executable order, which is kept wherever layers are not interleaved. Offsets are
    multiples of `alignment`; rows have the length given by the tensors. No row is computed twice; rows
    after the last one read are not computed, unless nobody reads any. Each search ends after a fixed
    number of operations, so that the plan is the same on any machine; `limits` of the plan tell which
    ones did. Raises ValueError as `RowNetwork` does.
    """
    network = RowNetwork(
        {each.name: each for each in tensors}, tuple(layers), tuple(inputs), tuple(outputs)
    )
    blocks = build_blocks(network)
    units = build_row_units(blocks.coarse)
    cuts = CascadeCuts(units)
    packed: list[_PackedCascades] = []
    ways = cuts.find_paths()[:_WAYS]
    for way in ways:
        if sum(each.packer.meetings for each in packed) > _MEETINGS:
            break
        packed.append(
            _PackedCascades.pack_cascades(
                units, [cuts.get_clock(a, b) for a, b in pairwise(way)], alignment
            )
        )
    best = sorted(packed, key=lambda each: each.packing.size)[:_TRIED]
    improved = [each.improve() for each in best]
    plan = min(improved, key=lambda each: each.packing.size).build_plan(blocks.coarse, units)
    limits = {
        f"rows go in blocks of up to {blocks.highest}": blocks.highest > 1,
        "not all cascades were looked at": cuts.is_cut_short,
        "not all places were looked at": len(packed) < len(ways)
        or any(each.packer.is_cut_short for each in packed),
    }
    return replace(blocks.to_rows(plan), limits=tuple(said for said, holds in limits.items() if holds))


@dataclass(frozen=True)
class _PackedCascades:
    """Cascades, the live ranges of their storages (the scratch last), and offsets for them."""

    clocks: Sequence[CascadeClock]
    lives: Sequence[StorageLiveRange]
    live: int
    packer: WindowPacker
    packing: WindowPacking

    @classmethod
    def pack_cascades(
        cls, units: RowUnits, clocks: Sequence[CascadeClock], alignment: int
    ) -> "_PackedCascades":
        each = [*find_storage_live_ranges(units, clocks), find_scratch_live_range(units, clocks)]
        live = _peak_bytes(each)
        packer = WindowPacker(each, alignment)
        return cls(clocks, each, live, packer, packer.pack(live, 0))

    def improve(self) -> "_PackedCascades":
        if self.packer.is_tried_once:
            return self
        return replace(self, packing=self.packer.pack(self.live, _ORDERS))

    def build_plan(self, network: RowNetwork, units: RowUnits) -> StripedPlan:
        offsets = self.packing.offsets
        places = [
            RowWindow(offset, life.window, storage.row_bytes)
            for offset, life, storage in zip(offsets, self.lives, units.storages, strict=False)
        ]
        moments = [moment for clock in self.clocks for moment in clock.moments.tolist()]
        by_name = zip(units.storages, places, strict=True)
        return StripedPlan(
            tuple(join_bands(network, units, moments, places)),
            {name: place for storage, place in by_name for name in storage.tensors},
            {layer.name: offsets[-1] for layer in network.layers if layer.scratch},
            self.packing.size,
            tuple(
                tuple(name for unit in units.units[clock.first : clock.end] for name in unit.layers)
                for clock in self.clocks
            ),
            self.live,
        )


def _peak_bytes(each: Sequence[StorageLiveRange]) -> int:
    """Return the peak of the bytes in use."""
    total = np.zeros(max((life.end for life in each), default=0), dtype=np.int64)
    for life in each:
        total[life.start : life.end] += np.maximum(life.high - life.low, 0)
    return int(total.max(initial=0))


_Bytes = list[tuple[int, int]]


def join_bands(
    network: RowNetwork, units: RowUnits, moments: Sequence[int], places: Sequence[RowWindow]
) -> Iterator[RowBand]:
    """Yield the bands for the unit that runs at each moment and the window of each storage.

    Consecutive rows of a unit become one band if no row written lies over a row that the same band
    reads.
    """
    done = [0] * len(units.units)
    heights = {layer.name: network.tensors[layer.writes[0]].rows for layer in network.layers}
    now = 0
    while now < len(moments):
        number = moments[now]
        unit, row = units.units[number], done[number]
        most = now
        while most < len(moments) and moments[most] == number:
            most += 1
        rows = _rows_at_once(unit, units, places, row, most - now)
        done[number] += rows
        now += rows
        for layer in unit.layers:
            yield RowBand(layer, row, heights[layer] if unit.mode == "whole" else rows)


def _rows_at_once(
    unit: RowUnit, units: RowUnits, places: Sequence[RowWindow], row: int, most: int
) -> int:
    rows = 1
    while rows < most and _has_no_overlap(unit, units, places, row, rows + 1):
        rows += 1
    return rows


def _has_no_overlap(
    unit: RowUnit, units: RowUnits, places: Sequence[RowWindow], row: int, rows: int
) -> bool:
    written: _Bytes = []
    for number in unit.makes:
        if unit.mode == "rows" and rows > places[number].window:
            return False  # nobody reads it
        written += _row_ranges(places[number], row, row + rows)
    read: _Bytes = []
    for each in unit.reads:
        if each.storage in unit.makes and each.rows == SAME_ROW:
            continue  # the layer writes over it, row by row
        height = units.storages[each.storage].rows
        first, end = each.rows.first_row(row, height), each.rows.end_row(row + rows - 1, height)
        read += _row_ranges(places[each.storage], first, end)
    return not any(a < d and c < b for a, b in written for c, d in read)


def _row_ranges(place: RowWindow, first: int, end: int) -> _Bytes:
    """Return the byte ranges of rows `[first, end)`; two ranges if they wrap around the window."""
    if end - first >= place.window:
        return [(place.offset, place.offset + place.window * place.row_bytes)]
    if end <= first:
        return []
    begin = place.row_offset(first)
    stop = place.row_offset(end - 1) + place.row_bytes
    if begin < stop:
        return [(begin, stop)]
    return [(begin, place.offset + place.window * place.row_bytes), (place.offset, stop)]


# Coarsening of networks with very many rows: several rows are planned as one block.
#
# The cost of planning grows with the rows of all tensors and with the number of tensors live at a
# time. Rows are merged in pairs until both are small. To the planner a block of `n` rows is one row
# of `n` times the bytes; the last block may be partly empty. The number of rows in a block is a
# power of two, so a layer with a stride of two makes blocks of half as many rows as it reads.

_ROWS = 4096
"""The most rows of a tensor,"""
_STEPS = 32_768
"""the most rows of all layers together, of which DenseNet-121 has 13,729,"""
_ALIVE = 2_000_000
"""and the most of the sum, over all tensors, of the rows computed while one lives."""


@dataclass(frozen=True)
class RowBlocks:
    """A network, the same network in blocks, and the rows in one block of each tensor."""

    fine: RowNetwork
    coarse: RowNetwork
    heights: Mapping[str, int]

    @property
    def highest(self) -> int:
        """The rows of the largest block."""
        return max(self.heights.values(), default=1)

    def to_rows(self, plan: StripedPlan) -> StripedPlan:
        """Convert a plan of blocks to a plan of rows."""
        layers = {layer.name: layer for layer in self.fine.layers}
        return replace(
            plan,
            bands=tuple(self._band(layers[band.layer], band) for band in plan.bands),
            places={name: self._place(name, place) for name, place in plan.places.items()},
        )

    def _band(self, layer: RowLayer, band: RowBand) -> RowBand:
        if layer.mode == "whole":
            return replace(band, rows=self.fine.tensors[layer.writes[0]].rows)
        height, steps = self.heights[_step_tensor(layer)], self.fine.steps[layer.name]
        first = band.first_row * height
        return RowBand(layer.name, first, min(first + band.rows * height, steps) - first)

    def _place(self, name: str, place: RowWindow) -> RowWindow:
        tensor = self.fine.tensors[name]
        return replace(
            place, window=min(place.window * self.heights[name], tensor.rows), row_bytes=tensor.row_bytes
        )


def build_blocks(network: RowNetwork) -> RowBlocks:
    """Return the blocks with the fewest rows that keep planning affordable."""
    most = _ROWS
    while True:
        heights = {
            name: 1 << (-(-tensor.rows // most) - 1).bit_length()
            for name, tensor in network.tensors.items()
        }
        if most == 1 or _is_small(network, heights):
            break
        most //= 2
    if all(height == 1 for height in heights.values()):
        return RowBlocks(network, network, heights)
    tensors = {
        name: RowTensor(name, -(-tensor.rows // heights[name]), tensor.row_bytes * heights[name])
        for name, tensor in network.tensors.items()
    }
    layers = tuple(_coarsen_layer(network, layer, heights) for layer in network.layers)
    return RowBlocks(network, RowNetwork(tensors, layers, network.inputs, network.outputs), heights)


def _is_small(network: RowNetwork, heights: Mapping[str, int]) -> bool:
    steps = [
        1 if layer.mode == "whole" else -(-network.steps[layer.name] // heights[_step_tensor(layer)])
        for layer in network.layers
    ]
    before = [0, *accumulate(steps)]
    made = dict.fromkeys(network.inputs, 0)
    last: dict[str, int] = {}
    for number, layer in enumerate(network.layers):
        made.update(dict.fromkeys(layer.writes, before[number]))
        last.update(dict.fromkeys((*layer.writes, *(n for n, _ in layer.reads)), before[number + 1]))
    last.update(dict.fromkeys(network.outputs, before[-1]))
    alive = sum(last.get(name, 0) - start for name, start in made.items())
    return before[-1] <= _STEPS and alive <= _ALIVE


def _step_tensor(layer: RowLayer) -> str:
    """Return the tensor whose rows count the steps of the layer."""
    return layer.reads[0][0] if layer.mode == "reduction" else layer.writes[0]


def _coarsen_layer(network: RowNetwork, layer: RowLayer, heights: Mapping[str, int]) -> RowLayer:
    if layer.mode == "whole":
        return layer
    makes, result = heights[_step_tensor(layer)], network.tensors[layer.writes[0]]
    reads = tuple((name, _coarsen_rows(rows, makes, heights[name])) for name, rows in layer.reads)
    # a block of more rows may be as large as one of the result, which its rows are not written over
    over = tuple(name for name in layer.may_overwrite if network.tensors[name].rows == result.rows)
    return replace(layer, reads=reads, may_overwrite=over)


def _coarsen_rows(rows: OperandRows, makes: int, reads: int) -> OperandRows:
    """Return the blocks of `reads` rows that an aligned block of `makes` result rows reads."""
    if rows == ALL_ROWS or makes == reads == 1:
        return rows
    stride, repeat = rows.stride * makes, rows.repeat * reads
    common = gcd(stride, repeat)
    stride, repeat = stride // common, repeat // common
    before = -(-rows.before // reads)
    beyond = (makes - 1) * rows.stride // rows.repeat - rows.before + rows.extent
    # a block that begins inside of an operand's block may end one further on
    extent = before - (-beyond // reads) + (repeat > 1)
    return OperandRows(extent, stride, before, repeat)
