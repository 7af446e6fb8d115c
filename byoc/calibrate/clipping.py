"""Clipping thresholds that minimize the mean squared error of quantization.

A value `c` beyond an end `b` of the range is clipped, an error of `(c - b)**2`; a value inside is
rounded to a step of `(high - low) / (levels - 1)`, a mean error of `step**2 / 12` (Widrow, "Statistical
analysis of amplitude-quantized sampled-data systems", AIEE Transactions 79, 1961). The trade-off between
the two is that of Banner et al., "Post training 4-bit quantization of convolutional networks for
rapid-deployment", NeurIPS 2019; they fit a distribution, here the histogram itself is used, with the
values of a bin at its middle. Zero is quantized exactly, so histograms exclude it.
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
