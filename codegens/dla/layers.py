"""What the machine is asked to do: tensors as they lie in memory, and layers as the hardware has them.

A region's operations become these once (`lower`), and all that follows, memory, tiles, weights and
commands, is said in terms of them. Images lie as rows of pixels of channels (NHWC), one image behind the
other; anything else as rows of its two last axes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from numpy.typing import NDArray

from .isa import FunctionKind
from .tensors import Clamp, Tensor, Window

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer: it reads tensors and makes `y`. `name` is for people, `nodes` are the region's own."""

    operation: ClassVar[str]

    name: str
    nodes: tuple[str, ...]
    y: Tensor
    clamp: Clamp = field(default=Clamp(), kw_only=True)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The tensors of activations that it reads."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Conv(Layer):
    """A convolution; a fully connected layer is one of 1x1 over rows of one pixel.

    `weights` are [output channels][kernel rows][kernel columns][input channels of a group], float32, or
    int8 with zero points 0. `bias` has one float32 for each output channel, or one int32 in units of
    the accumulators. `multipliers` bring int32 accumulators to units of `y`, one for each output
    channel; they are empty in float32. `residual` is added to the result before the clamp.
    """

    operation = "CONV"

    x: Tensor
    weights: Array
    bias: Array
    multipliers: Array
    window: Window
    groups: int = 1
    residual: Tensor | None = None

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The input, and what is added."""
        return (self.x,) if self.residual is None else (self.x, self.residual)


@dataclass(frozen=True, eq=False)
class Pool(Layer):
    """The greatest or the mean of each window; `counts_pads` has the mean divided by its whole size."""

    operation = "POOL"

    x: Tensor
    average: bool
    window: Window
    counts_pads: bool = False

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The input."""
        return (self.x,)


@dataclass(frozen=True, eq=False)
class Eltwise(Layer):
    """The sum or product of two tensors, each stretched: an extent of 1 serves all of the result's."""

    operation = "ELTWISE"

    a: Tensor
    b: Tensor
    multiplies: bool

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Both operands."""
        return (self.a, self.b)


@dataclass(frozen=True, eq=False)
class Activation(Layer):
    """A function of each element: `table` in integers, `function` of the machine in float32.

    With neither it is a copy, clamped and brought to the scale of `y`.
    """

    operation = "ACTIVATION"

    x: Tensor
    table: Array | None = None
    function: FunctionKind | None = None
    parameters: tuple[float, float] = (0.0, 0.0)

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The input."""
        return (self.x,)


@dataclass(frozen=True, eq=False)
class Concat(Layer):
    """Tensors beside one another along an axis of `extents`: 0 images, 1 rows, 2 columns, 3 channels."""

    operation = "CONCAT"

    parts: tuple[Tensor, ...]
    axis: int

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The parts."""
        return self.parts


@dataclass(frozen=True, eq=False)
class Move(Layer):
    """The same elements in another order: an image from ONNX's order of axes, or into it.

    With `to_image` the source lies as [images][channels][rows][columns], a row for each image, and `y`
    as images do; without, the other way round. `image` has images, height, width and channels.
    """

    operation = "MOVE"

    x: Tensor
    image: tuple[int, int, int, int]
    to_image: bool

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The source."""
        return (self.x,)


@dataclass(frozen=True, eq=False)
class Restack(Layer):
    """The same bytes as another number of rows: a view that the machine has to copy."""

    operation = "RESTACK"

    x: Tensor

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """The source."""
        return (self.x,)


@dataclass(frozen=True)
class Port:
    """An input or output of the region: its name outside, dtype and shape there, and its tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Network:
    """A region as layers, in an order in which they can run.

    `constants` are tensors of activations that are known, by name, as they lie in memory.
    """

    layers: Sequence[Layer]
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    constants: Mapping[str, Array]
