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

In a program file, every field is one 32-bit word, in the order of the fields here; `Operand` and the
other small classes are written as their fields in a row.
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import ClassVar

from .operands import NO_PADS, ONE, ZERO, Memory, Operand, Pads, Pair, Signed

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
class Store(Command):
    """Copy the box `source` of the scratchpad to the box `target` of the arena, as LOAD does."""

    opcode: ClassVar[int] = 2

    source: Operand
    target: Operand


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
    float32 or int8 (zero point 0), with input channels innermost. `parameters` is one row and column as
    well: for float32, float32 [y.channels], the biases; else int32 [3][y.channels]: biases, mantissas m,
    shifts. ABSENT, for float32 only, is a bias of 0. They are read by FIRST (biases) and LAST (m and
    shift) only.

    The sum of a float32 `x` is in float32, in any order. For int8 and uint8, x_zero is subtracted from
    x, and the sum is exact in int32; an overflow is an error. With FIRST the sum starts from the bias,
    else from `accumulator`, of the extents of `y` and dtype float32 or int32. With LAST `y` is written,
    else the sum goes to `accumulator`. `accumulator` is ABSENT if both are set.

    float32: y = CLAMP(sum + residual), where `residual` is ABSENT or a float32 box like `y`.
    int8, uint8: y = CLAMP(RHE(sum * m / 2**shift) + y_zero), `residual` is ABSENT.
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
    unused. int8, uint8: y = CLAMP(RHE((max - x_zero) * m / 2**shift) + y_zero), or
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


@dataclass(frozen=True)
class Mul(Command):
    """Multiply `a` by `b` to `y`, broadcast as in ADD.

    float32: y = CLAMP(a * b). int8, uint8:
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


@dataclass(frozen=True)
class Scale(Command):
    """Copy `x` to `y`, of the same extents, at another scale: concatenation, Relu.

    float32: y = CLAMP(x). Integers, in any mixture: y = CLAMP(RHE((x - x_zero) * m / 2**shift) +
    y_zero).
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


@dataclass(frozen=True)
class Table(Command):
    """Look up each byte of `x`, taken as unsigned, in the 256 bytes of `table`: y = table[x].

    `x` and `y` are int8 or uint8, of the same extents. `table` is one row and column of 256 channels.
    """

    opcode: ClassVar[int] = 8

    x: Operand
    table: Operand
    y: Operand


class FunctionKind(IntEnum):
    """A function of one variable; the formulas are those of ONNX's operators of that name.

    GELU and GELU_TANH are ONNX's Gelu, exact and with the attribute `approximate`. The compiler uses all
    but EXP and SQRT.
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


@dataclass(frozen=True)
class Function(Command):
    """Compute y = f(x) in float32, with the operator's attributes `alpha` and `beta` if it has them."""

    opcode: ClassVar[int] = 9

    kind: FunctionKind
    x: Operand
    y: Operand
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class End(Command):
    """Stop; it is the last command of every program."""

    opcode: ClassVar[int] = 10


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


COMMANDS: tuple[type[Command], ...] = (
    Load, Store, Conv, Pool, Add, Mul, Scale, Table, Function, End, MatMul, Normalize,
)  # fmt: skip


@dataclass(frozen=True)
class Program:
    """Commands, the last of which is END, and the sizes in bytes of the memories that they need."""

    commands: tuple[Command, ...]
    arena: int
    scratchpad: int
    weights: int
