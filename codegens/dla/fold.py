"""Weights as the machine has them: normalizations folded in, and integers with what they stand for.

All is worked out in float64. A convolution is linear, so that a factor for each output channel goes into
its weights in float32, and into its multipliers in integers.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MOST = 2**31 - 1
_FINE = 2.0**-16  # of a unit of the output: for channels whose weights are all 0


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a convolution, [output channels][input channels of a group][rows][columns].

    `factors` has one number for each output channel: the real weight is the stored one times it. It is
    1 for floats, the scale for integers. `bias` is real, one float64 for each output channel.
    """

    stored: Array
    factors: Array
    bias: Array

    @property
    def is_integer(self) -> bool:
        """Whether the weights are stored as integers."""
        return bool(self.stored.dtype == np.int8)

    def scaled(self, factors: Array, shifts: Array) -> "Weights":
        """Return weights that give what these give, times a factor, plus a shift, for each channel."""
        return replace(self, factors=self.factors * factors, bias=self.bias * factors + shifts)

    def real(self) -> Array:
        """Return the weights in float32, factors and all."""
        return (self.stored * self.factors.reshape(-1, 1, 1, 1)).astype(np.float32)


def normalization(scale: Array, shift: Array, mean: Array, variance: Array, epsilon: float) -> Any:
    """Return the factor and the shift of each channel that a BatchNormalization comes to.

    scale * (x - mean) / sqrt(variance + epsilon) + shift, as ONNX defines it.
    """
    given = (each.astype(np.float64) for each in (scale, shift, mean, variance))
    scale, shift, mean, variance = given
    factors = scale / np.sqrt(variance + epsilon)
    return factors, shift - mean * factors


@dataclass(frozen=True, eq=False)
class Requantized:
    """Integer weights for a machine of int32 accumulators.

    `bias` is in units of the accumulators, and `multipliers` bring them to units of the output: real,
    positive float64, one for each output channel.
    """

    weights: Array
    bias: Array
    multipliers: Array


def requantized(weights: Weights, input_scale: float, output_scale: float) -> Requantized | None:
    """Return integer weights for an input and an output of some scales.

    An accumulator counts units of input_scale * |factor|; where a factor is negative its channel's
    weights change their sign. None where a bias does not fit into an int32, is rounded by more than
    half a unit of the output, or a sign cannot change.
    """
    units = input_scale * np.abs(weights.factors)
    dead = units == 0
    units = np.where(dead, output_scale * _FINE, units)
    signs = np.where(dead, 0, np.sign(weights.factors)).astype(np.int64)
    stored = weights.stored.astype(np.int64) * signs.reshape(-1, 1, 1, 1)
    with np.errstate(over="ignore", invalid="ignore"):  # what is infinite here does not fit
        exact = weights.bias / units
        bias = np.rint(exact)
        coarse = np.abs(bias - exact) * units > output_scale / 2
    if coarse.any():
        return None
    if stored.max(initial=0) > 127 or np.abs(bias).max(initial=0) > _MOST:
        return None
    return Requantized(stored.astype(np.int8), bias.astype(np.int32), units / output_scale)


def pointwise(factors: Array, shifts: Array, input_scale: float) -> Weights:
    """Return the integer weights, one for each channel, of a normalization that stands alone.

    They are as large as an int8 can be, but for channels whose shift would then not fit into the bias.
    """
    room = 2.0**30 * np.abs(factors) * input_scale / np.maximum(np.abs(shifts), np.finfo(float).tiny)
    stored = np.clip(np.floor(room), 0, 127)
    safe = np.maximum(stored, 1)
    return Weights(
        stored.astype(np.int8).reshape(-1, 1, 1, 1), np.where(stored > 0, factors / safe, 0.0), shifts
    )
