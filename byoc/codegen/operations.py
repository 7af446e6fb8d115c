"""A region as a list of operations: nodes decoded, so that an emitter reads no protobuf."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from byoc.boundary.contract import Contract
from byoc.boundary.conversions import is_conversion
from byoc.graph.attributes import effective, written
from byoc.graph.composites import METADATA
from byoc.graph.index import GraphIndex, stated_types
from byoc.graph.marks import noted
from byoc.graph.types import TensorType


@dataclass(frozen=True, eq=False)
class Operation:
    """What a region does next: a node with its attributes decoded.

    `name` is the node's name, or its first output where it has none; errors name it so. `op` is the
    operator, `domain` its domain, empty for ONNX's own. For a call of a composite `composite` is the
    composite's name in the rule file, and `op` that of its function, which tells variants apart; it is
    empty for all others.

    `inputs` and `outputs` are names of tensors, empty where one is left out. `attributes` are all that
    have a value, the defaults of ONNX's schema filled in: numbers, texts, lists of them, and TensorProto
    or GraphProto as they are. Those of a composite bear the name of the pattern's line: `c_strides`.

    `constants` are those of the inputs that are stored: `Region.constant` gives them. `inner` are the
    operations of a composite in order, with the names of tensors that they have outside of it. `node`
    is what all of this was read from.
    """

    name: str
    op: str
    composite: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    constants: tuple[str, ...]
    node: NodeProto
    inner: tuple["Operation", ...] = field(default=())


def operations(
    model: ModelProto,
    domain: str,
    inputs: Sequence[Contract],
    outputs: Sequence[Contract],
    boundary: bool,
) -> tuple[Operation, ...]:
    """Return what a region's model does, in order of execution.

    `domain` is that of the target's composites. Without `boundary`, byoc's own conversions of layout and
    float type are left out, that is, what lies between `name` and `inner` of each contract.
    """
    reader = _Reader(GraphIndex(model, stated_types(model)), domain)
    skipped = set() if boundary else conversions(reader.index, inputs, outputs)
    return tuple(reader.operation(node) for i, node in enumerate(reader.index.nodes) if i not in skipped)


def name_of(node: NodeProto) -> str:
    """Return what an operation is called: the node's name, or its first output where it has none."""
    return node.name or next(filter(None, node.output), node.op_type)


def conversions(index: GraphIndex, inputs: Sequence[Contract], outputs: Sequence[Contract]) -> set[int]:
    """Return the nodes between `name` and `inner` of the contracts, by number."""
    return set(_between(index, inputs, outputs))


def _between(
    index: GraphIndex, inputs: Sequence[Contract], outputs: Sequence[Contract]
) -> Iterator[int]:
    for contract in inputs:
        name = contract.name
        while name != contract.inner:
            readers = [i for i in index.consumers.get(name, ()) if is_conversion(index.nodes[i])]
            if len(readers) != 1:
                break
            yield readers[0]
            name = index.nodes[readers[0]].output[0]
    for contract in outputs:
        name = contract.name
        while name != contract.inner and name in index.producer:
            number = index.producer[name]
            if not is_conversion(index.nodes[number]):
                break
            yield number
            name = index.nodes[number].input[0]


@dataclass(frozen=True)
class _Reader:
    """Decodes the nodes of one region's model."""

    index: GraphIndex
    domain: str

    def operation(self, node: NodeProto) -> Operation:
        """Return a node of the model as an operation."""
        function = self._function(node)
        inner = () if function is None else tuple(map(self._decoded, _body(function, node)))
        composite = "" if function is None else noted(node, METADATA) or node.op_type
        return self._decoded(node, composite, inner)

    def _decoded(
        self, node: NodeProto, composite: str = "", inner: tuple[Operation, ...] = ()
    ) -> Operation:
        schema = self.index.schema(node)
        attributes = written(node) if schema is None else effective(node, schema, self._types)
        return Operation(
            name=name_of(node),
            op=node.op_type,
            composite=composite,
            domain="" if node.domain == "ai.onnx" else node.domain,
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            attributes=attributes,
            constants=tuple(name for name in dict.fromkeys(node.input) if name in self._stored),
            node=node,
            inner=inner,
        )

    @property
    def _types(self) -> Mapping[str, TensorType]:
        return self.index.types

    @property
    def _stored(self) -> Mapping[str, Any]:
        return self.index.initializers

    def _function(self, node: NodeProto) -> FunctionProto | None:
        if node.domain != self.domain:
            return None
        functions = self.index.proto.functions
        return next((f for f in functions if (f.domain, f.name) == (node.domain, node.op_type)), None)


def _body(function: FunctionProto, call: NodeProto) -> Iterator[NodeProto]:
    """Yield the nodes of a composite's function as they are in one call of it."""
    names = dict(zip(function.input, [*call.input, *[""] * len(function.input)], strict=False))
    names |= dict(zip(function.output, call.output, strict=False))
    names[""] = ""
    prefix = next(filter(None, call.output), call.op_type)
    given = {attribute.name: attribute for attribute in call.attribute}
    for node in function.node:
        result = NodeProto()
        result.CopyFrom(node)
        for name in node.output:  # what is inside alone, told apart from what other calls have
            names.setdefault(name, f"{prefix}/{name}")
        result.input[:] = [names.get(name, name) for name in node.input]
        result.output[:] = [names[name] for name in node.output]
        result.name = f"{call.name or prefix}/{node.name or node.output[0]}"
        del result.attribute[:]
        result.attribute.extend(_attributes(node, given))
        yield result


def _attributes(node: NodeProto, given: Mapping[str, AttributeProto]) -> Iterator[AttributeProto]:
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            yield attribute
        elif attribute.ref_attr_name in given:
            value = AttributeProto()
            value.CopyFrom(given[attribute.ref_attr_name])
            value.name = attribute.name
            yield value
