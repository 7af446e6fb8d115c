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

from dataclasses import dataclass
from typing import ClassVar

from .operands import Memory, Operand

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
