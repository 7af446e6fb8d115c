"""Emit the commands of layers that only move bytes, by DMA alone."""

from collections.abc import Iterator
from dataclasses import replace

from .boxes import Span, spans
from .emit import Emission, Machine, Step, emission, over_images, required
from .isa import Load, Store
from .layers import Move, Restack
from .operand import Operand
from .slots import ALIGNMENT, Need, dense
from .tensors import Tensor, dtype_of
from .tiles import Tile, Tiling, halves


def emit_move(machine: Machine, number: int, layer: Move, rows: Span) -> Iterator[Step]:
    """Yield the steps that reorder a whole image, regardless of `rows`.

    A tile in the scratchpad is one row of pixels of channels. The image in the arena is accessed row by
    row, and the tensor in ONNX's order of axes with strides over channels and pixels.
    """
    images, height, width, channels = layer.image
    size = layer.x.itemsize
    tiling = _tiling(machine, layer, height, width, channels)
    needs = {"tile": Need(tiling.tile.rows * width * tiling.tile.channels * size)}
    emitting = emission(machine, number, layer, needs, tiling)
    for image in range(images):
        for down in spans(Span(0, height), tiling.tile.rows):
            for part in spans(Span(0, channels), tiling.tile.channels):
                step = emitting.begin()
                _reordered(emitting, layer, image, down, part)
                yield step


def _tiling(machine: Machine, layer: Move, height: int, width: int, channels: int) -> Tiling:
    """Return as many rows of all channels as fit, or one row of as many channels as fit."""
    for doubled in (True, False):
        for part in halves(channels):
            for rows in halves(height):
                need = Need(rows * width * part * layer.x.itemsize)
                if machine.budget.fits({"tile": need}, doubled):
                    return Tiling(Tile(rows, width, part), doubled)
    return required(None, layer, machine.budget)


def _reordered(emitting: Emission, layer: Move, image: int, down: Span, part: Span) -> None:
    _, height, width, _ = layer.image
    pixels = Span(down.start * width, down.count * width)
    tile = emitting.room("tile", (1, pixels.count, part.count), dtype_of(layer.x))
    turned = replace(
        tile,
        cols=part.count,
        channels=pixels.count,
        pixel_pitch=tile.channel_pitch,
        channel_pitch=tile.pixel_pitch,
    )
    arena, number = emitting.machine.arena, emitting.number
    plain, image_tensor = (layer.x, layer.y) if layer.to_image else (layer.y, layer.x)
    whole = arena.box(plain, Span(image, 1), part, pixels)
    rows = []
    for row in range(down.count):
        span = over_images(Span(down.start + row, 1), image, height)
        address = tile.address + row * width * tile.pixel_pitch
        here = replace(tile, address=address, cols=width)
        rows.append((arena.box(image_tensor, span, Span(0, width), part), here))
    if layer.to_image:
        emitting.step.loads.append(Load(number, arena.memory(plain), whole, turned))
        emitting.put(Store(number, here, there) for there, here in rows)
    else:
        memory = arena.memory(image_tensor)
        emitting.step.loads += [Load(number, memory, there, here) for there, here in rows]
        emitting.put([Store(number, turned, whole)])


def emit_restack(machine: Machine, number: int, layer: Restack, rows: Span) -> Iterator[Step]:
    """Yield the steps that copy all bytes into rows of another length, regardless of `rows`."""
    size = layer.x.itemsize
    elements = layer.x.nbytes // size
    most = min(elements, machine.budget.scratchpad // 2 // ALIGNMENT * ALIGNMENT // size)
    tiling = Tiling(Tile(1, 1, most), doubled=True) if most else None
    tiling = required(tiling, layer, machine.budget)
    emitting = emission(machine, number, layer, {"tile": Need(most * size)}, tiling)
    for chunk in spans(Span(0, elements), most):
        step = emitting.begin()
        tile = emitting.room("tile", (1, 1, chunk.count), dtype_of(layer.x))
        for there, here in _pieces(emitting, layer.x, tile, chunk):
            memory = emitting.machine.arena.memory(layer.x)
            step.loads.append(Load(number, memory, there, here))
        pieces = _pieces(emitting, layer.y, tile, chunk)
        emitting.put(Store(number, here, there) for there, here in pieces)
        yield step


def _pieces(
    emitting: Emission, tensor: Tensor, tile: Operand, chunk: Span
) -> Iterator[tuple[Operand, Operand]]:
    """Yield, for each row of a tensor that a chunk touches, the operands in the arena and the tile."""
    length = tensor.width * tensor.channels
    flat = tensor.view(tensor.name, (1, tensor.rows, 1, length))
    position = chunk.start
    while position < chunk.end:
        row, inside = divmod(position, length)
        count = min(length - inside, chunk.end - position)
        there = emitting.machine.arena.box(flat, Span(row, 1), Span(0, 1), Span(inside, count))
        address = tile.address + (position - chunk.start) * tensor.itemsize
        yield there, dense(tile.tensor, address, (1, 1, count), tile.dtype)
        position += count
