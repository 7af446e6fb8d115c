"""The weights of a program as bytes, tile after tile in the order of their loads."""

import hashlib

import numpy as np

from .fixed_point import to_multiplier
from .layers import Array

_ALIGNMENT = 16


class WeightsImage:
    """The content of the WEIGHTS memory under construction; equal tiles are stored once."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._parts: list[bytes] = []
        self._places: dict[bytes, int] = {}
        self._size = 0

    def add(self, array: Array) -> int:
        """Append the bytes of an array, and return the byte at which it begins."""
        content = np.ascontiguousarray(array).tobytes()
        digest = hashlib.sha256(content).digest()
        if digest not in self._places:
            self._places[digest] = self._size
            padding = -len(content) % _ALIGNMENT
            self._parts += [content, bytes(padding)]
            self._size += len(content) + padding
        return self._places[digest]

    def content(self) -> bytes:
        """Return all bytes."""
        return b"".join(self._parts)


def conv_parameters(bias: Array, multipliers: Array) -> Array:
    """Return the parameters of a CONV: biases, and for integers the mantissas and shifts."""
    if not multipliers.size:
        return bias.astype("<f4")
    pairs = np.array([to_multiplier(float(each)) for each in multipliers], np.int64)
    return np.concatenate([bias.astype(np.int64), pairs[:, 0], pairs[:, 1]]).astype("<i4")
