"""The nodes of a graph as plain values, read once since the matcher looks at each many times."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from byoc.model import GraphIndex, describe_node
from byoc.model.schemas import OperatorSchema, find_schemas, list_onnx_operators
from byoc.patterns._contraction_order import ContractionOrder
from byoc.patterns._pattern_syntax import ANY_OPERATOR

# Properties of the operators that patterns name, over all their ONNX versions.

# Operators whose operands may be exchanged (ONNX's operator documentation).
COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Sum", "Max", "Min"})

# The characters that `function_label` escapes: all but letters, digits that do not begin a word, and
# dots between words.
_ODD = re.compile(r"(?<![a-zA-Z0-9])\.|\.(?![a-zA-Z])|(?<!.)[0-9]|[^a-zA-Z0-9.]", re.DOTALL)

# Operators with bodies, which the function of a composite cannot hold.
OPERATORS_WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})


@cache
def operand_counts(op: str) -> tuple[int, int] | None:
    """Return the least and the most inputs of an operator, None for an unknown operator."""
    schemas = find_schemas(op)
    if not schemas:
        return None
    return min(s.min_input for s in schemas), max(s.max_input for s in schemas)


@cache
def output_count(op: str) -> int | None:
    """Return the most outputs of an operator, None for an unknown operator."""
    schemas = find_schemas(op)
    return max(s.max_output for s in schemas) if schemas else None


@cache
def attribute_names(op: str) -> frozenset[str] | None:
    """Return the names of the attributes of an operator, None for an unknown operator."""
    schemas = find_schemas(op)
    return frozenset(name for s in schemas for name in s.attributes) if schemas else None


@cache
def has_variadic_output(op: str) -> bool:
    """Return whether the number of outputs changes the meaning of an operator, as for Split."""
    return any(s.outputs and s.outputs[-1].variadic for s in find_schemas(op))


def counts_trailing_inputs(schema: OperatorSchema | None) -> bool:
    """Return whether an empty name at the end of the inputs differs from leaving it out.

    It does for operators that count their inputs (Sum), and may for unknown ones. onnxruntime reads an
    empty second input of Split as sizes.
    """
    if schema is None or schema.op_type == "Split":
        return True
    return bool(schema.inputs) and schema.inputs[-1].variadic


def function_label(op: str) -> str:
    """Return a unique part of a function name for an operator: `relu`, `acme__Op`.

    ONNX operators are in lower case. For other domains a dot becomes `__`, and other characters that are
    neither letters nor digits become `_0..._` with their code.
    """
    if op in list_onnx_operators() and "." not in op:
        return op.lower()
    dotted = op if "." in op else f".{op}"
    return _ODD.sub(lambda found: f"_0{ord(found[0]):x}_", dotted).replace(".", "__")


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
