"""A region on its way to TOSA: the values of its tensors, and a table of functions by operator.

A function of the table gets the operation and the `Lowering`, reads its operands as values, adds
operators to the graph, and enters the results. Quantized tensors are the integers that the region
states; real numbers are never computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from byoc.codegen import (
    CompileError,
    Emitters,
    Operation,
    Quantization,
    Region,
    TensorType,
)

from .region_values import Value, make_plain
from .tosa_file import Array
from .tosa_graph import Tensor, TosaGraph

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
