"""Planning of striped execution: from layers and tensors to bands and windows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import gcd

import numpy as np

from byoc.memory.stripes._cascades import CascadeCuts
from byoc.memory.stripes._row_clock import (
    CascadeClock,
    StorageLiveRange,
    WindowPacker,
    WindowPacking,
    find_scratch_live_range,
    find_storage_live_ranges,
)
from byoc.memory.stripes._striping_problem import (
    ALL_ROWS,
    SAME_ROW,
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
