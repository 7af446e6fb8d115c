"""Where to clip a tensor so that quantizing it costs least, in mean squared error.

A value `c` outside of the range `[a, b]` is clipped, an error of `(c - b)**2`; inside it is rounded to a
step of `(b - a) / (levels - 1)`, an error of `step**2 / 12` in the mean (Widrow, "Statistical analysis of
amplitude-quantized sampled-data systems", AIEE Transactions 79, 1961). Zero is quantized exactly, so the
histograms have none. Each bin's values count as if at its middle, and a range ends at edges; among
ranges of the same error the widest is taken, as in Banner et al., "Post training 4-bit quantization of
convolutional networks for rapid-deployment", NeurIPS 2019, which weighs these two against each other.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def best_range(
    counts: NDArray[np.int64], edges: NDArray[np.floating[Any]], bits: int
) -> tuple[float, float]:
    """Return the best ends of a range around zero, both of them among the edges, `bits` for all of it.

    `counts[i]` values lie between `edges[i]` and `edges[i + 1]`; the edges rise from at most 0 to at
    least 0. Where no edge is zero, zero takes the place of the one above it.
    """
    ends = np.asarray(edges, np.float64)
    lows = np.unique(np.minimum(ends[: int(np.searchsorted(ends, 0.0, "right")) + 1], 0.0))
    highs = np.unique(np.maximum(ends[max(int(np.searchsorted(ends, 0.0)) - 1, 0) :], 0.0))
    left = np.array([_below(counts, ends, low) for low in lows])
    right = np.array([_below(counts[::-1], -ends[::-1], -high) for high in highs])
    total = float(counts.sum())
    step = (highs[None, :] - lows[:, None]) / (2**bits - 1)
    inside = total - left[:, 1][:, None] - right[:, 1][None, :]
    errors = left[:, 0][:, None] + right[:, 0][None, :] + inside * step**2 / 12
    return _widest(errors, lows, highs)


def best_threshold(
    counts: NDArray[np.int64], edges: NDArray[np.floating[Any]], bits: int
) -> float:
    """Return the best of the edges to clip magnitudes at; `bits` are for both signs together.

    `counts[i]` magnitudes lie between `edges[i]` and `edges[i + 1]`; the edges rise from 0.
    """
    ends = np.asarray(edges, np.float64)
    clipped = np.array([_below(counts[::-1], -ends[::-1], -end) for end in ends])
    step = ends / (2 ** (bits - 1) - 1)
    errors = clipped[:, 0] + (counts.sum() - clipped[:, 1]) * step**2 / 12
    best = np.flatnonzero(errors == errors.min())[-1]
    return float(ends[best])
