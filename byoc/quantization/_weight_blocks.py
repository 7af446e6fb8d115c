"""Integers of 4 bits for the weights of a matrix product, with a scale for each block of them.

A block is some weights of one output that follow one another along the inputs that are summed over.
`real = scale * (stored - 8)`, stored from 0 to 15, as com.microsoft's MatMulNBits has it without zero
points. Real values below zero reach further: from -8 to 7 scales.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log10
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_ZERO = 8
_LEAST, _MOST = 0, 15
_CHUNK = 1 << 20
"""The number of weights that are rounded together, for the memory that it takes."""
_SHRINKS = (1.0, 0.92, 0.85)
"""Smaller scales clip the largest weight, and round the others less."""


@dataclass(frozen=True, eq=False)
class WeightBlocks:
    """Weights `[N, K]` as integers of 0 to 15, `[N, B, block]`, and scales `[N, B]`.

    The last block of a row is filled up with zeros, where `K` is no multiple of the block. `squares` is
    the sum of the squared weights, `error` that of the squared errors.
    """

    stored: NDArray[np.uint8]
    scales: NDArray[np.floating]
    inputs: int
    squares: float
    error: float

    @property
    def block(self) -> int:
        """The number of weights that share a scale."""
        return int(self.stored.shape[-1])

    @property
    def decibels(self) -> float:
        """The ratio of the weights to their errors; infinite where there are none."""
        return inf if not self.error else 10 * log10(self.squares / self.error)

    def restore(self) -> NDArray[np.float32]:
        """Return the weights `[N, K]` that the integers stand for."""
        scales = self.scales.astype(np.float32)[..., None]
        values = (self.stored.astype(np.float32) - np.float32(_ZERO)) * scales
        return values.reshape(len(values), -1)[:, : self.inputs]

    def pack(self) -> NDArray[np.uint8]:
        """Return the integers as MatMulNBits stores them, the earlier of two in the lower half."""
        return self.stored[..., ::2] | np.left_shift(self.stored[..., 1::2], np.uint8(4))

    def center(self) -> NDArray[np.int8]:
        """Return the integers `[N, K]` from -8 to 7."""
        values = self.stored.astype(np.int8) - np.int8(_ZERO)
        return values.reshape(len(values), -1)[:, : self.inputs]


def round_to_blocks(weights: NDArray[np.floating], block: int) -> WeightBlocks:
    """Round weights `[N, K]` to 4 bits in blocks; scales are of the dtype of the weights.

    For each block several scales are tried, and the one of the least squared error is taken: that of
    onnxruntime (the largest weight by magnitude becomes -8), one for which it becomes 7, smaller ones,
    and for each the best scale of the integers that follow from it (least squares).
    """
    count, inputs = weights.shape
    blocks = -(-inputs // block)
    stored = np.empty((count, blocks, block), np.uint8)
    scales = np.empty((count, blocks), weights.dtype)
    squares = error = 0.0
    for rows in _split_rows(count, inputs):
        floats = np.zeros((len(weights[rows]), blocks * block), np.float32)
        floats[:, :inputs] = weights[rows]
        values = floats.reshape(-1, blocks, block)
        stored[rows], scales[rows], errors = _round_blocks(values, weights.dtype)
        squares += float(np.square(values, dtype=np.float64).sum())
        error += float(errors.sum())
    return WeightBlocks(stored, scales, inputs, squares, error)


def _split_rows(count: int, inputs: int) -> Iterator[slice]:
    step = max(1, _CHUNK // inputs)
    yield from (slice(first, first + step) for first in range(0, count, step))


class _RoundedBlocks(NamedTuple):
    """Weights as integers `[N, B, block]`, with the scales and the squared errors `[N, B]` of blocks."""

    stored: NDArray[np.uint8]
    scales: NDArray[np.floating]
    errors: NDArray[np.float64]


def _round_blocks(values: NDArray[np.float32], dtype: "np.dtype[np.floating]") -> _RoundedBlocks:
    """Round weights `[N, B, block]` by the best of several scales, as `round_to_blocks` says."""
    largest = np.take_along_axis(values, abs(values).argmax(axis=2)[..., None], axis=2)[..., 0]
    best = _round_by_scales(values, _convert_scales(largest / -_ZERO, dtype))
    starts = [largest / -_ZERO * shrink for shrink in _SHRINKS]
    starts.append(abs(largest) / (_MOST - _ZERO))
    for start in starts:
        first = _round_by_scales(values, _convert_scales(start, dtype))
        fitted = _fit_scales(values, first.stored, dtype)
        best = _choose_better(_choose_better(best, first), _round_by_scales(values, fitted))
    return best


def _round_by_scales(values: NDArray[np.float32], scales: NDArray[np.floating]) -> _RoundedBlocks:
    """Round weights `[N, B, block]` by scales `[N, B]`."""
    wide = scales.astype(np.float32)[..., None]
    ratios = values / np.where(wide == 0, np.float32(1), wide)  # 1 over a small scale may be infinite
    centered = np.clip(np.rint(ratios), _LEAST - _ZERO, _MOST - _ZERO)
    with np.errstate(invalid="ignore"):
        errors = np.square(values - centered * wide, dtype=np.float64).sum(axis=2)
    return _RoundedBlocks((centered + _ZERO).astype(np.uint8), scales, errors)


def _fit_scales(
    values: NDArray[np.float32], stored: NDArray[np.uint8], dtype: "np.dtype[np.floating]"
) -> NDArray[np.floating]:
    """Return the scales of the least squared error for given integers."""
    centered = stored.astype(np.float32) - _ZERO
    energy = np.square(centered).sum(axis=2)
    with np.errstate(over="ignore"):  # what is infinite is not chosen
        products = (values * centered).sum(axis=2)
    scales: NDArray[np.float32] = np.zeros_like(energy)
    np.divide(products, energy, out=scales, where=energy != 0)
    return _convert_scales(scales, dtype)


def _convert_scales(
    scales: NDArray[np.floating], dtype: "np.dtype[np.floating]"
) -> NDArray[np.floating]:
    """Return scales in the dtype of the weights; one too small for it becomes its least number.

    Weights of that dtype are multiples of this number (6e-8 of float16), so that such a block is exact.
    """
    converted = scales.astype(dtype, copy=False)
    least = np.copysign(np.finfo(dtype).smallest_subnormal, scales)
    return np.where((converted == 0) & (scales != 0), least, converted)


def _choose_better(one: _RoundedBlocks, other: _RoundedBlocks) -> _RoundedBlocks:
    """Take each block from the one that has the smaller error; the first where errors are equal."""
    better = other.errors < one.errors
    return _RoundedBlocks(
        np.where(better[..., None], other.stored, one.stored),
        np.where(better, other.scales, one.scales),
        np.where(better, other.errors, one.errors),
    )
