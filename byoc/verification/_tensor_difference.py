"""Differences of two tensors of numbers: the largest, the mean square, the mean of a channel."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Difference:
    """The largest difference of two tensors, and the mean of its squares."""

    largest: float = 0.0
    power: float = 0.0


def measure_difference(one: Any, other: Any) -> Difference:
    """Return the difference of two tensors of numbers, 0 where they cannot be compared.

    Elements that are not finite on either side are left out.
    """
    if one is None or other is None or isinstance(one, list) or isinstance(other, list):
        return Difference()
    wanted, got = (np.asarray(value) for value in (one, other))
    if wanted.shape != got.shape or wanted.dtype.kind == "O" or got.dtype.kind == "O":
        return Difference()
    error = wanted.astype(np.float64) - got.astype(np.float64)
    error = error[np.isfinite(error)]
    if not error.size:
        return Difference()
    return Difference(float(np.max(np.abs(error))), float(np.mean(error**2)))


def measure_shift(one: Any, other: Any) -> float:
    """Return the largest mean difference of a channel of two tensors of integers.

    Channels are along axis 1 or along the last one; tensors of one axis or none have no channels.
    """
    error = np.asarray(one).astype(np.float64) - np.asarray(other).astype(np.float64)
    if error.ndim < 2 or not error.size:
        return 0.0
    means = [
        error.mean(tuple(i for i in range(error.ndim) if i != axis)) for axis in (1, error.ndim - 1)
    ]
    return max(float(np.abs(each).max()) for each in means)
