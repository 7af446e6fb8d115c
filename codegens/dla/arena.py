"""Where tensors lie in the large memories, and boxes of them as commands name them."""

from collections.abc import Mapping
from dataclasses import dataclass

from .boxes import Span
from .operand import Memory, Operand
from .tensors import Tensor, dtype_of


@dataclass(frozen=True)
class Place:
    """Row r of a tensor begins at byte `offset + (r % window) * row_bytes`; `number` is for its tags."""

    number: int
    offset: int
    window: int


@dataclass(frozen=True)
class Arena:
    """The places of activations by what holds them, and the offsets of constants among the weights."""

    places: Mapping[str, Place]
    constants: Mapping[str, int]

    def memory(self, tensor: Tensor) -> Memory:
        """Return which memory a tensor lies in."""
        return Memory.WEIGHTS if tensor.held in self.constants else Memory.ARENA

    def whole(self, tensor: Tensor) -> Operand:
        """Return all rows of a tensor."""
        return self.box(tensor, Span(0, tensor.rows), Span(0, tensor.width), Span(0, tensor.channels))

    def box(self, tensor: Tensor, rows: Span, cols: Span, channels: Span) -> Operand:
        """Return a box of a tensor, its rows counted over all images."""
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
