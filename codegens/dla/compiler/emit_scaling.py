"""Scales and zero points of commands: one number for all channels, or a table of them."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ..machine import (
    Command,
    DType,
    scaling_fields,
    to_common_multipliers,
    to_multiplier,
    to_real_multiplier,
)
from .boxes import AxisSpan
from .emission import LayerEmission
from .layer_limits import residual_bits
from .layer_tensors import LayerTensor
from .layers import Array, ConvLayer, EltwiseLayer, MachineLayer

SLOT = "channels"
"""The slot of tables."""


def emit_scaling(
    emitting: LayerEmission,
    kind: type[Command],
    layer: MachineLayer,
    inputs: Sequence[LayerTensor],
    made: AxisSpan,
) -> dict[str, Any]:
    """Return the fields of a command that makes the channels `made` of the layer's result of `inputs`.

    They are the numbers of `scaling_fields`, or where these differ by channel the operand `channels`.
    """
    y, names = layer.y, scaling_fields(kind)
    if not has_channel_scaling((*inputs, y)):
        limits = layer.clamp.saturate_limits(y)
        return dict(zip(names, _find_numbers(layer, inputs, y, limits), strict=True))

    def array() -> Array:
        lows, highs = layer.clamp.channel_limits(y)
        rows = [
            _find_numbers(layer, [x.at_channel(c) for x in inputs], y.at_channel(c), (lows[c], highs[c]))
            for c in range(made.start, made.end)
        ]
        return np.ascontiguousarray(np.array(rows, np.int64).T).astype("<i4")

    count = len(names) * made.count
    return {"channels": emitting.constant(SLOT, (kind, made), array, count, DType.INT32)}


def has_channel_scaling(tensors: Sequence[LayerTensor]) -> bool:
    """Whether one of some tensors has a scale for each channel."""
    return any(each.has_channel_scales for each in tensors)


def _find_numbers(
    layer: MachineLayer, inputs: Sequence[LayerTensor], y: LayerTensor, limits: tuple[float, float]
) -> tuple[float, ...]:
    """Return zero points, mantissas, shift and limits of tensors with one scale each."""
    zeros, scales = [x.zero for x in (*inputs, y)], [x.scale for x in inputs]
    if isinstance(layer, EltwiseLayer) and layer.multiplies:
        factors: tuple[int, ...] = to_multiplier(prod(scales) / y.scale)
    elif len(scales) == 2:
        factors = to_common_multipliers(scales[0] / y.scale, scales[1] / y.scale)
    else:
        factors = to_multiplier(scales[0] / y.scale)
    return (*zeros, *factors, *limits)


def conv_parameters(layer: ConvLayer, taken: slice) -> Array:
    """Return the parameters of some output channels of a CONV, in the order of WEIGHTS."""
    if not layer.y.is_integer:
        return layer.bias[taken].astype("<f4")
    return np.ascontiguousarray(_integer_parameters(layer)[:, taken]).astype("<i4")


def _integer_parameters(layer: ConvLayer) -> Array:
    """Return the rows of parameters of a convolution of integers, int64 [3 or 9, channels].

    Where another command is to add a residual, results are int32 in units finer than those of `y`.
    """
    x, y, channels = layer.x, layer.y, layer.y.channels
    is_wide = layer.adds_residual_apart
    split = to_real_multiplier if layer.computes_in_reals else to_multiplier
    finer = 2.0 ** residual_bits(layer) if is_wide else np.ones(1)
    rows = [layer.bias, *_split_factors(layer.multipliers * finer, split)]
    if layer.count_parameters() > len(rows):
        y_zeros, limits = y.zeros, layer.clamp.channel_limits(y)
        if is_wide:
            word = np.iinfo(np.int32)
            y_zeros, limits = np.zeros(1, np.int64), (np.array([word.min]), np.array([word.max]))
        times = channels // len(x.zeros) if x.has_channel_scales else 1
        units = _split_factors(1 / y.scales, to_real_multiplier)
        rows += [np.repeat(x.zeros, times), y_zeros, *limits, *units]
    return np.stack([np.broadcast_to(row.astype(np.int64), channels) for row in rows])


def _split_factors(factors: Array, split: Callable[[float], tuple[int, int]]) -> Array:
    """Return the mantissas and the shifts of factors, int64 [2, factors]."""
    return np.array([split(float(each)) for each in factors], np.int64).T
