"""Emit the commands of layers that only move bytes, by DMA alone."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from ..machine import Load, Operand, Store
from .boxes import AxisSpan, TensorBox, split_span
from .emission import (
    EmitterState,
    LayerEmission,
    TileStep,
    begin_layer,
    require_tiling,
)
from .layer_tensors import LayerTensor, dtype_of
from .layers import MoveLayer, RestackLayer
from .moved_axes import MovedAxis, split_axes
from .tiling import ALIGNMENT, SlotNeed, TileShape, Tiling, decreasing_parts, dense_operand


def emit_move(
    machine: EmitterState, number: int, layer: MoveLayer, rows: AxisSpan
) -> Iterator[TileStep]:
    """Yield the steps that copy a part of a tensor, axes reordered, regardless of `rows`.

    A tile has two axes, those with most elements of all that do not leave a row of `x` or of `y`. It
    is loaded with the pitches of `x` and stored with those of `y`, for each position of the others.
    """
    inner, outer = split_axes(layer)
    tiling = _move_tiling(machine, layer, inner)
    needs = {"tile": SlotNeed(tiling.tile.cols * tiling.tile.channels * layer.x.itemsize)}
    emitting = begin_layer(machine, number, layer, needs, tiling)
    for position in product(*(range(axis.extent) for axis in outer)):
        for cols in split_span(AxisSpan(0, inner[0].extent), tiling.tile.cols):
            for channels in split_span(AxisSpan(0, inner[1].extent), tiling.tile.channels):
                at = (*position, cols.start, channels.start)
                step = emitting.begin_step()
                _move_tile(emitting, layer, (*outer, *inner), at, (cols.count, channels.count))
                yield step


def _move_tiling(machine: EmitterState, layer: MoveLayer, inner: list[MovedAxis]) -> Tiling:
    """Return as much of two axes as fits."""
    for doubled in (True, False):
        for channels in decreasing_parts(inner[1].extent):
            for cols in decreasing_parts(inner[0].extent):
                need = SlotNeed(cols * channels * layer.x.itemsize)
                if machine.budget.fits({"tile": need}, doubled):
                    return Tiling(TileShape(1, cols, channels), doubled)
    return require_tiling(None, layer, machine.budget)


def _move_tile(
    emitting: LayerEmission,
    layer: MoveLayer,
    axes: tuple[MovedAxis, ...],
    at: tuple[int, ...],
    extents: tuple[int, int],
) -> None:
    """Load a tile whose first element is `at` positions along the axes, and store it."""
    arena, number = emitting.machine.arena, emitting.number
    tile = emitting.new_tile("tile", (1, *extents), dtype_of(layer.x))

    def make_operand(tensor: LayerTensor, steps: Sequence[int], start: int = 0) -> Operand:
        offset = start + sum(position * step for position, step in zip(at, steps, strict=True))
        row, inside = divmod(offset, tensor.width * tensor.channels)
        first = TensorBox(AxisSpan(row, 1), AxisSpan(0, 1), AxisSpan(inside, 1))
        size = tensor.itemsize
        return replace(
            arena.box_operand(tensor, first),
            cols=extents[0],
            channels=extents[1],
            pixel_pitch=steps[-2] * size,
            channel_pitch=steps[-1] * size,
        )

    source = make_operand(layer.x, [axis.x_step for axis in axes], layer.start)
    target = make_operand(layer.y, [axis.y_step for axis in axes])
    emitting.step.loads.append(Load(number, arena.memory_of(layer.x), source, tile))
    emitting.add_stores([Store(number, tile, target)])


def emit_restack(
    machine: EmitterState, number: int, layer: RestackLayer, rows: AxisSpan
) -> Iterator[TileStep]:
    """Yield the steps that copy all bytes into rows of another length, regardless of `rows`."""
    size = layer.x.itemsize
    elements = layer.x.nbytes // size
    most = min(elements, machine.budget.scratchpad // 2 // ALIGNMENT * ALIGNMENT // size)
    tiling = Tiling(TileShape(1, 1, most), doubled=True) if most else None
    tiling = require_tiling(tiling, layer, machine.budget)
    emitting = begin_layer(machine, number, layer, {"tile": SlotNeed(most * size)}, tiling)
    for chunk in split_span(AxisSpan(0, elements), most):
        step = emitting.begin_step()
        tile = emitting.new_tile("tile", (1, 1, chunk.count), dtype_of(layer.x))
        for in_arena, in_tile in _row_pieces(emitting, layer.x, tile, chunk):
            memory = emitting.machine.arena.memory_of(layer.x)
            step.loads.append(Load(number, memory, in_arena, in_tile))
        pieces = _row_pieces(emitting, layer.y, tile, chunk)
        emitting.add_stores(Store(number, in_tile, in_arena) for in_arena, in_tile in pieces)
        yield step


def _row_pieces(
    emitting: LayerEmission, tensor: LayerTensor, tile: Operand, chunk: AxisSpan
) -> Iterator[tuple[Operand, Operand]]:
    """Yield, for each row of a tensor that a chunk touches, the operands in the arena and the tile."""
    length = tensor.width * tensor.channels
    flat = tensor.view(tensor.name, (1, tensor.rows, 1, length))
    position = chunk.start
    while position < chunk.end:
        row, inside = divmod(position, length)
        count = min(length - inside, chunk.end - position)
        box = TensorBox(AxisSpan(row, 1), AxisSpan(0, 1), AxisSpan(inside, count))
        in_arena = emitting.machine.arena.box_operand(flat, box)
        address = tile.address + (position - chunk.start) * tensor.itemsize
        yield in_arena, dense_operand(tile.tensor, address, (1, 1, count), tile.dtype)
        position += count
