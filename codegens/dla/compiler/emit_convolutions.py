"""Emit the commands of convolutions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from ..machine import ABSENT, Add, ConvFlags, DType, Operand, Pair
from ..machine import Conv as Convolve
from .emission import PARAMETERS, WEIGHTS, EmitterState, LayerEmission, TileStep, begin_layer
from .emit_tiles import conv_parameters, emit_scaling
from .layers import ConvLayer, Int4Weights, residual_bits
from .tiling import (
    AxisSpan,
    ReceptiveField,
    TensorBox,
    TileBox,
    Tiling,
    find_conv_tiling,
    list_conv_slots,
    receptive_field,
    split_images,
    split_span,
)


@dataclass(frozen=True)
class _OutputArea:
    """A box of rows and columns of the result, and its receptive field."""

    image: int
    rows: AxisSpan
    cols: AxisSpan
    field: ReceptiveField


@dataclass(frozen=True)
class _ChannelSplit:
    """Output channels that are computed together, and the input channels of their groups."""

    made: AxisSpan
    read: AxisSpan
    groups: int


def emit_convolution(
    machine: EmitterState, number: int, layer: ConvLayer, rows: AxisSpan
) -> Iterator[TileStep]:
    """Yield the steps that compute some rows of a convolution, counted over all images."""
    tiling = machine.find_tiling(find_conv_tiling, number, layer, rows.count)
    emitting = begin_layer(machine, number, layer, list_conv_slots(layer, tiling.tile), tiling)
    areas, channels = list(_output_areas(layer, tiling, rows)), list(_channel_splits(layer, tiling))
    pairs = (
        ((area, each) for each, area in product(channels, areas))
        if tiling.weights_outermost
        else product(areas, channels)
    )
    for area, each in pairs:
        yield from _emit_tile(emitting, layer, tiling, area, each)


def _output_areas(layer: ConvLayer, tiling: Tiling, rows: AxisSpan) -> Iterator[_OutputArea]:
    for image, inside in split_images(layer.y, rows):
        for down in split_span(inside, tiling.tile.rows):
            for right in split_span(AxisSpan(0, layer.y.width), tiling.tile.cols):
                yield _OutputArea(
                    image, down, right, receptive_field(layer.window, layer.x, down, right)
                )


def _channel_splits(layer: ConvLayer, tiling: Tiling) -> Iterator[_ChannelSplit]:
    made, read = layer.y.channels // layer.groups, layer.x.channels // layer.groups
    for groups in split_span(AxisSpan(0, layer.groups), tiling.tile.groups):
        inputs = AxisSpan(groups.start * read, groups.count * read)
        outputs = AxisSpan(groups.start * made, groups.count * made)
        for part in split_span(outputs, tiling.tile.channels):
            yield _ChannelSplit(part, inputs, groups.count)


def _emit_tile(
    emitting: LayerEmission, layer: ConvLayer, tiling: Tiling, area: _OutputArea, channels: _ChannelSplit
) -> Iterator[TileStep]:
    """Yield the steps of one tile: one for each part of the input channels."""
    parts = list(split_span(channels.read, tiling.tile.inputs))
    result = _ResultTile(emitting, layer, area, channels)
    sums = DType.INT64 if layer.is_wide else _parameter_dtype(layer)
    accumulator = ABSENT if len(parts) == 1 else result.new_tile("accumulator", sums)
    for part in parts:
        step = emitting.begin_step()
        flags = ConvFlags.NONE
        if part is parts[0]:
            flags |= ConvFlags.FIRST
        if part is parts[-1]:
            flags |= ConvFlags.LAST
        _add_convolution(result, part, flags, accumulator)
        yield step


def _parameter_dtype(layer: ConvLayer) -> DType:
    return DType.INT32 if layer.x.is_integer else DType.FLOAT32


@dataclass(frozen=True, eq=False)
class _ResultTile:
    """The tile of the result that is being computed."""

    emitting: LayerEmission
    layer: ConvLayer
    area: _OutputArea
    channels: _ChannelSplit

    @property
    def box(self) -> TensorBox:
        """The box of the result."""
        area = self.area
        return TileBox(area.image, area.rows, area.cols, self.channels.made).of(self.layer.y)

    def new_tile(self, slot: str, dtype: DType) -> Operand:
        """Return a tile as large as the result's."""
        extents = (self.area.rows.count, self.area.cols.count, self.channels.made.count)
        return self.emitting.new_tile(slot, extents, dtype)


def _add_convolution(
    result: _ResultTile, part: AxisSpan, flags: ConvFlags, accumulator: Operand
) -> None:
    """Append the commands that convolve some input channels, and finish the tile with the last."""
    emitting, layer, area = result.emitting, result.layer, result.area
    field, y = area.field, layer.y
    source = TileBox(area.image, field.rows, field.cols, part)
    last = bool(flags & ConvFlags.LAST)
    wide = last and layer.adds_residual_apart
    command = Convolve(
        layer=emitting.number,
        flags=flags,
        x=emitting.load("x", layer.x, source.of(layer.x)),
        weights=_load_weights(result, part),
        parameters=_load_parameters(result),
        accumulator=accumulator,
        residual=_load_stage_operand(result) if last and not wide else ABSENT,
        y=accumulator,  # of the same extents; replaced below where the result is written
        kernel=Pair(*layer.window.kernel),
        strides=Pair(*layer.window.strides),
        dilations=Pair(*layer.window.dilations),
        pads=field.pads,
        groups=result.channels.groups,
        x_zero=layer.x.zero,
        **_stage_fields(layer),
    )
    if not last:
        emitting.add_command(command)
        return
    made = emitting.result_operand(y, result.box)
    if wide:
        sums = result.new_tile("wide", DType.INT32)
        emitting.add_command(replace(command, y=sums))
        emitting.add_command(_residual_command(result, sums, made))
    else:
        low, high = layer.clamp.saturate_limits(y)
        emitting.add_command(replace(command, y=made, y_zero=y.zero, low=low, high=high))
    emitting.store(made, y, result.box)


def _stage_fields(layer: ConvLayer) -> dict[str, Any]:
    """Return the fields of the output stage of a CONV."""
    found: dict[str, Any] = {}
    if layer.residual is not None and layer.computes_in_reals:
        found |= {"residual_zero": layer.residual.zero, "residual_scale": layer.residual.scale}
    if layer.function is not None:
        alpha, beta = layer.parameters
        found |= {"function": layer.function, "alpha": alpha, "beta": beta}
    return found


def _load_weights(result: _ResultTile, part: AxisSpan) -> Operand:
    """Return the weights of some output channels for some input channels."""
    layer, channels = result.layer, result.channels
    read = layer.x.channels // layer.groups
    first = part.start % read
    inputs = slice(first, first + part.count // channels.groups)
    outputs = slice(channels.made.start, channels.made.end)
    array = layer.take_weights(outputs, inputs)
    key = (channels, part)
    span = (outputs.start, outputs.stop, inputs.start, inputs.stop)
    if isinstance(layer.weights, Int4Weights):
        extents = (1, channels.made.count, part.count)
        return result.emitting.unpack(key, array, extents, layer.weights, span)
    dtype = DType.INT8 if layer.x.is_integer else DType.FLOAT32
    return result.emitting.constant(WEIGHTS, key, lambda: array, array.size, dtype, span)


def _load_parameters(result: _ResultTile) -> Operand:
    """Return the parameters of some output channels."""
    layer, made = result.layer, result.channels.made
    taken = slice(made.start, made.end)

    count, span = made.count * layer.count_parameters(), (made.start, made.end)
    return result.emitting.constant(
        PARAMETERS, made, lambda: conv_parameters(layer, taken), count, _parameter_dtype(layer), span
    )


def _load_stage_operand(result: _ResultTile) -> Operand:
    """Return the input of the output stage beside the sums: a residual, limits of the input, nothing."""
    limits = result.layer.limits
    if limits is not None:
        both = TensorBox(AxisSpan(0, 1), AxisSpan(0, 1), AxisSpan(0, limits.channels))
        return result.emitting.load("limits", limits, both)
    return ABSENT if result.layer.residual is None else _load_residual(result)


def _load_residual(result: _ResultTile) -> Operand:
    assert result.layer.residual is not None
    return result.emitting.load("residual", result.layer.residual, result.box)


def _residual_command(result: _ResultTile, sums: Operand, made: Operand) -> Add:
    """Return the command that adds the residual to a result in finer units."""
    layer, residual = result.layer, result.layer.residual
    assert residual is not None
    y = layer.y
    finer = np.squeeze(y.scales / 2.0 ** residual_bits(layer))
    wide = replace(y, dtype="int32").encoded_by(finer, np.zeros_like(finer))
    scaling = emit_scaling(result.emitting, Add, layer, (wide, residual), result.channels.made)
    return Add(result.emitting.number, sums, _load_residual(result), made, **scaling)
