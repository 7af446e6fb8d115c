"""A region on its way to TOSA: the values of its tensors, and a table of functions by operator.

A function of the table gets the operation and the `Lowering`, reads its operands as values, adds
operators to the graph, and enters the results. Quantized tensors are the integers that the region
states; real numbers are never computed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from byoc.codegen import CompileError, Emitters, Operation, Quantization, Region, TensorType

from .tosa_graph import Array, Tensor, TosaGraph

# The tensors of a region while it is lowered: in any order of axes, which operators agree on.
#
# ONNX has images as NCHW and TOSA as NHWC. A value remembers in which order its axes lie, so that a
# Transpose costs nothing, and axes are moved only where an operator wants another order.

IMAGE = (0, 2, 3, 1)
"""The order of an image's axes in TOSA: NHWC."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the region: its axis `order[i]` is axis `i` of `tensor`.

    A tensor of rank 0 has rank 1 here. `quantization` is None for what is no quantized number.
    """

    tensor: Tensor
    order: tuple[int, ...]
    quantization: Quantization | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents in ONNX's order of axes."""
        extents = dict(zip(self.order, self.tensor.shape, strict=True))
        return tuple(extents[axis] for axis in range(len(self.order)))

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.order)

    def position(self, axis: int) -> int:
        """Return the axis of `tensor` that an axis of the region's tensor is; it may be negative."""
        return self.order.index(axis % self.rank)


def make_plain(tensor: Tensor, quantization: Quantization | None = None) -> Value:
    """Return the value of a tensor whose axes lie in ONNX's order."""
    return Value(tensor, tuple(range(len(tensor.shape))), quantization)


def arrange(graph: TosaGraph, value: Value, order: Sequence[int]) -> Value:
    """Return a value with its axes in an order."""
    order = tuple(order)
    if order == value.order:
        return value
    perms = [value.order.index(axis) for axis in order]
    return replace(value, tensor=graph.transpose(value.tensor, perms), order=order)


def arrange_plain(graph: TosaGraph, value: Value) -> Value:
    """Return a value with its axes in ONNX's order."""
    return arrange(graph, value, range(value.rank))


def expand_rank(graph: TosaGraph, value: Value, rank: int) -> Value:
    """Return a value with leading axes of extent 1, as broadcasting adds them."""
    more = rank - value.rank
    if not more:
        return value
    tensor = graph.reshape(value.tensor, (*[1] * more, *value.tensor.shape))
    return replace(value, tensor=tensor, order=(*range(more), *(axis + more for axis in value.order)))


def reshape_value(graph: TosaGraph, value: Value, shape: Sequence[int]) -> Value:
    """Return a value in another shape, as ONNX's Reshape, with as few axes moved as possible.

    Axes that are split or joined have to be neighbours in the order that they lie in; where they are
    not, those of each group are brought together first.
    """
    shape = tuple(shape) or (1,)
    groups = _group_axes(value.shape, shape)
    place = {axis: position for position, axis in enumerate(value.order)}
    groups.sort(key=lambda group: min((place[axis] for axis in group[0]), default=-1))
    value = arrange(graph, value, [axis for before, _ in groups for axis in before])
    order = tuple(axis for _, behind in groups for axis in behind)
    return replace(value, tensor=graph.reshape(value.tensor, [shape[i] for i in order]), order=order)


def _group_axes(before: Sequence[int], behind: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the smallest groups of axes, in order, that hold as many elements before as behind."""
    groups = []
    first = second = 0
    while first < len(before) or second < len(behind):
        start = first, second
        sizes = [math.prod(before[first : first + 1]), math.prod(behind[second : second + 1])]
        first, second = min(first + 1, len(before)), min(second + 1, len(behind))
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                sizes[0] *= before[first]
                first += 1
            else:
                sizes[1] *= behind[second]
                second += 1
        groups.append((list(range(start[0], first)), list(range(start[1], second))))
    return groups


LOWERINGS: Emitters[None] = Emitters()
"""The functions by operator; the modules `lower_*` enter theirs."""

STORED = ("int8", "int16")
"""The element types of activations."""


@dataclass
class Lowering:
    """A region on its way to TOSA: the graph, and the values of the region's tensors so far."""

    region: Region
    graph: TosaGraph = field(default_factory=TosaGraph)
    values: dict[str, Value] = field(default_factory=dict)

    def read(self, operation: Operation, position: int) -> Value:
        """Return a quantized operand. Raises CompileError where it is omitted or not quantized."""
        value = self.find(operation, position)
        if value is None:
            raise CompileError(f"{operation.op} lacks its input {position}")
        if value.quantization is None:
            raise CompileError(
                f"'{operation.inputs[position]}', which {operation.op} reads, is not quantized"
            )
        return value

    def find(self, operation: Operation, position: int) -> Value | None:
        """Return the operand at a position; None where it is omitted. It may be unquantized."""
        name = (*operation.inputs, *[""] * (position + 1))[position]
        if not name:
            return None
        stated = (*operation.input_quantization, *[None] * (position + 1))[position]
        if name not in self.values:
            self.values[name] = self._store_constant(name)
        value = self.values[name]
        if stated is None:
            return value
        if not stated.is_per_tensor:
            raise CompileError(
                f"'{name}' has a scale for each channel, which {operation.op} does not take"
            )
        self._check(stated, name)
        return replace(value, quantization=stated)

    def constant(self, operation: Operation, position: int) -> Array | None:
        """Return the stored value of an operand, None where it is omitted.

        Raises CompileError where it is computed.
        """
        name = (*operation.inputs, *[""] * (position + 1))[position]
        if not name:
            return None
        if not self.is_constant(operation, position):
            raise CompileError(f"'{name}', which {operation.op} reads, must be a constant")
        return self.region.constant(name)

    def is_constant(self, operation: Operation, position: int) -> bool:
        """Return whether an operand is stored in the region."""
        name = (*operation.inputs, *[""] * (position + 1))[position]
        return name in operation.constants

    def result(self, operation: Operation, position: int = 0) -> Quantization:
        """Return the quantization of an output. Raises CompileError where nothing states it."""
        stated = operation.output_quantization[position] if operation.output_quantization else None
        name = operation.outputs[position]
        if stated is None:
            raise CompileError(f"'{name}', which {operation.op} makes, is not quantized")
        if not stated.is_per_tensor:
            raise CompileError(
                f"'{name}' has a scale for each channel, which {operation.op} does not make"
            )
        self._check(stated, name)
        return stated

    def shape(self, operation: Operation, position: int = 0) -> tuple[int, ...]:
        """Return the extents of an output. Raises CompileError where one is not known."""
        kind = operation.output_types[position]
        return tuple(read_shape(operation.outputs[position], kind)) or (1,)

    def finish(self, operation: Operation, value: Value, position: int = 0, limit: bool = True) -> None:
        """Enter an output, limited as the Relu or Clip asks that is part of the operation."""
        limits = operation.output_limits[position] if operation.output_limits else None
        if limit and limits is not None:
            value = replace(value, tensor=self.graph.clamp(value.tensor, *limits))
        self.values[operation.outputs[position]] = value

    def requantize(self, value: Value, wanted: Quantization) -> Value:
        """Return a value in another quantization: by a table, exactly, or rounded half up."""
        assert value.quantization is not None
        return replace(value, tensor=self._requantize(value, wanted), quantization=wanted)

    def widen(self, value: Value, factor: float = 1.0) -> Tensor:
        """Return `(stored - zero point) * factor` as int32, rounded half up."""
        assert value.quantization is not None
        point = int(value.quantization.zero_point)
        return self.graph.rescale(value.tensor, "int32", factor, (point, 0))

    def narrow(self, tensor: Tensor, scale: Array | float, wanted: Quantization) -> Tensor:
        """Return the stored integers of accumulators that are to be multiplied by `scale`."""
        try:
            return self.graph.rescale(tensor, wanted.dtype, scale, (0, int(wanted.zero_point)))
        except ValueError as error:
            raise CompileError(str(error)) from None

    def _requantize(self, value: Value, wanted: Quantization) -> Tensor:
        assert value.quantization is not None
        given = value.quantization
        if is_same(given, wanted):
            return value.tensor
        if value.tensor.data is not None:
            stored = wanted.quantize(given.dequantize(value.tensor.data))
            return self.graph.constant(stored, wanted.dtype)
        if given.dtype == wanted.dtype == "int8":
            table = wanted.quantize(given.dequantize(np.arange(-128, 128, dtype=np.int8)))
            return self.graph.look_up(value.tensor, table)
        points = int(given.zero_point), int(wanted.zero_point)
        factor = float(given.scale) / float(wanted.scale)
        return self.graph.rescale(value.tensor, wanted.dtype, factor, points)

    def _store_constant(self, name: str) -> Value:
        try:
            array = self.region.constant(name)
        except KeyError:
            raise CompileError(f"'{name}' has no value") from None
        stored = next((each for each in self.region.constants if each.name == name), None)
        if stored is not None and stored.layout:
            raise CompileError(f"'{name}' is packed as {stored.layout}")
        if array.dtype.name not in (*STORED, "int32"):
            raise CompileError(f"'{name}' is {array.dtype.name}, and no integer")
        return make_plain(self.graph.constant(array, array.dtype.name))

    def _check(self, quantization: Quantization, name: str) -> None:
        if quantization.dtype not in STORED:
            raise CompileError(f"'{name}' is {quantization.dtype}; taken are {' and '.join(STORED)}")
        if quantization.dtype == "int16" and int(quantization.zero_point) != 0:
            raise CompileError(f"'{name}' is int16 with a zero point other than 0")
        require_positive(quantization, name)


def require_positive(quantization: Quantization, name: str) -> None:
    """Raise CompileError unless scales are positive and finite: others turn the order of integers."""
    scales = np.atleast_1d(quantization.scale).astype(np.float64)
    wrong = scales[~((scales > 0) & np.isfinite(scales))]
    if wrong.size:
        raise CompileError(f"'{name}' has a scale of {wrong[0]:.9g}; it must be positive and finite")


def is_same(one: Quantization, other: Quantization) -> bool:
    """Return whether two quantizations of whole tensors are the same."""
    return (one.dtype, float(one.scale), int(one.zero_point)) == (
        other.dtype,
        float(other.scale),
        int(other.zero_point),
    )


def read_shape(name: str, kind: TensorType | None, nodes: Sequence[str] = ()) -> list[int]:
    """Return the extents of a tensor. Raises CompileError where one is not known, or is 0."""
    shape = None if kind is None else kind.shape
    extents = [extent for extent in shape or () if isinstance(extent, int) and extent > 0]
    if shape is None or len(extents) < len(shape):
        raise CompileError(f"the extents of '{name}' are not all known, and more than 0", nodes)
    return extents


# The constant operands of convolutions and products: scales of weights, and biases.

_WEIGHTS = 1  # the position of this input
_BIAS = 2  # the position of this one


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
