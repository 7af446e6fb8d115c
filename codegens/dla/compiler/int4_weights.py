"""Weights of four bits, which stay packed in WEIGHTS and are unpacked while they are loaded."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .layer_tensors import Array


@dataclass(frozen=True, eq=False)
class Int4Weights:
    """The weights of a fully connected layer, outputs x `inputs`; each is (number - zero) * scale.

    `numbers` are uint8 [outputs, ceil(inputs / 2)], the earlier of two in the lower half of a byte.
    `block` consecutive inputs of an output share one of the `scales`, float32 [outputs, blocks], and one
    of the `zeros`, uint8 of the same shape, or None where all are 8.
    """

    numbers: Array
    scales: Array
    zeros: Array | None
    inputs: int
    block: int

    itemsize: ClassVar[int] = 4
    """Bytes of a weight in the scratchpad, where they are unpacked."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Outputs, two extents of a kernel, inputs: as of other weights."""
        return (len(self.numbers), 1, 1, self.inputs)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights in WEIGHTS, scales and zero points included."""
        arrays = (self.numbers, self.scales, self.zeros)
        return sum(each.nbytes for each in arrays if each is not None)

    def pack(self, outputs: slice, inputs: slice) -> Array:
        """Return some of the weights as UNPACK reads them, uint8 [bytes]; `inputs` begin at a block."""
        first, last = inputs.start // self.block, -(-inputs.stop // self.block)
        parts = [
            self.numbers[outputs, inputs.start // 2 : -(-inputs.stop // 2)],
            np.ascontiguousarray(self.scales[outputs, first:last]).astype("<f4").view(np.uint8),
        ]
        if self.zeros is not None:
            parts.append(self.zeros[outputs, first:last])
        return np.concatenate([each.reshape(-1) for each in parts])
