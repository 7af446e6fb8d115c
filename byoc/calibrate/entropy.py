"""Clipping thresholds that minimize the relative entropy of quantization.

Migacz, "8-bit inference with TensorRT", GTC 2017: choose the range around zero in which the histogram,
with everything outside added to its last bins, has the least relative entropy to itself in as many bins
as there are levels. The steps, including whole-number arithmetic, are those of onnxruntime's calibrator
and give the same result, without its Python loop over the bins.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEVELS = 128  # of 8 bits with a sign
_EMPTY_SHARE = 1e-4  # what a bin without values counts, since relative entropy knows no zero

BinEdges = NDArray[np.float32]


def find_entropy_range(counts: NDArray[np.int64], edges: BinEdges) -> tuple[float, float]:
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
