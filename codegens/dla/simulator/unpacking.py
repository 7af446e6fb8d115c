"""Weights of four bits, unpacked as the machine does while it loads them."""

import numpy as np

from ..machine import DType, Unpack, split_bytes
from .tagged_memory import Array, FaultError


def unpack_weights(command: Unpack, packed: Array) -> Array:
    """Return the float32 weights [1, outputs, inputs] of a command, of its bytes [1, 1, bytes].

    Raises FaultError if extents or types do not match.
    """
    target = command.target
    if command.source.dtype is not DType.UINT8 or target.dtype is not DType.FLOAT32 or target.rows != 1:
        raise FaultError("weights of four bits are one row of uint8, and become one of float32")
    if not command.block or command.has_zeros > 1:
        raise FaultError("a block of weights has no elements, or `has_zeros` is neither 0 nor 1")
    outputs, inputs = target.cols, target.channels
    blocks, width = -(-inputs // command.block), -(-inputs // 2)
    sizes = (outputs * width, 4 * outputs * blocks, command.has_zeros * outputs * blocks)
    if packed.shape != (1, 1, sum(sizes)):
        raise FaultError(
            f"{packed.size} bytes, but {sum(sizes)} are needed for {outputs} x {inputs} weights"
        )
    numbers, scales, zeros = np.split(packed.reshape(-1), np.cumsum(sizes[:2]))
    whole = split_bytes(numbers.reshape(outputs, width), inputs)
    block = np.arange(inputs) // command.block
    factors = np.ascontiguousarray(scales).view("<f4").reshape(outputs, blocks)[:, block]
    zero = zeros.reshape(outputs, blocks)[:, block] if command.has_zeros else np.float32(8)
    made: Array = (whole.astype(np.float32) - zero) * factors
    return made.astype(np.float32).reshape(1, outputs, inputs)
