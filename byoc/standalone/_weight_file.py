"""The file of a program's constants, which it maps or embeds: weights, and artifacts of regions."""

import hashlib
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from byoc.numerics import round_up

ByteOrder = Literal["little", "big"]
HEADER_BYTES = 64
IDENTITY_BYTES = 8
_ALIGNMENT = 64
_MAGIC = b"BYOCWGHT"
_MARK = 0x01020304
_VERSION = 1


@dataclass
class ProgramWeights:
    """Constants at aligned offsets behind a header; equal ones are stored once.

    The header of 64 bytes has `BYOCWGHT`, the number 0x01020304 and the version, 32 bits each, the
    size of the file in 64 bits, and 8 bytes that name the content; numbers in the given byte order.
    """

    order: ByteOrder
    parts: list[bytes] = field(default_factory=list)
    size: int = HEADER_BYTES
    offsets: dict[bytes, int] = field(default_factory=dict)

    def add_array(self, array: NDArray[Any]) -> int:
        """Add an array, its elements in the file's byte order; return its offset."""
        return self.add_bytes(to_byte_order(array, self.order))

    def add_bytes(self, content: bytes) -> int:
        """Add bytes as they are; return their offset."""
        digest = hashlib.sha256(content).digest() + len(content).to_bytes(8)
        if digest not in self.offsets:
            self.offsets[digest] = self.size
            padded = round_up(len(content), _ALIGNMENT)
            self.parts.append(content + bytes(padded - len(content)))
            self.size += padded
        return self.offsets[digest]

    @property
    def identity(self) -> bytes:
        """Eight bytes that name the content."""
        found = hashlib.sha256()
        for part in self.parts:
            found.update(part)
        return found.digest()[:IDENTITY_BYTES]

    def list_parts(self) -> Iterable[bytes]:
        """Return the file's bytes, the header first."""
        numbers = struct.pack("<IIQ" if self.order == "little" else ">IIQ", _MARK, _VERSION, self.size)
        header = _MAGIC + numbers + self.identity
        return [header + bytes(HEADER_BYTES - len(header)), *self.parts]


def to_byte_order(array: NDArray[Any], order: ByteOrder) -> bytes:
    """Return the elements of an array, row-major, in a byte order."""
    dense = np.ascontiguousarray(array)
    if order == sys.byteorder or dense.dtype.itemsize == 1:
        return dense.tobytes()
    single = dense.reshape(-1).view(np.uint8).reshape(-1, dense.dtype.itemsize)
    return single[:, ::-1].tobytes()


def make_sample_file(arrays: Iterable[NDArray[Any]], order: ByteOrder) -> bytes:
    """Return arrays one behind another, each at a multiple of 64 bytes."""
    result = bytearray()
    for array in arrays:
        result += to_byte_order(array, order)
        result += bytes(round_up(len(result), _ALIGNMENT) - len(result))
    return bytes(result)
