"""Seeded weights, the same numbers on every machine and with every numpy version.

numpy promises a stable stream of raw bits from a bit generator, but not from `Generator.uniform`
and its like. So only raw bits are taken, and what follows is exact or rounded by IEEE 754.
"""

import hashlib
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

# 64-bit words drawn at once: one mebibyte, so that a draw is still in the cache when it is scaled.
_CHUNK = 1 << 17
_PER_WORD = 4


@dataclass(frozen=True)
class UniformSpread:
    """A uniform distribution over `[centre - reach, centre + reach)`.

    Its standard deviation is `reach / sqrt(3)`.
    """

    centre: float
    reach: float


def derive_seed(*parts: str) -> int:
    """Return a 64-bit seed that depends on the names given and on nothing else."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little")


def draw_uniform(seed: int, shape: tuple[int, ...], spread: UniformSpread) -> NDArray[np.float32]:
    """Draw float32 values of `shape` from `spread`.

    A value is a signed 16-bit integer times `reach * 2**-15`, plus the centre. The integer and the
    power of two are exact in float32, which leaves one rounding for the product and one for the
    sum. Sixteen bits are plenty for a weight: 144 million of them take a fraction of a second.
    """
    bits = np.random.PCG64(seed)
    values = np.empty(prod(shape), np.float32)
    step = np.float32(spread.reach) * np.float32(2.0**-15)
    for start in range(0, values.size, _CHUNK * _PER_WORD):
        part = values[start : start + _CHUNK * _PER_WORD]
        words = np.asarray(bits.random_raw(-(-part.size // _PER_WORD)), "<u8")
        np.multiply(words.view("<i2")[: part.size], step, out=part, dtype=np.float32)
    if spread.centre:
        values += np.float32(spread.centre)
    return values.reshape(shape)
