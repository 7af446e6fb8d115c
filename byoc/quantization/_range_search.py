"""Clipping thresholds that minimize the error of quantization: mean squared, or relative entropy.

Mean squared error: a value `c` beyond an end `b` of the range is clipped, an error of `(c - b)**2`; a
value inside is rounded to a step of `(high - low) / (levels - 1)`, a mean error of `step**2 / 12`
(Widrow, "Statistical analysis of amplitude-quantized sampled-data systems", AIEE Transactions 79, 1961).
The trade-off between the two is that of Banner et al., "Post training 4-bit quantization of
convolutional networks for rapid-deployment", NeurIPS 2019; they fit a distribution, here the histogram
itself is used, with the values of a bin at its middle. Zero is quantized exactly, so histograms exclude
it.

Relative entropy: Migacz, "8-bit inference with TensorRT", GTC 2017: choose the range around zero in
which the histogram, with everything outside added to its last bins, has the least relative entropy to
itself in as many bins as there are levels. The steps, including whole-number arithmetic, are those of
onnxruntime's calibrator and give the same result, without its Python loop over the bins.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64Array = NDArray[np.float64]


def find_best_range(
    counts: NDArray[np.int64], edges: NDArray[np.floating[Any]], bits: int
) -> tuple[float, float]:
    """Return the best ends of a range that includes zero; each end is a histogram edge or zero.

    `counts[i]` values lie between `edges[i]` and `edges[i + 1]`; the edges rise. All levels of `bits`
    bits are for the one range.
    """
    ends = np.asarray(edges, np.float64)
    middles = (ends[:-1] + ends[1:]) / 2
    lows, highs = np.append(ends[ends < 0], 0.0), np.append(0.0, ends[ends > 0])
    left, below = _clipping_errors(-middles[::-1], counts[::-1], -lows)
    right, above = _clipping_errors(middles, counts, highs)
    inside = counts.sum() - below[:, np.newaxis] - above
    step = (highs - lows[:, np.newaxis]) / (2**bits - 1)
    errors = left[:, np.newaxis] + right + inside * step**2 / 12
    low, high = np.unravel_index(np.argmin(errors), errors.shape)
    return float(lows[low]), float(highs[high])


def find_best_threshold(counts: NDArray[np.int64], edges: NDArray[np.floating[Any]], bits: int) -> float:
    """Return the best edge to clip magnitudes at, for a range that is symmetric around zero.

    `counts[i]` magnitudes lie between `edges[i]` and `edges[i + 1]`; the edges rise from zero. The
    levels of `bits` bits, less one, cover both signs.
    """
    ends = np.asarray(edges, np.float64)
    clipped, above = _clipping_errors((ends[:-1] + ends[1:]) / 2, counts, ends)
    step = ends / (2 ** (bits - 1) - 1)
    errors = clipped + (counts.sum() - above) * step**2 / 12
    return float(ends[np.argmin(errors)])


def _clipping_errors(
    middles: Float64Array, counts: NDArray[np.int64], ends: Float64Array
) -> tuple[Float64Array, NDArray[np.int64]]:
    """Return the clipping error for each end, and the number of values that it clips.

    There are `counts` values at rising `middles`. The sum of `n * (c - end)**2` over all values above
    the end is computed from the sums of n, nc and nc².
    """
    first = np.searchsorted(middles, ends, "right")
    number = _reverse_cumsum(counts)[first]
    linear = _reverse_cumsum(counts * middles)[first]
    square = _reverse_cumsum(counts * middles**2)[first]
    return square - 2 * ends * linear + ends**2 * number, number


def _reverse_cumsum(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of the values from each position on; after the last one it is zero."""
    return np.append(np.cumsum(values[::-1])[::-1], 0).astype(values.dtype)


_LEVELS = 128  # of 8 bits with a sign
_EMPTY_SHARE = 1e-4  # what a bin without values counts, since relative entropy knows no zero


def find_entropy_range(counts: NDArray[np.int64], edges: NDArray[np.float32]) -> tuple[float, float]:
    """Return the best ends of a range around the middle of a histogram, which is zero.

    `counts[i]` values lie between `edges[i]` and `edges[i + 1]`; there are more than 128 bins.
    """
    middle = counts.size // 2
    best, least = (0, 0), np.inf
    for reach in range(_LEVELS // 2, middle + 1):
        start, end = middle - reach, min(middle + reach + 1, counts.size)
        entropy = _relative_entropy(counts, start, end)
        if entropy < least or best == (0, 0):
            best, least = (start, end), entropy
    return float(edges[best[0]]), float(edges[best[1]])


def _relative_entropy(counts: NDArray[np.int64], start: int, end: int) -> float:
    """Return the relative entropy of clipping to some bins; infinite if they are empty."""
    inside = counts[start:end]
    clipped = inside.copy()
    clipped[0] += counts[:start].sum()
    clipped[-1] += counts[end:].sum()
    width = inside.size // _LEVELS
    whole = _LEVELS * width
    levels = inside[:whole].reshape(_LEVELS, width).sum(axis=1)
    levels[-1] += inside[whole:].sum()
    filled = np.count_nonzero(clipped[:whole].reshape(_LEVELS, width), axis=1)
    reconstructed = np.zeros_like(inside)
    reconstructed[:whole] = np.repeat(levels // np.maximum(filled, 1) * (filled > 0), width)
    if not reconstructed.any():
        return float(np.inf)
    real, quantized = _smooth_distribution(clipped), _smooth_distribution(reconstructed)
    return float(np.sum(real * np.log(real / quantized)))


def _smooth_distribution(counts: NDArray[np.int64]) -> Any:
    """Return counts as shares of their sum; zeros get a small share, taken from the others."""
    empty = counts == 0
    number = int(np.count_nonzero(empty))
    share = np.float32(_EMPTY_SHARE * number / (counts.size - number))
    smooth = np.where(empty, np.float32(_EMPTY_SHARE), counts.astype(np.float32) - share)
    return smooth / np.sum(smooth)
