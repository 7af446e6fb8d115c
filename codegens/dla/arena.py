"""Addresses of tensors in the large memories, and boxes of tensors as operands of commands."""

from collections.abc import Mapping
from dataclasses import dataclass

from .boxes import Span
from .operand import Memory, Operand
from .tensors import Tensor, dtype_of


@dataclass(frozen=True)
class Place:
    """Address of a tensor: row r begins at byte `offset + (r % window) * row_bytes`.

    `number` identifies the tensor in the tags of the simulated memory.
    """

    number: int
    offset: int
    window: int


@dataclass(frozen=True)
class Arena:
    """Places of activations, and byte offsets of constants in WEIGHTS, both by name of the storage."""

    places: Mapping[str, Place]
    constants: Mapping[str, int]

    def memory(self, tensor: Tensor) -> Memory:
        """Return the memory that holds a tensor."""
        return Memory.WEIGHTS if tensor.held in self.constants else Memory.ARENA

    def whole(self, tensor: Tensor) -> Operand:
        """Return the operand that covers a whole tensor."""
        return self.box(tensor, Span(0, tensor.rows), Span(0, tensor.width), Span(0, tensor.channels))

    def box(self, tensor: Tensor, rows: Span, cols: Span, channels: Span) -> Operand:
        """Return the operand that covers a box of a tensor; rows are counted over all images."""
        if tensor.held in self.constants:
            place = Place(1, self.constants[tensor.held], tensor.rows)
        else:
            place = self.places[tensor.held]
        size, pixel = tensor.itemsize, tensor.channels * tensor.itemsize
        return Operand(
            tensor=place.number,
            address=place.offset + cols.start * pixel + channels.start * size,
            first_row=rows.start,
            window=place.window,
            rows=rows.count,
            cols=cols.count,
            channels=channels.count,
            row_pitch=tensor.row_bytes,
            pixel_pitch=pixel,
            channel_pitch=size,
            dtype=dtype_of(tensor),
        )
