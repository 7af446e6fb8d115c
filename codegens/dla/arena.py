"""Addresses of tensors in the large memories, and boxes of tensors as operands of commands."""

from collections.abc import Mapping
from dataclasses import dataclass

from .boxes import AxisSpan
from .operand import Memory, Operand
from .tensors import LayerTensor, dtype_of


@dataclass(frozen=True)
class TensorAddress:
    """Address of a tensor: row r begins at byte `offset + (r % window) * row_bytes`.

    `number` identifies the tensor in the tags of the simulated memory.
    """

    number: int
    offset: int
    window: int


@dataclass(frozen=True)
class AddressMap:
    """Places of activations, and byte offsets of constants in WEIGHTS, both by name of the storage."""

    addresses: Mapping[str, TensorAddress]
    constants: Mapping[str, int]

    def memory_of(self, tensor: LayerTensor) -> Memory:
        """Return the memory that holds a tensor."""
        return Memory.WEIGHTS if tensor.storage_name in self.constants else Memory.ARENA

    def whole_operand(self, tensor: LayerTensor) -> Operand:
        """Return the operand that covers a whole tensor."""
        return self.box_operand(tensor, AxisSpan(0, tensor.rows), AxisSpan(0, tensor.width), AxisSpan(0, tensor.channels))

    def box_operand(self, tensor: LayerTensor, rows: AxisSpan, cols: AxisSpan, channels: AxisSpan) -> Operand:
        """Return the operand that covers a box of a tensor; rows are counted over all images."""
        if tensor.storage_name in self.constants:
            place = TensorAddress(1, self.constants[tensor.storage_name], tensor.rows)
        else:
            place = self.addresses[tensor.storage_name]
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
