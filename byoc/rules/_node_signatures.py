"""Signatures of nodes: nodes of one signature are the same to the rules of a file.

A large graph repeats few nodes: the layers of a transformer have equal operators on equal types. What
the rules say of one of them holds for all.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from byoc.expressions import Member, Name, compile_expression, walk_tree
from byoc.model import GraphIndex, get_constant_value, is_qdq_node
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
        kind = index.node_kinds[number]
        reads_values = self.reads_values(kind.operator)
        if reads_values is None or kind.has_bodies or kind.size > _MAX_BYTES:
            return None
        names = index.node_inputs[number]
        if self._is_beside_quantization(number):
            return None
        known = self._known
        inputs: tuple[Hashable, ...] = tuple([known.get(name) for name in names])
        if reads_values:
            inputs += tuple([self._get_value(name) for name in names if index.is_constant(name)])
        outputs = index.node_outputs[number]
        given = tuple(map(bool, names)), tuple(map(bool, outputs))
        return kind, inputs, tuple([known.get(name) for name in outputs]), given

    def reads_values(self, op: str) -> bool | None:
        """Return whether the rules for an operator read values of constants.

        None where they may read what no signature has: names, and whatever a check function asks for.
        """
        if op not in self._reads_values:
            self._reads_values[op] = _read_values(self.find_rules(op))
        return self._reads_values[op]

    @cached_property
    def _known(self) -> Mapping[str, Hashable]:
        """The facts that rules see of each tensor: type, whether it is constant, whether it is used."""
        index = self.index
        constants, used = index.constant_names, {*index.consumers, *index.outputs}
        found: dict[str, Hashable] = {
            name: (id(kind), name in constants, name in used) for name, kind in index.types.items()
        }
        found |= {name: (0, name in constants, True) for name in used if name not in found}
        return found

    def _get_value(self, name: str) -> Hashable:
        value = get_constant_value(self.index, name)
        return None if value is None else (value.dtype.str, value.shape, tuple(value.ravel().tolist()))

    @cached_property
    def _quantized_tensors(self) -> frozenset[str]:
        """The tensors that a DequantizeLinear makes or a QuantizeLinear reads."""
        index, found = self.index, set[str]()
        for number, kind in enumerate(index.node_kinds):
            if kind.is_onnx and kind.op_type == "DequantizeLinear":
                found.update(index.node_outputs[number])
            elif kind.is_onnx and kind.op_type == "QuantizeLinear":
                found.update(index.node_inputs[number])
        return frozenset(found)

    def _is_beside_quantization(self, number: int) -> bool:
        tensors, index = self._quantized_tensors, self.index
        if not tensors:
            return False
        if is_qdq_node(index.nodes[number]):
            return True
        near = (*index.node_inputs[number], *index.node_outputs[number])
        return not tensors.isdisjoint(near)


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
