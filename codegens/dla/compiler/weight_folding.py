"""Weights of convolutions with normalizations folded in, and their conversion to integers.

All is computed in float64. A convolution is linear, so a factor for each output channel goes into the
weights in float32, and into the multipliers in integers.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .layer_tensors import Array

_MOST = 2**31 - 1
_DIGITS = 2.0**-22  # of a number, what two roundings to float32 may change it by
_FINE = 2.0**-16  # of a unit of the output, the scale of channels with all weights 0


@dataclass(frozen=True, eq=False)
class ConvWeights:
    """The weights of a convolution, [output channels][input channels of a group][rows][columns].

    `factors` and `bias` have one float64 for each output channel. A real weight is the stored weight
    times the factor, which is 1 for floats and the scale for integers. `bias` is in real numbers.
    """

    stored: Array
    factors: Array
    bias: Array

    @property
    def is_integer(self) -> bool:
        """Whether the weights are stored as integers."""
        return bool(self.stored.dtype == np.int8)

    def scale_and_shift(self, factors: Array, shifts: Array) -> "ConvWeights":
        """Return weights whose result is `factors` times the result of these plus `shifts`."""
        return replace(self, factors=self.factors * factors, bias=self.bias * factors + shifts)

    def to_float32(self) -> Array:
        """Return the real weights in float32, with factors applied."""
        return (self.stored * self.factors.reshape(-1, 1, 1, 1)).astype(np.float32)


def normalization_factors(
    scale: Array, shift: Array, mean: Array, variance: Array, epsilon: float
) -> Any:
    """Return the factor and the shift of each channel that are equal to a BatchNormalization.

    ONNX defines it as scale * (x - mean) / sqrt(variance + epsilon) + shift.
    """
    given = (each.astype(np.float64) for each in (scale, shift, mean, variance))
    scale, shift, mean, variance = given
    factors = scale / np.sqrt(variance + epsilon)
    return factors, shift - mean * factors


@dataclass(frozen=True, eq=False)
class IntegerWeights:
    """Integer weights of a convolution with int32 accumulators.

    `bias` is in units of the accumulators, and `multipliers` bring them to units of the output: real,
    positive float64, one for each output channel.
    """

    weights: Array
    bias: Array
    multipliers: Array


def requantize_weights(
    weights: ConvWeights, input_scales: Array, output_scales: Array
) -> IntegerWeights | None:
    """Return integer weights for the given scales of input and output, or None if that is impossible.

    Scales are one for all output channels, or one for each, that of the input channel it is made of.

    An accumulator counts units of an input's scale * |factor|; a negative factor changes the sign of its
    channel's weights. It is impossible if a bias does not fit into an int32 or is rounded by more than
    half a unit of the output and more than float32 rounds it, or if a weight of -128 would change its
    sign.
    """
    units = input_scales * np.abs(weights.factors)
    dead = units == 0
    units = np.where(dead, output_scales * _FINE, units)
    signs = np.where(dead, 0, np.sign(weights.factors)).astype(np.int64)
    stored = weights.stored.astype(np.int64) * signs.reshape(-1, 1, 1, 1)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are refused below
        exact = weights.bias / units
        bias = np.rint(exact)
        error = np.abs(bias - exact)
        coarse = (error * units > output_scales / 2) & (error > _DIGITS * np.abs(exact))
    if coarse.any():
        return None
    if stored.max(initial=0) > 127 or np.abs(bias).max(initial=0) > _MOST:
        return None
    return IntegerWeights(stored.astype(np.int8), bias.astype(np.int32), units / output_scales)


def normalization_weights(factors: Array, shifts: Array, input_scale: float) -> ConvWeights:
    """Return the integer weights, one for each channel, of a normalization that is not fused.

    They are as large as an int8 allows, but smaller for a channel with a shift that would otherwise not
    fit into the bias.
    """
    room = 2.0**30 * np.abs(factors) * input_scale / np.maximum(np.abs(shifts), np.finfo(float).tiny)
    stored = np.clip(np.floor(room), 0, 127)
    safe = np.maximum(stored, 1)
    return ConvWeights(
        stored.astype(np.int8).reshape(-1, 1, 1, 1), np.where(stored > 0, factors / safe, 0.0), shifts
    )
