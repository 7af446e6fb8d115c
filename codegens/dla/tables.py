"""Functions of one variable, and tables of 256 bytes for them between int8 or uint8 tensors."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from .isa import FunctionKind
from .operand import DType

Floats = NDArray[np.float32]


_ZERO, _HALF, _ONE, _SIX = (np.float32(value) for value in (0, 0.5, 1, 6))
_FORMULAS: Mapping[FunctionKind, Callable[[Floats, np.float32, np.float32], Floats]] = {
    FunctionKind.SIGMOID: lambda x, a, b: _ONE / (_ONE + np.exp(-x)),
    FunctionKind.TANH: lambda x, a, b: np.tanh(x),
    FunctionKind.EXP: lambda x, a, b: np.exp(x),
    FunctionKind.SQRT: lambda x, a, b: np.sqrt(x),
    FunctionKind.HARD_SIGMOID: lambda x, a, b: np.clip(a * x + b, _ZERO, _ONE),
    FunctionKind.HARD_SWISH: lambda x, a, b: x * np.clip(x / _SIX + _HALF, _ZERO, _ONE),
    FunctionKind.LEAKY_RELU: lambda x, a, b: np.where(x < 0, a * x, x),
    FunctionKind.ELU: lambda x, a, b: np.where(x < 0, a * (np.exp(np.minimum(x, _ZERO)) - _ONE), x),
}


def evaluate_function(kind: FunctionKind, x: Floats, alpha: float = 0.0, beta: float = 0.0) -> Floats:
    """Apply a function to each element in float32, by the formula of ONNX's operator of that name."""
    with np.errstate(over="ignore", invalid="ignore"):  # exp of large numbers, roots of negative ones
        return _FORMULAS[kind](x, np.float32(alpha), np.float32(beta))


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
