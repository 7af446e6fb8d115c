"""Emit the commands of pools, of elementwise layers, and of concatenations."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ..machine import (
    ABSENT,
    Add,
    Command,
    DType,
    Function,
    Load,
    MatMul,
    MinMax,
    Mul,
    Normalize,
    Operand,
    Pair,
    PoolKind,
    Quantize,
    Scale,
    Store,
    Table,
    scaling_fields,
    to_common_multipliers,
    to_multiplier,
    to_real_multiplier,
)
from ..machine import Pool as PoolCommand
from .emission import EmitterState, LayerEmission, LayerT, TileStep, begin_layer, require_tiling
from .layers import (
    ActivationLayer,
    ConcatLayer,
    ConvLayer,
    EltwiseLayer,
    MachineLayer,
    MatMulLayer,
    MinMaxLayer,
    MovedAxis,
    MoveLayer,
    NormalizeLayer,
    PoolLayer,
    QuantizeLayer,
    RestackLayer,
    residual_bits,
    split_axes,
)
from .output_shapes import Array, Clamp, LayerTensor, dtype_of
from .tiling import (
    ALIGNMENT,
    AxisSpan,
    SlotNeed,
    TensorBox,
    TileBox,
    TileShape,
    Tiling,
    decreasing_parts,
    dense_operand,
    find_simple_tiling,
    receptive_field,
    simple_slots,
    split_images,
    split_span,
)

# Emit the commands of layers that only move bytes, by DMA alone.


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


# Scales and zero points of commands: one number for all channels, or a table of them.

SLOT = "channels"
"""The slot of tables."""


def emit_scaling(
    emitting: LayerEmission,
    kind: type[Command],
    layer: MachineLayer,
    inputs: Sequence[LayerTensor],
    made: AxisSpan,
) -> dict[str, Any]:
    """Return the fields of a command that makes the channels `made` of the layer's result of `inputs`.

    They are the numbers of `scaling_fields`, or where these differ by channel the operand `channels`.
    """
    y, names = layer.y, scaling_fields(kind)
    if not has_channel_scaling((*inputs, y)):
        limits = layer.clamp.saturate_limits(y)
        return dict(zip(names, _find_numbers(layer, inputs, y, limits), strict=True))

    def array() -> Array:
        lows, highs = layer.clamp.channel_limits(y)
        rows = [
            _find_numbers(layer, [x.at_channel(c) for x in inputs], y.at_channel(c), (lows[c], highs[c]))
            for c in range(made.start, made.end)
        ]
        return np.ascontiguousarray(np.array(rows, np.int64).T).astype("<i4")

    count = len(names) * made.count
    return {"channels": emitting.constant(SLOT, (kind, made), array, count, DType.INT32)}


def has_channel_scaling(tensors: Sequence[LayerTensor]) -> bool:
    """Whether one of some tensors has a scale for each channel."""
    return any(each.has_channel_scales for each in tensors)


def _find_numbers(
    layer: MachineLayer, inputs: Sequence[LayerTensor], y: LayerTensor, limits: tuple[float, float]
) -> tuple[float, ...]:
    """Return zero points, mantissas, shift and limits of tensors with one scale each."""
    zeros, scales = [x.zero for x in (*inputs, y)], [x.scale for x in inputs]
    if isinstance(layer, EltwiseLayer) and layer.multiplies:
        factors: tuple[int, ...] = to_multiplier(prod(scales) / y.scale)
    elif len(scales) == 2:
        factors = to_common_multipliers(scales[0] / y.scale, scales[1] / y.scale)
    else:
        factors = to_multiplier(scales[0] / y.scale)
    return (*zeros, *factors, *limits)


def conv_parameters(layer: ConvLayer, taken: slice) -> Array:
    """Return the parameters of some output channels of a CONV, in the order of WEIGHTS."""
    if not layer.x.is_integer:
        return layer.bias[taken].astype("<f4")
    if layer.limits is not None:
        return np.ascontiguousarray(_dynamic_parameters(layer)[:, taken]).astype("<i4")
    return np.ascontiguousarray(_integer_parameters(layer)[:, taken]).astype("<i4")


def _integer_parameters(layer: ConvLayer) -> Array:
    """Return the rows of parameters of a convolution of integers, int64 [3 or 9, channels].

    Where another command is to add a residual, results are int32 in units finer than those of `y`.
    """
    x, y, channels = layer.x, layer.y, layer.y.channels
    is_wide = layer.adds_residual_apart
    split = to_real_multiplier if layer.computes_in_reals else to_multiplier
    finer = 2.0 ** residual_bits(layer) if is_wide else np.ones(1)
    rows = [layer.bias, *_split_factors(layer.multipliers * finer, split)]
    if layer.count_parameters() > len(rows):
        y_zeros, limits = y.zeros, layer.clamp.channel_limits(y)
        if is_wide:
            word = np.iinfo(np.int32)
            y_zeros, limits = np.zeros(1, np.int64), (np.array([word.min]), np.array([word.max]))
        times = channels // len(x.zeros) if x.has_channel_scales else 1
        units = _split_factors(1 / y.scales, to_real_multiplier)
        rows += [np.repeat(x.zeros, times), y_zeros, *limits, *units]
    return np.stack([np.broadcast_to(row.astype(np.int64), channels) for row in rows])


def _dynamic_parameters(layer: ConvLayer) -> Array:
    """Return the rows of parameters of a convolution of what QUANTIZE made, int64 [9, channels]."""
    rows = np.zeros((layer.count_parameters(), layer.y.channels), np.int64)
    rows[1:3] = _split_factors(layer.multipliers, to_real_multiplier)
    rows[4] = layer.bias.astype(np.float32).view(np.int32)
    return rows


def _split_factors(factors: Array, split: Callable[[float], tuple[int, int]]) -> Array:
    """Return the mantissas and the shifts of factors, int64 [2, factors]."""
    return np.array([split(float(each)) for each in factors], np.int64).T


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


def emit_min_max(
    machine: EmitterState, number: int, layer: MinMaxLayer, rows: AxisSpan
) -> Iterator[TileStep]:
    """Yield the steps that find the limits of a tensor, one box after another, regardless of `rows`."""
    emitting, tiling = _begin_tiles(machine, number, layer, rows)
    x, whole = layer.x, TensorBox(AxisSpan(0, 1), AxisSpan(0, 1), AxisSpan(0, layer.y.channels))
    found, before = emitting.result_operand(layer.y, whole), ABSENT
    for box in _result_boxes(x, AxisSpan(0, x.rows), tiling):
        step = emitting.begin_step()
        emitting.add_command(MinMax(number, emitting.load("x0", x, box.of(x)), before, found))
        before = found
        yield step
    last = emitting.begin_step()
    emitting.store(found, layer.y, whole)
    yield last


def compute_quantize(emitting: LayerEmission, layer: QuantizeLayer, box: TileBox) -> Operand:
    """Round a box to integers between the limits of the whole tensor."""
    x = emitting.load("x0", layer.x, box.of(layer.y))
    both = TensorBox(AxisSpan(0, 1), AxisSpan(0, 1), AxisSpan(0, layer.limits.channels))
    limits = emitting.load("x1", layer.limits, both)
    made = emitting.result_operand(layer.y, box.of(layer.y))
    emitting.add_command(Quantize(emitting.number, x, limits, made))
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
