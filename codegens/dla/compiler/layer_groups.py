"""Grouping of operations that become one layer: a convolution with fused operations, a quantized group.

A group begins with the operation that determines its kind. It continues as long as the result has a
single reader that the hardware can fuse: a normalization, the addition of a residual, a clamp.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from byoc.codegen import CompileError, Operation, Quantization

from .region_reading import Operand, RegionReading, get_operator, is_function, is_gate, list_operands

_CLAMPS = ("Relu", "Clip")
# Operators that a clamp is fused to, since their commands have `low` and `high`. After any other
# operator, a Relu is a layer of its own.
_CLAMPED = (
    *("Conv", "Gemm", "MatMul", "BatchNormalization", "Add", "Sum", "Sub", "Mul", "Div", "Concat"),
    *("MatMulNBits", "MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "Clip"),
)
_SUMS = ("Add", "Sum")
_CONVOLUTIONS = ("Conv", "Gemm", "MatMul")  # with an output stage


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
        return get_operator(self.main)

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
    def function(self) -> Sequence[Operation]:
        """The operations that are a function of the sums of a convolution, one or two; none without."""
        first = next((n for n, each in enumerate(self.followers) if is_function(each)), None)
        return () if first is None else self.followers[first:]

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
    grouping.fuse_functions()
    return sorted(grouping.groups, key=grouping.last.__getitem__)


class _Grouping:
    """Groups under construction; `last` has the position of the last operation of each."""

    def __init__(self, reading: RegionReading) -> None:
        self._shapes = reading.shapes
        self._constant = reading.is_constant
        self._is_weights = reading.is_weights
        self._stored_array = reading.stored_array
        self._dynamic = reading.dynamic_products
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

    def fuse_functions(self) -> None:
        """Make functions part of the convolutions whose results they alone read."""
        for group in [each for each in self.groups if is_function(each.main)]:
            source = self._making.get(group.main.inputs[0])
            if source is not None and self._can_apply(source, group):
                source.operations += group.operations
                self.last[source] = self.last[group]
                self._making[group.output] = source
                self.groups.remove(group)

    def _can_apply(self, source: LayerGroup, function: LayerGroup) -> bool:
        """Whether the output stage of a convolution can compute a function of its result."""
        name = source.output
        if source.quantization is not None or name in self._outputs or any(function.main.inputs[1:]):
            return False
        reads = sum(each.inputs.count(name) for each in function.operations)
        matrix = source.main.op != "MatMul" or self._is_weights(source.operands[1], in_integers=False)
        rest = {each.op for each in source.followers}
        convolves = source.main.op in _CONVOLUTIONS and matrix and rest <= {"BatchNormalization", *_SUMS}
        return convolves and reads == self._readers[name]

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
        if is_gate(group.main) or main == "IsNaN":
            return self._is_gated(group, operation) or self._is_guarded(group, operation)
        if operation.op in _CLAMPS:
            bounds = operation.inputs[1:]
            return main in _CLAMPED and all(self._constant(bound) for bound in bounds if bound)
        if group.main.outputs[0] in self._dynamic:
            axis = 1 if main == "Conv" else -1
            return operation.op == "Add" and not done and self._is_bias(operation, name, axis)
        if main != "Conv" or name != group.output or not done <= {"BatchNormalization"}:
            return False
        if operation.op == "BatchNormalization":
            return name == operation.inputs[0]
        return operation.op in _SUMS and self._is_residual_sum(operation, name)

    def _is_gated(self, group: LayerGroup, operation: Operation) -> bool:
        """Whether a product is that of a tensor by its function, the only operation so far."""
        both = {group.output, group.main.inputs[0]}
        if not is_gate(group.main) or operation.op != "Mul":
            return False
        return not group.followers and len(operation.inputs) == 2 and set(operation.inputs) == both

    def _is_guarded(self, group: LayerGroup, operation: Operation) -> bool:
        """Whether a Where puts zeros in the place of NaN in the tensor that was tested for it."""
        if group.main.op != "IsNaN" or operation.op != "Where":
            return False
        condition, zeros, guarded = operation.inputs
        if condition != group.output or guarded != group.main.inputs[0] or not self._constant(zeros):
            return False
        shape = self._shapes[guarded]
        return not self._stored_array(zeros).any() and self._shapes[operation.outputs[0]] == shape

    def _is_bias(self, operation: Operation, name: str, axis: int) -> bool:
        """Whether a sum adds a constant to a tensor: one for each channel of an axis, or one for all."""
        other = next((each for each in operation.inputs if each != name), "")
        if not self._constant(other) or operation.input_quantization[1:] != (None,):
            return False
        made, stored = self._shapes[name], self._stored_array(other).shape
        channels = [1] * len(made)
        channels[axis] = made[axis]
        full = [*[1] * (len(made) - len(stored)), *stored]
        return full == channels or (len(full) == len(made) and set(full) == {1})

    def _is_residual_sum(self, operation: Operation, name: str) -> bool:
        """Whether a sum adds one computed tensor of the same shape."""
        others = [each for each in operation.inputs if each != name]
        if len(operation.inputs) != 2 or len(others) != 1 or self._constant(others[0]):
            return False
        return self._shapes[others[0]] == self._shapes[name]
