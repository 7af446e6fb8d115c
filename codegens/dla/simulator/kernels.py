"""The compute commands of the instruction set on arrays, in numpy."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ..machine import (
    ACTIVATIONS,
    MAX_SHIFT,
    Add,
    Command,
    Conv,
    DType,
    Function,
    MatMul,
    MinMax,
    Mul,
    Normalize,
    NormalizeKind,
    Operand,
    Pool,
    PoolKind,
    Quantize,
    Scale,
    Table,
    evaluate_function,
    find_dynamic_scale,
    requantize,
    round_half_even,
    scaling_fields,
    shift_half_even,
    written_operand,
)
from .kernel_convolutions import (
    check_shifts,
    clamp_to_output,
    compute_conv,
    require_array,
    require_floats,
    require_integers,
    window_axes,
    window_view,
)
from .tagged_memory import Array, FaultError

_WORD = 2**31
_LONG = 2**63


def compute(command: Command, read: Mapping[str, Array]) -> Array:
    """Return the result of a compute command, an array [rows, cols, channels].

    `read` has the operands that it reads as such arrays, by name of the field. Raises FaultError if
    types or extents do not match, or a sum overflows.
    """
    target = written_operand(command)
    if "channels" in read and target is not None and target.dtype is DType.FLOAT32:
        raise FaultError("floats have no numbers by channel")
    with np.errstate(all="ignore"):  # floats that overflow are infinite, as in hardware
        return _KERNELS[type(command)](command, read)


def _compute_pool(command: Pool, read: Mapping[str, Array]) -> Array:
    x = read["x"]
    command = _take_channels(command, read)
    rows, cols = window_axes(command)
    counts = _window_counts(rows.count_positions(0, rows.size), cols.count_positions(0, cols.size))
    if not counts.all():
        raise FaultError("a window has no position in x")
    if command.padding_counts:
        down = rows.count_positions(-rows.before, rows.size + rows.after)
        counts = _window_counts(down, cols.count_positions(-cols.before, cols.size + cols.after))
    floats = command.x.dtype is DType.FLOAT32
    if not floats and not {command.x.dtype, command.y.dtype} <= {*ACTIVATIONS}:
        raise FaultError("x and y are float32, or both are activations in integers")
    maximum = command.kind is PoolKind.MAX
    if not floats:
        x = x.astype(np.int64) - command.x_zero
    fill = (-np.inf if floats else -_WORD) if maximum else 0
    view = window_view(x, rows, cols, fill)
    if maximum:
        best = view.max(axis=(2, 3))
        return clamp_to_output(best if floats else _requantize_checked(best, command), command)
    sums = view.sum(axis=(2, 3))
    if floats:
        return clamp_to_output(sums / counts.astype(np.float32), command)
    shift = int(np.max(command.shift))
    if int(counts.max()) << shift >= _LONG // 2:
        raise FaultError(f"a shift of {shift} is too large for an average of {counts.max()}")
    rounded = round_half_even(sums * command.mantissa, counts << command.shift)
    return clamp_to_output(rounded + command.y_zero, command)


def _window_counts(down: Array, right: Array) -> Array:
    return (down[:, None] * right[None, :])[:, :, None].astype(np.int64)


def _compute_add(command: Add, read: Mapping[str, Array]) -> Array:
    a, b = _broadcast_to(read["a"], command.y), _broadcast_to(read["b"], command.y)
    if command.y.dtype is DType.FLOAT32:
        return clamp_to_output(require_floats(a) + require_floats(b), command)
    command = _take_channels(command, read)
    a, b = require_integers(a) - command.a_zero, require_integers(b) - command.b_zero
    if _largest_product(a, command.a_mantissa) + _largest_product(b, command.b_mantissa) >= _LONG:
        raise FaultError("a sum leaves the range of int64")
    sums = a * command.a_mantissa + b * command.b_mantissa
    return clamp_to_output(shift_half_even(sums, command.shift) + command.y_zero, command)


def _compute_mul(command: Mul, read: Mapping[str, Array]) -> Array:
    a, b = _broadcast_to(read["a"], command.y), _broadcast_to(read["b"], command.y)
    if command.y.dtype is DType.FLOAT32:
        return clamp_to_output(require_floats(a) * require_floats(b), command)
    command = _take_channels(command, read)
    product = (require_integers(a) - command.a_zero) * (require_integers(b) - command.b_zero)
    return clamp_to_output(_requantize_checked(product, command), command)


def _compute_matmul(command: MatMul, read: Mapping[str, Array]) -> Array:
    a, b, y = read["a"], read["b"], command.y
    wanted = (y.rows, y.cols, a.shape[2]), (y.rows, a.shape[2], y.channels)
    if (a.shape, b.shape) != wanted:
        raise FaultError(f"matrices of {a.shape} and {b.shape}, but must be {wanted[0]} and {wanted[1]}")
    if y.dtype is DType.FLOAT32:
        return clamp_to_output(np.matmul(require_floats(a), require_floats(b)), command)
    if a.itemsize != 1 or b.itemsize != 1:
        raise FaultError("matrices of integers are int8 or uint8")
    if not all(-128 <= zero <= 255 for zero in (command.a_zero, command.b_zero)):
        raise FaultError("a zero point is not in [-128, 255]")
    factors = (a.astype(np.float64) - command.a_zero, b.astype(np.float64) - command.b_zero)
    sums = np.matmul(*factors)  # exact: a float64 has more bits than a sum of products of bytes needs
    if np.abs(sums).max() >= _WORD:
        raise FaultError("a sum leaves the range of int32")
    return clamp_to_output(_requantize_checked(sums.astype(np.int64), command), command)


def _compute_normalize(command: Normalize, read: Mapping[str, Array]) -> Array:
    x = require_floats(read["x"])
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
        made = made * require_array(read["scale"], (1, 1, x.shape[2]), np.float32)
    if "bias" in read:
        made = made + require_array(read["bias"], (1, 1, x.shape[2]), np.float32)
    return made


def _compute_scale(command: Scale, read: Mapping[str, Array]) -> Array:
    x = read["x"]
    if command.y.dtype is DType.FLOAT32:
        return clamp_to_output(_scale_to_floats(command, x), command)
    command = _take_channels(command, read)
    if command.x.dtype is DType.FLOAT32:
        reals = np.ldexp(x.astype(np.float64) * command.mantissa, -np.asarray(command.shift, np.intc))
        return clamp_to_output(np.rint(reals) + command.y_zero, command)
    return clamp_to_output(_requantize_checked(require_integers(x) - command.x_zero, command), command)


def _scale_to_floats(command: Scale, x: Array) -> Array:
    """Return the real numbers of activations in float32, or what is given as it is."""
    if command.x.dtype not in ACTIVATIONS:
        return x.astype(np.float32) if x.dtype == np.int32 else require_floats(x)
    check_shifts(np.asarray(command.shift), 0, MAX_SHIFT)
    whole = (x.astype(np.int64) - command.x_zero).astype(np.float64)
    reals: Array = np.ldexp(whole * command.mantissa, -command.shift).astype(np.float32)
    return reals


def _look_up(command: Table, read: Mapping[str, Array]) -> Array:
    x, table = read["x"], read["table"]
    if x.itemsize != 1 or command.y.dtype.size != 1 or table.itemsize != 1:
        raise FaultError("a table is of bytes, for int8 and uint8")
    if table.shape not in ((1, 1, 256), (1, command.y.channels, 256)):
        raise FaultError("a table has 256 channels, and a column, or one for each channel of y")
    entries = np.ascontiguousarray(table[0]).view(command.y.dtype.array_type)
    return entries[np.arange(x.shape[2]) % len(entries), np.ascontiguousarray(x).view(np.uint8)]


def _compute_function(command: Function, read: Mapping[str, Array]) -> Array:
    return evaluate_function(command.kind, require_floats(read["x"]), command.alpha, command.beta)


def _compute_min_max(command: MinMax, read: Mapping[str, Array]) -> Array:
    x = require_floats(read["x"])
    low, high = np.fmin(x, np.float32(0)).min(), np.fmax(x, np.float32(0)).max()
    if "before" in read:
        before = require_array(read["before"], (1, 1, 2), np.float32)
        low, high = np.fmin(low, before[0, 0, 0]), np.fmax(high, before[0, 0, 1])
    return np.array([[[low, high]]], np.float32)


def _compute_quantize(command: Quantize, read: Mapping[str, Array]) -> Array:
    x, limits = require_floats(read["x"]), require_array(read["limits"], (1, 1, 2), np.float32)
    if command.y.dtype not in (DType.FLOAT32, DType.INT16):
        raise FaultError("the result of QUANTIZE is float32 or int16")
    scale, zero = find_dynamic_scale(limits)
    level = np.fmin(np.fmax(np.rint(x / scale) + zero, np.float32(0)), np.float32(255)) - zero
    return level.astype(np.int16) if command.y.dtype is DType.INT16 else level * scale


_KERNELS: Mapping[type[Command], Callable[[Any, Mapping[str, Array]], Array]] = {
    Conv: compute_conv,
    Pool: _compute_pool,
    Add: _compute_add,
    Mul: _compute_mul,
    MatMul: _compute_matmul,
    Normalize: _compute_normalize,
    Scale: _compute_scale,
    Table: _look_up,
    Function: _compute_function,
    MinMax: _compute_min_max,
    Quantize: _compute_quantize,
}


ScaledT = TypeVar("ScaledT", Add, Mul, Scale, Pool)


def _take_channels(command: ScaledT, read: Mapping[str, Array]) -> ScaledT:
    """Return a command whose numbers from the first zero point to `high` are those of `channels`.

    They are int64 [channels] then, and broadcast as single numbers do.
    """
    if "channels" not in read:
        return command
    names = scaling_fields(type(command))
    count = command.y.channels
    rows = require_array(read["channels"], (1, 1, len(names) * count), np.int32)
    given: dict[str, Any] = dict(
        zip(names, rows.reshape(len(names), count).astype(np.int64), strict=True)
    )
    check_shifts(given["shift"], 0, MAX_SHIFT)
    return replace(command, **given)


def _requantize_checked(values: Array, command: Pool | Mul | MatMul | Scale) -> Array:
    if _largest_product(values, command.mantissa) >= _LONG:
        raise FaultError("a product leaves the range of int64")
    return requantize(values, command.mantissa, command.shift, command.y_zero)


def _broadcast_to(values: Array, box: Operand) -> Array:
    """Broadcast values to the extents of the output. Raises FaultError if that is impossible."""
    shape = (box.rows, box.cols, box.channels)
    if any(extent not in (1, wanted) for extent, wanted in zip(values.shape, shape, strict=True)):
        raise FaultError(f"an operand of {values.shape} cannot be broadcast to {shape}")
    return np.broadcast_to(values, shape)


def _largest_product(values: Array, mantissa: Array | int) -> int:
    return int(np.abs(values).max()) * int(np.abs(mantissa).max())
