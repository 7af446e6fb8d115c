"""Lower a region to TOSA: the values of its tensors, and a table of functions by operator.

A function of the table gets the operation and the `Lowering`, reads its operands as values, adds
operators to the graph, and enters the results. Quantized tensors are the integers that the region
states; real numbers are never computed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from byoc.codegen import (
    CompileError,
    Emitters,
    Operation,
    Quantization,
    Region,
    TensorContract,
    TensorType,
)

from .region_values import IMAGE, Value, arrange, make_plain
from .tosa_file import Array
from .tosa_graph import Tensor, TosaGraph

LOWERINGS: Emitters[None] = Emitters()
"""The functions by operator; the modules `lower_*` enter theirs."""

STORED = ("int8", "int16")
"""The element types of activations."""

_ORDERS: Mapping[str, Callable[[int], tuple[int, ...]]] = {
    "": lambda rank: tuple(range(rank)),
    "NHWC": lambda _: IMAGE,
}


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
        return tuple(_read_shape(operation.outputs[position], kind)) or (1,)

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


def lower_region(region: Region) -> tuple[bytes, list[int]]:
    """Return the TOSA graph of a region, and the positions of the region's inputs that it reads.

    Raises CompileError naming all nodes for which there are no TOSA operators.
    """
    operations = region.operations(quantized=True)
    lowering = Lowering(region)
    read = {name for each in operations for name in each.inputs} | {
        each.inner for each in region.outputs
    }
    positions = [place for place, each in enumerate(region.inputs) if each.inner in read]
    for place in positions:
        contract = region.inputs[place]
        readers = [each.name for each in operations if contract.inner in each.inputs]
        lowering.values[contract.inner] = _enter_input(lowering, contract, readers)
    errors = [error for each in operations for error in lower_operation(lowering, each)]
    if errors:
        others = f", and {len(errors) - 1} more are not taken" if len(errors) > 1 else ""
        raise CompileError(f"{errors[0]}{others}", [name for error in errors for name in error.nodes])
    for contract in region.outputs:
        makers = [each.name for each in operations if contract.inner in each.outputs]
        _add_output(lowering, contract, makers)
    return lowering.graph.write(), positions


def lower_alone(region: Region, operation: Operation) -> bytes:
    """Return the TOSA graph of one operation of a region. Raises CompileError as `lower_region` does.

    Images are NHWC there, at both ends, and all else lies as in ONNX.
    """
    lowering = Lowering(region)
    for name in dict.fromkeys(filter(None, operation.inputs)):
        if name not in operation.constants:
            lowering.values[name] = _enter_tensor(lowering, name, region.type(name), [operation.name])
    for error in lower_operation(lowering, operation):
        raise error
    for name in filter(lowering.values.__contains__, operation.outputs):
        value = lowering.values[name]
        lowering.graph.add_output(arrange(lowering.graph, value, _usual_order(value.rank)).tensor)
    return lowering.graph.write()


def lower_operation(lowering: Lowering, operation: Operation) -> list[CompileError]:
    """Lower an operation, or those inside a composite; return why it is not taken, naming the node.

    Where it is not, its results are new inputs of the graph, so that what follows can be tried.
    """
    if operation.inner:
        errors = [error for each in operation.inner for error in lower_operation(lowering, each)]
        for error in errors:
            error.nodes = (operation.name,)
        return errors[:1]
    function = LOWERINGS.find(operation)
    try:
        if function is None:
            raise CompileError(f"no TOSA operators are written for {operation.op}")
        function(operation, lowering)
    except CompileError as error:
        error.nodes = error.nodes or (operation.name,)
        for name in filter(None, operation.outputs):
            kind = lowering.region.type(name)
            if kind is not None and kind.dtype in STORED:
                lowering.values[name] = _enter_tensor(lowering, name, kind, error.nodes)
        return [error]
    return []


def is_same(one: Quantization, other: Quantization) -> bool:
    """Return whether two quantizations of whole tensors are the same."""
    return (one.dtype, float(one.scale), int(one.zero_point)) == (
        other.dtype,
        float(other.scale),
        int(other.zero_point),
    )


def _enter_input(lowering: Lowering, contract: TensorContract, readers: Sequence[str]) -> Value:
    """Return the value of an input. Raises CompileError naming its readers."""
    if contract.layout not in _ORDERS:
        raise CompileError(f"'{contract.name}' is laid out as {contract.layout}", readers)
    extents = _read_extents(contract.name, contract.type, readers)
    tensor = lowering.graph.add_input(contract.type.dtype, extents)
    return Value(tensor, _ORDERS[contract.layout](len(extents)))


def _enter_tensor(lowering: Lowering, name: str, kind: TensorType | None, nodes: Sequence[str]) -> Value:
    """Return a tensor's value as a new input of the graph. Raises CompileError naming the nodes."""
    extents = _read_extents(name, kind, nodes)
    assert kind is not None
    order = _usual_order(len(extents))
    return Value(lowering.graph.add_input(kind.dtype, [extents[axis] for axis in order]), order)


def _read_extents(name: str, kind: TensorType | None, nodes: Sequence[str]) -> list[int]:
    """Return the extents of a tensor of integers. Raises CompileError naming the nodes."""
    if kind is None or kind.dtype not in STORED:
        raise CompileError(f"'{name}' is {kind}, and no integer of 8 or 16 bits", nodes)
    return _read_shape(name, kind, nodes) or [1]


def _read_shape(name: str, kind: TensorType | None, nodes: Sequence[str] = ()) -> list[int]:
    """Return the extents of a tensor. Raises CompileError where one is not known, or is 0."""
    shape = None if kind is None else kind.shape
    extents = [extent for extent in shape or () if isinstance(extent, int) and extent > 0]
    if shape is None or len(extents) < len(shape):
        raise CompileError(f"the extents of '{name}' are not all known, and more than 0", nodes)
    return extents


def _add_output(lowering: Lowering, contract: TensorContract, makers: Sequence[str]) -> None:
    """Make a value an output. Raises CompileError naming what makes it."""
    value = lowering.values.get(contract.inner)
    if value is None:
        raise CompileError(f"'{contract.name}' is not made", makers)
    if contract.type.dtype != value.tensor.dtype:
        raise CompileError(
            f"'{contract.name}' is {contract.type}, and no integer of 8 or 16 bits", makers
        )
    if contract.layout not in _ORDERS:
        raise CompileError(f"'{contract.name}' is laid out as {contract.layout}", makers)
    order = _ORDERS[contract.layout](value.rank)
    lowering.graph.add_output(arrange(lowering.graph, value, order).tensor)


def _usual_order(rank: int) -> tuple[int, ...]:
    return IMAGE if rank == 4 else tuple(range(rank))
