"""The layers of a network, the intermediate representation between ONNX operations and commands.

The operations of a region are lowered to layers once; scheduling, tiling and emission work on layers.
The layout of images is NHWC, one image after the other; other tensors are rows of their last two axes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import prod
from typing import ClassVar

import numpy as np

from ..machine import FunctionKind, NormalizeKind
from .layer_tensors import INT16, Array, Clamp, LayerTensor, SlidingWindow

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
        if not self.y.is_integer:
            return 1
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


@dataclass(frozen=True, eq=False)
class LayerNetwork:
    """A region as layers in topological order.

    `constants` are constant operands other than weights, by name, in the layout of memory.
    """

    layers: Sequence[MachineLayer]
    inputs: Sequence[BoundaryPort]
    outputs: Sequence[BoundaryPort]
    constants: Mapping[str, Array]


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
