"""Shapes of the results of operations, by the rules of ONNX and in its order of axes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, nan, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.codegen import CompileError, Operation, TensorContract

from ..machine import DType

# Tensors as the machine has them: their extents in memory, windows that slide over them, clamps.

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


Attributes = Mapping[str, Any]


def window_of(attributes: Attributes, kernel: Sequence[int]) -> SlidingWindow:
    """Return the window of a two-dimensional convolution or pool from its attributes."""
    top, left, bottom, right = attributes.get("pads") or (0, 0, 0, 0)
    strides = attributes.get("strides") or (1, 1)
    dilations = attributes.get("dilations") or (1, 1)
    return SlidingWindow(
        _to_pair(kernel), _to_pair(strides), _to_pair(dilations), (top, left, bottom, right)
    )


def _to_pair(values: Sequence[int]) -> tuple[int, int]:
    first, second = values
    return (first, second)


def windowed_extents(extents: Sequence[int], window: SlidingWindow, ceil: bool = False) -> Shape:
    """Return the height and width of the result of a window that slides over an image.

    With `ceil` a last window may reach past the padding at the end, unless it would start in it.
    """
    made = []
    for axis in (0, 1):
        before, after = window.pads[axis], window.pads[axis + 2]
        room = extents[axis] + before + after - window.extent[axis]
        stride = window.strides[axis]
        steps = -(-room // stride) if ceil else room // stride
        if ceil and steps * stride >= extents[axis] + before:
            steps -= 1
        made.append(steps + 1)
    return tuple(made)


def infer_shapes(
    operation: Operation, shapes: Sequence[Shape | None], target: Sequence[int]
) -> list[Shape]:
    """Return the shapes of an operation's outputs, from those of its inputs.

    `shapes` has None for an input that is left out, and `target` is the value of the input that says a
    shape, as the second of a Reshape. Of what else an operation gives out, such as means, nobody asks
    the shape. Unknown operators are assumed to work element by element; lowering refuses those that it
    does not support. Raises CompileError if shapes do not match.
    """
    given = [shape for shape in shapes if shape is not None]
    if operation.op == "Split":
        return _split_shapes(operation, given[0], target)
    if operation.op == "DynamicQuantizeLinear":
        return [given[0], (), ()]
    if operation.op in _SKIP_NORMALIZATIONS:
        return [given[0]] * len(operation.outputs)
    if operation.op == "GroupQueryAttention":
        return _cached_attention_shapes(operation.attributes, shapes, target)
    return [_infer_first_shape(operation, given, target)]


def _infer_first_shape(operation: Operation, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    rule = _RULES.get(operation.op)
    if rule is not None:
        return rule(operation.attributes, shapes, target)
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        listed = " and ".join(map(str, shapes))
        raise CompileError(f"{operation.op} of shapes {listed}", [operation.name]) from None


def _conv_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x, w = shapes[:2]
    return (x[0], w[0], *windowed_extents(x[2:], window_of(attributes, w[2:])))


def _pool_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x = shapes[0]
    window = window_of(attributes, attributes["kernel_shape"])
    return (*x[:2], *windowed_extents(x[2:], window, bool(attributes.get("ceil_mode"))))


def _global_pool_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    return (*shapes[0][:2], 1, 1)


def _gemm_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    a, b = shapes[:2]
    return (a[0], b[0 if attributes.get("transB") else 1])


def _matmul_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    a, b = shapes
    return (*np.broadcast_shapes(a[:-2], b[:-2]), *a[-2:-1], *b[1:][-1:])


def _int4_product_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    return (*shapes[0][:-1], attributes["N"])


def _split_shapes(operation: Operation, shape: Shape, target: Sequence[int]) -> list[Shape]:
    """Return the shapes of all results of a Split; `target` is the value of its second input."""
    axis = operation.attributes.get("axis", 0) % len(shape)
    count = len(operation.outputs)
    sizes = target or operation.attributes.get("split")
    if not sizes:  # in equal parts, the last one what is left
        size = -(-shape[axis] // count)
        sizes = [min(size, max(shape[axis] - n * size, 0)) for n in range(count)]
    return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]


def _gather_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x, indices = shapes
    axis = attributes.get("axis", 0) % len(x)
    return (*x[:axis], *indices, *x[axis + 1 :])


def _transpose_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x = shapes[0]
    return tuple(x[axis] for axis in attributes.get("perm") or range(len(x))[::-1])


def _concat_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    axis = attributes["axis"] % len(shapes[0])
    together = sum(shape[axis] for shape in shapes)
    return (*shapes[0][:axis], together, *shapes[0][axis + 1 :])


def _flatten_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x = shapes[0]
    axis = attributes.get("axis", 1)
    axis = axis + len(x) if axis < 0 else axis
    return (prod(x[:axis]), prod(x[axis:]))


def _reshape_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x = shapes[0]
    keeps_zeros = bool(attributes.get("allowzero"))
    found = [x[i] if extent == 0 and not keeps_zeros else extent for i, extent in enumerate(target)]
    if -1 in found:
        rest = prod(extent for extent in found if extent != -1)
        found[found.index(-1)] = prod(x) // rest if rest else 0
    return tuple(found)


def _cached_attention_shapes(
    attributes: Attributes, shapes: Sequence[Shape | None], total: Sequence[int]
) -> list[Shape]:
    """Return the shapes of the result and of the cache, keys and values."""
    heads, kv_heads = attributes["num_heads"], attributes["kv_num_heads"]
    batch, count, width = shapes[0] or (0, 0, 0)
    head = width // (heads + 2 * kv_heads if shapes[1] is None else heads)
    past = shapes[3]
    length = max(past[2] if past else 0, *total, 0) or count
    return [(batch, count, heads * head), *[(batch, kv_heads, length, head)] * 2]


def _mean_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    """Return the shape of means over the last axis, which are all that lowering takes."""
    return (*shapes[0][:-1], *[1] * bool(attributes["keepdims"]))


def _squeezed_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    x = shapes[0]
    axes = {axis % len(x) for axis in target or attributes.get("axes", ())}
    return tuple(n for axis, n in enumerate(x) if (axis not in axes if axes else n != 1))


def _unsqueezed_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    axes = target or attributes.get("axes", ())
    rank = len(shapes[0]) + len(axes)
    kept, added = iter(shapes[0]), {axis % rank for axis in axes}
    return tuple(1 if axis in added else next(kept) for axis in range(rank))


def _same_shape(attributes: Attributes, shapes: Sequence[Shape], target: Sequence[int]) -> Shape:
    return shapes[0]


_SKIP_NORMALIZATIONS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")

_RULES: Mapping[str, Callable[[Attributes, Sequence[Shape], Sequence[int]], Shape]] = {
    "Conv": _conv_shape,
    "MaxPool": _pool_shape,
    "AveragePool": _pool_shape,
    "GlobalAveragePool": _global_pool_shape,
    "Gemm": _gemm_shape,
    "MatMul": _matmul_shape,
    "Concat": _concat_shape,
    "Gather": _gather_shape,
    "Pow": _same_shape,
    "Transpose": _transpose_shape,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "RotaryEmbedding"), _same_shape),
    "SimplifiedLayerNormalization": _same_shape,
    "ReduceMean": _mean_shape,
    "MatMulNBits": _int4_product_shape,
    "Flatten": _flatten_shape,
    "Squeeze": _squeezed_shape,
    "Unsqueeze": _unsqueezed_shape,
    "Reshape": _reshape_shape,
    **dict.fromkeys(("BatchNormalization", "Clip", "Dropout", "DequantizeLinear"), _same_shape),
    "QuantizeLinear": _same_shape,
}
