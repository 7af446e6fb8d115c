"""Limits of the machine's arithmetic, checked for each layer as it is lowered.

A layer within the limits runs for all data: no sum overflows, and each factor is a multiplier.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from byoc.codegen import CompileError, InputError

from ..machine import to_multiplier
from .layer_tensors import Array, LayerTensor, SlidingWindow
from .layers import (
    ActivationLayer,
    ConcatLayer,
    ConvLayer,
    EltwiseLayer,
    Int4Weights,
    MachineLayer,
    MatMulLayer,
    PoolLayer,
)

_WORD = 31  # bits of an int32 without its sign
_SUM = 47  # and of a sum of int16
_LONG = 63  # and of an int64
_WIDE = 20  # the most fractional bits of a result before its residual is added


def check_limits(layer: MachineLayer) -> None:
    """Raise CompileError, with the nodes of the layer, if the machine cannot compute it for all data."""
    if not all(x.nbytes for x in layer.reads):
        raise CompileError("it reads a tensor without elements, but its result has some", layer.nodes)
    checks = _CHECKS.get(type(layer))
    reason = next(checks(layer), None) if checks else None
    if reason is not None:
        raise CompileError(reason, layer.nodes)


def residual_bits(layer: ConvLayer) -> Array:
    """Return the fractional bits of a result before its residual is added, `[1]`, or `[channels]`.

    There are as many as an int32 has room for beside every value that a residual could bring back into
    the values of the result. So saturation to int32 changes no result.
    """
    bits = np.floor(_WORD - np.log2(_residual_reach(layer)))
    clipped: Array = np.clip(bits, 0, _WIDE).astype(np.int64)
    return clipped


def _residual_reach(layer: ConvLayer) -> Array:
    assert layer.residual is not None
    finer = layer.residual.scale / layer.y.scales
    return _count_values(layer.y) + _count_values(layer.residual) * finer


def _count_values(x: LayerTensor) -> int:
    """Return the number of values that the type of a tensor of integers has."""
    return int(2 ** (8 * x.itemsize))


def _check_conv(layer: ConvLayer) -> Iterator[str]:
    yield from _check_windows(layer.window, layer.x, layer.y, dense=True)
    if not layer.y.is_integer:
        return
    if not layer.computes_in_reals:
        finer = np.ones(1)
        if layer.residual is not None:
            if (_residual_reach(layer) >= 2**_WORD).any():
                ratio = (layer.residual.scale / layer.y.scales).max()
                yield f"its residual's scale is {ratio:.3g} times its result's"
            finer = 2.0 ** residual_bits(layer)
        yield from _check_factors(layer.multipliers * finer)
    bits, name = (_SUM, "48 bits") if layer.is_wide else (_WORD, "int32")
    least, most = _sum_limits(layer)
    if least < -(2**bits) or most >= 2**bits:
        yield f"its sums can be from {least} to {most}, and leave the range of {name}"


def _sum_limits(layer: ConvLayer) -> tuple[int, int]:
    """Return the least and the greatest sum that an accumulator can reach, partial sums included.

    Zero is in the range of the input, so no partial sum exceeds the limits of the whole.
    """
    info = np.iinfo(layer.x.dtype)
    times = layer.y.channels // len(layer.x.zeros) if layer.x.has_channel_scales else 1
    zeros = np.repeat(layer.x.zeros, times)
    low, high = info.min - zeros, info.max - zeros
    bias = layer.bias.astype(np.int64)
    assert not isinstance(layer.weights, Int4Weights)  # which are for float32
    up = np.maximum(layer.weights, 0).sum(axis=(1, 2, 3), dtype=np.int64)
    down = np.minimum(layer.weights, 0).sum(axis=(1, 2, 3), dtype=np.int64)
    return int((bias + up * low + down * high).min()), int((bias + up * high + down * low).max())


def _check_pool(layer: PoolLayer) -> Iterator[str]:
    yield from _check_windows(layer.window, layer.x, layer.y, dense=False)
    if not layer.y.is_integer:
        return
    count = prod(layer.window.kernel)
    factors = np.unique(layer.x.scales / layer.y.scales)
    yield from _check_factors(factors)
    for factor in factors:
        mantissa, shift = to_multiplier(factor)
        if layer.average and (
            count << shift >= 2 ** (_LONG - 1) or count * _count_values(layer.x) * mantissa >= 2**_LONG
        ):
            yield f"the mean of {count} numbers by a scale of {factor:.3g} needs more than 64 bits"


def _check_eltwise(layer: EltwiseLayer) -> Iterator[str]:
    a, b, y = layer.a, layer.b, layer.y
    for x in (a, b):
        if any(extent not in (1, made) for extent, made in zip(x.extents, y.extents, strict=True)):
            yield "the machine has four axes, but only some of the axes that share one are broadcast"
    if layer.multiplies:
        yield from _check_factors(a.scale * b.scale / y.scales)
    else:
        yield from _check_factors(a.scale / y.scales)
        yield from _check_factors(b.scale / y.scales)


def _check_matmul(layer: MatMulLayer) -> Iterator[str]:
    if not layer.y.is_integer:
        return
    yield from _check_factors(layer.a.scales * layer.b.scales / layer.y.scales)
    most = prod(_reach(x) for x in (layer.a, layer.b)) * layer.a.channels
    if most >= 2**_WORD:
        yield f"its sums can be {most}, and leave the range of int32"


def _reach(x: LayerTensor) -> int:
    """Return the largest magnitude of a tensor's numbers without its zero point."""
    info = np.iinfo(x.dtype)
    return int(max(x.zero - info.min, info.max - x.zero))


def _check_rescaling(layer: ActivationLayer | ConcatLayer) -> Iterator[str]:
    if isinstance(layer, ConcatLayer) or layer.table is None:
        for x in layer.reads:
            yield from _check_factors(x.scales / layer.y.scales)


def _check_factors(factors: Array) -> Iterator[str]:
    """Yield the reasons why factors cannot be multipliers."""
    for factor in np.unique(factors):
        try:
            to_multiplier(float(factor))
        except InputError as error:
            yield str(error)


def _check_windows(window: SlidingWindow, x: LayerTensor, y: LayerTensor, dense: bool) -> Iterator[str]:
    """Yield the reason if a window reads nothing; if `dense`, gaps of dilation count as read."""
    if min(window.pads) < 0:
        yield "its pads are negative"
    for axis, (size, made) in enumerate(zip((x.height, x.width), (y.height, y.width), strict=True)):
        starts = np.arange(made)[:, None] * window.strides[axis] - window.pads[axis]
        step = 1 if dense else window.dilations[axis]
        reached = starts + np.arange(0, window.extent[axis], step)[None, :]
        if not ((reached >= 0) & (reached < size)).any(axis=1).all():
            yield "a window lies in the padding alone"


_CHECKS: Mapping[type[MachineLayer], Callable[[Any], Iterator[str]]] = {
    ConvLayer: _check_conv,
    PoolLayer: _check_pool,
    EltwiseLayer: _check_eltwise,
    MatMulLayer: _check_matmul,
    ActivationLayer: _check_rescaling,
    ConcatLayer: _check_rescaling,
}
