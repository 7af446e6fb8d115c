"""Measures of numerical accuracy: signal-to-noise ratio, cosine, largest class."""

from math import inf, isnan, log10, nan, sqrt

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


def compute_signal_to_noise(expected: Array, actual: Array) -> float:
    """Return the signal-to-noise ratio in dB: 10 log10 of the expected power over that of the error.

    It is infinite if both arrays are equal, -infinite if only zeros are expected or the error is
    infinite, and NaN if a value is NaN, if infinity is expected where there is another value, or if the
    shapes differ.
    """
    return convert_to_db(*compute_powers(expected, actual))


def compute_powers(expected: Array, actual: Array) -> tuple[float, float]:
    """Return the sums of squares of the expected values and of the error, which add up over samples.

    Infinity has no error where infinity of the same sign is expected. Both are NaN if the shapes differ.
    """
    if expected.shape != actual.shape:
        return nan, nan
    wanted, got = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # the sums are infinite or NaN then
        error = np.where(got == wanted, 0.0, got - wanted)
        return float(np.sum(wanted**2)), float(np.sum(error**2))


def convert_to_db(signal: float, noise: float) -> float:
    """Return the ratio of two powers in dB, NaN if one is NaN or both are infinite."""
    if isnan(signal) or isnan(noise):
        return nan
    if noise == 0:
        return inf
    ratio = signal / noise
    return -inf if ratio == 0 else 10 * log10(ratio)


def compute_cosine(expected: Array, actual: Array) -> float:
    """Return the cosine of the angle between two arrays as vectors; 1 if both are zero.

    It is NaN if the shapes differ or a length is no finite number.
    """
    one, other = (array.astype(np.float64).ravel() for array in (expected, actual))
    if one.shape != other.shape:
        return nan
    with np.errstate(over="ignore", invalid="ignore"):
        # Not `@`: the threads of a BLAS library take far longer for it than one does.
        lengths = sqrt(float(np.sum(one * one))) * sqrt(float(np.sum(other * other)))
        if not lengths:
            return 1.0 if not one.any() and not other.any() else 0.0
        return float(np.sum(one * other)) / lengths


def compute_same_class_share(expected: Array, actual: Array) -> float:
    """Return the share of rows (all axes but the last) whose largest element has the same position.

    A row with a NaN has no largest element.
    """
    if expected.shape != actual.shape or not expected.size or not expected.ndim:
        return nan
    same = np.argmax(expected, axis=-1) == np.argmax(actual, axis=-1)
    known = ~np.any(np.isnan(expected) | np.isnan(actual), axis=-1)
    return float(np.mean(same & known))
