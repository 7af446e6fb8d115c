"""Fixed-point arithmetic: a factor is a mantissa and a shift, and results are rounded once.

A factor f is mantissa / 2**shift with the mantissa in [2**30, 2**31), so its relative error is at most
2**-31 (Jacob et al. 2018, section 2.2, here with the rounding of ONNX's QuantizeLinear: half to even).

Functions of one variable, and tables of 256 bytes for them between int8 or uint8 tensors.
"""

from collections.abc import Callable, Mapping
from math import frexp, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from byoc.codegen import InputError

from .instructions import DType
from .window_commands import FunctionKind

Integers = NDArray[np.int64]

_LEVELS = 255  # the greatest uint8, which DynamicQuantizeLinear makes of the greatest number
_BITS = 31  # of a multiplier, signed 32 bits
MAX_SHIFT = 62
"""The largest shift: a smaller factor takes every int32 to 0."""


def to_multiplier(factor: float) -> tuple[int, int]:
    """Return the mantissa and the shift of a factor; (0, 0) for one that takes every int32 to 0.

    Raises InputError for a factor that is negative, not finite, or at least 2**31.
    """
    if not 0 <= factor < 2.0**_BITS:
        raise InputError(f"a scale of {factor}: a multiplier is at least 0 and less than 2**{_BITS}")
    fraction, exponent = frexp(factor)  # factor = fraction * 2**exponent, fraction in [0.5, 1)
    mantissa, shift = round(fraction * 2**_BITS), _BITS - exponent
    if mantissa == 2**_BITS:
        mantissa, shift = mantissa // 2, shift - 1
    if shift < 0:
        raise InputError(f"a scale of {factor}: a multiplier is less than 2**{_BITS}")
    return (mantissa, shift) if mantissa and shift <= MAX_SHIFT else (0, 0)


def to_common_multipliers(one: float, other: float) -> tuple[int, int, int]:
    """Return the mantissas of two factors and the shift of both, as ADD takes them.

    The larger mantissa is as `to_multiplier` makes it; the other's error is at most 2**-(shift + 1).
    Raises InputError as `to_multiplier` does.
    """
    _, shift = to_multiplier(max(one, other))
    for factor in (one, other):
        to_multiplier(factor)
    return round(one * 2**shift), round(other * 2**shift), shift


def round_half_even(numerator: Integers, denominator: Integers) -> Integers:
    """Return numerator / denominator rounded to the nearest integer, halves to even.

    The denominator is in [1, 2**62).
    """
    quotient, rest = np.divmod(numerator, denominator)
    twice = 2 * rest
    up = (twice > denominator) | ((twice == denominator) & (quotient & 1 == 1))
    result: Integers = quotient + up
    return result


def shift_half_even(values: Integers, shift: Integers | int) -> Integers:
    """Return values / 2**shift rounded to the nearest integer, halves to even; shift is in [0, 62]."""
    quotient = values >> shift
    one = np.int64(1) << shift
    twice = (values & (one - 1)) << 1
    up = (twice > one) | ((twice == one) & (quotient & 1 == 1))
    result: Integers = quotient + up
    return result


def requantize(
    sums: Integers, mantissa: Integers | int, shift: Integers | int, zero: Integers | int
) -> Integers:
    """Return sums * mantissa / 2**shift, rounded, plus the zero point.

    The product must fit into int64, as the product of an int32 and a mantissa always does.
    """
    return shift_half_even(sums.astype(np.int64) * mantissa, shift) + zero


def saturate(
    values: NDArray[Any],
    low: NDArray[Any] | float,
    high: NDArray[Any] | float,
    dtype: np.dtype[np.integer],
) -> NDArray[np.integer]:
    """Return values limited to [low, high] and to the range of a type, as that type; of a NaN, low."""
    limits = np.iinfo(dtype)
    least, most = np.maximum(low, limits.min), np.minimum(high, limits.max)
    limited: NDArray[np.integer] = np.fmin(np.fmax(values, least), most).astype(dtype)
    return limited


def to_real_multiplier(factor: float) -> tuple[int, int]:
    """Return the mantissa and the shift of a factor of CONV's output stage; the shift may be negative.

    The factor is finite and at least 0.
    """
    fraction, exponent = frexp(factor)
    mantissa, shift = round(fraction * 2**_BITS), _BITS - exponent
    return (mantissa // 2, shift - 1) if mantissa == 2**_BITS else (mantissa, shift)


Floats = NDArray[Any]
"""float32 or float64; a function's result has the type of its argument."""


def _erf(x: Floats) -> Floats:
    return np.asarray(erf(x), x.dtype)


_ROOT_HALF, _ROOT_TWO_PI = 0.5**0.5, (2 / pi) ** 0.5


def _gelu_tanh(x: Floats) -> Floats:
    inner: Floats = x + 0.044715 * x * x * x
    made: Floats = 0.5 * x * (1 + np.tanh(_ROOT_TWO_PI * inner))
    return made


_FORMULAS: Mapping[FunctionKind, Callable[[Floats, float, float], Floats]] = {
    FunctionKind.SIGMOID: lambda x, a, b: 1 / (1 + np.exp(-x)),
    FunctionKind.TANH: lambda x, a, b: np.tanh(x),
    FunctionKind.EXP: lambda x, a, b: np.exp(x),
    FunctionKind.SQRT: lambda x, a, b: np.sqrt(x),
    FunctionKind.HARD_SIGMOID: lambda x, a, b: np.clip(a * x + b, 0, 1),
    FunctionKind.HARD_SWISH: lambda x, a, b: x * np.clip(x / 6 + 0.5, 0, 1),
    FunctionKind.LEAKY_RELU: lambda x, a, b: np.where(x < 0, a * x, x),
    FunctionKind.ELU: lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
    FunctionKind.ERF: lambda x, a, b: _erf(x),
    FunctionKind.GELU: lambda x, a, b: 0.5 * x * (1 + _erf(x * _ROOT_HALF)),
    FunctionKind.GELU_TANH: lambda x, a, b: _gelu_tanh(x),
    FunctionKind.RECIPROCAL: lambda x, a, b: 1 / x,
    FunctionKind.SWISH: lambda x, a, b: x / (1 + np.exp(-a * x)),
    FunctionKind.IDENTITY: lambda x, a, b: x,
    FunctionKind.HARD_GATE: lambda x, a, b: x * np.clip(a * x + b, 0, 1),
}


def evaluate_function(kind: FunctionKind, x: Floats, alpha: float = 0.0, beta: float = 0.0) -> Floats:
    """Apply a function to each element of an array, by the formula of ONNX's operator of that name.

    `alpha` and `beta` are rounded to float32, as a program has them.
    """
    with np.errstate(all="ignore"):  # exp of large numbers, roots of negative ones, one over 0
        return _FORMULAS[kind](x, float(np.float32(alpha)), float(np.float32(beta)))


def find_dynamic_scale(limits: NDArray[np.float32]) -> tuple[np.float32, np.float32]:
    """Return the scale and the zero point that QUANTIZE has for the least and the greatest number.

    They are those of ONNX's DynamicQuantizeLinear, computed in float32; `limits` has two elements, of
    which the first is at most 0, and the second at least 0.
    """
    low, high = (np.float32(limit) for limit in limits.reshape(-1))
    with np.errstate(all="ignore"):  # of limits that are infinite, or next to the greatest number
        scale = (high - low) / np.float32(_LEVELS)
        scale = scale if scale else np.float32(1)
        zero = np.fmin(np.fmax(np.rint(-low / scale), np.float32(0)), np.float32(_LEVELS))
    return scale, zero


def build_table(  # noqa: PLR0913, PLR0917 - a scale, a zero point and a type on either side
    function: Callable[[Floats], Floats],
    x_scale: float,
    x_zero: int,
    x_dtype: DType,
    y_scale: float,
    y_zero: int,
    y_dtype: DType,
) -> bytes:
    """Return the table of a function for TABLE, equal to ONNX's operators between quantized tensors.

    That is QuantizeLinear(function(DequantizeLinear(x))), all in float32, rounded half to even and
    saturated. Byte i is the result for the x with the bits of i.
    """
    x = np.arange(256, dtype=np.uint8).view(x_dtype.array_type).astype(np.float32)
    real = function((x - np.float32(x_zero)) * np.float32(x_scale))
    limits = np.iinfo(y_dtype.array_type)
    rounded = np.rint(real / np.float32(y_scale)) + np.float32(y_zero)
    return bytes(np.clip(rounded, limits.min, limits.max).astype(y_dtype.array_type))


def split_bytes(packed: NDArray[np.uint8], count: int) -> NDArray[np.uint8]:
    """Return the first `count` numbers of 4 bits in rows of bytes, uint8 [rows, count].

    The earlier of two numbers is in the lower half of a byte, as in UNPACK and in MatMulNBits.
    """
    halves = np.stack([packed & 15, packed >> 4], axis=2)
    return halves.reshape(len(packed), 2 * packed.shape[1])[:, :count]
