"""The layers of a network, the intermediate representation between ONNX operations and commands.

The operations of a region are lowered to layers once; scheduling, tiling and emission work on layers.
The layout of images is NHWC, one image after the other; other tensors are rows of their last two axes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import prod
from typing import Any, ClassVar

import numpy as np

from byoc.codegen import CompileError, InputError

from ..machine import FunctionKind, NormalizeKind, to_multiplier
from .output_shapes import INT16, Array, Clamp, LayerTensor, SlidingWindow

# Weights of four bits, which stay packed in WEIGHTS and are unpacked while they are loaded.


@dataclass(frozen=True, eq=False)
class Int4Weights:
    """The weights of a fully connected layer, outputs x `inputs`; each is (number - zero) * scale.

    `numbers` are uint8 [outputs, ceil(inputs / 2)], the earlier of two in the lower half of a byte.
    `block` consecutive inputs of an output share one of the `scales`, float32 [outputs, blocks], and one
    of the `zeros`, uint8 of the same shape, or None where all are 8.
    """

    numbers: Array
    scales: Array
    zeros: Array | None
    inputs: int
    block: int

    itemsize: ClassVar[int] = 4
    """Bytes of a weight in the scratchpad, where they are unpacked."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Outputs, two extents of a kernel, inputs: as of other weights."""
        return (len(self.numbers), 1, 1, self.inputs)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights in WEIGHTS, scales and zero points included."""
        arrays = (self.numbers, self.scales, self.zeros)
        return sum(each.nbytes for each in arrays if each is not None)

    def pack(self, outputs: slice, inputs: slice) -> Array:
        """Return some of the weights as UNPACK reads them, uint8 [bytes]; `inputs` begin at a block."""
        first, last = inputs.start // self.block, -(-inputs.stop // self.block)
        parts = [
            self.numbers[outputs, inputs.start // 2 : -(-inputs.stop // 2)],
            np.ascontiguousarray(self.scales[outputs, first:last]).astype("<f4").view(np.uint8),
        ]
        if self.zeros is not None:
            parts.append(self.zeros[outputs, first:last])
        return np.concatenate([each.reshape(-1) for each in parts])


@dataclass(frozen=True, eq=False)
class MachineLayer:
    """A layer that computes `y`; `name` is for people, `nodes` are nodes of the region."""

    operation: ClassVar[str]

    name: str
    nodes: tuple[str, ...]
    y: LayerTensor
    clamp: Clamp = field(default=Clamp(), kw_only=True)

    @cached_property
    def reads(self) -> tuple[LayerTensor, ...]:
        """The activations that the layer reads, in the order of the fields: all tensors but `y`."""
        values = [getattr(self, each.name) for each in fields(self) if each.name != "y"]
        each_alone = (each for v in values for each in (v if isinstance(v, tuple) else (v,)))
        return tuple(each for each in each_alone if isinstance(each, LayerTensor))


@dataclass(frozen=True, eq=False)
class ConvLayer(MachineLayer):
    """A convolution; a fully connected layer is a 1x1 convolution over rows of one pixel.

    `weights` are [output channels][kernel rows][kernel columns][input channels of a group], float32,
    int8 with zero points 0, or for a fully connected layer in float32 of four bits. `bias` has one
    float32 for each output channel, or one int32 in units of the accumulators. `multipliers` bring
    accumulators to units of `y`, one for each output channel; they are empty in float32. `residual` is
    added to the result before the clamp. A `function` with its `parameters` is applied to real numbers
    behind that; then, and in sums of int16, `multipliers` make real numbers of accumulators.

    With `limits`, those of a tensor that was quantized as the program runs, `x` is what a QuantizeLayer
    made of it, weights are int8, and `y` is float32: `bias` is float32, and `multipliers` are the scales
    of the weights.
    """

    operation = "CONV"

    x: LayerTensor
    weights: Array | Int4Weights
    bias: Array
    multipliers: Array
    window: SlidingWindow
    groups: int = 1
    residual: LayerTensor | None = None
    function: FunctionKind | None = None
    parameters: tuple[float, float] = (0.0, 0.0)
    limits: LayerTensor | None = None

    @property
    def is_wide(self) -> bool:
        """Whether its sums have 48 bits."""
        return self.x.dtype == INT16

    @property
    def computes_in_reals(self) -> bool:
        """Whether integers are made of its sums by real numbers."""
        return self.y.is_integer and (self.function is not None or self.is_wide)

    @property
    def adds_residual_apart(self) -> bool:
        """Whether another command adds the residual to sums of int32."""
        return self.residual is not None and self.y.is_integer and not self.computes_in_reals

    def count_parameters(self) -> int:
        """Return the rows of CONV's parameters, of a number for each output channel."""
        if not self.x.is_integer:
            return 1
        if self.limits is not None:
            return 9
        by_channel = self.x.has_channel_scales or self.y.has_channel_scales
        return 9 if by_channel or self.computes_in_reals else 3

    def take_weights(self, outputs: slice, inputs: slice) -> Array:
        """Return the weights of some output and input channels as they are in WEIGHTS."""
        if isinstance(self.weights, Int4Weights):
            return self.weights.pack(outputs, inputs)
        return self.weights[outputs, :, :, inputs]


@dataclass(frozen=True, eq=False)
class PoolLayer(MachineLayer):
    """The maximum or the mean of each window; with `counts_pads` the mean includes the padding."""

    operation = "POOL"

    x: LayerTensor
    average: bool
    window: SlidingWindow
    counts_pads: bool = False


@dataclass(frozen=True, eq=False)
class EltwiseLayer(MachineLayer):
    """The sum or product of two tensors; an extent of 1 is broadcast to that of the result."""

    operation = "ELTWISE"

    a: LayerTensor
    b: LayerTensor
    multiplies: bool


@dataclass(frozen=True, eq=False)
class ActivationLayer(MachineLayer):
    """A function of each element: a `table` in integers, a `function` of the machine in float32.

    A table is uint8, `[256]`, or `[channels, 256]` where each channel of the result has a scale.

    With neither it is a copy, clamped and converted to the scale of `y`.
    """

    operation = "ACTIVATION"

    x: LayerTensor
    table: Array | None = None
    function: FunctionKind | None = None
    parameters: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, eq=False)
class ConcatLayer(MachineLayer):
    """A concatenation along an axis of `extents`: 0 images, 1 rows, 2 columns, 3 channels."""

    operation = "CONCAT"

    parts: tuple[LayerTensor, ...]
    axis: int


@dataclass(frozen=True, eq=False)
class MatMulLayer(MachineLayer):
    """The product of two tensors, whose rows are matrices: pixels x channels.

    Extents are `a` [n, h, w, k], `b` [n, h, k, c], `y` [n, h, w, c].
    """

    operation = "MATMUL"

    a: LayerTensor
    b: LayerTensor


@dataclass(frozen=True, eq=False)
class NormalizeLayer(MachineLayer):
    """A normalization of the channels of each pixel, times `scale`, plus `bias`, if they are given."""

    operation = "NORMALIZE"

    x: LayerTensor
    kind: NormalizeKind
    scale: LayerTensor | None = None
    bias: LayerTensor | None = None
    epsilon: float = 0.0


@dataclass(frozen=True, eq=False)
class MinMaxLayer(MachineLayer):
    """The least and the greatest number of a tensor, 0 included: the two channels of one pixel."""

    operation = "MINMAX"

    x: LayerTensor


@dataclass(frozen=True, eq=False)
class QuantizeLayer(MachineLayer):
    """A tensor rounded to 256 integers between its `limits`, less the zero point.

    In int16 they are these integers, in float32 their real numbers.
    """

    operation = "QUANTIZE"

    x: LayerTensor
    limits: LayerTensor


@dataclass(frozen=True, eq=False)
class MoveLayer(MachineLayer):
    """A copy of a part of `x` with its axes reordered, by DMA alone.

    `shape` has the extents of the part in the order of memory, and `order[i]` is the axis of `x` that
    axis i of `y` comes from. The extents of all of `x` are `whole`, and the part begins at element
    `start`. Rows of `x` and of `y` begin where one of these axes does.
    """

    operation = "MOVE"

    x: LayerTensor
    shape: tuple[int, ...]
    order: tuple[int, ...]
    whole: tuple[int, ...]
    start: int = 0


@dataclass(frozen=True, eq=False)
class RestackLayer(MachineLayer):
    """The same bytes as another number of rows: a view that must be copied."""

    operation = "RESTACK"

    x: LayerTensor


@dataclass(frozen=True)
class BoundaryPort:
    """An input or output of the region: its name, dtype and shape on the host, and its tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tensor: LayerTensor


@dataclass(frozen=True)
class RegionTensor:
    """A tensor of the region in memory: what `storage` is called there, and its shape in ONNX.

    An `image` is there as NHWC, any other in ONNX's order of elements.
    """

    name: str
    storage: str
    shape: tuple[int, ...]
    image: bool


@dataclass(frozen=True, eq=False)
class LayerNetwork:
    """A region as layers in topological order.

    `constants` are constant operands other than weights, by name, in the layout of memory. `results` are
    the tensors of the region that layers compute.
    """

    layers: Sequence[MachineLayer]
    inputs: Sequence[BoundaryPort]
    outputs: Sequence[BoundaryPort]
    constants: Mapping[str, Array]
    results: Sequence[RegionTensor] = ()


# The axes of a moved part of a tensor: two that a tile has, and those over which it is repeated.


@dataclass(frozen=True)
class MovedAxis:
    """An axis of a moved part: its extent, and its steps in elements in `x` and in `y`."""

    extent: int
    x_step: int
    y_step: int


def split_axes(layer: MoveLayer) -> tuple[list[MovedAxis], list[MovedAxis]]:
    """Return the two axes of a tile, and the others."""
    x_steps = dense_steps(layer.whole)
    made = dense_steps(tuple(layer.shape[axis] for axis in layer.order))
    y_steps = dict(zip(layer.order, made, strict=True))
    lengths = [tensor.width * tensor.channels for tensor in (layer.x, layer.y)]
    axes: list[MovedAxis] = []
    for number, extent in enumerate(layer.shape):
        axis = MovedAxis(extent, x_steps[number], y_steps[number])
        if axes and extent != 1:
            last = axes[-1]
            both = MovedAxis(last.extent * extent, axis.x_step, axis.y_step)
            adjacent = (last.x_step, last.y_step) == (axis.x_step * extent, axis.y_step * extent)
            if adjacent and _is_inside_rows(both, lengths):
                axes[-1] = both
                continue
        if extent != 1:
            axes.append(axis)
    inside = sorted((a for a in axes if _is_inside_rows(a, lengths)), key=lambda a: -a.extent)[:2]
    outer = [axis for axis in axes if axis not in inside]
    return (inside + [MovedAxis(1, 1, 1)] * 2)[:2], outer


def dense_steps(shape: tuple[int, ...]) -> list[int]:
    """Return the elements from one position of each axis to the next, in a tensor without gaps."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _is_inside_rows(axis: MovedAxis, lengths: list[int]) -> bool:
    """Whether an axis does not leave a row of `x` or `y`, whose rows have so many elements."""
    steps = (axis.x_step, axis.y_step)
    return all(axis.extent * step <= row for step, row in zip(steps, lengths, strict=True))


def count_tile_elements(layer: MoveLayer) -> int:
    """Return the elements of a tile of two whole axes."""
    return prod(axis.extent for axis in split_axes(layer)[0])


# Limits of the machine's arithmetic, checked for each layer as it is lowered.
#
# A layer within the limits runs for all data: no sum overflows, and each factor is a multiplier.

_WORD = 31  # bits of an int32 without its sign
_SUM = 47  # and of a sum of int16
_LONG = 63  # and of an int64
_WIDE = 20  # the most fractional bits of a result before its residual is added


def check_limits(layer: MachineLayer) -> None:
    """Raise CompileError, with the nodes of the layer, if the machine cannot compute it for all data."""
    if not all(x.nbytes for x in layer.reads):
        raise CompileError("it reads a tensor without elements, but its result has some", layer.nodes)
    checks = _CHECKS.get(type(layer))
    reason = next(checks(layer), None) if checks else None
    if reason is not None:
        raise CompileError(reason, layer.nodes)


def residual_bits(layer: ConvLayer) -> Array:
    """Return the fractional bits of a result before its residual is added, `[1]`, or `[channels]`.

    There are as many as an int32 has room for beside every value that a residual could bring back into
    the values of the result. So saturation to int32 changes no result.
    """
    bits = np.floor(_WORD - np.log2(_residual_reach(layer)))
    clipped: Array = np.clip(bits, 0, _WIDE).astype(np.int64)
    return clipped


def _residual_reach(layer: ConvLayer) -> Array:
    assert layer.residual is not None
    finer = layer.residual.scale / layer.y.scales
    return _count_values(layer.y) + _count_values(layer.residual) * finer


def _count_values(x: LayerTensor) -> int:
    """Return the number of values that the type of a tensor of integers has."""
    return int(2 ** (8 * x.itemsize))


def _check_conv(layer: ConvLayer) -> Iterator[str]:
    yield from _check_windows(layer.window, layer.x, layer.y, dense=True)
    if not layer.y.is_integer:
        return
    if not layer.computes_in_reals:
        finer = np.ones(1)
        if layer.residual is not None:
            if (_residual_reach(layer) >= 2**_WORD).any():
                ratio = (layer.residual.scale / layer.y.scales).max()
                yield f"its residual's scale is {ratio:.3g} times its result's"
            finer = 2.0 ** residual_bits(layer)
        yield from _check_factors(layer.multipliers * finer)
    bits, name = (_SUM, "48 bits") if layer.is_wide else (_WORD, "int32")
    least, most = _sum_limits(layer)
    if least < -(2**bits) or most >= 2**bits:
        yield f"its sums can be from {least} to {most}, and leave the range of {name}"


def _sum_limits(layer: ConvLayer) -> tuple[int, int]:
    """Return the least and the greatest sum that an accumulator can reach, partial sums included.

    Zero is in the range of the input, so no partial sum exceeds the limits of the whole.
    """
    info = np.iinfo(layer.x.dtype)
    times = layer.y.channels // len(layer.x.zeros) if layer.x.has_channel_scales else 1
    zeros = np.repeat(layer.x.zeros, times)
    low, high = info.min - zeros, info.max - zeros
    bias = layer.bias.astype(np.int64)
    assert not isinstance(layer.weights, Int4Weights)  # which are for float32
    up = np.maximum(layer.weights, 0).sum(axis=(1, 2, 3), dtype=np.int64)
    down = np.minimum(layer.weights, 0).sum(axis=(1, 2, 3), dtype=np.int64)
    return int((bias + up * low + down * high).min()), int((bias + up * high + down * low).max())


def _check_pool(layer: PoolLayer) -> Iterator[str]:
    yield from _check_windows(layer.window, layer.x, layer.y, dense=False)
    if not layer.y.is_integer:
        return
    count = prod(layer.window.kernel)
    factors = np.unique(layer.x.scales / layer.y.scales)
    yield from _check_factors(factors)
    for factor in factors:
        mantissa, shift = to_multiplier(factor)
        if layer.average and (
            count << shift >= 2 ** (_LONG - 1) or count * _count_values(layer.x) * mantissa >= 2**_LONG
        ):
            yield f"the mean of {count} numbers by a scale of {factor:.3g} needs more than 64 bits"


def _check_eltwise(layer: EltwiseLayer) -> Iterator[str]:
    a, b, y = layer.a, layer.b, layer.y
    for x in (a, b):
        if any(extent not in (1, made) for extent, made in zip(x.extents, y.extents, strict=True)):
            yield "the machine has four axes, but only some of the axes that share one are broadcast"
    if layer.multiplies:
        yield from _check_factors(a.scale * b.scale / y.scales)
    else:
        yield from _check_factors(a.scale / y.scales)
        yield from _check_factors(b.scale / y.scales)


def _check_matmul(layer: MatMulLayer) -> Iterator[str]:
    if not layer.y.is_integer:
        return
    yield from _check_factors(layer.a.scales * layer.b.scales / layer.y.scales)
    most = prod(_reach(x) for x in (layer.a, layer.b)) * layer.a.channels
    if most >= 2**_WORD:
        yield f"its sums can be {most}, and leave the range of int32"


def _reach(x: LayerTensor) -> int:
    """Return the largest magnitude of a tensor's numbers without its zero point."""
    info = np.iinfo(x.dtype)
    return int(max(x.zero - info.min, info.max - x.zero))


def _check_rescaling(layer: ActivationLayer | ConcatLayer) -> Iterator[str]:
    if isinstance(layer, ConcatLayer) or layer.table is None:
        for x in layer.reads:
            yield from _check_factors(x.scales / layer.y.scales)


def _check_factors(factors: Array) -> Iterator[str]:
    """Yield the reasons why factors cannot be multipliers."""
    for factor in np.unique(factors):
        try:
            to_multiplier(float(factor))
        except InputError as error:
            yield str(error)


def _check_windows(window: SlidingWindow, x: LayerTensor, y: LayerTensor, dense: bool) -> Iterator[str]:
    """Yield the reason if a window reads nothing; if `dense`, gaps of dilation count as read."""
    if min(window.pads) < 0:
        yield "its pads are negative"
    for axis, (size, made) in enumerate(zip((x.height, x.width), (y.height, y.width), strict=True)):
        starts = np.arange(made)[:, None] * window.strides[axis] - window.pads[axis]
        step = 1 if dense else window.dilations[axis]
        reached = starts + np.arange(0, window.extent[axis], step)[None, :]
        if not ((reached >= 0) & (reached < size)).any(axis=1).all():
            yield "a window lies in the padding alone"


_CHECKS: Mapping[type[MachineLayer], Callable[[Any], Iterator[str]]] = {
    ConvLayer: _check_conv,
    PoolLayer: _check_pool,
    EltwiseLayer: _check_eltwise,
    MatMulLayer: _check_matmul,
    ActivationLayer: _check_rescaling,
    ConcatLayer: _check_rescaling,
}
