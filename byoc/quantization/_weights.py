"""Weights of a model: their values, channels, scales and integers, and the products that read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from byoc._dataclasses import dataclass, replace
from byoc.model import (
    DTYPE_NUMBERS,
    GraphIndex,
    evaluate_constants,
    get_stated_attributes,
    is_large,
    is_onnx,
    read_array,
)
from byoc.model.schemas import get_schema
from byoc.quantization._calibrators import DTYPES
from byoc.quantization._precision import LEAST_BLOCK

# Quantization arithmetic: scales and zero points from ranges, integers from floats.
#
# `real = scale * (quantized - zero_point)`, as in ONNX's QuantizeLinear. Scale and zero point of a
# range follow Jacob et al., "Quantization and Training of Neural Networks for Efficient
# Integer-Arithmetic-Only Inference" (2018, sections 2.1 and 3), like TensorFlow Lite and
# onnxruntime's quantizer.
#
# Here are also the properties of operators that this needs, and the values of constants, which are
# read or computed on demand and not kept.

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
    return evaluate_constants(model)[0]


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
    """Requirements on a quantization: `dtype`, zero points of 0, and scales that are powers of two.

    `largest` is the greatest integer of a symmetric one, None for that of the data type.
    """

    dtype: str
    symmetric: bool = False
    power_of_two: bool = False
    largest: int | None = None


def compute_params(
    low: Any, high: Any, form: ScaleRequirement, axis: int | None = None
) -> QuantizationParams | None:
    """Return scale and zero point for ranges from `low` to `high`: numbers, or `[C]` for an axis.

    A range is widened to include 0, which is then represented exactly. Symmetric: `scale = max(|low|,
    |high|) / qmax`, where `largest` is qmax if it is less; None for an unsigned type if a range extends
    below 0. Otherwise: `scale = (high - low) / (qmax - qmin)`, `zero_point = round(qmin - low / scale)`.
    Powers of two are rounded up, so that nothing is clipped. A range of only 0 has scale 1. No scale is
    so large that an integer stands for more than float32 holds.
    """
    least, most = DTYPES[form.dtype]
    below = np.minimum(np.asarray(low, np.float64), 0.0)
    above = np.maximum(np.asarray(high, np.float64), 0.0)
    if form.symmetric:
        if least == 0 and np.any(below < 0):
            return None
        most = min(most, form.largest or most)
        scale = _round_scale(np.maximum(-below, above) / most, form.power_of_two)
        scale = _keep_finite(scale, max(-least, most))
        return QuantizationParams(scale, np.zeros(scale.shape, np.int64), form.dtype, axis)
    scale = _round_scale((above - below) / (most - least), form.power_of_two)
    points = np.clip(np.rint(least - below / scale.astype(np.float64)), least, most).astype(np.int64)
    scale = _keep_finite(scale, np.maximum(points - least, most - points))
    return QuantizationParams(scale, points, form.dtype, axis)


def _round_scale(scale: NDArray[np.float64], power_of_two: bool) -> Float32Array:
    usable = np.where(scale < _LEAST, 1.0, scale)
    if power_of_two:
        mantissa, exponent = np.frexp(usable)  # 0.5 <= mantissa < 1
        usable = np.ldexp(1.0, np.where(mantissa == 0.5, exponent - 1, exponent))
    return np.asarray(usable, np.float32)


def _keep_finite(scale: Float32Array, steps: Any) -> Float32Array:
    """Return scales of which so many steps are finite: at most the greatest power of two of them.

    A mask is often the least float32, -3.4e38. If its integer stood for -inf, 0 times it would be NaN.
    """
    _, exponent = np.frexp(float(np.finfo(np.float32).max) / steps)
    return np.asarray(np.minimum(scale, np.ldexp(0.5, exponent)), np.float32)


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


# The matrix products of a model whose weights are quantized, and what else reads these weights.

_FLOATS = ("float32", "float16")
MATRIX_RANK = 2  # of the weights of MatMulNBits
CONTRIB = "com.microsoft"


def shorten_block(block: int, inputs: int) -> int:
    """Return the shortest block that holds all inputs, where that is shorter."""
    return min(block, max(LEAST_BLOCK, 1 << (inputs - 1).bit_length()))


@dataclass(frozen=True)
class WeightProduct:
    """A matrix product by a constant: the node's number and output, and the weights' name and shape.

    `inputs` is the axis of the weights that is summed over. `fits` says that MatMulNBits can do it.
    `table` is the stored matrix that has a row for each output, the weights or what they are the
    transpose of; empty where there is none.
    """

    number: int
    output: str
    weights: str
    shape: tuple[int, ...]
    inputs: int
    fits: bool
    table: str


def find_products(index: GraphIndex) -> tuple[list[WeightProduct], dict[str, str]]:
    """Return the products to quantize, and why other large matrices are left, by their names."""
    products = []
    left: dict[str, str] = {}
    for number, node in enumerate(index.nodes):
        if number in index.constant_nodes:
            continue
        verdict = _read_product(index, number, node)
        if isinstance(verdict, WeightProduct):
            products.append(verdict)
            continue
        for name in index.reads[number]:
            stored = index.stored_tensors.get(name)
            if stored is not None and is_large(stored) and len(stored.dims) >= MATRIX_RANK:
                left.setdefault(name, verdict)
    taken = {product.weights for product in products}
    return products, {name: reason for name, reason in left.items() if name not in taken}


def _read_product(index: GraphIndex, number: int, node: NodeProto) -> WeightProduct | str:
    """Return a node as a product by large constant weights, or why it is none."""
    what = node.op_type
    if not is_onnx(node) or what not in ("MatMul", "Gemm"):
        return f"read by {what}, not by MatMul or Gemm"
    name = node.input[1]
    kind = index.types.get(name)
    if not index.is_constant(name):
        return f"not the second operand of {what}"
    if kind is None or kind.shape is None or len(kind.shape) != MATRIX_RANK:
        return f"no matrix, but read by {what}"
    if kind.dtype not in _FLOATS:
        return f"of {kind.dtype}"
    shape = tuple(extent for extent in kind.shape if isinstance(extent, int))
    if len(shape) < MATRIX_RANK or not _is_large_matrix(shape, kind.dtype):
        return "at most 1 KiB"
    attributes = get_stated_attributes(node)
    inputs = 1 if attributes.get("transB", 0) else 0
    fits = _fits_contrib(index, node, shape[1 - inputs])
    table = _find_table(index, name, inputs)
    return WeightProduct(number, node.output[0], name, shape, inputs, fits, table)


def _find_table(index: GraphIndex, name: str, inputs: int) -> str:
    """Return the stored matrix with a row for each output of a product by some weights, or empty."""
    if inputs:
        return name if name in index.stored_tensors else ""
    number = index.producers.get(name)
    maker = None if number is None else index.nodes[number]
    if maker is None or not is_onnx(maker) or maker.op_type != "Transpose":
        return ""
    is_turned = list(get_stated_attributes(maker).get("perm", (1, 0))) == [1, 0]
    return maker.input[0] if is_turned and maker.input[0] in index.stored_tensors else ""


def find_lookups(
    index: GraphIndex, products: Sequence[WeightProduct], block: int
) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Return the nodes that take rows of tables of products, by their names, and why others are left."""
    schema = get_schema("GatherBlockQuantized", CONTRIB, 1)
    found: dict[str, list[int]] = {}
    left = {}
    for table, product in ((each.table, each) for each in products if each.table):
        inputs = product.shape[product.inputs]
        size = shorten_block(block, inputs)
        gathers = [
            number
            for number in index.consumers.get(table, ())
            if number not in index.constant_nodes and _takes_rows(index.nodes[number], table)
        ]
        if gathers and inputs % size:
            left[table] = f"read by Gather, whose rows of {inputs} are no whole blocks of {size}"
        elif gathers and schema is not None and "bits" not in schema.attributes:
            left[table] = "read by Gather, and this onnxruntime has no GatherBlockQuantized of bytes"
        elif gathers:
            found[table] = gathers
    return found, left


def _takes_rows(node: NodeProto, table: str) -> bool:
    """Return whether a node is a Gather of rows of a table."""
    is_gather = is_onnx(node) and node.op_type == "Gather" and node.input[0] == table
    return is_gather and get_stated_attributes(node).get("axis", 0) in (0, -MATRIX_RANK)


def _is_large_matrix(shape: Sequence[int], dtype: str) -> bool:
    return is_large(TensorProto(data_type=DTYPE_NUMBERS[dtype], dims=shape))


def _fits_contrib(index: GraphIndex, node: NodeProto, outputs: int) -> bool:
    """Return whether MatMulNBits can do what a MatMul or Gemm does."""
    if index.get_rank(node.input[0]) == 1:
        return False
    if node.op_type == "MatMul":
        return True
    attributes = get_stated_attributes(node)
    bias = get_bias(node)
    scales = [attributes.get("alpha", 1.0), attributes.get("beta", 1.0) if bias else 1.0]
    shape = index.get_shape(bias) if bias else (outputs,)
    return scales == [1.0, 1.0] and not attributes.get("transA", 0) and shape == (outputs,)


def get_bias(node: NodeProto) -> str:
    """Return the name of what a Gemm adds to its product, empty where it adds nothing."""
    _, _, *added = node.input
    return added[0] if added else ""
