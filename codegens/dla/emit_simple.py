"""Emit the commands of pools, of elementwise layers, and of concatenations."""

from collections.abc import Iterator

from .boxes import Box, Span, field_of, images_of, spans
from .emit import Emission, Machine, Step, emission, over_images
from .fixed_point import common_multipliers, multiplier
from .isa import Add, Command, Function, Mul, PoolKind, Scale, Table
from .isa import Pool as PoolCommand
from .layers import Activation, Concat, Eltwise, Layer, Pool
from .operand import DType, Operand, Pair
from .tensors import Clamp, Tensor
from .tiles import Tiling, simple_needs, simple_tiling


def emit_pool(machine: Machine, number: int, layer: Pool, rows: Span) -> Iterator[Step]:
    """Yield the steps that compute some rows of a pool."""
    emitting, tiling = _begun(machine, number, layer, rows)
    for box in _boxes(layer.y, rows, tiling):
        step = emitting.begin()
        x, y = layer.x, layer.y
        field = field_of(layer.window, x, box.rows, box.cols)
        source = over_images(field.rows, box.image, x.height)
        mantissa, shift = multiplier(x.scale / y.scale)
        low, high = layer.clamp.stored(y)
        made = _made(emitting, y, box)
        emitting.compute(
            PoolCommand(
                layer=number,
                kind=PoolKind.AVERAGE if layer.average else PoolKind.MAX,
                x=emitting.load("x0", x, source, field.cols, box.channels),
                y=made,
                kernel=Pair(*layer.window.kernel),
                strides=Pair(*layer.window.strides),
                dilations=Pair(*layer.window.dilations),
                pads=field.pads,
                overhang=field.overhang,
                padding_counts=int(layer.counts_pads),
                x_zero=x.zero,
                y_zero=y.zero,
                mantissa=mantissa,
                shift=shift,
                low=low,
                high=high,
            )
        )
        _store(emitting, made, y, box)
        yield step


def emit_eltwise(machine: Machine, number: int, layer: Eltwise, rows: Span) -> Iterator[Step]:
    """Yield the steps that compute some rows of a sum or product."""
    emitting, tiling = _begun(machine, number, layer, rows)
    for box in _boxes(layer.y, rows, tiling):
        step = emitting.begin()
        a = _stretched(emitting, "x0", layer.a, box)
        b = a if layer.b == layer.a else _stretched(emitting, "x1", layer.b, box)
        made = _made(emitting, layer.y, box)
        emitting.compute(_combined(number, layer, a, b, made))
        _store(emitting, made, layer.y, box)
        yield step


def _combined(number: int, layer: Eltwise, a: Operand, b: Operand, made: Operand) -> Command:
    """Return the command that adds or multiplies two tiles."""
    y = layer.y
    zeros = (layer.a.zero, layer.b.zero, y.zero)
    bounds = layer.clamp.stored(y)
    if layer.multiplies:
        factor = multiplier(layer.a.scale * layer.b.scale / y.scale)
        return Mul(number, a, b, made, *zeros, *factor, *bounds)
    factors = common_multipliers(layer.a.scale / y.scale, layer.b.scale / y.scale)
    return Add(number, a, b, made, *zeros, *factors, *bounds)


def _stretched(emitting: Emission, slot: str, x: Tensor, box: Box) -> Operand:
    """Return the tile of an operand for a box of the result; an extent of 1 is broadcast."""
    image = box.image if x.images > 1 else 0
    rows = box.rows if x.height > 1 else Span(0, 1)
    cols = box.cols if x.width > 1 else Span(0, 1)
    channels = box.channels if x.channels > 1 else Span(0, 1)
    return emitting.load(slot, x, over_images(rows, image, x.height), cols, channels)


def emit_activation(machine: Machine, number: int, layer: Activation, rows: Span) -> Iterator[Step]:
    """Yield the steps that compute some rows of a function, a clamp or a copy."""
    emitting, tiling = _begun(machine, number, layer, rows)
    for box in _boxes(layer.y, rows, tiling):
        step = emitting.begin()
        place = (over_images(box.rows, box.image, layer.y.height), box.cols, box.channels)
        x = emitting.load("x0", layer.x, *place)
        made = _applied(emitting, layer, x, box)
        _store(emitting, made, layer.y, box)
        yield step


def _applied(emitting: Emission, layer: Activation, x: Operand, box: Box) -> Operand:
    """Apply a function to a tile and return the result: the same tile if there is nothing to do."""
    number = emitting.number
    if layer.table is not None:
        entries = layer.table
        table = emitting.constant("table", "table", lambda: entries, entries.size, DType.UINT8)
        made = _made(emitting, layer.y, box)
        emitting.compute(Table(number, x, table, made))
        return made
    if layer.function is not None:
        made = _made(emitting, layer.y, box)
        emitting.compute(Function(number, layer.function, x, made, *layer.parameters))
        return made
    return _rescaled(emitting, layer, layer.x, x, box)


def _rescaled(emitting: Emission, layer: Layer, x: Tensor, tile: Operand, box: Box) -> Operand:
    """Convert a tile to the scale and clamp of the result."""
    y = layer.y
    same = layer.clamp == Clamp() and (x.dtype, x.scale, x.zero) == (y.dtype, y.scale, y.zero)
    if same and not emitting.is_near(y):
        return tile
    made = _made(emitting, y, box)
    factor = multiplier(x.scale / y.scale)
    emitting.compute(Scale(emitting.number, tile, made, x.zero, y.zero, *factor, *layer.clamp.stored(y)))
    return made


def emit_concat(machine: Machine, number: int, layer: Concat, rows: Span) -> Iterator[Step]:
    """Yield the steps that concatenate tensors: some rows, but all rows along the axes 0 and 1."""
    emitting, tiling = _begun(machine, number, layer, rows)
    offset = 0
    for slot, part in enumerate(layer.parts):
        taken = rows if layer.axis in (2, 3) else Span(0, part.rows)
        for box in _boxes(part, taken, tiling):
            step = emitting.begin()
            source = over_images(box.rows, box.image, part.height)
            tile = emitting.load(f"x{slot}", part, source, box.cols, box.channels)
            target = _shifted(box, layer.axis, offset)
            made = _rescaled(emitting, layer, part, tile, target)
            _store(emitting, made, layer.y, target)
            yield step
        offset += part.extents[layer.axis]


def _shifted(box: Box, axis: int, offset: int) -> Box:
    """Return a box moved along one axis of images, rows, columns, channels."""
    numbered = enumerate((box.rows, box.cols, box.channels), 1)
    rows, cols, channels = (Span(s.start + offset * (axis == n), s.count) for n, s in numbered)
    return Box(box.image + offset * (axis == 0), rows, cols, channels)


def _begun(machine: Machine, number: int, layer: Layer, rows: Span) -> tuple[Emission, Tiling]:
    tiling = machine.tiling(simple_tiling, number, layer, rows.count)
    return emission(machine, number, layer, simple_needs(layer, tiling.tile), tiling), tiling


def _boxes(y: Tensor, rows: Span, tiling: Tiling) -> Iterator[Box]:
    """Yield the boxes of some rows, in the order of memory."""
    tile = tiling.tile
    for image, inside in images_of(y, rows):
        for down in spans(inside, tile.rows):
            for right in spans(Span(0, y.width), tile.cols):
                for channels in spans(Span(0, y.channels), tile.channels):
                    yield Box(image, down, right, channels)


def _made(emitting: Emission, y: Tensor, box: Box) -> Operand:
    return emitting.made(y, over_images(box.rows, box.image, y.height), box.cols, box.channels)


def _store(emitting: Emission, tile: Operand, y: Tensor, box: Box) -> None:
    rows = over_images(box.rows, box.image, y.height)
    emitting.store(tile, y, rows, box.cols, box.channels)
