"""Emit the commands of pools, of elementwise layers, and of concatenations."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..machine import (
    ABSENT,
    Add,
    DType,
    Function,
    MatMul,
    Mul,
    Normalize,
    Operand,
    Pair,
    PoolKind,
    Scale,
    Table,
    to_multiplier,
)
from ..machine import Pool as PoolCommand
from .boxes import AxisSpan, TileBox, receptive_field, split_images, split_span
from .emission import EmitterState, LayerEmission, LayerT, TileStep, begin_layer
from .emit_scaling import emit_scaling
from .layer_tensors import Array, Clamp, LayerTensor
from .layers import (
    ActivationLayer,
    ConcatLayer,
    EltwiseLayer,
    MachineLayer,
    MatMulLayer,
    NormalizeLayer,
    PoolLayer,
)
from .tiling import Tiling, find_simple_tiling, simple_slots


def emit_boxes(
    compute: Callable[[LayerEmission, LayerT, TileBox], Operand],
    machine: EmitterState,
    number: int,
    layer: LayerT,
    rows: AxisSpan,
) -> Iterator[TileStep]:
    """Yield the steps that compute some rows of a layer, one box after another."""
    emitting, tiling = _begin_tiles(machine, number, layer, rows)
    for box in _result_boxes(layer.y, rows, tiling):
        step = emitting.begin_step()
        emitting.store(compute(emitting, layer, box), layer.y, box.of(layer.y))
        yield step


def compute_pool(emitting: LayerEmission, layer: PoolLayer, box: TileBox) -> Operand:
    """Compute a box of a pool."""
    x, y = layer.x, layer.y
    field = receptive_field(layer.window, x, box.rows, box.cols)
    source = TileBox(box.image, field.rows, field.cols, box.channels)
    made = emitting.result_operand(y, box.of(y))
    emitting.add_command(
        PoolCommand(
            layer=emitting.number,
            kind=PoolKind.AVERAGE if layer.average else PoolKind.MAX,
            x=emitting.load("x0", x, source.of(x)),
            y=made,
            kernel=Pair(*layer.window.kernel),
            strides=Pair(*layer.window.strides),
            dilations=Pair(*layer.window.dilations),
            pads=field.pads,
            overhang=field.overhang,
            padding_counts=int(layer.counts_pads),
            **emit_scaling(emitting, PoolCommand, layer, (x,), box.channels),
        )
    )
    return made


def compute_eltwise(emitting: LayerEmission, layer: EltwiseLayer, box: TileBox) -> Operand:
    """Compute a box of a sum or product."""
    a = _load_broadcast(emitting, "x0", layer.a, box)
    b = a if layer.b == layer.a else _load_broadcast(emitting, "x1", layer.b, box)
    made = emitting.result_operand(layer.y, box.of(layer.y))
    kind = Mul if layer.multiplies else Add
    scaling = emit_scaling(emitting, kind, layer, (layer.a, layer.b), box.channels)
    emitting.add_command(kind(emitting.number, a, b, made, **scaling))
    return made


def _load_broadcast(emitting: LayerEmission, slot: str, x: LayerTensor, box: TileBox) -> Operand:
    """Return the tile of an operand for a box of the result; an extent of 1 is broadcast."""
    pairs = ((box.rows, x.height), (box.cols, x.width), (box.channels, x.channels))
    spans = (span if extent > 1 else AxisSpan(0, 1) for span, extent in pairs)
    return emitting.load(slot, x, TileBox(box.image if x.images > 1 else 0, *spans).of(x))


def compute_matmul(emitting: LayerEmission, layer: MatMulLayer, box: TileBox) -> Operand:
    """Compute a box of a matrix product from whole rows of `a` and whole columns of `b`."""
    a, b, y = layer.a, layer.b, layer.y
    rows = replace(box, channels=AxisSpan(0, a.channels))
    columns = replace(box, cols=AxisSpan(0, b.width))
    operands = emitting.load("x0", a, rows.of(a)), emitting.load("x1", b, columns.of(b))
    made = emitting.result_operand(y, box.of(y))
    zeros, factor = (a.zero, b.zero, y.zero), to_multiplier(a.scale * b.scale / y.scale)
    bounds = layer.clamp.saturate_limits(y)
    emitting.add_command(MatMul(emitting.number, *operands, made, *zeros, *factor, *bounds))
    return made


def compute_normalize(emitting: LayerEmission, layer: NormalizeLayer, box: TileBox) -> Operand:
    """Normalize a box, which has all channels; `scale` and `bias` are the same for each pixel."""
    x = emitting.load("x0", layer.x, box.of(layer.y))
    slots = iter(("x1", "x2"))  # slot n is that of `layer.reads[n]`, which lacks a factor left out
    factors = (
        ABSENT if each is None else _load_broadcast(emitting, next(slots), each, box)
        for each in (layer.scale, layer.bias)
    )
    scale, bias = factors
    made = emitting.result_operand(layer.y, box.of(layer.y))
    emitting.add_command(Normalize(emitting.number, layer.kind, x, scale, bias, made, layer.epsilon))
    return made


def compute_activation(emitting: LayerEmission, layer: ActivationLayer, box: TileBox) -> Operand:
    """Apply a function, clamp or copy to a box, and return the result: the input's tile for a copy."""
    x = emitting.load("x0", layer.x, box.of(layer.y))
    number = emitting.number
    if layer.table is not None:
        table = _load_table(emitting, layer.table, box.channels)
        made = emitting.result_operand(layer.y, box.of(layer.y))
        emitting.add_command(Table(number, x, table, made))
        return made
    if layer.function is not None:
        made = emitting.result_operand(layer.y, box.of(layer.y))
        emitting.add_command(Function(number, layer.function, x, made, *layer.parameters))
        return made
    return _rescale_tile(emitting, layer, layer.x, x, box)


def _load_table(emitting: LayerEmission, table: Array, channels: AxisSpan) -> Operand:
    """Return the table of all channels, or those of some of them."""
    if table.ndim == 1:
        return emitting.constant("table", "table", lambda: table, table.size, DType.UINT8)
    taken = table[channels.start : channels.end]
    dense = emitting.constant("table", channels, lambda: taken, taken.size, DType.UINT8)
    return replace(dense, cols=len(taken), channels=256, pixel_pitch=256)


def _rescale_tile(
    emitting: LayerEmission, layer: MachineLayer, x: LayerTensor, tile: Operand, box: TileBox
) -> Operand:
    """Convert a tile to the scale and clamp of the result."""
    y = layer.y
    same = layer.clamp == Clamp() and x.has_encoding_of(y)
    if same and not emitting.is_near(y):
        return tile
    made = emitting.result_operand(y, box.of(y))
    scaling = emit_scaling(emitting, Scale, layer, (x,), box.channels)
    emitting.add_command(Scale(emitting.number, tile, made, **scaling))
    return made


def emit_concat(
    machine: EmitterState, number: int, layer: ConcatLayer, rows: AxisSpan
) -> Iterator[TileStep]:
    """Yield the steps that concatenate tensors: some rows, but all rows along the axes 0 and 1."""
    emitting, tiling = _begin_tiles(machine, number, layer, rows)
    offset = 0
    for slot, part in enumerate(layer.parts):
        taken = rows if layer.axis in (2, 3) else AxisSpan(0, part.rows)
        for box in _result_boxes(part, taken, tiling):
            step = emitting.begin_step()
            tile = emitting.load(f"x{slot}", part, box.of(part))
            target = _shift_box(box, layer.axis, offset)
            made = _rescale_tile(emitting, layer, part, tile, target)
            emitting.store(made, layer.y, target.of(layer.y))
            yield step
        offset += part.extents[layer.axis]


def _shift_box(box: TileBox, axis: int, offset: int) -> TileBox:
    """Return a box moved along one axis of images, rows, columns, channels."""
    numbered = enumerate((box.rows, box.cols, box.channels), 1)
    rows, cols, channels = (AxisSpan(s.start + offset * (axis == n), s.count) for n, s in numbered)
    return TileBox(box.image + offset * (axis == 0), rows, cols, channels)


def _begin_tiles(
    machine: EmitterState, number: int, layer: MachineLayer, rows: AxisSpan
) -> tuple[LayerEmission, Tiling]:
    tiling = machine.find_tiling(find_simple_tiling, number, layer, rows.count)
    return begin_layer(machine, number, layer, simple_slots(layer, tiling.tile), tiling), tiling


def _result_boxes(y: LayerTensor, rows: AxisSpan, tiling: Tiling) -> Iterator[TileBox]:
    """Yield the boxes of some rows, in the order of memory."""
    tile = tiling.tile
    for image, inside in split_images(y, rows):
        for down in split_span(inside, tile.rows):
            for right in split_span(AxisSpan(0, y.width), tile.cols):
                for channels in split_span(AxisSpan(0, y.channels), tile.channels):
                    yield TileBox(image, down, right, channels)
