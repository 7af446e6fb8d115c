"""The instruction set of the vanilla accelerator, with its reference manual.

There are three memories, each addressed in bytes from 0. The ARENA holds activations, WEIGHTS holds
constants and is read-only; both are large and slow. The SCRATCHPAD is small and fast. LOAD and STORE
move boxes between them; all other commands read and write the scratchpad alone. Commands take effect in
program order, and each reads all that it reads before it writes.

The layout of activations is rows, columns, channels (NHWC). Rows are numbered through all images of a
batch: row h of image n is row n * height + h. A vector, the input of a fully connected layer, is one row
of one column. Numbers are little-endian.

For debugging, the simulator tags each byte with the tensor and the row that was written there last, and
an operand states the tensor and rows that it expects. Reading anything else is an error
(`SimulationError`), as is an address outside a memory. Tags do not distinguish columns and channels.
Hardware ignores `Operand.tensor`.

Arithmetic of integers. A real value is (q - zero) * scale. A *multiplier* is a factor m / 2**shift,
with m in [2**30, 2**31), or 0, and shift in [0, 62] (`fixed_point` converts a scale to one).
RHE(v) is v rounded to the nearest integer, halves to even, as ONNX's QuantizeLinear rounds. Sums and
products are exact before that, in 64 bits, and an overflow is an error: each command rounds once.
CLAMP(v) limits v to the command's [low, high], then to the range of the output's type; a fused Relu is
low = zero point of the output.

Types of activations are float32, int8, uint8 and int16, whose zero points are numbers of their type.
int32 is that of biases, and of sums of int8 and uint8. Sums of int16 and int8 have 48 bits, and int64
where they are stored.

Scales by channel. Of POOL, ADD, MUL and SCALE all of these numbers may be another one for each channel
of the result: `channels` is one row and column of int32 [fields][channels], with a row for each field
from the first zero point to `high` in their order, which then do not count. CONV has them among its
parameters. `channels` is ABSENT in float32.

In a program file, every field is one 32-bit word, in the order of the fields here; `Operand` and the
other small classes are written as their fields in a row.
"""

import sys
from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from typing import Annotated, Any, ClassVar

import numpy as np

# Operands of commands: boxes of tensors in a memory, and pairs and pads that describe windows.

Signed = Annotated[int, "two's complement"]
"""A word that may be negative; a plain int is unsigned."""


class DType(IntEnum):
    """The type of an element."""

    FLOAT32 = 0
    INT8 = 1
    UINT8 = 2
    INT32 = 3
    INT16 = 4
    INT64 = 5

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return _SIZES[self]

    @property
    def array_type(self) -> np.dtype[Any]:
        """The type of elements in arrays, little-endian; numpy's own where this machine is."""
        return _ARRAY_TYPES[self]


_SIZES = (4, 1, 1, 4, 2, 8)
_ARRAY_TYPES = tuple(
    dtype if sys.byteorder == "little" else dtype.newbyteorder("<")
    for dtype in (np.dtype(each.name.lower()) for each in DType)
)
ACTIVATIONS = (DType.INT8, DType.UINT8, DType.INT16)
"""Types of activations in integers."""


class Memory(IntEnum):
    """The memory that a LOAD reads."""

    ARENA = 0
    WEIGHTS = 1


@dataclass(frozen=True)
class Operand:
    """A box of a tensor in one memory: rows x cols x channels elements of `dtype`.

    Row r of the tensor (r in [first_row, first_row + rows)), column c and channel k of the box start at
    byte `address + (r % window) * row_pitch + c * pixel_pitch + k * channel_pitch`. So `address` is that
    of the box's first column and channel in the row with r % window = 0, and a window smaller than the
    tensor's rows makes a rolling buffer. A whole tensor has a window of at least all its rows. `rows` is
    at most `window`. `channel_pitch` is the element's size unless a LOAD or STORE reorders.

    `tensor` is any number from 1. A box of constants has `rows` 1 and the number of the tile as
    `first_row`, so that a missing load is detected. Tags do not depend on types: one LOAD of bytes can
    serve two operands of the same tensor and row, weights and parameters.

    An optional operand that is left out is `ABSENT`, which has no rows.
    """

    tensor: int
    address: int
    first_row: int
    window: int
    rows: int
    cols: int
    channels: int
    row_pitch: int
    pixel_pitch: int
    channel_pitch: int
    dtype: DType

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps."""
        return self.rows * self.cols * self.channels * self.dtype.size


ABSENT = Operand(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, DType.FLOAT32)


@dataclass(frozen=True)
class Pair:
    """A number along rows and one along columns."""

    rows: int
    cols: int


@dataclass(frozen=True)
class Pads:
    """Rows of padding above and below a tile, columns of padding left and right of it."""

    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0


ZERO = Pair(0, 0)
ONE = Pair(1, 1)
NO_PADS = Pads()


INFINITY = float("inf")


@dataclass(frozen=True)
class Command:
    """Base of all commands: each has the number of its layer, from 0."""

    opcode: ClassVar[int]

    layer: int


@dataclass(frozen=True)
class Load(Command):
    """Copy the box `source` of a large memory to the box `target` of the scratchpad, element by element.

    Both have the same rows, cols, channels and dtype. Tensors, pitches and first rows may differ, but
    the first row must be the same if the tensor is. The bytes written get the tags of `target`. Tags are
    checked in the arena; WEIGHTS has none.
    """

    opcode: ClassVar[int] = 1

    memory: Memory
    source: Operand
    target: Operand


@dataclass(frozen=True)
class Unpack(Load):
    """Load weights of four bits, and unpack them to float32 while they move.

    `target` is one row of `cols` outputs by `channels` inputs, dense. `source` is one row and column of
    uint8, and its bytes alone are moved. They are, one behind the other:

        numbers      for each output ceil(channels / 2) bytes, the earlier of two in the lower half
        scales       float32 [cols][blocks]
        zero points  uint8 [cols][blocks] if `has_zeros` is 1, else there are none, and all are 8

    with ceil(channels / block) blocks of inputs that share a scale and a zero point:
    y = (number - zero) * scale.
    """

    opcode: ClassVar[int] = 13

    block: int
    has_zeros: int


@dataclass(frozen=True)
class Store(Command):
    """Copy the box `source` of the scratchpad to the box `target` of the arena, as LOAD does."""

    opcode: ClassVar[int] = 2

    source: Operand
    target: Operand


@dataclass(frozen=True)
class End(Command):
    """Stop; it is the last command of every program."""

    opcode: ClassVar[int] = 10


# Commands that compute element by element, and normalizations of pixels.


@dataclass(frozen=True)
class Add(Command):
    """Add `a` and `b` to `y`, each broadcast: an extent of 1 is repeated to the extent of `y`.

    So b may be a box like `y`, one value per channel (rows and cols 1), or a scalar.

    float32: y = CLAMP(a + b). Integers, also int32, in any mixture:
    y = CLAMP(RHE(((a - a_zero) * a_mantissa + (b - b_zero) * b_mantissa) / 2**shift) + y_zero), with one
    shift for both, so that the larger mantissa is in [2**30, 2**31) (`fixed_point.common_multipliers`).
    """

    opcode: ClassVar[int] = 5

    a: Operand
    b: Operand
    y: Operand
    a_zero: Signed = 0
    b_zero: Signed = 0
    y_zero: Signed = 0
    a_mantissa: int = 1 << 30
    b_mantissa: int = 1 << 30
    shift: int = 30
    low: float = -INFINITY
    high: float = INFINITY
    channels: Operand = ABSENT


@dataclass(frozen=True)
class Mul(Command):
    """Multiply `a` by `b` to `y`, broadcast as in ADD.

    float32: y = CLAMP(a * b). int8, uint8, int16:
    y = CLAMP(RHE((a - a_zero) * (b - b_zero) * m / 2**shift) + y_zero), m / 2**shift = sa * sb / sy.
    """

    opcode: ClassVar[int] = 6

    a: Operand
    b: Operand
    y: Operand
    a_zero: Signed = 0
    b_zero: Signed = 0
    y_zero: Signed = 0
    mantissa: int = 1 << 30
    shift: int = 30
    low: float = -INFINITY
    high: float = INFINITY
    channels: Operand = ABSENT


@dataclass(frozen=True)
class Scale(Command):
    """Copy `x` to `y`, of the same extents, at another scale: concatenation, Relu, another type.

    float32: y = CLAMP(x), where `x` may also be int32, which is rounded to float32. Integers, in any
    mixture: y = CLAMP(RHE((x - x_zero) * m / 2**shift) + y_zero).

    Between the two, products are those of float64. From int8, uint8 or int16 to float32
    y = CLAMP((x - x_zero) * m / 2**shift), rounded to float32. From float32 to these
    y = CLAMP(RHE(x * m / 2**shift) + y_zero), where what is no number becomes low.
    """

    opcode: ClassVar[int] = 7

    x: Operand
    y: Operand
    x_zero: Signed = 0
    y_zero: Signed = 0
    mantissa: int = 1 << 30
    shift: int = 30
    low: float = -INFINITY
    high: float = INFINITY
    channels: Operand = ABSENT


@dataclass(frozen=True)
class Table(Command):
    """Look up each byte of `x`, taken as unsigned, in the 256 bytes of `table`: y = table[x].

    `x` and `y` are int8 or uint8, of the same extents. `table` is one row of 256 channels, with one
    column, or one for each channel of `y`.
    """

    opcode: ClassVar[int] = 8

    x: Operand
    table: Operand
    y: Operand


def scaling_fields(kind: type[Command]) -> tuple[str, ...]:
    """Return the names of the fields that a command may have by channel, from a zero point to `high`."""
    every = [field.name for field in fields(kind)]
    first = next(number for number, name in enumerate(every) if name.endswith("_zero"))
    return tuple(every[first : every.index("high") + 1])


class FunctionKind(IntEnum):
    """A function of one variable; the formulas are those of ONNX's operators of that name.

    GELU and GELU_TANH are ONNX's Gelu, exact and with the attribute `approximate`. SWISH is
    x / (1 + exp(-alpha * x)), HARD_GATE is x * HARD_SIGMOID(x), IDENTITY is x, NUMBER is x and 0 of NaN.
    """

    SIGMOID = 0
    TANH = 1
    EXP = 2
    SQRT = 3
    HARD_SIGMOID = 4
    HARD_SWISH = 5
    LEAKY_RELU = 6
    ELU = 7
    ERF = 8
    GELU = 9
    GELU_TANH = 10
    RECIPROCAL = 11
    SWISH = 12
    IDENTITY = 13
    HARD_GATE = 14
    NUMBER = 15


@dataclass(frozen=True)
class Function(Command):
    """Compute y = f(x) in float32, with the operator's attributes `alpha` and `beta` if it has them."""

    opcode: ClassVar[int] = 9

    kind: FunctionKind
    x: Operand
    y: Operand
    alpha: float = 0.0
    beta: float = 0.0


class NormalizeKind(IntEnum):
    """A normalization: to a sum of 1, to mean 0 and variance 1, or to a mean square of 1."""

    SOFTMAX = 0
    LAYER = 1
    RMS = 2


@dataclass(frozen=True)
class Normalize(Command):
    """Normalize the channels of each pixel of `x`, in float32; `y` has the same extents.

    SOFTMAX: e = exp(x - max(x)), y = e / sum(e), and neither `scale` nor `bias`.
    LAYER: d = x - mean(x), y = d / sqrt(mean(d * d) + epsilon) * scale + bias.
    RMS: y = x / sqrt(mean(x * x) + epsilon) * scale + bias.

    `scale` and `bias` are one row and column with the channels of `x`; ABSENT is 1, and 0. Sums are in
    float32, in any order. A command has all channels of its pixels.
    """

    opcode: ClassVar[int] = 12

    kind: NormalizeKind
    x: Operand
    scale: Operand
    bias: Operand
    y: Operand
    epsilon: float = 0.0


@dataclass(frozen=True)
class MinMax(Command):
    """Find the least and the greatest number of `x`, float32, 0 included.

    `y` is one row and column of two channels, float32: y[0] = min(0, x, before[0]) and
    y[1] = max(0, x, before[1]). `before` is a box like `y`, for a tensor in several tiles, or ABSENT.
    What is no number counts as 0.
    """

    opcode: ClassVar[int] = 14

    x: Operand
    before: Operand
    y: Operand


@dataclass(frozen=True)
class Quantize(Command):
    """Round float32 `x` to the integers that ONNX's DynamicQuantizeLinear makes of it.

    `limits` are what MINMAX found of the whole tensor, low and high. All is rounded to float32:

        scale = (high - low) / 255, or 1 where that is 0
        zero = CLAMP(RHE(-low / scale)) and q = CLAMP(RHE(x / scale) + zero), limited to [0, 255]

    `y` has the extents of `x`. In int16 y = q - zero, for a CONV into float32, else float32
    y = (q - zero) * scale. What is no number becomes q = 0.
    """

    opcode: ClassVar[int] = 15

    x: Operand
    limits: Operand
    y: Operand


# Commands that sum products, or slide a window: convolutions, pools, matrix products.


class ConvFlags(IntFlag):
    """Position of a command in a convolution with input channels split over several commands."""

    NONE = 0
    FIRST = 1
    LAST = 2
    ONLY = 3


@dataclass(frozen=True)
class Conv(Command):
    """Convolve the tile `x` into the tile `y`; a fully connected layer is a 1x1 kernel on one column.

    Output row i and column j of the tile, channel o in group g, is the sum over the kernel (u, v) and
    the group's input channels k of

        x[i*strides.rows + u*dilations.rows - pads.top, j*... - pads.left, g*K + k] * weights[o, u, v, k]

    with K = x.channels / groups, rows and columns counted from the tile's first; the channels of `y` are
    groups blocks of y.channels / groups. Positions in the padding add nothing. Reading rows or columns
    that are neither in `x` nor in `pads` is an error.

    `weights` is one row and column of dense elements [y.channels][kernel.rows][kernel.cols][K], of
    float32 or int8 (zero point 0), with input channels innermost. The sum of a float32 `x` is in
    float32, in any order. For integers, x_zero is subtracted from x, and the sum is exact: in int32 for
    int8 and uint8, in 48 bits for int16. An overflow is an error. With FIRST the sum starts from the
    bias, else from `accumulator`, of the extents of `y` and dtype float32, int32 or, for int16, int64.
    With LAST `y` is written, else the sum goes to `accumulator`. `accumulator` is ABSENT if both are
    set.

    float32: y = CLAMP(f(sum + residual)), where f is `function` of `alpha` and `beta`, and `residual` is
    ABSENT or a box like `y`. `parameters` is one row and column of the biases, float32 [y.channels], or
    ABSENT for 0.

    Integers: `x`, `y` and `residual` are each int8, uint8 or int16. `parameters` is one row and column
    of int32 [3][y.channels] or [9][y.channels]. Rows are the biases, mantissas m and shifts, and, where
    there are nine, x_zero, y_zero, low, high, m' and shift', which hold instead of the fields. The
    x_zero of several input channels differ only where K = 1. FIRST reads biases and x_zero, LAST all.
    Without a function, and for an `x` of int8 or uint8, y = CLAMP(RHE(sum * m / 2**shift) + y_zero), and
    `residual` is ABSENT; `y` may then be int32.

    Integers that QUANTIZE made: `x` is int16 and `y` float32. `residual` is what MINMAX found, and gives
    the scale that QUANTIZE has; it is read with LAST. There are nine rows, of which y_zero holds the
    bits of a bias in float32, and low, high, m' and shift' do not count. With the numbers of float64

        y = CLAMP(f(sum * m / 2**shift * scale + bias)), rounded to float32 before it is limited.

    The output stage. With a function, or for an `x` of int16, there are nine rows, and LAST computes in
    real numbers between the sum and the result: m / 2**shift makes the sum one, m' / 2**shift' brings f
    of it to units of `y`, and these shifts are in [-2000, 2000]. `residual` is ABSENT, or a box like
    `y`:

        y = CLAMP(RHE(f(sum * m / 2**shift + (residual - residual_zero) * residual_scale)
                      * m' / 2**shift') + y_zero)

    where f, products and sums are those of float64, what is no number becomes low, and nothing else is
    rounded.
    """

    opcode: ClassVar[int] = 3

    flags: ConvFlags
    x: Operand
    weights: Operand
    parameters: Operand
    accumulator: Operand
    residual: Operand
    y: Operand
    kernel: Pair
    strides: Pair = ONE
    dilations: Pair = ONE
    pads: Pads = NO_PADS
    groups: int = 1
    x_zero: Signed = 0
    y_zero: Signed = 0
    low: float = -INFINITY
    high: float = INFINITY
    function: FunctionKind = FunctionKind.IDENTITY
    alpha: float = 0.0
    beta: float = 0.0
    residual_zero: Signed = 0
    residual_scale: float = 1.0


class PoolKind(IntEnum):
    """The function that a pool computes of its window."""

    MAX = 0
    AVERAGE = 1


@dataclass(frozen=True)
class Pool(Command):
    """Slide a window over the tile `x`: x and y have the same channels and dtype.

    Windows are placed as in CONV. Besides `pads`, a window may reach `overhang` rows and columns past
    the padding below and right (ONNX's ceil_mode); those positions are never counted. `padding_counts`
    is ONNX's count_include_pad: 1 makes AVERAGE divide by the number of positions in `x` and `pads`, 0
    by those in `x` alone. A window without a position in `x` is an error. MAX ignores padding.

    float32: y = CLAMP(max), or CLAMP(sum / count) with the sum in float32; mantissa and shift are
    unused. Integers: y = CLAMP(RHE((max - x_zero) * m / 2**shift) + y_zero), or
    y = CLAMP(RHE(sum of (x - x_zero) * m / (2**shift * count)) + y_zero), where 2**shift * count is less
    than 2**62. If the scales are equal, m / 2**shift is 1.
    """

    opcode: ClassVar[int] = 4

    kind: PoolKind
    x: Operand
    y: Operand
    kernel: Pair
    strides: Pair = ONE
    dilations: Pair = ONE
    pads: Pads = NO_PADS
    overhang: Pair = ZERO
    padding_counts: int = 0
    x_zero: Signed = 0
    y_zero: Signed = 0
    mantissa: int = 1 << 30
    shift: int = 30
    low: float = -INFINITY
    high: float = INFINITY
    channels: Operand = ABSENT


@dataclass(frozen=True)
class MatMul(Command):
    """Multiply a matrix by a matrix in each row: `a` [rows, cols, K], `b` [rows, K, channels].

    All three have the rows of `y`, `a` has its columns and `b` its channels. Row r of the result is the
    product of the matrices a[r] and b[r].

    float32: y = CLAMP(sum of a * b), in any order. int8, uint8: the sum of (a - a_zero) * (b - b_zero),
    with zeros in [-128, 255], is exact and below 2**31 in magnitude, else it is an error, and
    y = CLAMP(RHE(sum * m / 2**shift) + y_zero).
    """

    opcode: ClassVar[int] = 11

    a: Operand
    b: Operand
    y: Operand
    a_zero: Signed = 0
    b_zero: Signed = 0
    y_zero: Signed = 0
    mantissa: int = 1 << 30
    shift: int = 30
    low: float = -INFINITY
    high: float = INFINITY
