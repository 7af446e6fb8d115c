"""Tensors as the machine has them: their extents in memory, windows that slide over them, clamps."""

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, nan, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.codegen import CompileError, TensorContract

from ..machine import DType

Array = NDArray[Any]

Extents = tuple[int, int, int, int]
"""Images, height, width, channels."""

Shape = tuple[int, ...]
"""A shape in ONNX's order of axes."""

INTEGERS = ("int8", "uint8", "int16")
"""Data types of quantized activations."""

INT16 = "int16"
"""The one whose products are summed in 48 bits."""


@dataclass(frozen=True)
class LayerTensor:
    """A tensor in memory: `extents` are images, rows of an image, pixels of a row, and channels.

    For an integer dtype, real = (stored - zero) * scale. Where each channel has a scale and a zero point
    of its own, these are `channel_scales` and `channel_zeros`, and `scale` is NaN. `storage` is the name
    of the tensor with the bytes of a view, and empty for a tensor with bytes of its own.
    """

    name: str
    extents: Extents
    dtype: str
    scale: float = 1.0
    zero: int = 0
    storage: str = ""
    channel_scales: tuple[float, ...] = ()
    channel_zeros: tuple[int, ...] = ()

    @property
    def images(self) -> int:
        """Number of images, which are consecutive."""
        return self.extents[0]

    @property
    def height(self) -> int:
        """Rows of an image."""
        return self.extents[1]

    @property
    def width(self) -> int:
        """Pixels of a row."""
        return self.extents[2]

    @property
    def channels(self) -> int:
        """Elements of a pixel."""
        return self.extents[3]

    @property
    def storage_name(self) -> str:
        """Name of the storage."""
        return self.storage or self.name

    def view(self, name: str, extents: Extents | None = None) -> "LayerTensor":
        """Return a view: the same bytes under another name, or with other extents."""
        return replace(self, name=name, extents=extents or self.extents, storage=self.storage_name)

    def like(self, name: str, extents: Extents | None = None) -> "LayerTensor":
        """Return a tensor with its own bytes that is otherwise the same."""
        return replace(self, name=name, extents=extents or self.extents, storage="")

    @cached_property
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
        """Bytes of the whole tensor."""
        return self.rows * self.row_bytes

    @property
    def is_integer(self) -> bool:
        """Whether it is quantized."""
        return self.dtype in INTEGERS

    def has_encoding_of(self, other: "LayerTensor") -> bool:
        """Whether the same stored numbers stand for the same values as in another tensor."""
        if self.has_channel_scales or other.has_channel_scales:
            mine = self.dtype, self.channel_scales, self.channel_zeros
            return mine == (other.dtype, other.channel_scales, other.channel_zeros)
        return (self.dtype, self.scale, self.zero) == (other.dtype, other.scale, other.zero)

    @property
    def has_channel_scales(self) -> bool:
        """Whether each channel has a scale and a zero point of its own."""
        return bool(self.channel_scales)

    @property
    def scales(self) -> Array:
        """The scales in float64, `[channels]`, or `[1]` where one holds for all."""
        return np.array(self.channel_scales or [self.scale], np.float64)

    @property
    def zeros(self) -> Array:
        """The zero points in int64, of the shape of `scales`."""
        return np.array(self.channel_zeros or [self.zero], np.int64)

    def at_channel(self, channel: int) -> "LayerTensor":
        """Return the tensor with the scale and the zero point of one of its channels."""
        if not self.has_channel_scales:
            return self
        scale, zero = self.channel_scales[channel], self.channel_zeros[channel]
        return replace(self, scale=scale, zero=zero, channel_scales=(), channel_zeros=())

    def encoded_by(self, scales: Array, zeros: Array) -> "LayerTensor":
        """Return the same bytes with a scale and a zero point, rank 0, or with those of `[channels]`."""
        if not scales.ndim:
            return replace(
                self, scale=float(scales), zero=int(zeros), channel_scales=(), channel_zeros=()
            )
        each = tuple(map(float, scales)), tuple(map(int, zeros))
        return replace(self, scale=nan, zero=0, channel_scales=each[0], channel_zeros=each[1])


def dtype_of(tensor: LayerTensor) -> DType:
    """Return the type of a tensor's elements in the instruction set."""
    return DType[tensor.dtype.upper()]


@dataclass(frozen=True)
class SlidingWindow:
    """The window of a convolution or pool, which one output pixel depends on; vertical numbers first.

    `pads` are rows above, columns to the left, rows below, columns to the right.
    """

    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)

    @cached_property
    def extent(self) -> tuple[int, int]:
        """Rows and columns from the first element of the window to the last."""
        (kh, kw), (dh, dw) = self.kernel, self.dilations
        return ((kh - 1) * dh + 1, (kw - 1) * dw + 1)

    @property
    def is_point(self) -> bool:
        """Whether an output pixel depends only on the input pixel at the same position."""
        return self == SlidingWindow()


@dataclass(frozen=True)
class Clamp:
    """The least and greatest value of a result, of an integer one as it is stored.

    Where each channel of a result has a scale, they are real numbers.
    """

    low: float = -inf
    high: float = inf

    def followed_by(self, other: "Clamp") -> "Clamp":
        """Return the clamp that is equal to this one followed by another."""
        low = min(max(self.low, other.low), other.high)
        return Clamp(low, min(max(self.high, other.low), other.high))

    def saturate_limits(self, y: LayerTensor) -> tuple[float, float]:
        """Return the limits of the stored numbers of a tensor."""
        if not y.is_integer:
            return self.low, self.high
        info = np.iinfo(y.dtype)
        return float(max(self.low, info.min)), float(min(self.high, info.max))

    def channel_limits(self, y: LayerTensor) -> tuple[Array, Array]:
        """Return the limits of the stored numbers of each channel, int64 `[channels]`."""
        info = np.iinfo(y.dtype)
        reals = self.low, self.high
        if not y.has_channel_scales:
            low, high = (np.full(y.channels, limit) for limit in self.saturate_limits(y))
        else:
            low, high = (np.rint(real / y.scales) + y.zeros for real in reals)
        low, high = (np.clip(each, info.min, info.max).astype(np.int64) for each in (low, high))
        return low, high


TO_NHWC = (0, 2, 3, 1)
"""The order of axes that makes NHWC of NCHW, and OHWI of OIHW: `TO_NHWC[i]` is the axis of NCHW."""

FROM_NHWC = (0, 3, 1, 2)
"""The order of axes that makes NCHW of NHWC."""


def memory_axis(axis: int) -> int:
    """Return the position of an axis of an NCHW image among `extents`."""
    return TO_NHWC.index(axis)


def memory_extents(shape: Shape) -> Extents:
    """Return images, height, width and channels of a tensor with a shape of ONNX.

    Rank 4 is a batch of images; any other rank is one image, with axis 0 as rows and the last axis as
    channels.
    """
    if len(shape) == 4:
        return (shape[0], shape[2], shape[3], shape[1])
    if len(shape) < 2:
        return (1, 1, 1, prod(shape))
    return (1, shape[0], prod(shape[1:-1]), shape[-1])


def onnx_order_extents(shape: Shape) -> Extents:
    """Return the extents of a tensor in ONNX's own order of axes, where each image is a row."""
    return (1, shape[0], shape[1], prod(shape[2:])) if len(shape) == 4 else memory_extents(shape)


def matrix_extents(shape: Shape) -> Extents:
    """Return the extents of a tensor in ONNX's own order of axes, where each matrix is a row."""
    return (shape[0], shape[1], shape[2], shape[3]) if len(shape) == 4 else memory_extents(shape)


def is_reordered(shape: Shape) -> bool:
    """Whether the order of elements in memory differs from ONNX's."""
    return len(shape) == 4 and shape[1] > 1 and prod(shape[2:]) > 1


def to_memory_layout(array: Array, rank: int, image: bool = True) -> Array:
    """Return a constant, broadcast to a rank, as an array [images, height, width, channels].

    With `image`, four axes are those of images.
    """
    shape = (1,) * (rank - array.ndim) + array.shape
    full = array.reshape(shape)
    if rank == 4 and image:
        return np.ascontiguousarray(full.transpose(TO_NHWC)).reshape(memory_extents(shape))
    return np.ascontiguousarray(full).reshape(matrix_extents(shape))


def check_dtype(name: str, dtype: str) -> None:
    """Raise CompileError for activations of a type that the machine lacks."""
    if dtype not in ("float32", *INTEGERS):
        raise CompileError(f"'{name}' is {dtype}, but must be float32, int8, uint8 or int16")


def needs_reordering(contract: TensorContract, shape: Shape) -> bool:
    """Whether a boundary tensor is an image in ONNX's order of axes, which has to be reordered.

    Raises CompileError for a layout other than NCHW and NHWC.
    """
    if contract.layout not in ("", "NCHW", "NHWC"):
        raise CompileError(f"'{contract.name}' has layout {contract.layout}, but must have NHWC or NCHW")
    return contract.layout != "NHWC" and is_reordered(shape)


def boundary_shape(contract: TensorContract) -> Shape:
    """Return the shape of a boundary tensor on the host; all its extents must be known."""
    return tuple(extent for extent in contract.type.shape or () if isinstance(extent, int))
