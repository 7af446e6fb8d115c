"""The layers of a network, the intermediate representation between ONNX operations and commands.

The operations of a region are lowered to layers once; scheduling, tiling and emission work on layers.
The layout of images is NHWC, one image after the other; other tensors are rows of their last two axes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import ClassVar

from ..machine import FunctionKind, NormalizeKind
from .int4_weights import Int4Weights
from .layer_tensors import INT16, Array, Clamp, LayerTensor, SlidingWindow


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
