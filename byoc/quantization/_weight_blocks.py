"""Weights of products as integers of 2, 4 or 8 bits in blocks, alone or by what they multiply.

Without data the squared error of each block is made least. With the second moments `H` of a product's
inputs the error of its outputs is, `(w - q) H (w - q)` for each output: weights are rounded one after
another, and the error of each is made up for by those that follow (Frantar et al., "GPTQ: Accurate
Post-Training Quantization for Generative Pre-trained Transformers", ICLR 2023). Their Cholesky factor of
the inverse is not needed: with `H = (A + I) D (A + I)^T`, `A` strictly upper triangular, weight `k` is
rounded from `w_k + sum over j < k of (w_j - q_j) A_jk`, and its own error then counts `D_k` times (Chee
et al., "QuIP: 2-Bit Quantization of Large Language Models With Guarantees", NeurIPS 2023, theorem 6). So
the scale of a block is fitted to these targets with the weights `D`. Sweeps over all blocks follow, in
which each integer and each scale becomes the best beside all others. Inputs are taken in the order of
their moments, the largest first, as far as blocks stay together.
"""

from collections.abc import Iterator
from itertools import product as pair
from math import inf, log10
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from byoc._dataclasses import dataclass

# Integers of 2, 4 or 8 bits for the weights of a matrix product, with a scale for each block of them.
#
# A block is some weights of one output that follow one another along the inputs that are summed
# over. `real = scale * (stored - zero)`, stored from 0 to 3, 15 or 255, as com.microsoft's MatMulNBits
# has it. The zero of symmetric weights is half of the number of integers, 8 of 4 bits, and is not
# stored; real values below zero reach further there: from -8 to 7 scales. A zero of its own for each
# block takes as many bits as a weight more.

_CHUNK = 1 << 20
"""The number of weights that are rounded together, for the memory that it takes."""
_SHRINKS = {2: (1.0, 0.85, 0.7, 0.55), 4: (1.0, 0.92, 0.85), 8: (1.0, 0.98)}
"""Smaller scales clip the largest weight, and round the others less: the more, the fewer bits."""
Float64Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WeightBlocks:
    """Weights `[N, K]` as integers of `bits`, uint8 `[N, B, block]`, with scales and zeros `[N, B]`.

    `zeros` is None where all are half of the number of integers. The last block of a row is filled up
    with zeros, where `K` is no multiple of the block. `squares` is the sum of the squared weights,
    `error` that of the squared errors; by moments of inputs they are the mean squares of the outputs and
    of the errors of these, summed over the outputs.
    """

    stored: NDArray[np.uint8]
    scales: NDArray[np.floating]
    inputs: int
    squares: float
    error: float
    zeros: NDArray[np.uint8] | None = None
    bits: int = 4

    @property
    def block(self) -> int:
        """The number of weights that share a scale."""
        return int(self.stored.shape[-1])

    @property
    def decibels(self) -> float:
        """The ratio of the weights, or outputs, to their errors; infinite where there are none."""
        return inf if not self.error else 10 * log10(self.squares / self.error)

    @property
    def nbytes(self) -> int:
        """The bytes of integers, scales and zeros as MatMulNBits stores them."""
        count, blocks = self.scales.shape
        zeros = 0 if self.zeros is None else count * -(-blocks * self.bits // 8)
        return self.stored.size * self.bits // 8 + self.scales.nbytes + zeros

    def restore(self) -> NDArray[np.float32]:
        """Return the weights `[N, K]` that the integers stand for."""
        scales = self.scales.astype(np.float32)[..., None]
        middle = np.float32(1 << self.bits - 1)
        zeros = middle if self.zeros is None else self.zeros.astype(np.float32)[..., None]
        values = (self.stored.astype(np.float32) - zeros) * scales
        return values.reshape(len(values), -1)[:, : self.inputs]

    def pack(self) -> NDArray[np.uint8]:
        """Return the integers as MatMulNBits stores them, the earlier ones in the lower bits."""
        return _pack(self.stored, self.bits)

    def pack_zeros(self) -> NDArray[np.uint8] | None:
        """Return the zeros as MatMulNBits stores them, `[N, bytes]`, None where none are stored."""
        if self.zeros is None:
            return None
        filled = -self.zeros.shape[1] % (8 // self.bits)
        return _pack(np.pad(self.zeros, [(0, 0), (0, filled)]), self.bits)

    def unpack(self) -> NDArray[np.uint8]:
        """Return the integers `[N, K]`, each in a byte."""
        return self.stored.reshape(len(self.stored), -1)[:, : self.inputs]

    def center(self) -> NDArray[np.int8]:
        """Return the integers `[N, K]` less their half, those of 4 bits from -8 to 7."""
        return (self.unpack().astype(np.int16) - (1 << self.bits - 1)).astype(np.int8)


def _pack(values: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return integers of some bits in bytes, along the last axis."""
    share = 8 // bits
    packed = np.zeros((*values.shape[:-1], values.shape[-1] // share), np.uint8)
    for place in range(share):
        packed |= np.left_shift(values[..., place::share], np.uint8(bits * place))
    return packed


def round_to_blocks(
    weights: NDArray[np.floating],
    block: int,
    *,
    bits: int = 4,
    symmetric: bool = True,
    moments: Float64Array | None = None,
) -> WeightBlocks:
    """Round weights `[N, K]` to 2, 4 or 8 bits in blocks; scales are of the dtype of the weights.

    For each block several scales are tried, and the one of the least squared error is taken: that of
    onnxruntime (the largest weight by magnitude becomes the least integer), one for which it becomes the
    greatest, smaller ones, and for each the best scale of the integers that follow from it (least
    squares). Unless `symmetric`, zeros from the least and the greatest weight are tried as well, and
    stored where they lower the squared error by a larger share than they add to the bytes.

    With `moments`, the means `[K, K]` of products of inputs, the error of the outputs is made small
    instead, as the module says. Zeros are then stored unless `symmetric`: rounding without moments tells
    whether they are worth it.
    """
    if moments is not None:
        return _round_by_moments(weights, block, bits, symmetric, moments)
    count, inputs = weights.shape
    blocks = -(-inputs // block)
    plain, moved = [_RoundedBlocks.make_empty(count, blocks, block, weights.dtype) for _ in range(2)]
    squares = 0.0
    for rows in _split_rows(count, inputs):
        floats = np.zeros((len(weights[rows]), blocks * block), np.float32)
        floats[:, :inputs] = weights[rows]
        search = _BlockSearch(floats.reshape(-1, blocks, block), weights.dtype, bits)
        found = search.find_symmetric()
        plain.put(rows, found)
        moved.put(rows, found if symmetric else search.find_with_zeros(found))
        squares += float(np.square(floats, dtype=np.float64).sum())
    share = bits / (bits * block + 8 * weights.dtype.itemsize)  # of the bytes, that zeros add
    is_worth = float(moved.errors.sum()) < (1 - share) * float(plain.errors.sum())
    taken, zeros = (moved, moved.zeros) if is_worth else (plain, None)
    error = float(taken.errors.sum())
    return WeightBlocks(taken.stored, taken.scales, inputs, squares, error, zeros, bits)


def _split_rows(count: int, inputs: int) -> Iterator[slice]:
    step = max(1, _CHUNK // inputs)
    yield from (slice(first, first + step) for first in range(0, count, step))


class _RoundedBlocks(NamedTuple):
    """Weights as integers `[N, B, block]`, with scales, squared errors and zeros of blocks, `[N, B]`."""

    stored: NDArray[np.uint8]
    scales: NDArray[np.floating]
    errors: NDArray[np.float64]
    zeros: NDArray[np.uint8]

    @classmethod
    def make_empty(
        cls, count: int, blocks: int, block: int, dtype: "np.dtype[np.floating]"
    ) -> "_RoundedBlocks":
        """Return room for the blocks of `count` outputs."""
        shape = count, blocks
        stored = np.empty((*shape, block), np.uint8)
        return cls(stored, np.empty(shape, dtype), np.empty(shape), np.empty(shape, np.uint8))

    def put(self, rows: slice, part: "_RoundedBlocks") -> None:
        """Put the blocks of some outputs in their place."""
        self.stored[rows], self.scales[rows] = part.stored, part.scales
        self.errors[rows], self.zeros[rows] = part.errors, part.zeros


_EQUAL = np.ones((), np.float32)
"""How often errors count where all weights are alike."""


class _BlockSearch:
    """Searches integers, scales and zeros of the least squared error for weights `[N, B, block]`.

    `counts`, `[block]`, says how often the squared error of each weight of a block counts.
    """

    def __init__(
        self,
        values: NDArray[np.float32],
        dtype: "np.dtype[np.floating]",
        bits: int,
        counts: NDArray[np.float32] = _EQUAL,
    ) -> None:
        """Take the weights, the dtype of scales, and the number of bits of an integer."""
        self.values, self.dtype, self.counts = values, dtype, counts
        self.shrinks, self.most, self.middle = _SHRINKS[bits], (1 << bits) - 1, 1 << bits - 1

    def find_symmetric(self) -> _RoundedBlocks:
        """Return the best of several scales, as `round_to_blocks` says."""
        values = self.values
        largest = np.take_along_axis(values, abs(values).argmax(axis=2)[..., None], axis=2)[..., 0]
        zeros = np.full(largest.shape, self.middle, np.uint8)
        best = self._round(_convert_scales(largest / -self.middle, self.dtype), zeros)
        starts = [largest / -self.middle * shrink for shrink in self.shrinks]
        starts.append(abs(largest) / (self.most - self.middle))
        for start in starts:
            best = self._improve(best, start, zeros)
        return best

    def find_with_zeros(self, symmetric: _RoundedBlocks) -> _RoundedBlocks:
        """Return the best of several scales and zeros, or of symmetric ones.

        The least and the greatest weight become the least and greatest integer; smaller ranges clip one
        of them, or both.
        """
        best, values = symmetric, self.values
        low, high = np.minimum(values.min(axis=2), 0), np.maximum(values.max(axis=2), 0)
        for below, above in pair(self.shrinks, self.shrinks):
            least, most = low * np.float32(below), high * np.float32(above)
            with np.errstate(over="ignore"):
                scales = (most / self.most - least / self.most).astype(np.float32)
            ratios = np.rint(-least / np.where(scales == 0, np.float32(1), scales))
            zeros = np.where(scales == 0, self.middle, np.clip(ratios, 0, self.most))
            best = self._improve(best, scales, zeros.astype(np.uint8))
        return best

    def _improve(
        self, best: _RoundedBlocks, start: NDArray[np.floating], zeros: NDArray[np.uint8]
    ) -> _RoundedBlocks:
        """Return the best of some blocks, of those by other scales, and by the scales that fit these."""
        first = self._round(_convert_scales(start, self.dtype), zeros)
        again = self._round(self._fit_scales(first), zeros)
        return _choose_better(_choose_better(best, first), again)

    def _round(self, scales: NDArray[np.floating], zeros: NDArray[np.uint8]) -> _RoundedBlocks:
        """Round by scales and zeros `[N, B]`."""
        wide, offset = scales.astype(np.float32)[..., None], zeros.astype(np.float32)[..., None]
        ratios = self.values / np.where(wide == 0, np.float32(1), wide)  # 1 over it may be infinite
        centered = np.clip(np.rint(ratios), -offset, self.most - offset)
        with np.errstate(invalid="ignore"):
            away = np.square(self.values - centered * wide, dtype=np.float64)
            errors = (away * self.counts).sum(axis=2)
        return _RoundedBlocks((centered + offset).astype(np.uint8), scales, errors, zeros)

    def _fit_scales(self, rounded: _RoundedBlocks) -> NDArray[np.floating]:
        """Return the scales of the least squared error for given integers and zeros."""
        centered = rounded.stored.astype(np.float32) - rounded.zeros.astype(np.float32)[..., None]
        energy = (np.square(centered) * self.counts).sum(axis=2)
        with np.errstate(over="ignore"):  # what is infinite is not chosen
            products = (self.values * centered * self.counts).sum(axis=2)
        scales: NDArray[np.float32] = np.zeros_like(energy)
        np.divide(products, energy, out=scales, where=energy != 0)
        return _convert_scales(scales, self.dtype)


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
        np.where(better, other.zeros, one.zeros),
    )


_DAMPING = 0.01
"""Of the mean square of inputs, added to each: so many errors of inputs depend on nothing that was seen.

It is also what makes moments definite where inputs are always 0, or copies of one another.
"""
_SWEEPS = 2
_FEW = 16  # inputs whose changes are applied to each other one by one
_ROWS_CHUNK = 1 << 22  # weights that are rounded together by moments, in float64


def _round_by_moments(
    weights: NDArray[np.floating], block: int, bits: int, symmetric: bool, moments: Float64Array
) -> WeightBlocks:
    """Round weights `[N, K]` by the second moments `[K, K]` of their inputs.

    Inputs of large moments come first, blocks by blocks and in each block: fewer weights are left that
    could make up for those that are rounded last.
    """
    count, inputs = weights.shape
    shape = count, -(-inputs // block)
    filled = shape[1] * block - inputs
    # What fills the last block is 0, and so are its integers.
    order = _order_inputs(np.pad(moments, (0, filled)), block)
    spread = np.ix_(order, order)
    unit = _fill(_normalize_moments(moments), filled)[spread]
    moments = np.pad(moments, (0, filled))[spread]
    feedback, counts = _factor_moments(unit)
    stored = np.zeros((*shape, block), np.uint8)
    scales, zeros = np.zeros(shape, weights.dtype), np.full(shape, 1 << bits - 1, np.uint8)
    blocks = order[::block] // block
    squares = error = 0.0
    step = max(1, _ROWS_CHUNK // inputs)
    for rows in (slice(first, first + step) for first in range(0, count, step)):
        floats = np.pad(weights[rows].astype(np.float64), ((0, 0), (0, filled)))[:, order]
        rounder = _MomentRounder(floats, block, bits, weights.dtype, unit)
        rounder.round(feedback, counts, symmetric)
        rounder.sweep(_SWEEPS)
        stored[rows].reshape(len(floats), -1)[:, order] = rounder.store()
        scales[rows, blocks], zeros[rows, blocks] = rounder.scales, rounder.zeros
        away = rounder.weights - rounder.restored
        squares += float(((moments @ rounder.weights) * rounder.weights).sum())
        error += float(max(((moments @ away) * away).sum(), 0))
    return WeightBlocks(stored, scales, inputs, squares, error, None if symmetric else zeros, bits)


def _fill(moments: Float64Array, count: int) -> Float64Array:
    """Return definite moments with as many more inputs, which no other depends on."""
    filled = np.pad(moments, (0, count))
    filled[len(moments) :, len(moments) :] = np.eye(count)
    return filled


def _order_inputs(moments: Float64Array, block: int) -> NDArray[np.int64]:
    """Return the numbers of inputs, those of each block together, the largest moments first."""
    powers = np.diag(moments).reshape(-1, block)
    inside = np.argsort(-powers, axis=1, kind="stable")
    blocks = np.argsort(-powers.sum(axis=1), kind="stable")
    return (blocks[:, None] * block + inside[blocks]).reshape(-1)


def _split_part(part: slice) -> Iterator[slice]:
    """Yield the numbers of a block of inputs by a few."""
    for first in range(part.start, part.stop, _FEW):
        yield slice(first, min(first + _FEW, part.stop))


def _normalize_moments(moments: Float64Array) -> Float64Array:
    """Return moments over the mean square of inputs, with what makes them definite on the diagonal."""
    mean = float(np.diag(moments).mean())
    if not mean > 0:
        return np.eye(len(moments))
    damped = moments / mean
    damped[np.diag_indices_from(damped)] += _DAMPING
    return damped


def _factor_moments(moments: Float64Array) -> tuple[Float64Array, NDArray[np.float32]]:
    """Return `A + I`, upper triangular with ones, and the diagonal of `D`: `(A + I) D (A + I)^T`."""
    flipped = linalg.cholesky(moments[::-1, ::-1], lower=True, check_finite=False)
    upper = flipped[::-1, ::-1]
    diagonal = np.diag(upper).copy()
    return upper / diagonal, np.square(diagonal).astype(np.float32)


class _MomentRounder:
    """Rounds weights to integers with scales and zeros of blocks, `[N, B]`, by moments of inputs.

    Weights and integers are kept as `[K, N]`, since an input's weights are rounded together. What an
    input changes for the others of its block is applied in steps of a few inputs, as a product.
    """

    def __init__(
        self,
        weights: Float64Array,
        block: int,
        bits: int,
        dtype: "np.dtype[np.floating]",
        moments: Float64Array,
    ) -> None:
        """Take weights `[N, K]` of whole blocks, the dtype of scales, and definite moments `[K, K]`."""
        self.weights, self.moments = np.ascontiguousarray(weights.T), moments
        self.bits = bits
        self.parts = [slice(at, at + block) for at in range(0, len(moments), block)]
        self.centered, self.restored = np.zeros_like(self.weights), np.zeros_like(self.weights)
        self.scales = np.zeros((len(weights), len(self.parts)), dtype)
        self.zeros = np.full(self.scales.shape, 1 << bits - 1, np.uint8)

    def store(self) -> NDArray[np.uint8]:
        """Return the integers as they are stored, `[N, K]`."""
        blocks = self.centered.T.reshape(*self.scales.shape, -1) + self.zeros[..., None]
        return blocks.reshape(len(blocks), -1).astype(np.uint8)

    def round(self, feedback: Float64Array, counts: NDArray[np.float32], symmetric: bool) -> None:
        """Round block after block, each to make up for the errors of those before."""
        away = np.zeros_like(self.weights)
        for number, part in enumerate(self.parts):
            wanted = self.weights[part] + feedback[: part.start, part].T @ away[: part.start]
            values = np.ascontiguousarray(wanted.T, np.float32)[:, None]
            search = _BlockSearch(values, self.scales.dtype, self.bits, counts[part])
            found = search.find_symmetric()
            if not symmetric:
                found = search.find_with_zeros(found)
            self.zeros[:, number] = found.zeros[:, 0]
            self.scales[:, number] = np.where(found.scales == 0, 1, found.scales)[:, 0]
            scales, low, high = self._get_grid(number)
            for few in _split_part(part):
                for column in range(few.start, few.stop):
                    integers = np.clip(np.rint(wanted[column - part.start] / scales), low, high)
                    away[column] = self.weights[column] - integers * scales
                    self.centered[column] = integers
                    rest = slice(column + 1 - part.start, few.stop - part.start)
                    wanted[rest] += feedback[column, column + 1 : few.stop, None] * away[column]
                wanted[few.stop - part.start :] += feedback[few, few.stop : part.stop].T @ away[few]
            self.restored[part] = self.centered[part] * scales

    def sweep(self, times: int) -> None:
        """Make each integer, and then the scale of its block, the best beside all others, some times."""
        slopes = self.moments @ (self.weights - self.restored)
        for number, part in [*enumerate(self.parts)] * times:
            inside, local = self.moments[part, part], slopes[part].copy()
            centered, before = self.centered[part], self.restored[part].copy()
            for few in _split_part(slice(0, len(inside))):
                self._improve(few, number, centered, local, inside)
            energy = ((inside @ centered) * centered).sum(axis=0)
            gained = np.divide(
                (centered * local).sum(axis=0), energy, out=np.zeros_like(energy), where=energy > 0
            )
            self._set_scales(number, self.scales[:, number] + gained)
            self.restored[part] = centered * self._get_grid(number)[0]
            slopes -= self.moments[:, part] @ (self.restored[part] - before)

    def _improve(
        self,
        few: slice,
        number: int,
        centered: Float64Array,
        local: Float64Array,
        inside: Float64Array,
    ) -> None:
        """Make integers of some inputs of a block the best beside all others, and keep its slopes."""
        scales, low, high = self._get_grid(number)
        changes = np.zeros((few.stop - few.start, len(scales)))
        for place in range(few.start, few.stop):
            ideal = centered[place] + local[place] / (inside[place, place] * scales)
            integers = np.clip(np.rint(ideal), low, high)
            changes[place - few.start] = change = (integers - centered[place]) * scales
            centered[place] = integers
            local[few] -= inside[few, place, None] * change
        for rest in (slice(0, few.start), slice(few.stop, None)):
            local[rest] -= inside[rest, few] @ changes

    def _get_grid(self, number: int) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return the scales of a block, and its least and greatest integers less the zeros."""
        zeros = self.zeros[:, number].astype(np.float64)
        return self.scales[:, number].astype(np.float64), -zeros, (1 << self.bits) - 1 - zeros

    def _set_scales(self, number: int, scales: Float64Array) -> None:
        """Store scales of a block; those that its type cannot hold stay as they were."""
        with np.errstate(over="ignore"):
            converted = _convert_scales(scales, self.scales.dtype)
        usable = np.isfinite(converted) & (converted != 0)
        self.scales[:, number] = np.where(usable, converted, self.scales[:, number])
