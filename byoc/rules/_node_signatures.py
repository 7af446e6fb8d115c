"""Signatures of nodes: nodes of one signature are the same to the rules of a file.

A large graph repeats few nodes: the layers of a transformer have equal operators on equal types. What
the rules say of one of them holds for all.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from onnx import NodeProto

from byoc.expressions import Member, Name, compile_expression, walk_tree
from byoc.model import (
    GraphIndex,
    get_constant_value,
    get_operator_name,
    is_dequantize,
    is_qdq_node,
    is_quantize,
)
from byoc.rules._rule_schema import OpRule

# A longer node holds data, which is not worth comparing.
_MAX_BYTES = 4096


@dataclass(frozen=True, eq=False)
class NodeSignatures:
    """The signatures of a graph's nodes; `find_rules` gives the rules for an operator."""

    index: GraphIndex
    find_rules: Callable[[str], Sequence[OpRule]]
    _reads_values: dict[str, bool | None] = field(default_factory=dict)

    def sign_node(self, number: int) -> Hashable:
        """Return the signature of a node, None for a node that may be unlike all others.

        A signature has all that rules read: the attributes, the types of tensors, whether these are
        constant or used, and values where a rule reads some. Nodes with bodies, and those next to
        QuantizeLinear or DequantizeLinear, have none; nor has any node where a rule reads names or calls
        a check function.
        """
        index = self.index
        node = index.nodes[number]
        op = get_operator_name(node)
        if op not in self._reads_values:
            self._reads_values[op] = _read_values(self.find_rules(op))
        reads_values = self._reads_values[op]
        if reads_values is None or number in index.bodies or node.ByteSize() > _MAX_BYTES:
            return None
        if self._is_beside_quantization(node):
            return None
        types = index.types
        inputs: list[Hashable] = []
        for name in node.input:
            constant = index.is_constant(name)
            inputs.append((id(types.get(name)), constant) if name else None)
            if constant and reads_values:
                inputs.append(self._get_value(name))
        outputs = [(id(types.get(name)), index.is_used(name)) if name else None for name in node.output]
        attributes = [attribute.SerializeToString() for attribute in node.attribute]
        return op, tuple(inputs), tuple(outputs), tuple(attributes)

    def _get_value(self, name: str) -> Hashable:
        value = get_constant_value(self.index, name)
        return None if value is None else (value.dtype.str, value.shape, tuple(value.ravel().tolist()))

    @cached_property
    def _quantized_tensors(self) -> frozenset[str]:
        """The tensors that a DequantizeLinear makes or a QuantizeLinear reads."""
        nodes = self.index.nodes
        made = (name for node in nodes if is_dequantize(node) for name in node.output)
        return frozenset([*made, *(name for node in nodes if is_quantize(node) for name in node.input)])

    def _is_beside_quantization(self, node: NodeProto) -> bool:
        tensors = self._quantized_tensors
        if not tensors:
            return False
        beside = not (tensors.isdisjoint(node.input) and tensors.isdisjoint(node.output))
        return beside or is_qdq_node(node)


def _read_values(rules: Sequence[OpRule]) -> bool | None:
    """Return whether rules read values of constants, None if they may read what no signature has."""
    if any(rule.check is not None for rule in rules):
        return None
    found = {part.value is not None for rule in rules for part in rule.tensors.values()}
    for condition in (condition for rule in rules for condition in rule.where):
        for part in walk_tree(compile_expression(condition.expr).tree):
            if isinstance(part, (Member, Name)) and part.name == "name":
                return None
            found.add(isinstance(part, Member) and part.name == "value")
    return True in found
