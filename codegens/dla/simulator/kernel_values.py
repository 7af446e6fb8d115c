"""Operands and results of commands as arrays: types and extents that they must have, limits, shifts."""

import numpy as np

from ..machine import Add, Conv, DType, MatMul, Mul, Pool, Scale, saturate
from .tagged_memory import Array, FaultError


def clamp_to_output(values: Array, command: Conv | Pool | Add | Mul | MatMul | Scale) -> Array:
    """Limit values to the range of the command, and convert them to the type of its output."""
    if command.y.dtype is DType.FLOAT32:
        return np.clip(values, np.float32(command.low), np.float32(command.high))
    return saturate(values, command.low, command.high, command.y.dtype.array_type)


def check_shifts(shifts: Array, least: int, most: int) -> None:
    """Raise FaultError for a shift out of a range, both ends of which are in it."""
    if (shifts < least).any() or (shifts > most).any():
        raise FaultError(f"a shift is not in [{least}, {most}]")


def require_array(values: Array, shape: tuple[int, ...], dtype: type) -> Array:
    """Return values. Raises FaultError if they have another shape or type."""
    if values.shape != shape or values.dtype != dtype:
        wanted = f"{shape} {np.dtype(dtype)}"
        raise FaultError(f"an operand is {values.shape} {values.dtype}, but must be {wanted}")
    return values


def require_floats(values: Array) -> Array:
    """Return values. Raises FaultError if they are not float32."""
    if values.dtype != np.float32:
        raise FaultError(f"an operand is {values.dtype}, but the output is float32")
    return values


def require_integers(values: Array) -> Array:
    """Return values as int64. Raises FaultError if they are float32, or sums of 48 bits."""
    if values.dtype == np.float32:
        raise FaultError("an operand is float32, but the output is an integer type")
    if values.dtype == np.int64:
        raise FaultError("an operand is int64, which accumulators alone are")
    return values.astype(np.int64)
