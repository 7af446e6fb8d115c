"""Emit the commands of layers that only move bytes, by DMA alone."""

from collections.abc import Iterator
from dataclasses import replace

from ..machine import Load, Operand, Store
from .boxes import AxisSpan, TensorBox, TileBox, split_span
from .emission import (
    EmitterState,
    LayerEmission,
    TileStep,
    begin_layer,
    require_tiling,
)
from .layer_tensors import LayerTensor, dtype_of
from .layers import MoveLayer, RestackLayer
from .tiling import ALIGNMENT, SlotNeed, TileShape, Tiling, decreasing_parts, dense_operand


def emit_move(
    machine: EmitterState, number: int, layer: MoveLayer, rows: AxisSpan
) -> Iterator[TileStep]:
    """Yield the steps that reorder a whole image, regardless of `rows`.

    A tile in the scratchpad is one row of pixels of channels. The image in the arena is accessed row by
    row, and the tensor in ONNX's order of axes with strides over channels and pixels.
    """
    images, height, width, channels = layer.image
    size = layer.x.itemsize
    tiling = _move_tiling(machine, layer, height, width, channels)
    needs = {"tile": SlotNeed(tiling.tile.rows * width * tiling.tile.channels * size)}
    emitting = begin_layer(machine, number, layer, needs, tiling)
    for image in range(images):
        for down in split_span(AxisSpan(0, height), tiling.tile.rows):
            for part in split_span(AxisSpan(0, channels), tiling.tile.channels):
                step = emitting.begin_step()
                _reorder_tile(emitting, layer, image, down, part)
                yield step


def _move_tiling(
    machine: EmitterState, layer: MoveLayer, height: int, width: int, channels: int
) -> Tiling:
    """Return as many rows of all channels as fit, or one row of as many channels as fit."""
    for doubled in (True, False):
        for part in decreasing_parts(channels):
            for rows in decreasing_parts(height):
                need = SlotNeed(rows * width * part * layer.x.itemsize)
                if machine.budget.fits({"tile": need}, doubled):
                    return Tiling(TileShape(rows, width, part), doubled)
    return require_tiling(None, layer, machine.budget)


def _reorder_tile(
    emitting: LayerEmission, layer: MoveLayer, image: int, down: AxisSpan, part: AxisSpan
) -> None:
    width = layer.image[2]
    pixels = AxisSpan(down.start * width, down.count * width)
    tile = emitting.new_tile("tile", (1, pixels.count, part.count), dtype_of(layer.x))
    turned = replace(
        tile,
        cols=part.count,
        channels=pixels.count,
        pixel_pitch=tile.channel_pitch,
        channel_pitch=tile.pixel_pitch,
    )
    arena, number = emitting.machine.arena, emitting.number
    plain, image_tensor = (layer.x, layer.y) if layer.to_image else (layer.y, layer.x)
    whole = arena.box_operand(plain, TensorBox(AxisSpan(image, 1), part, pixels))
    rows = []
    for row in range(down.count):
        box = TileBox(image, AxisSpan(down.start + row, 1), AxisSpan(0, width), part)
        address = tile.address + row * width * tile.pixel_pitch
        here = replace(tile, address=address, cols=width)
        rows.append((arena.box_operand(image_tensor, box.of(image_tensor)), here))
    if layer.to_image:
        emitting.step.loads.append(Load(number, arena.memory_of(plain), whole, turned))
        emitting.add_stores(Store(number, here, there) for there, here in rows)
    else:
        memory = arena.memory_of(image_tensor)
        emitting.step.loads += [Load(number, memory, there, here) for there, here in rows]
        emitting.add_stores([Store(number, turned, whole)])


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
        for there, here in _row_pieces(emitting, layer.x, tile, chunk):
            memory = emitting.machine.arena.memory_of(layer.x)
            step.loads.append(Load(number, memory, there, here))
        pieces = _row_pieces(emitting, layer.y, tile, chunk)
        emitting.add_stores(Store(number, here, there) for there, here in pieces)
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
        there = emitting.machine.arena.box_operand(flat, box)
        address = tile.address + (position - chunk.start) * tensor.itemsize
        yield there, dense_operand(tile.tensor, address, (1, 1, count), tile.dtype)
        position += count
