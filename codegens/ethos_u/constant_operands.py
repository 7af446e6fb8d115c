"""The constant operands of convolutions and products: scales of weights, and biases."""

import numpy as np

from byoc.codegen import CompileError, Operation

from .lowering import Lowering, require_positive
from .region_values import Value
from .tosa_file import Array

_WEIGHTS = 1  # the inputs of these positions
_BIAS = 2


def real_scale(value: Value) -> float:
    """Return the scale of a value."""
    assert value.quantization is not None
    return float(value.quantization.scale)


def read_scales(operation: Operation, channels: int) -> Array:
    """Return the scales of int8 weights: one, or one for each index of the axis `channels`.

    That is the axis of the result's channels. Raises CompileError for scales along another one, and for
    what is no int8 weight with a zero point of 0.
    """
    name = operation.inputs[_WEIGHTS]
    quantization = operation.input_quantization[_WEIGHTS]
    if quantization is None or quantization.dtype != "int8":
        raise CompileError(f"the weights '{name}' are no quantized int8")
    if np.any(quantization.zero_point != 0) or quantization.block_size:
        raise CompileError(f"the weights '{name}' have zero points other than 0, or scales for blocks")
    if quantization.scale.size > 1 and quantization.axis != channels:
        raise CompileError(
            f"the weights '{name}' have scales along axis {quantization.axis}, not {channels},"
            " that of the result's channels"
        )
    require_positive(quantization, name)
    return np.atleast_1d(quantization.scale.astype(np.float64))


def read_real(operation: Operation, lowering: Lowering, position: int) -> Array:
    """Return a constant operand as real numbers, dequantized where it is quantized.

    Raises CompileError where it is computed.
    """
    stored = lowering.constant(operation, position)
    if stored is None:
        raise CompileError(f"{operation.op} lacks its input {position}")
    stated = (*operation.input_quantization, *[None] * (position + 1))[position]
    return stored if stated is None else stated.dequantize(stored)


def read_bias(
    operation: Operation, lowering: Lowering, source: Value, factors: Array, count: int
) -> Array:
    """Return `count` biases in units of `factors`: as stored where they have these scales, else rounded.

    Zeros where there is no bias. Sums have 32 bits, those of int16 operands 40.
    """
    stored = lowering.constant(operation, _BIAS)
    if stored is None:
        return np.zeros(count, np.int64)
    quantization = operation.input_quantization[_BIAS]
    if quantization is None or quantization.dtype not in ("int32", "int16", "int8"):
        raise CompileError(f"the bias '{operation.inputs[_BIAS]}' is no quantized integer")
    if stored.size != 1 and (stored.size, stored.shape[-1]) != (count, count):
        raise CompileError(f"the bias '{operation.inputs[_BIAS]}' is neither one number nor {count}")
    points = quantization.zero_point.astype(np.int64)
    real = (stored.astype(np.int64) - points) * quantization.scale.astype(np.float64)
    bias = np.rint(np.broadcast_to(real.reshape(-1), (count,)) / factors)
    bits = 39 if source.tensor.dtype == "int16" else 31
    return np.clip(bias, -(2.0**bits), 2.0**bits - 1).astype(np.int64)
