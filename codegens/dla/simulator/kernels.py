"""The compute commands of the instruction set on arrays, in numpy."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from ..machine import (
    Add,
    Command,
    Conv,
    ConvFlags,
    DType,
    Function,
    MatMul,
    Mul,
    Normalize,
    NormalizeKind,
    Operand,
    Pool,
    PoolKind,
    Scale,
    Table,
    evaluate_function,
    requantize,
    round_half_even,
    saturate,
    shift_half_even,
)
from .kernel_windows import window_axes, window_view
from .tagged_memory import Array, FaultError

_EXACT = 2**24  # float32 represents all integers up to here
_WORD = 2**31
_LONG = 2**63


def compute(command: Command, read: Mapping[str, Array]) -> Array:
    """Return the result of a compute command, an array [rows, cols, channels].

    `read` has the operands that it reads as such arrays, by name of the field. Raises FaultError if
    types or extents do not match, or a sum overflows.
    """
    with np.errstate(all="ignore"):  # floats that overflow are infinite, as in hardware
        return _KERNELS[type(command)](command, read)


def _compute_conv(command: Conv, read: Mapping[str, Array]) -> Array:
    floats = command.x.dtype is DType.FLOAT32
    if floats is not (command.y.dtype is DType.FLOAT32):
        raise FaultError("x and y are float32, or neither is")
    return _compute_float_conv(command, read) if floats else _compute_integer_conv(command, read)


def _compute_float_conv(command: Conv, read: Mapping[str, Array]) -> Array:
    box = command.y
    sums = convolve(command, read["x"], _require_floats(read["weights"]))
    if ConvFlags.FIRST not in command.flags:
        sums = sums + _require_array(read["accumulator"], (box.rows, box.cols, box.channels), np.float32)
    elif "parameters" in read:
        sums = sums + _require_array(read["parameters"], (1, 1, box.channels), np.float32)
    if ConvFlags.LAST not in command.flags:
        return sums
    if "residual" in read:
        sums = sums + _require_array(read["residual"], sums.shape, np.float32)
    return _clamp_to_output(sums, command)


def _compute_integer_conv(command: Conv, read: Mapping[str, Array]) -> Array:
    if "residual" in read:
        raise FaultError("a convolution of integers has no residual")
    if command.x.dtype.size != 1 or command.weights.dtype is not DType.INT8:
        raise FaultError("the weights of int8 and uint8 are int8")
    first, last = ConvFlags.FIRST in command.flags, ConvFlags.LAST in command.flags
    sums = convolve(command, read["x"].astype(np.int32) - command.x_zero, read["weights"])
    start = (
        _conv_parameters(command, read)[0]
        if first
        else _require_array(read["accumulator"], sums.shape, np.int32)
    )
    sums = sums + start
    if sums.min() < -_WORD or sums.max() >= _WORD:
        raise FaultError("a sum leaves the range of int32")
    if not last:
        return sums.astype(np.int32)
    _, mantissa, shift = _conv_parameters(command, read)
    return _clamp_to_output(requantize(sums, mantissa, shift, command.y_zero), command)


def _conv_parameters(command: Conv, read: Mapping[str, Array]) -> Array:
    """Return the biases, mantissas and shifts of all output channels, int64 [3, channels]."""
    channels = command.y.channels
    return (
        _require_array(read["parameters"], (1, 1, 3 * channels), np.int32)
        .reshape(3, channels)
        .astype(np.int64)
    )


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


def _compute_pool(command: Pool, read: Mapping[str, Array]) -> Array:
    x = read["x"]
    rows, cols = window_axes(command)
    counts = _window_counts(rows.count_positions(0, rows.size), cols.count_positions(0, cols.size))
    if not counts.all():
        raise FaultError("a window has no position in x")
    if command.padding_counts:
        down = rows.count_positions(-rows.before, rows.size + rows.after)
        counts = _window_counts(down, cols.count_positions(-cols.before, cols.size + cols.after))
    floats = command.x.dtype is DType.FLOAT32
    maximum = command.kind is PoolKind.MAX
    if not floats:
        x = x.astype(np.int64) - command.x_zero
    fill = (-np.inf if floats else -_WORD) if maximum else 0
    view = window_view(x, rows, cols, fill)
    if maximum:
        best = view.max(axis=(2, 3))
        return _clamp_to_output(best if floats else _requantize_checked(best, command), command)
    sums = view.sum(axis=(2, 3))
    if floats:
        return _clamp_to_output(sums / counts.astype(np.float32), command)
    if int(counts.max()) << command.shift >= _LONG // 2:
        raise FaultError(f"a shift of {command.shift} is too large for an average of {counts.max()}")
    rounded = round_half_even(sums * command.mantissa, counts << command.shift)
    return _clamp_to_output(rounded + command.y_zero, command)


def _window_counts(down: Array, right: Array) -> Array:
    return (down[:, None] * right[None, :])[:, :, None].astype(np.int64)


def _compute_add(command: Add, read: Mapping[str, Array]) -> Array:
    a, b = _broadcast_to(read["a"], command.y), _broadcast_to(read["b"], command.y)
    if command.y.dtype is DType.FLOAT32:
        return _clamp_to_output(_require_floats(a) + _require_floats(b), command)
    a, b = _require_integers(a) - command.a_zero, _require_integers(b) - command.b_zero
    if _largest_magnitude(a) * command.a_mantissa + _largest_magnitude(b) * command.b_mantissa >= _LONG:
        raise FaultError("a sum leaves the range of int64")
    sums = a * command.a_mantissa + b * command.b_mantissa
    return _clamp_to_output(shift_half_even(sums, command.shift) + command.y_zero, command)


def _compute_mul(command: Mul, read: Mapping[str, Array]) -> Array:
    a, b = _broadcast_to(read["a"], command.y), _broadcast_to(read["b"], command.y)
    if command.y.dtype is DType.FLOAT32:
        return _clamp_to_output(_require_floats(a) * _require_floats(b), command)
    product = (_require_integers(a) - command.a_zero) * (_require_integers(b) - command.b_zero)
    return _clamp_to_output(_requantize_checked(product, command), command)


def _compute_matmul(command: MatMul, read: Mapping[str, Array]) -> Array:
    a, b, y = read["a"], read["b"], command.y
    wanted = (y.rows, y.cols, a.shape[2]), (y.rows, a.shape[2], y.channels)
    if (a.shape, b.shape) != wanted:
        raise FaultError(f"matrices of {a.shape} and {b.shape}, but must be {wanted[0]} and {wanted[1]}")
    if y.dtype is DType.FLOAT32:
        return _clamp_to_output(np.matmul(_require_floats(a), _require_floats(b)), command)
    if a.itemsize != 1 or b.itemsize != 1:
        raise FaultError("matrices of integers are int8 or uint8")
    if not all(-128 <= zero <= 255 for zero in (command.a_zero, command.b_zero)):
        raise FaultError("a zero point is not in [-128, 255]")
    factors = (a.astype(np.float64) - command.a_zero, b.astype(np.float64) - command.b_zero)
    sums = np.matmul(*factors)  # exact: a float64 has more bits than a sum of products of bytes needs
    if np.abs(sums).max() >= _WORD:
        raise FaultError("a sum leaves the range of int32")
    return _clamp_to_output(_requantize_checked(sums.astype(np.int64), command), command)


def _compute_normalize(command: Normalize, read: Mapping[str, Array]) -> Array:
    x = _require_floats(read["x"])
    if command.kind is NormalizeKind.SOFTMAX:
        if "scale" in read or "bias" in read:
            raise FaultError("a SOFTMAX has neither scale nor bias")
        e: Array = np.exp(x - x.max(axis=2, keepdims=True))
        shares: Array = e / e.sum(axis=2, keepdims=True)
        return shares
    if command.kind is NormalizeKind.LAYER:
        x = x - x.mean(axis=2, keepdims=True)
    made: Array = x / np.sqrt((x * x).mean(axis=2, keepdims=True) + np.float32(command.epsilon))
    if "scale" in read:
        made = made * _require_array(read["scale"], (1, 1, x.shape[2]), np.float32)
    if "bias" in read:
        made = made + _require_array(read["bias"], (1, 1, x.shape[2]), np.float32)
    return made


def _compute_scale(command: Scale, read: Mapping[str, Array]) -> Array:
    if command.y.dtype is DType.FLOAT32:
        x = read["x"]
        x = x.astype(np.float32) if x.dtype == np.int32 else _require_floats(x)
        return _clamp_to_output(x, command)
    return _clamp_to_output(
        _requantize_checked(_require_integers(read["x"]) - command.x_zero, command), command
    )


def _look_up(command: Table, read: Mapping[str, Array]) -> Array:
    x, table = read["x"], read["table"]
    if x.itemsize != 1 or command.y.dtype.size != 1 or table.nbytes != 256:
        raise FaultError("a table is 256 bytes, for int8 and uint8")
    entries = table.reshape(256).view(command.y.dtype.array_type)
    return entries[np.ascontiguousarray(x).view(np.uint8)]


def _compute_function(command: Function, read: Mapping[str, Array]) -> Array:
    return evaluate_function(command.kind, _require_floats(read["x"]), command.alpha, command.beta)


_KERNELS: Mapping[type[Command], Callable[[Any, Mapping[str, Array]], Array]] = {
    Conv: _compute_conv,
    Pool: _compute_pool,
    Add: _compute_add,
    Mul: _compute_mul,
    MatMul: _compute_matmul,
    Normalize: _compute_normalize,
    Scale: _compute_scale,
    Table: _look_up,
    Function: _compute_function,
}


def _requantize_checked(values: Array, command: Pool | Mul | MatMul | Scale) -> Array:
    if _largest_magnitude(values) * command.mantissa >= _LONG:
        raise FaultError("a product leaves the range of int64")
    return requantize(values, command.mantissa, command.shift, command.y_zero)


def _clamp_to_output(values: Array, command: Conv | Pool | Add | Mul | MatMul | Scale) -> Array:
    """Limit values to the range of the command, and convert them to the type of its output."""
    if command.y.dtype is DType.FLOAT32:
        return np.clip(values, np.float32(command.low), np.float32(command.high))
    return saturate(values, command.low, command.high, command.y.dtype.array_type)


def _broadcast_to(values: Array, box: Operand) -> Array:
    """Broadcast values to the extents of the output. Raises FaultError if that is impossible."""
    shape = (box.rows, box.cols, box.channels)
    if any(extent not in (1, wanted) for extent, wanted in zip(values.shape, shape, strict=True)):
        raise FaultError(f"an operand of {values.shape} cannot be broadcast to {shape}")
    return np.broadcast_to(values, shape)


def _require_array(values: Array, shape: tuple[int, ...], dtype: type) -> Array:
    """Return values. Raises FaultError if they have another shape or type."""
    if values.shape != shape or values.dtype != dtype:
        wanted = f"{shape} {np.dtype(dtype)}"
        raise FaultError(f"an operand is {values.shape} {values.dtype}, but must be {wanted}")
    return values


def _require_floats(values: Array) -> Array:
    if values.dtype != np.float32:
        raise FaultError(f"an operand is {values.dtype}, but the output is float32")
    return values


def _require_integers(values: Array) -> Array:
    if values.dtype == np.float32:
        raise FaultError("an operand is float32, but the output is an integer type")
    return values.astype(np.int64)


def _largest_magnitude(values: Array) -> int:
    return int(np.abs(values).max())
