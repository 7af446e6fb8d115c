"""The nodes of a graph as plain values, read once since the matcher looks at each many times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from byoc.model import GraphIndex, describe_node
from byoc.patterns._contraction_order import ContractionOrder
from byoc.patterns._pattern_syntax import ANY_OPERATOR

CONSTANT = "!"
"""Stands for the operator of a tensor that is known before the model runs."""


@dataclass(frozen=True, eq=False)
class NodeTable:
    """The operators (`Conv`, `com.microsoft.Gelu`), inputs and outputs of a graph by node number."""

    index: GraphIndex
    ops: Sequence[str]
    inputs: Sequence[tuple[str, ...]]
    outputs: Sequence[tuple[str, ...]]
    sources: Sequence[tuple[str, ...]]
    """The operator that makes each input of each node: `!` for constants, empty for graph inputs."""
    attribute_cache: dict[int, Mapping[str, Any]]

    @classmethod
    def from_index(cls, index: GraphIndex) -> "NodeTable":
        """Read the nodes of a graph, without the empty names at the end of their inputs and outputs."""
        ops = [kind.operator for kind in index.node_kinds]
        inputs = list(map(strip_trailing_empty, index.node_inputs))
        outputs = list(map(strip_trailing_empty, index.node_outputs))
        maker = {name: op for op, names in zip(ops, outputs, strict=True) for name in names if name}
        maker |= dict.fromkeys((*index.stored_tensors, *index.sparse_initializers), CONSTANT)
        for number in index.constant_nodes:
            maker |= dict.fromkeys(outputs[number], CONSTANT)
        sources = [tuple([maker.get(name, "") for name in names]) for names in inputs]
        return cls(index, ops, inputs, outputs, sources, {})

    @cached_property
    def by_op(self) -> Mapping[str, Sequence[int]]:
        """The nodes of each operator, in order; all nodes under `*`."""
        found: dict[str, list[int]] = {ANY_OPERATOR: list(range(len(self.ops)))}
        for number, op in enumerate(self.ops):
            found.setdefault(op, []).append(number)
        return found

    @cached_property
    def order(self) -> ContractionOrder:
        """The order of the nodes before any are joined."""
        return ContractionOrder(self.index)

    def attributes(self, number: int) -> Mapping[str, Any]:
        """Return the attributes in effect on a node, defaults included."""
        if number not in self.attribute_cache:
            self.attribute_cache[number] = self.index.get_attributes(self.index.nodes[number])
        return self.attribute_cache[number]

    def describe(self, number: int) -> str:
        """Return the description of a node for messages."""
        return describe_node(self.index.nodes[number])


def strip_trailing_empty(names: Sequence[str]) -> tuple[str, ...]:
    """Remove the empty names at the end of a list: operands that are left out."""
    given = tuple(names)
    if not given or given[-1]:
        return given
    while given and not given[-1]:
        given = given[:-1]
    return given
