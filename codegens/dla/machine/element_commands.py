"""Commands that compute element by element, and normalizations of pixels."""

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import ClassVar

from .instructions import INFINITY, Command
from .operands import ABSENT, Operand, Signed


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
    x / (1 + exp(-alpha * x)), HARD_GATE is x * HARD_SIGMOID(x), IDENTITY is x.
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
