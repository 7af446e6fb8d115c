"""Operands of commands: boxes of tensors in a memory, and pairs and pads that describe windows."""

import sys
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any

import numpy as np

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
