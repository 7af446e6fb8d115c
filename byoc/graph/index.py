"""An index over a model's main graph: who makes a tensor, who reads it, what is constant.

The protobuf stays the only copy of the model; the index adds look-ups in time linear in its size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import NodeProto, SparseTensorProto, TensorProto, TypeProto

from byoc.graph.tensors import is_large
from byoc.graph.types import TensorType, read_type
from byoc.graph.walk import bodies, reads

# The same inputs give other outputs each time, so these are never constant even with no inputs.
_RANDOM = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
    "Dropout",  # when it trains, which an input says
}

# From this IR version on an initializer that is also a graph input is a default for it.
DEFAULTS_IR = 4


@dataclass(frozen=True, eq=False)
class GraphIndex:
    """Look-ups over `proto.graph`, whose nodes must be topologically sorted.

    `values` maps what has a known type (stated or inferred) to it. Node numbers are positions in
    `proto.graph.node`. Uses include what the bodies of If, Loop and Scan capture.
    """

    proto: onnx.ModelProto
    values: Mapping[str, TypeProto]

    @cached_property
    def types(self) -> Mapping[str, TensorType]:
        """The known types of tensors; sequences, maps and optionals have none here."""
        return tensor_types(self.values)

    @cached_property
    def nodes(self) -> Sequence[NodeProto]:
        """The nodes of the main graph."""
        return list(self.proto.graph.node)

    @cached_property
    def initializers(self) -> Mapping[str, TensorProto]:
        """Stored tensors that no caller can override; see `overridable`."""
        given = {value.name for value in self.proto.graph.input} if self.overridable else set()
        return {t.name: t for t in self.proto.graph.initializer if t.name not in given}

    @cached_property
    def stored(self) -> Mapping[str, TensorProto]:
        """All that is stored under a name: the initializers, and large tensors in Constant nodes.

        Older exporters keep weights in Constant nodes; these travel as initializers do, while a node
        with a small tensor is a constant node like any other.
        """
        nodes = {
            node.output[0]: attribute.t
            for node in self.nodes
            if node.op_type == "Constant" and node.domain in ("", "ai.onnx")
            for attribute in node.attribute
            if attribute.name == "value" and is_large(attribute.t)
        }
        return {**self.initializers, **nodes}

    @cached_property
    def sparse_initializers(self) -> Mapping[str, SparseTensorProto]:
        """Stored sparse tensors. They have no tensor type, so what reads them stays on the host."""
        return {s.values.name: s for s in self.proto.graph.sparse_initializer}

    @property
    def overridable(self) -> bool:
        """Whether an initializer that is also a graph input is a default value (IR 4 and later)."""
        return self.proto.ir_version >= DEFAULTS_IR

    @cached_property
    def inputs(self) -> Sequence[str]:
        """The graph inputs that carry data."""
        stored = {**self.initializers, **self.sparse_initializers}
        return [v.name for v in self.proto.graph.input if v.name not in stored]

    @cached_property
    def outputs(self) -> Mapping[str, None]:
        """The graph outputs, in order; a mapping so that looking one up is quick."""
        return dict.fromkeys(value.name for value in self.proto.graph.output)

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """Tensor to the node that makes it; graph inputs and initializers have none."""
        return {name: i for i, node in enumerate(self.nodes) for name in node.output if name}

    @cached_property
    def reads(self) -> Sequence[Sequence[str]]:
        """Per node, the tensors that it reads, captures included, without duplicates."""
        return [reads(node) for node in self.nodes]

    @cached_property
    def consumers(self) -> Mapping[str, Sequence[int]]:
        """Tensor to the nodes that read it, in order."""
        users: dict[str, list[int]] = {}
        for i, names in enumerate(self.reads):
            for name in names:
                users.setdefault(name, []).append(i)
        return users

    def is_used(self, name: str) -> bool:
        """Return whether a node reads a tensor, or the graph gives it out."""
        return name in self.consumers or name in self.outputs

    @cached_property
    def constant_nodes(self) -> frozenset[int]:
        """Nodes whose every output is known before the model runs: fed by constants alone.

        They are not placed: each goes wherever its readers are. Operators of other domains are left
        out, since nothing is known of them.
        """
        found: set[int] = set()
        constant = set(self.initializers)
        for i, node in enumerate(self.nodes):
            if node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM:
                continue
            if any(True for _ in bodies(node)) or not constant.issuperset(self.reads[i]):
                continue
            found.add(i)
            constant.update(node.output)
        return frozenset(found)

    def is_constant(self, name: str) -> bool:
        """Return whether a tensor's value is known before the model runs."""
        return (
            name in self.initializers
            or name in self.sparse_initializers
            or self.producer.get(name) in self.constant_nodes
        )

    def constants_behind(self, names: Sequence[str]) -> list[int]:
        """Return the constant nodes that compute the given tensors, in topological order.

        What is stored in a large Constant node needs no computing.
        """
        found: set[int] = set()
        pending = list(names)
        while pending:
            name = pending.pop()
            node = self.producer.get(name)
            if node in self.constant_nodes and node not in found and name not in self.stored:
                found.add(node)
                pending.extend(self.reads[node])
        return sorted(found)

    @cached_property
    def opsets(self) -> Mapping[str, int]:
        """Domain (the standard one as an empty string) to the operator-set version in use."""
        return {
            "" if entry.domain == "ai.onnx" else entry.domain: entry.version
            for entry in self.proto.opset_import
        }


def stated_types(proto: onnx.ModelProto) -> dict[str, TypeProto]:
    """Return the types that the main graph states for its tensors, stored ones included."""
    graph = proto.graph
    types = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types


def tensor_types(types: Mapping[str, TypeProto]) -> dict[str, TensorType]:
    """Return the types of the tensors among some values; sequences, maps and optionals are left out."""
    read = {name: read_type(proto) for name, proto in types.items()}
    return {name: kind for name, kind in read.items() if kind is not None}
