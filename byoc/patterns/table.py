"""The nodes of a graph as plain values, read once: matching looks at each many times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from byoc.graph.attributes import effective, written
from byoc.graph.index import GraphIndex
from byoc.graph.walk import describe, is_onnx
from byoc.patterns.order import Order
from byoc.patterns.syntax import ANY

CONSTANT = "!"
"""In the place of an operator: what is known before the model runs."""


@dataclass(frozen=True, eq=False)
class Table:
    """A graph's operators (`Conv`, `com.microsoft.Gelu`), inputs and outputs by node number."""

    index: GraphIndex
    ops: Sequence[str]
    inputs: Sequence[tuple[str, ...]]
    outputs: Sequence[tuple[str, ...]]
    sources: Sequence[tuple[str, ...]]
    """The operators that make each node's inputs, `!` for constants, empty where none does."""
    known_attributes: dict[int, Mapping[str, Any]]

    @classmethod
    def of(cls, index: GraphIndex) -> "Table":
        """Read the nodes of a graph; inputs and outputs that are left out at the end are cut off."""
        nodes = index.nodes
        ops = [node.op_type if is_onnx(node) else f"{node.domain}.{node.op_type}" for node in nodes]
        inputs = [without_end(node.input) for node in nodes]
        outputs = [without_end(node.output) for node in nodes]
        maker = {name: op for op, names in zip(ops, outputs, strict=True) for name in names if name}
        maker |= dict.fromkeys((*index.stored, *index.sparse_initializers), CONSTANT)
        for number in index.constant_nodes:
            maker |= dict.fromkeys(outputs[number], CONSTANT)
        sources = [tuple([maker.get(name, "") for name in names]) for names in inputs]
        return cls(index, ops, inputs, outputs, sources, {})

    @cached_property
    def by_op(self) -> Mapping[str, Sequence[int]]:
        """The nodes of each operator, in order; under `*` all of them."""
        found: dict[str, list[int]] = {ANY: list(range(len(self.ops)))}
        for number, op in enumerate(self.ops):
            found.setdefault(op, []).append(number)
        return found

    @cached_property
    def order(self) -> Order:
        """The order of the nodes while none are one yet."""
        return Order(self.index)

    def attributes(self, number: int) -> Mapping[str, Any]:
        """Return the attributes in effect on a node."""
        if number not in self.known_attributes:
            node = self.index.nodes[number]
            schema = self.index.schema(node)
            values = written(node) if schema is None else effective(node, schema, self.index.types)
            self.known_attributes[number] = values
        return self.known_attributes[number]

    def called(self, number: int) -> str:
        """Return how messages name a node."""
        return describe(self.index.nodes[number])


def without_end(names: Sequence[str]) -> tuple[str, ...]:
    """Return names without the empty ones at their end: what is left out."""
    given = tuple(names)
    while given and not given[-1]:
        given = given[:-1]
    return given
