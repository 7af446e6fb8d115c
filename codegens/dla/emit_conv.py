"""Emit the commands of convolutions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from .boxes import Field, Span, field_of, images_of, spans
from .emit import Emission, Machine, Step, emission, over_images
from .fixed_point import common_multipliers
from .isa import Add, ConvFlags
from .isa import Conv as Convolve
from .layers import Array, Conv
from .limits import residual_bits
from .operand import ABSENT, DType, Operand, Pair
from .pack import parameters
from .tensors import Tensor
from .tiles import Tiling, conv_needs, conv_tiling


@dataclass(frozen=True)
class _Area:
    """A box of rows and columns of the result, and its receptive field."""

    image: int
    rows: Span
    cols: Span
    field: Field


@dataclass(frozen=True)
class _Channels:
    """Output channels that are computed together, and the input channels of their groups."""

    made: Span
    read: Span
    groups: int


def emit_convolution(machine: Machine, number: int, layer: Conv, rows: Span) -> Iterator[Step]:
    """Yield the steps that compute some rows of a convolution, counted over all images."""
    tiling = machine.tiling(conv_tiling, number, layer, rows.count)
    emitting = emission(machine, number, layer, conv_needs(layer, tiling.tile), tiling)
    areas, channels = list(_areas(layer, tiling, rows)), list(_channels(layer, tiling))
    pairs = (
        ((area, each) for each, area in product(channels, areas))
        if tiling.weights_outermost
        else product(areas, channels)
    )
    for area, each in pairs:
        yield from _tile(emitting, layer, tiling, area, each)


def _areas(layer: Conv, tiling: Tiling, rows: Span) -> Iterator[_Area]:
    for image, inside in images_of(layer.y, rows):
        for down in spans(inside, tiling.tile.rows):
            for right in spans(Span(0, layer.y.width), tiling.tile.cols):
                yield _Area(image, down, right, field_of(layer.window, layer.x, down, right))


def _channels(layer: Conv, tiling: Tiling) -> Iterator[_Channels]:
    made, read = layer.y.channels // layer.groups, layer.x.channels // layer.groups
    for groups in spans(Span(0, layer.groups), tiling.tile.groups):
        inputs = Span(groups.start * read, groups.count * read)
        outputs = Span(groups.start * made, groups.count * made)
        for part in spans(outputs, tiling.tile.channels):
            yield _Channels(part, inputs, groups.count)


def _tile(
    emitting: Emission, layer: Conv, tiling: Tiling, area: _Area, channels: _Channels
) -> Iterator[Step]:
    """Yield the steps of one tile: one for each part of the input channels."""
    parts = list(spans(channels.read, tiling.tile.inputs))
    result = _Result(emitting, layer, area, channels)
    accumulator = ABSENT if len(parts) == 1 else result.room("accumulator", _sums(layer))
    for part in parts:
        step = emitting.begin()
        flags = ConvFlags.NONE
        if part is parts[0]:
            flags |= ConvFlags.FIRST
        if part is parts[-1]:
            flags |= ConvFlags.LAST
        _convolve(result, part, flags, accumulator)
        yield step


def _sums(layer: Conv) -> DType:
    return DType.INT32 if layer.y.is_integer else DType.FLOAT32


@dataclass(frozen=True, eq=False)
class _Result:
    """The tile of the result that is being computed."""

    emitting: Emission
    layer: Conv
    area: _Area
    channels: _Channels

    @property
    def rows(self) -> Span:
        """The rows of the result, counted over all images."""
        return over_images(self.area.rows, self.area.image, self.layer.y.height)

    def room(self, slot: str, dtype: DType) -> Operand:
        """Return a tile as large as the result's."""
        extents = (self.area.rows.count, self.area.cols.count, self.channels.made.count)
        return self.emitting.room(slot, extents, dtype)

    def load(self, slot: str, tensor: Tensor) -> Operand:
        """Return a tile of a tensor of the same extents."""
        return self.emitting.load(slot, tensor, self.rows, self.area.cols, self.channels.made)

    def store(self, tile: Operand) -> None:
        """Store the result."""
        y = self.layer.y
        self.emitting.store(tile, y, self.rows, self.area.cols, self.channels.made)


def _convolve(result: _Result, part: Span, flags: ConvFlags, accumulator: Operand) -> None:
    """Append the commands that convolve some input channels, and finish the tile with the last."""
    emitting, layer, area = result.emitting, result.layer, result.area
    field, y = area.field, layer.y
    source = over_images(field.rows, area.image, layer.x.height)
    last = bool(flags & ConvFlags.LAST)
    adds = last and layer.residual is not None
    wide = adds and y.is_integer
    command = Convolve(
        layer=emitting.number,
        flags=flags,
        x=emitting.load("x", layer.x, source, field.cols, part),
        weights=_weights(result, part),
        parameters=_parameters(result),
        accumulator=accumulator,
        residual=_residual(result) if adds and not wide else ABSENT,
        y=accumulator,  # of the same extents; replaced below where the result is written
        kernel=Pair(*layer.window.kernel),
        strides=Pair(*layer.window.strides),
        dilations=Pair(*layer.window.dilations),
        pads=field.pads,
        groups=result.channels.groups,
        x_zero=layer.x.zero,
    )
    if not last:
        emitting.compute(command)
        return
    made = emitting.made(y, result.rows, area.cols, result.channels.made)
    if wide:
        sums = result.room("wide", DType.INT32)
        emitting.compute(replace(command, y=sums))
        emitting.compute(_added(result, sums, made))
    else:
        low, high = layer.clamp.stored(y)
        emitting.compute(replace(command, y=made, y_zero=y.zero, low=low, high=high))
    result.store(made)


def _weights(result: _Result, part: Span) -> Operand:
    """Return the weights of some output channels for some input channels."""
    layer, channels = result.layer, result.channels
    read = layer.x.channels // layer.groups
    first = part.start % read
    inputs = slice(first, first + part.count // channels.groups)
    array = layer.weights[channels.made.start : channels.made.end, :, :, inputs]
    dtype = DType.INT8 if layer.y.is_integer else DType.FLOAT32
    key = (channels, part)
    return result.emitting.constant("weights", key, lambda: array, array.size, dtype)


def _parameters(result: _Result) -> Operand:
    """Return biases, and in integers the multipliers, of some output channels.

    Where a residual is to be added, the multipliers make units that are finer than the result's.
    """
    layer, made = result.layer, result.channels.made
    taken = slice(made.start, made.end)
    finer = 2 ** residual_bits(layer) if layer.residual is not None else 1

    def array() -> Array:
        return parameters(layer.bias[taken], layer.multipliers[taken] * finer)

    count = made.count * (3 if layer.y.is_integer else 1)
    return result.emitting.constant("parameters", made, array, count, _sums(layer))


def _residual(result: _Result) -> Operand:
    assert result.layer.residual is not None
    return result.load("residual", result.layer.residual)


def _added(result: _Result, sums: Operand, made: Operand) -> Add:
    """Return the command that adds the residual to a result in finer units."""
    layer, residual = result.layer, result.layer.residual
    assert residual is not None
    y = layer.y
    mantissas = common_multipliers(2.0 ** -residual_bits(layer), residual.scale / y.scale)
    low, high = layer.clamp.stored(y)
    return Add(
        layer=result.emitting.number,
        a=sums,
        b=_residual(result),
        y=made,
        b_zero=residual.zero,
        y_zero=y.zero,
        a_mantissa=mantissas[0],
        b_mantissa=mantissas[1],
        shift=mantissas[2],
        low=low,
        high=high,
    )
