"""Coarsening of networks with very many rows: several rows are planned as one block.

The cost of planning grows with the rows of all tensors and with the number of tensors live at a time.
Rows are merged in pairs until both are small. To the planner a block of `n` rows is one row of `n` times
the bytes; the last block may be partly empty. The number of rows in a block is a power of two, so a
layer with a stride of two makes blocks of half as many rows as it reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import gcd

from byoc.memory.stripes._striping_problem import (
    ALL_ROWS,
    OperandRows,
    RowBand,
    RowLayer,
    RowNetwork,
    RowTensor,
    RowWindow,
    StripedPlan,
)

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
