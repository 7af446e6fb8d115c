"""Convolutions on arrays: exact sums of integers, and the output stage that makes bytes of them."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ..machine import (
    ACTIVATIONS,
    MAX_SHIFT,
    Conv,
    ConvFlags,
    DType,
    FunctionKind,
    evaluate_function,
    requantize,
)
from .kernel_values import check_shifts, clamp_to_output, require_array, require_floats
from .kernel_windows import window_axes, window_view
from .tagged_memory import Array, FaultError

_EXACT = 2**24  # float32 represents all integers up to here
_WORD = 2**31
_WIDE = 2**47  # of the sums of int16
_BOXES = tuple(dtype.array_type for dtype in ACTIVATIONS)


def compute_conv(command: Conv, read: Mapping[str, Array]) -> Array:
    """Return the result of CONV, or its sums where more input channels follow."""
    floats = command.x.dtype is DType.FLOAT32
    if floats is not (command.y.dtype is DType.FLOAT32):
        raise FaultError("x and y are float32, or neither is")
    return _compute_float_conv(command, read) if floats else _compute_integer_conv(command, read)


def _compute_float_conv(command: Conv, read: Mapping[str, Array]) -> Array:
    box = command.y
    sums = convolve(command, read["x"], require_floats(read["weights"]))
    if ConvFlags.FIRST not in command.flags:
        sums = sums + require_array(read["accumulator"], (box.rows, box.cols, box.channels), np.float32)
    elif "parameters" in read:
        sums = sums + require_array(read["parameters"], (1, 1, box.channels), np.float32)
    if ConvFlags.LAST not in command.flags:
        return sums
    if "residual" in read:
        sums = sums + require_array(read["residual"], sums.shape, np.float32)
    made = evaluate_function(command.function, sums, command.alpha, command.beta)
    return clamp_to_output(made, command)


def _compute_integer_conv(command: Conv, read: Mapping[str, Array]) -> Array:
    is_wide = command.x.dtype is DType.INT16
    applies = is_wide or command.function is not FunctionKind.IDENTITY
    if "residual" in read and not applies:
        raise FaultError("a convolution of bytes without a function has no residual")
    if command.x.dtype not in ACTIVATIONS or command.weights.dtype is not DType.INT8:
        raise FaultError("the weights of int8, uint8 and int16 are int8")
    first, last = ConvFlags.FIRST in command.flags, ConvFlags.LAST in command.flags
    if last and command.y.dtype is DType.INT64:
        raise FaultError("y is int64, which accumulators alone are")
    rows = _conv_parameters(command, read) if first or last else {}
    if applies and last and "y_mantissa" not in rows:
        raise FaultError("a convolution with a function or of int16 has nine rows of parameters")
    given: dict[str, Any] = {name: rows[name] for name in _CONV_FIELDS if name in rows}
    command = replace(command, **given)
    sums = convolve(command, read["x"].astype(np.int32) - _input_zeros(command), read["weights"])
    kind, most = (np.int64, _WIDE) if is_wide else (np.int32, _WORD)
    sums = sums + (rows["bias"] if first else require_array(read["accumulator"], sums.shape, kind))
    if sums.min() < -most or sums.max() >= most:
        raise FaultError(f"a sum leaves the range of {'48 bits' if is_wide else 'int32'}")
    if not last:
        return sums.astype(kind)
    if applies:
        return clamp_to_output(_compute_output_stage(command, sums, rows, read), command)
    check_shifts(rows["shift"], 0, MAX_SHIFT)
    return clamp_to_output(requantize(sums, rows["mantissa"], rows["shift"], command.y_zero), command)


_CONV_FIELDS = ("x_zero", "y_zero", "low", "high")
_CONV_ROWS = ("bias", "mantissa", "shift", *_CONV_FIELDS, "y_mantissa", "y_shift")
_MOST_REAL_SHIFT = 2000


def _conv_parameters(command: Conv, read: Mapping[str, Array]) -> dict[str, Array]:
    """Return the rows of parameters by name, each int64 [channels]: three, or all."""
    channels = command.y.channels
    count = 3 if read["parameters"].size == 3 * channels else len(_CONV_ROWS)
    rows = require_array(read["parameters"], (1, 1, count * channels), np.int32)
    return dict(zip(_CONV_ROWS, rows.reshape(count, channels).astype(np.int64), strict=False))


def _input_zeros(command: Conv) -> Array:
    """Return the zero point of the input, or one for each of its channels, int32."""
    zeros, channels = np.asarray(command.x_zero, np.int32).reshape(-1), command.x.channels
    if (zeros == zeros[0]).all():
        zeros = zeros[:1]
    else:
        if command.groups != channels or len(zeros) % channels:
            raise FaultError("the channels of x have zero points of their own, but share a group")
        each = zeros.reshape(channels, -1)
        if (each != each[:, :1]).any():
            raise FaultError("a channel of x has several zero points")
        zeros = each[:, 0]
    least, most = (-(2**15), 2**15 - 1) if command.x.dtype is DType.INT16 else (-128, 255)
    if (zeros < least).any() or (zeros > most).any():
        raise FaultError("its zero point is not one of its type")
    return zeros


def _compute_output_stage(
    command: Conv, sums: Array, rows: Mapping[str, Array], read: Mapping[str, Array]
) -> Array:
    """Return the function of sums and residual in units of the result, float64."""
    check_shifts(rows["shift"], -_MOST_REAL_SHIFT, _MOST_REAL_SHIFT)
    check_shifts(rows["y_shift"], -_MOST_REAL_SHIFT, _MOST_REAL_SHIFT)
    shift, y_shift = (rows[name].astype(np.intc) for name in ("shift", "y_shift"))
    reals = np.ldexp(sums.astype(np.float64) * rows["mantissa"], -shift)
    if "residual" in read:
        residual = read["residual"]
        if residual.shape != sums.shape or residual.dtype not in _BOXES:
            raise FaultError("a residual of integers is a box of activations like y")
        whole = residual.astype(np.float64) - command.residual_zero
        reals = reals + whole * float(np.float32(command.residual_scale))
    made = evaluate_function(command.function, reals, command.alpha, command.beta)
    found: Array = np.rint(np.ldexp(made * rows["y_mantissa"], -y_shift)) + command.y_zero
    return found


def convolve(command: Conv, x: Array, weights: Array) -> Array:
    """Return the sums of a convolution without bias, [rows, cols, channels]: float32, or exact int64.

    `x` is the tile [rows, cols, channels] with the zero point subtracted, `weights` those of the
    command.
    """
    kernel, groups = command.kernel, command.groups
    if not groups or x.shape[2] % groups or command.y.channels % groups:
        raise FaultError(f"{groups} groups do not divide the channels of x and y")
    per_group = x.shape[2] // groups
    shape = (command.y.channels, kernel.rows, kernel.cols, per_group)
    if weights.size != prod(shape):
        raise FaultError(f"there are {weights.size} weights, but {prod(shape)} are needed")
    weights = weights.reshape(shape)
    integers = x.dtype.kind == "i"
    if integers:
        kind = _exact_type(x, weights)
        x, weights = x.astype(kind), weights.astype(kind)
    rows, cols = window_axes(command)
    view = window_view(x, rows, cols, 0)
    sums = _depthwise_sums(view, weights) if per_group == 1 else _grouped_products(view, weights, groups)
    return sums.astype(np.int64) if integers else sums


def _exact_type(x: Array, weights: Array) -> type:
    """Return the fastest float type whose sums of products are exact integers, in any order."""
    most = int(np.abs(x).max()) * int(np.abs(weights.astype(np.int64)).sum(axis=(1, 2, 3)).max())
    return np.float32 if most <= _EXACT else np.float64


def _grouped_products(view: Array, weights: Array, groups: int) -> Array:
    """Return one matrix product per group; `view` is the result of `window_view`."""
    rows, cols, down, right, channels = view.shape
    count, per_group = len(weights) // groups, channels // groups
    tile = view.reshape(rows, cols, down, right, groups, per_group)
    left = tile.transpose(4, 0, 1, 2, 3, 5).reshape(groups, rows * cols, -1)
    factors = weights.reshape(groups, count, -1).transpose(0, 2, 1)
    products: Array = np.matmul(left, factors)
    return products.transpose(1, 0, 2).reshape(rows, cols, groups * count)


def _depthwise_sums(view: Array, weights: Array) -> Array:
    """Return the sums of a depthwise convolution: a product for each kernel position."""
    rows, cols, down, right, channels = view.shape
    times = len(weights) // channels
    sums = np.zeros((rows, cols, len(weights)), view.dtype)
    for u in range(down):
        for v in range(right):
            sums += np.repeat(view[:, :, u, v], times, axis=2) * weights[:, u, v, 0]
    return sums
