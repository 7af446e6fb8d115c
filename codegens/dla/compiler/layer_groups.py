"""Grouping of operations that become one layer: a convolution with fused operations, a quantized group.

A group begins with the operation that determines its kind. It continues as long as the result has a
single reader that the hardware can fuse: a normalization, the addition of a residual, a clamp, and at
the end the QuantizeLinear of a quantized group.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from byoc.codegen import CompileError, Operation

from .region_reading import RegionReading

_CLAMPS = ("Relu", "Clip")
# Operators that a clamp is fused to, since their commands have `low` and `high`. After any other
# operator, a Relu is a layer of its own.
_CLAMPED = (
    *("Conv", "Gemm", "MatMul", "BatchNormalization", "Add", "Sum", "Mul", "Concat"),
    *("MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "Clip"),
)
_SUMS = ("Add", "Sum")


@dataclass(eq=False)
class LayerGroup:
    """Operations that become one layer; `quantize` ends a group with dequantized inputs."""

    operations: list[Operation] = field(default_factory=list)
    quantize: Operation | None = None

    @property
    def main(self) -> Operation:
        """The operation that determines the kind."""
        return self.operations[0]

    @property
    def followers(self) -> Sequence[Operation]:
        """The operations that are fused."""
        return self.operations[1:]

    @property
    def result(self) -> str:
        """Name of the result, before quantization in a quantized group."""
        return self.operations[-1].outputs[0]

    @property
    def output(self) -> str:
        """Name of the result in memory, after quantization."""
        return self.result if self.quantize is None else self.quantize.outputs[0]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the region's nodes in the group."""
        every = [*self.operations, *([self.quantize] if self.quantize else [])]
        return tuple(dict.fromkeys(each.name for each in every))


def group_operations(reading: RegionReading) -> list[LayerGroup]:
    """Return the groups of a region in topological order.

    Raises CompileError for a QuantizeLinear that ends no group.
    """
    grouping = _Grouping(reading)
    for number, operation in enumerate(reading.operations):
        grouping.add_operation(number, operation)
    return sorted(grouping.units, key=grouping.last.__getitem__)


class _Grouping:
    """Groups under construction; `last` has the position of the last operation of each."""

    def __init__(self, reading: RegionReading) -> None:
        self._shapes = reading.shapes
        self._constant = reading.is_constant
        self._outputs = {contract.inner for contract in reading.region.outputs}
        self._readers = Counter(name for each in reading.operations for name in each.inputs)
        self._making: dict[str, LayerGroup] = {}
        self.units: list[LayerGroup] = []
        self.last: dict[LayerGroup, int] = {}

    def add_operation(self, number: int, operation: Operation) -> None:
        """Add an operation: it ends a group, continues one, or begins one."""
        if operation.op == "DequantizeLinear":
            return
        if operation.op == "QuantizeLinear":
            unit = self._end_group(operation)
        else:
            unit = self._find_group(operation)
            unit.operations.append(operation)
            self._making[operation.outputs[0]] = unit
        self.last[unit] = number

    def _end_group(self, operation: Operation) -> LayerGroup:
        unit = self._making.get(operation.inputs[0])
        if unit is None or not self._is_open(unit):
            reason = "QuantizeLinear is not the end of a group that begins with DequantizeLinear"
            raise CompileError(reason, [operation.name])
        unit.quantize = operation
        return unit

    def _find_group(self, operation: Operation) -> LayerGroup:
        for name in operation.inputs:
            unit = self._making.get(name)
            if unit is not None and self._is_open(unit) and self._can_fuse(unit, operation, name):
                return unit
        self.units.append(LayerGroup())
        return self.units[-1]

    def _is_open(self, unit: LayerGroup) -> bool:
        """Whether the result of a group so far has a single reader, and so can be fused."""
        name = unit.result
        return unit.quantize is None and self._readers[name] == 1 and name not in self._outputs

    def _can_fuse(self, unit: LayerGroup, operation: Operation, name: str) -> bool:
        main, done = unit.main.op, {each.op for each in unit.followers}
        if operation.op in _CLAMPS:
            bounds = operation.inputs[1:]
            return main in _CLAMPED and all(self._constant(bound) for bound in bounds if bound)
        if main != "Conv" or name != unit.result or not done <= {"BatchNormalization"}:
            return False
        if operation.op == "BatchNormalization":
            return name == operation.inputs[0]
        return operation.op in _SUMS and self._is_residual_sum(operation, name)

    def _is_residual_sum(self, operation: Operation, name: str) -> bool:
        """Whether a sum adds one computed tensor of the same shape."""
        others = [each for each in operation.inputs if each != name]
        if len(operation.inputs) != 2 or len(others) != 1 or self._constant(others[0]):
            return False
        return self._shapes[others[0]] == self._shapes[name]
