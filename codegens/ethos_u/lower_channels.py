"""Operators that scale and shift each channel of an image alone."""

import numpy as np

from byoc.codegen import CompileError, Operation, Quantization

from .constant_operands import read_real, real_scale
from .lowering import LOWERINGS, Lowering
from .region_values import IMAGE, Value, arrange
from .tosa_file import Array
from .windows import Filters, Window, convolve

_WEIGHT = 127  # of each channel: biases are in units of an element by it, so they are fine
_MOST_BIAS = 2.0**30
_FINE = 2.0**-8  # the unit of the bias, in the result's scale, of a channel that is constant


@LOWERINGS.op("BatchNormalization")
def lower_batch_normalization(operation: Operation, lowering: Lowering) -> None:
    """One scale and one bias for each channel (ONNX, BatchNormalization at inference)."""
    source = lowering.read(operation, 0)
    if source.rank != 4 or source.tensor.dtype != "int8":
        raise CompileError("a BatchNormalization is taken of int8 images")
    if operation.attributes.get("training_mode", 0) or any(operation.outputs[1:]):
        raise CompileError("a BatchNormalization that trains is not taken")
    scale, bias, mean, variance = (
        read_real(operation, lowering, position).astype(np.float64) for position in range(1, 5)
    )
    factors = scale / np.sqrt(variance + float(operation.attributes.get("epsilon", 1e-5)))
    if not np.all(np.isfinite(factors)):
        raise CompileError("the factors of a BatchNormalization must be finite")
    wanted = lowering.result(operation)
    lowering.finish(operation, scale_channels(source, lowering, factors, bias - factors * mean, wanted))


def scale_channels(
    source: Value, lowering: Lowering, factors: Array, shifts: Array, wanted: Quantization
) -> Value:
    """Return `source * factors + shifts` of an int8 image, one factor and one shift for each channel.

    It is a DEPTHWISE_CONV2D of one element: weights have the signs of the factors, the rescaling behind
    it their magnitudes. A factor so small that the bias would not fit moves the result by less than a
    hundredth of its unit, and is 0.
    """
    given, made = real_scale(source), float(wanted.scale)
    units = np.abs(factors).astype(np.float64) * given / _WEIGHT
    with np.errstate(divide="ignore", invalid="ignore"):
        biases = np.where(units > 0, shifts / units, np.inf)
    fits = np.abs(biases) < _MOST_BIAS
    units = np.where(fits, units, made * _FINE)
    limit = made * 2.0**16  # beyond it the result is saturated
    biases = np.where(fits, biases, np.clip(shifts, -limit, limit) / units)
    weights = np.where(fits, np.sign(factors) * _WEIGHT, 0)
    image = arrange(lowering.graph, source, IMAGE)
    filters = Filters("DEPTHWISE_CONV2D", weights.reshape(1, 1, -1, 1), np.rint(biases))
    window = Window(image.tensor.shape)
    sums = convolve(lowering, image, filters, {"shape": window.shape, **window.convolution})
    scales = units / made
    one = scales if np.ptp(scales) else scales[:1]
    return Value(lowering.narrow(sums, one, wanted), IMAGE, wanted)
