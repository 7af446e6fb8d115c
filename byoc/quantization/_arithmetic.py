"""Quantization arithmetic: scales and zero points from ranges, integers from floats.

`real = scale * (quantized - zero_point)`, as in ONNX's QuantizeLinear. Scale and zero point of a range
follow Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (2018, sections 2.1 and 3), like TensorFlow Lite and onnxruntime's quantizer.

Here are also the properties of operators that this needs, and the values of constants, which are read or
computed on demand and not kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, ValueInfoProto, helper, numpy_helper

from byoc.model import GraphIndex, get_stated_attributes, is_onnx, read_array
from byoc.quantization._ranges import DTYPES

OPERANDS = frozenset(
    [
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "Concat", "PRelu"),
        *("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"),
    ]
)
"""A constant is here any other input; elsewhere it is a parameter, and stays float."""

WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""A second input with channels, and perhaps a bias as the third."""


def find_channels(index: GraphIndex, node: NodeProto) -> tuple[int, int] | None:
    """Return the axis of the weights that has the output's channels, and the number of groups.

    ConvTranspose has weights `[C, M / group, ...]` (ONNX, ConvTranspose), so one index of axis 1 stands
    for a channel in each group. None for operators without weights, or weights of unknown rank.
    """
    if not is_onnx(node) or node.op_type not in WEIGHTED:
        return None
    rank = index.get_rank(node.input[1])
    if rank is None:
        return None
    attributes = get_stated_attributes(node)
    if node.op_type in ("Conv", "ConvTranspose"):
        return int(node.op_type == "ConvTranspose"), int(attributes.get("group", 1))
    if node.op_type == "Gemm":
        return (0 if attributes.get("transB", 0) else 1), 1
    return (rank - 1, 1) if rank > 1 else None


def is_depthwise(index: GraphIndex, node: NodeProto) -> bool:
    """Return whether a node is a Conv each of whose output channels reads one of several channels."""
    if not is_onnx(node) or node.op_type != "Conv":
        return False
    shape = index.get_shape(node.input[1])
    groups = get_stated_attributes(node).get("group", 1)
    return shape is not None and shape[1] == 1 and groups > 1


def read_constant(index: GraphIndex, name: str, folder: Path | None) -> NDArray[Any]:
    """Return the value of a constant: the stored one, or computed by ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - slow to import, seldom needed

    if name in index.stored_tensors:
        return read_array(index.stored_tensors[name], folder)
    nodes = [index.nodes[number] for number in index.find_constant_nodes([name])]
    read = {other for node in nodes for other in node.input if other in index.stored_tensors}
    stored = [
        numpy_helper.from_array(read_array(index.stored_tensors[other], folder), other)
        for other in sorted(read)
    ]
    graph = helper.make_graph(nodes, "constant", [], [ValueInfoProto(name=name)], stored)
    imports = index.proto.opset_import
    model = helper.make_model(graph, opset_imports=imports, ir_version=index.proto.ir_version)
    made: Sequence[Any] = ReferenceEvaluator(model).run(None, {})  # type: ignore[assignment]
    return np.asarray(made[0])


def read_dequantized(
    index: GraphIndex, node: NodeProto, folder: Path | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the constant that a DequantizeLinear makes, and its scale, broadcast to the same rank."""
    values = [read_constant(index, name, folder) for name in node.input]
    integers, scale = (value.astype(np.float64) for value in values[:2])
    point = values[2].astype(np.float64) if len(values) > 2 else np.zeros_like(scale)
    shape = [1] * integers.ndim
    if scale.ndim:
        shape[helper.get_node_attr_value(node, "axis")] = -1
    scale = scale.reshape(shape)
    return np.asarray((integers - point.reshape(shape)) * scale), scale


Float32Array = NDArray[np.float32]

_INT32 = float(2**31 - 2**8)  # what an int32 holds, less the rounding of a float32 scale
_LEAST_ROOM = 2.0**24  # for a bias: it is given in float32, which has no more digits
_LEAST = float(np.finfo(np.float32).tiny)
"""Smaller scales are no normal numbers: what is so small is as good as 0."""


@dataclass(frozen=True, eq=False)
class QuantizationParams:
    """The quantization of a tensor.

    `scale` is float32 and `zero_point` int64, both of shape `[]`, or `[C]` with one for each index of
    `axis`.
    """

    scale: Float32Array
    zero_point: NDArray[np.int64]
    dtype: str
    axis: int | None = None

    def broadcast_along(self, rank: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return scale and zero point in a shape that broadcasts against a tensor of a rank."""
        if self.axis is None:
            return self.scale.astype(np.float64), self.zero_point
        shape = [1] * rank
        shape[self.axis] = -1
        return self.scale.astype(np.float64).reshape(shape), self.zero_point.reshape(shape)


def is_same_form(one: QuantizationParams, other: QuantizationParams) -> bool:
    """Return whether two quantizations make the same integers of each value."""
    return (
        (one.dtype, one.axis) == (other.dtype, other.axis)
        and np.array_equal(one.scale, other.scale)
        and np.array_equal(one.zero_point, other.zero_point)
    )


@dataclass(frozen=True, slots=True)
class ScaleRequirement:
    """Requirements on a quantization: `dtype`, zero points of 0, and scales that are powers of two."""

    dtype: str
    symmetric: bool = False
    power_of_two: bool = False


def compute_params(
    low: Any, high: Any, form: ScaleRequirement, axis: int | None = None
) -> QuantizationParams | None:
    """Return scale and zero point for ranges from `low` to `high`: numbers, or `[C]` for an axis.

    A range is widened to include 0, which is then represented exactly. Symmetric: `scale = max(|low|,
    |high|) / qmax`; None for an unsigned type if a range extends below 0. Otherwise: `scale = (high -
    low) / (qmax - qmin)`, `zero_point = round(qmin - low / scale)`. Powers of two are rounded up, so
    that nothing is clipped. A range of only 0 has scale 1.
    """
    least, most = DTYPES[form.dtype]
    below = np.minimum(np.asarray(low, np.float64), 0.0)
    above = np.maximum(np.asarray(high, np.float64), 0.0)
    if form.symmetric:
        if least == 0 and np.any(below < 0):
            return None
        scale = _round_scale(np.maximum(-below, above) / most, form.power_of_two)
        return QuantizationParams(scale, np.zeros(scale.shape, np.int64), form.dtype, axis)
    scale = _round_scale((above - below) / (most - least), form.power_of_two)
    points = np.rint(least - below / scale.astype(np.float64))
    return QuantizationParams(scale, np.clip(points, least, most).astype(np.int64), form.dtype, axis)


def _round_scale(scale: NDArray[np.float64], power_of_two: bool) -> Float32Array:
    usable = np.where(scale < _LEAST, 1.0, scale)
    if power_of_two:
        mantissa, exponent = np.frexp(usable)  # 0.5 <= mantissa < 1
        usable = np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))
    return np.asarray(usable, np.float32)


def quantize_values(values: NDArray[Any], params: QuantizationParams) -> NDArray[np.int64]:
    """Return values as integers, rounded half to even and saturated, as QuantizeLinear does."""
    scale, points = params.broadcast_along(values.ndim)
    least, most = DTYPES[params.dtype]
    rounded = np.rint(values.astype(np.float64) / scale) + points
    return np.asarray(np.clip(rounded, least, most), dtype=np.int64)


def find_extremes(
    values: NDArray[Any], axis: int | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the minimum and the maximum of an array, or of each index of an axis."""
    around = None if axis is None else tuple(i for i in range(values.ndim) if i != axis)
    if values.size == 0:
        count = () if axis is None else (values.shape[axis],)
        return np.zeros(count), np.zeros(count)
    low, high = values.min(axis=around), values.max(axis=around)
    return np.asarray(low, np.float64), np.asarray(high, np.float64)


def find_largest_sum(count: int, activation: str, weight: str) -> int:
    """Return the largest magnitude of a sum of products of activations, zero points off, and weights.

    It is 0 for activations of more than 8 bits: their sums may need more than an int32 in any case, and
    what computes them has wider ones.
    """
    (low, high), (least, most) = DTYPES[activation], DTYPES[weight]
    return count * (high - low) * max(-least, most) if high - low < 2**8 else 0


def widen_scales(
    weights: QuantizationParams,
    bias: Float32Array,
    activation: Float32Array,
    power_of_two: bool,
    products: int = 0,
) -> QuantizationParams:
    """Return the weights' quantization with scales large enough for a bias `[C]` to fit into int32.

    `activation` is the scale of what the weights are multiplied with, `[]`, or `[C]` by output channel.
    A bias is counted in steps of `activation * scale`; a channel with tiny weights and a normal bias
    would overflow. So would the sum of a bias that fills the int32 and of `products`, the largest sum of
    the products that it is added to. onnxruntime's quantizer widens the weights' scale likewise.
    """
    room = activation.astype(np.float64) * max(_INT32 - products, _LEAST_ROOM)
    least = np.abs(bias.astype(np.float64)) / room
    if weights.scale.ndim == 0:
        least = np.asarray(least.max(initial=0.0))
    scale = weights.scale.astype(np.float64)
    if np.all(scale >= least):
        return weights
    wide = np.where(scale >= least, scale, least)
    return replace(weights, scale=_round_scale(wide, power_of_two))


def fits_int32(bias: Float32Array, scale: Float32Array) -> bool:
    """Return whether a bias `[C]` in steps of `scale` fits into int32."""
    return bool(np.all(np.abs(bias.astype(np.float64)) <= scale.astype(np.float64) * (2.0**31 - 1)))


def quantize_bias(bias: Float32Array, scale: Float32Array) -> NDArray[np.int32]:
    """Return a bias in steps of `scale`, rounded half to even."""
    return np.rint(bias.astype(np.float64) / scale.astype(np.float64)).astype(np.int32)
