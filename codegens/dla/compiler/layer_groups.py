"""Grouping of operations that become one layer: a convolution with fused operations, a quantized group.

A group begins with the operation that determines its kind. It continues as long as the result has a
single reader that the hardware can fuse: a normalization, the addition of a residual, a clamp.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from byoc.codegen import CompileError, Operation, Quantization

from .region_reading import Operand, RegionReading, list_operands

_CLAMPS = ("Relu", "Clip")
# Operators that a clamp is fused to, since their commands have `low` and `high`. After any other
# operator, a Relu is a layer of its own.
_CLAMPED = (
    *("Conv", "Gemm", "MatMul", "BatchNormalization", "Add", "Sum", "Sub", "Mul", "Div", "Concat"),
    *("MatMulNBits", "MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "Clip"),
)
_SUMS = ("Add", "Sum")


@dataclass(eq=False)
class LayerGroup:
    """Operations that become one layer; the last one's output is that of the layer."""

    operations: list[Operation] = field(default_factory=list)

    @property
    def main(self) -> Operation:
        """The operation that determines the kind."""
        return self.operations[0]

    @property
    def operator(self) -> str:
        """The operator of that operation as rule files have it: `Conv`, `com.microsoft.QuickGelu`."""
        return ".".join(filter(None, (self.main.domain, self.main.op)))

    @property
    def operands(self) -> Sequence[Operand]:
        """The operands of the operation that determines the kind."""
        return list_operands(self.main)

    def take_operands(self, count: int) -> list[Operand]:
        """Return so many operands and all behind them; those that are left out have empty names."""
        missing = count - len(self.operands)
        return [*self.operands, *[Operand("", None)] * missing]

    @property
    def followers(self) -> Sequence[Operation]:
        """The operations that are fused."""
        return self.operations[1:]

    @property
    def output(self) -> str:
        """Name of the result."""
        return self.operations[-1].outputs[0]

    @property
    def quantization(self) -> Quantization | None:
        """Scale and zero point of the result, None for floats."""
        return self.operations[-1].output_quantization[0]

    @property
    def has_channel_scales(self) -> bool:
        """Whether each channel of the result has a scale."""
        return self.quantization is not None and not self.quantization.is_per_tensor

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the region's nodes in the group."""
        every = (one for each in self.operations for one in (each, *each.fused))
        return tuple(dict.fromkeys(each.name for each in every))

    def require_float(self) -> None:
        """Raise CompileError for a quantized group."""
        if self.quantization is not None:
            raise CompileError(f"the machine has {self.main.op} in float32 only", self.nodes)


def group_operations(reading: RegionReading) -> list[LayerGroup]:
    """Return the groups of a region in topological order."""
    grouping = _Grouping(reading)
    for number, operation in enumerate(reading.operations):
        grouping.add_operation(number, operation)
    return sorted(grouping.groups, key=grouping.last.__getitem__)


class _Grouping:
    """Groups under construction; `last` has the position of the last operation of each."""

    def __init__(self, reading: RegionReading) -> None:
        self._shapes = reading.shapes
        self._constant = reading.is_constant
        self._outputs = {contract.inner for contract in reading.region.outputs}
        self._readers = Counter(name for each in reading.operations for name in each.inputs)
        self._making: dict[str, LayerGroup] = {}
        self.groups: list[LayerGroup] = []
        self.last: dict[LayerGroup, int] = {}

    def add_operation(self, number: int, operation: Operation) -> None:
        """Add an operation: it continues a group, or begins one."""
        group = self._find_group(operation)
        group.operations.append(operation)
        self._making[operation.outputs[0]] = group
        self.last[group] = number

    def _find_group(self, operation: Operation) -> LayerGroup:
        for name in operation.inputs:
            group = self._making.get(name)
            if group is not None and self._is_open(group) and self._can_fuse(group, operation, name):
                return group
        self.groups.append(LayerGroup())
        return self.groups[-1]

    def _is_open(self, group: LayerGroup) -> bool:
        """Whether the result of a group so far has a single reader, and so can be fused."""
        name = group.output
        return group.quantization is None and self._readers[name] == 1 and name not in self._outputs

    def _can_fuse(self, group: LayerGroup, operation: Operation, name: str) -> bool:
        main, done = group.main.op, {each.op for each in group.followers}
        if main == "Sigmoid":
            return operation.op == "Mul" and self._is_swish(group, operation)
        if operation.op in _CLAMPS:
            bounds = operation.inputs[1:]
            return main in _CLAMPED and all(self._constant(bound) for bound in bounds if bound)
        if main != "Conv" or name != group.output or not done <= {"BatchNormalization"}:
            return False
        if operation.op == "BatchNormalization":
            return name == operation.inputs[0]
        return operation.op in _SUMS and self._is_residual_sum(operation, name)

    def _is_swish(self, group: LayerGroup, operation: Operation) -> bool:
        """Whether a product is that of a tensor by the Sigmoid of it."""
        both = {group.output, group.main.inputs[0]}
        return set(operation.inputs) == both and operation.output_quantization[0] is None

    def _is_residual_sum(self, operation: Operation, name: str) -> bool:
        """Whether a sum adds one computed tensor of the same shape."""
        others = [each for each in operation.inputs if each != name]
        if len(operation.inputs) != 2 or len(others) != 1 or self._constant(others[0]):
            return False
        return self._shapes[others[0]] == self._shapes[name]
