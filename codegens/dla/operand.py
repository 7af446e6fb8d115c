"""What commands work on: boxes of tensors in a memory, and the small values that describe windows."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

Signed = Annotated[int, "two's complement"]
"""A word that may be negative; a plain int is unsigned."""


class DType(IntEnum):
    """What an element is."""

    FLOAT32 = 0
    INT8 = 1
    UINT8 = 2
    INT32 = 3

    @property
    def size(self) -> int:
        """The bytes of an element."""
        return 1 if self in (DType.INT8, DType.UINT8) else 4


class Memory(IntEnum):
    """Where a LOAD reads."""

    ARENA = 0
    WEIGHTS = 1


@dataclass(frozen=True)
class Operand:
    """A box of a tensor in one memory: rows x cols x channels elements of `dtype`.

    Row r of the tensor (r in [first_row, first_row + rows)), column c and channel k of the box start at
    byte `address + (r % window) * row_pitch + c * pixel_pitch + k * channel_pitch`. So `address` is
    where the box's first column and channel lie in the row of slot 0, and a window smaller than the
    tensor's rows makes a rolling buffer. A tensor that is kept whole has a window of at least all its
    rows. `rows` is at most `window`. `channel_pitch` is the element's size but where a LOAD or STORE
    reorders.

    `tensor` is any number from 1 up. A box of constants has `rows` 1 and `first_row` the number of the
    tile, so that a tile that was not loaded is noticed. Tags know no types: one LOAD of bytes can bring
    what two operands of the same tensor and row read as weights and as parameters.

    An optional operand that is not there is `ABSENT`, which has no rows.
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
        """The bytes of the elements, gaps left out."""
        return self.rows * self.cols * self.channels * self.dtype.size


ABSENT = Operand(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, DType.FLOAT32)


@dataclass(frozen=True)
class Pair:
    """Along rows and along columns."""

    rows: int
    cols: int


@dataclass(frozen=True)
class Pads:
    """Rows above and below a tile, columns left and right of it, that are padding."""

    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0


ZERO = Pair(0, 0)
ONE = Pair(1, 1)
NO_PADS = Pads()
