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
from dataclasses import dataclass
from enum import IntEnum
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
        dtype = np.dtype(self.name.lower())
        return dtype if sys.byteorder == "little" else dtype.newbyteorder("<")


_SIZES = (4, 1, 1, 4, 2, 8)
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
