"""What the machine is asked to do: tensors as they lie in memory, and layers as the hardware has them.

A region's operations become these once (`lower`), and all that follows, memory, tiles, weights and
commands, is said in terms of them. Images lie as rows of pixels of channels (NHWC), one image behind the
other; anything else as rows of its two last axes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .isa import FunctionKind
from .operand import DType

Array = NDArray[Any]

INTEGERS = ("int8", "uint8")
"""The data types of quantized activations."""


@dataclass(frozen=True)
class Tensor:
    """Activations in memory: `images` of `height` rows of `width` pixels of `channels` elements.

    `real = (stored - zero) * scale` where the dtype is an integer's. `storage` names the bytes that it
    lies in: a view has those of what it views, any other tensor its own.
    """

    name: str
    images: int
    height: int
    width: int
    channels: int
    dtype: str
    scale: float = 1.0
    zero: int = 0
    storage: str = ""

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """Images, height, width, channels."""
        return (self.images, self.height, self.width, self.channels)

    @property
    def held(self) -> str:
        """The name of the bytes that it lies in."""
        return self.storage or self.name

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return np.dtype(self.dtype).itemsize

    @property
    def rows(self) -> int:
        """Rows of all images."""
        return self.images * self.height

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, which is contiguous."""
        return self.width * self.channels * self.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return self.rows * self.row_bytes

    @property
    def is_integer(self) -> bool:
        """Whether it is quantized."""
        return self.dtype in INTEGERS


def dtype_of(tensor: Tensor) -> DType:
    """Return the type of a tensor's elements as commands name it."""
    return DType[tensor.dtype.upper()]


@dataclass(frozen=True)
class Window:
    """What a convolution or pool reads for one output pixel; vertical numbers first.

    `pads` are rows above, columns to the left, rows below, columns to the right.
    """

    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def extent(self) -> tuple[int, int]:
        """Rows and columns from the first element that is read to the last."""
        (kh, kw), (dh, dw) = self.kernel, self.dilations
        return ((kh - 1) * dh + 1, (kw - 1) * dw + 1)

    @property
    def is_point(self) -> bool:
        """Whether an output pixel is made of the input pixel at the same place alone."""
        return self == Window()


@dataclass(frozen=True)
class Clamp:
    """The least and greatest value that a layer gives out, in real numbers."""

    low: float = -inf
    high: float = inf

    def then(self, other: "Clamp") -> "Clamp":
        """Return what two clamps, one after the other, come to."""
        low = min(max(self.low, other.low), other.high)
        return Clamp(low, min(max(self.high, other.low), other.high))

    def stored(self, y: Tensor) -> tuple[float, float]:
        """Return the bounds in the numbers that a tensor stores, rounded as its values are."""
        if not y.is_integer:
            return self.low, self.high
        info = np.iinfo(y.dtype)
        return _stored(self.low, y, info), _stored(self.high, y, info)


def _stored(value: float, y: Tensor, info: Any) -> float:
    if not np.isfinite(value):
        return float(info.min if value < 0 else info.max)
    rounded = np.rint(np.float32(value) / np.float32(y.scale)) + y.zero
    return float(min(max(rounded, info.min), info.max))


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
    """The sum or product of two tensors; `b` is as large as `a`, or one pixel, or one element."""

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
