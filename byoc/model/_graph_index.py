"""The index of a graph: producers and consumers of tensors, and constants.

The protobuf stays the only copy of the model; the index adds look-ups in time linear in its size. The
body of an If, Loop or Scan is a graph of its own, with an index that refers to the graph around it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

import onnx
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, SparseTensorProto, TensorProto, TypeProto

from byoc._dataclasses import dataclass
from byoc.model._dimensions import NOTHING_OPEN, PlannedSizes
from byoc.model._node_kinds import (
    FORM_CHANGE_KEY,
    NodeKind,
    NodeRecords,
    get_effective_attributes,
    get_metadata,
    get_stated_attributes,
    infer_body_input_types,
    is_inserted,
)
from byoc.model._tensor_data import (
    Dim,
    TensorType,
    get_graph_types,
    is_large,
    rate_knowledge,
    read_tensor_types,
)
from byoc.model._walk import is_onnx, list_captures, list_own_names, list_reads
from byoc.model.schemas import OperatorSchema, get_schema

if TYPE_CHECKING:
    from byoc.model._inference._shape_inference import KnownValues
    from byoc.model.ranges import ValueRanges

T = TypeVar("T")

RANDOM_OPERATORS = frozenset(
    [
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Multinomial", "Dropout"),  # Dropout in training mode, which is an input
    ]
)
"""Operators whose outputs differ from run to run: they are never constant, even without inputs."""

# From this IR version on, an initializer that is also a graph input is the default of that input.
MIN_IR_OF_DEFAULTS = 4


@dataclass(frozen=True, eq=False)
class GraphBody:
    """A body of a node: the attribute that holds it, its position in that attribute, and its index."""

    attribute: str
    position: int
    index: "GraphIndex"


@dataclass(frozen=True, eq=False)
class GraphIndex:
    """Look-ups over a model's main graph, or over `body`, a graph inside `outer`.

    Nodes must be sorted topologically; a node number is a position in the graph's `node`. `type_protos`
    maps tensors to their known types, those of the graphs around included: inferred ones, and stated
    ones where nothing else is known (`find_certain_types` has those that hold whatever is stated).
    `typed_graph` is the same graph with these types, if there are any; the indices of bodies get theirs
    from it. `planned` are the sizes of open dimensions that a plan counts with. `certain` says that the
    types hold whatever the file states; `known_records` are those of the nodes, if they were read. Uses
    include captures by the bodies of If, Loop and Scan.
    """

    proto: onnx.ModelProto
    type_protos: Mapping[str, TypeProto]
    typed_graph: GraphProto | None = None
    body: GraphProto | None = None
    outer: "GraphIndex | None" = None
    planned: PlannedSizes = NOTHING_OPEN
    certain: bool = False
    known_records: NodeRecords | None = None

    @classmethod
    def of_model(cls, proto: onnx.ModelProto) -> Self:
        """Return the index of a model's main graph with the types that it states."""
        return cls(proto, get_graph_types(proto.graph))

    @property
    def graph(self) -> GraphProto:
        """The graph itself."""
        return self.proto.graph if self.body is None else self.body

    @cached_property
    def bodies(self) -> Mapping[int, Sequence[GraphBody]]:
        """The bodies of each node that has some."""
        found = {}
        for i, kind in enumerate(self.node_kinds):
            if not kind.has_bodies:
                continue
            node = self.nodes[i]
            graphs = _map_bodies(node)
            typed = _map_bodies(self.typed_graph.node[i]) if self.typed_graph is not None else graphs
            found[i] = [
                GraphBody(name, position, self._make_body_index(node, graph, typed[name, position]))
                for (name, position), graph in graphs.items()
            ]
        return found

    def _make_body_index(self, node: NodeProto, body: GraphProto, typed: GraphProto) -> "GraphIndex":
        own = list_own_names(body)
        values = {name: kind for name, kind in self.type_protos.items() if name not in own}
        values |= {**get_graph_types(body), **get_graph_types(typed)}
        for name, kind in infer_body_input_types(node, body, self.type_protos).items():
            if rate_knowledge(kind) > rate_knowledge(values.get(name)):
                values[name] = kind
        return GraphIndex(
            self.proto,
            values,
            typed if self.typed_graph is not None else None,
            body,
            self,
            self.planned,
        )

    @cached_property
    def values(self) -> "KnownValues | None":
        """The values of small tensors for every run, as far as the types hold; None in odd bodies."""
        from byoc.model._inference._shape_inference import KnownValues  # noqa: PLC0415 - few ask, and it is much to load

        if self.outer is None:
            return KnownValues.of_graph(self.typed_graph or self.graph, self.proto, self.opsets)
        around = self.outer.values
        ways = [
            (number, body.attribute)
            for number, bodies in self.outer.bodies.items()
            for body in bodies
            if body.index is self
        ]
        return around.enter_body(*ways[0]) if around is not None and ways else None

    def walk(self) -> "Iterator[GraphIndex]":
        """Yield this index and those of all bodies inside, however deep."""
        pending = [self]
        while pending:
            current = pending.pop()
            yield current
            pending.extend(body.index for inner in current.bodies.values() for body in inner)

    @cached_property
    def captured_names(self) -> Sequence[str]:
        """The tensors that a body captures, without constants, in order of first use."""
        if self.body is None:
            return []
        return [name for name in list_captures(self.body) if not self.is_constant(name)]

    @cached_property
    def types(self) -> Mapping[str, TensorType]:
        """The known tensor types; sequences, maps and optionals are left out."""
        return read_tensor_types(self.type_protos)

    def get_dtype(self, name: str) -> str | None:
        """Return the dtype of a tensor, None if it is not known."""
        kind = self.types.get(name)
        return kind.dtype if kind else None

    def get_shape(self, name: str) -> tuple[Dim, ...] | None:
        """Return the shape of a tensor, None if its rank is not known."""
        kind = self.types.get(name)
        return kind.shape if kind else None

    def get_rank(self, name: str) -> int | None:
        """Return the rank of a tensor, None if it is not known."""
        shape = self.get_shape(name)
        return None if shape is None else len(shape)

    @cached_property
    def nodes(self) -> Sequence[NodeProto]:
        """The nodes of the graph."""
        return list(self.graph.node)

    @cached_property
    def records(self) -> NodeRecords:
        """The kinds and tensor names of the nodes, in order."""
        return NodeRecords.read(self.nodes) if self.known_records is None else self.known_records

    @cached_property
    def node_kinds(self) -> Sequence[NodeKind]:
        """The kind of each node."""
        return self.records.kinds

    @cached_property
    def inserted_nodes(self) -> frozenset[int]:
        """The nodes that byoc inserted."""
        labelled = [i for i, node in enumerate(self.nodes) if node.metadata_props]
        return frozenset(i for i in labelled if is_inserted(self.nodes[i]))

    @cached_property
    def form_changes(self) -> Mapping[int, str]:
        """The nodes that byoc inserted where tensors enter another form or leave it, with its name."""
        labelled = [i for i, node in enumerate(self.nodes) if node.metadata_props]
        names = ((i, get_metadata(self.nodes[i], FORM_CHANGE_KEY)) for i in labelled)
        return {i: name for i, name in names if name}

    @cached_property
    def node_inputs(self) -> Sequence[tuple[str, ...]]:
        """The names of each node's inputs, empty for one that is left out."""
        return self.records.inputs

    @cached_property
    def node_outputs(self) -> Sequence[tuple[str, ...]]:
        """The names of each node's outputs, empty for one that is left out."""
        return self.records.outputs

    @cached_property
    def initializers(self) -> Mapping[str, TensorProto]:
        """Stored tensors that a caller cannot override; see `has_default_inputs`."""
        given = {value.name for value in self.graph.input} if self.has_default_inputs else set()
        return {t.name: t for t in self.graph.initializer if t.name not in given}

    @cached_property
    def stored_tensors(self) -> Mapping[str, TensorProto]:
        """Stored tensors by name: the initializers, and large tensors in Constant nodes.

        Older exporters keep weights in Constant nodes. These are treated as initializers; a node with a
        small tensor is an ordinary constant node. The index of a body includes the stored tensors around
        it.
        """
        nodes = {
            node.output[0]: attribute.t
            for node in self.nodes
            if node.op_type == "Constant" and is_onnx(node)
            for attribute in node.attribute
            if attribute.name == "value" and is_large(attribute.t)
        }
        around = self._drop_own_names(self.outer.stored_tensors) if self.outer is not None else {}
        return {**around, **self.initializers, **nodes}

    def _drop_own_names(self, outer: Mapping[str, T]) -> dict[str, T]:
        """Return a mapping of the graph around without the names that the body defines itself."""
        return {name: found for name, found in outer.items() if name not in self._own_names}

    @cached_property
    def _own_names(self) -> frozenset[str]:
        return list_own_names(self.graph)

    @cached_property
    def sparse_initializers(self) -> Mapping[str, SparseTensorProto]:
        """Stored sparse tensors. They have no tensor type, so their readers stay on the host."""
        around = self._drop_own_names(self.outer.sparse_initializers) if self.outer is not None else {}
        return {**around, **{s.values.name: s for s in self.graph.sparse_initializer}}

    @property
    def has_default_inputs(self) -> bool:
        """Whether an initializer that is also a graph input is a default value (IR 4 and later)."""
        return self.proto.ir_version >= MIN_IR_OF_DEFAULTS

    @cached_property
    def inputs(self) -> Sequence[str]:
        """The graph inputs that are data, not initializers."""
        stored = {**self.initializers, **self.sparse_initializers}
        return [v.name for v in self.graph.input if v.name not in stored]

    @cached_property
    def outputs(self) -> Mapping[str, None]:
        """The graph outputs in order, as a mapping for fast look-ups."""
        return dict.fromkeys(value.name for value in self.graph.output)

    @cached_property
    def producers(self) -> Mapping[str, int]:
        """Tensor to the number of the node that makes it; graph inputs and initializers have none."""
        return {name: i for i, names in enumerate(self.node_outputs) for name in names if name}

    @cached_property
    def reads(self) -> Sequence[Sequence[str]]:
        """The tensors that each node reads, captures included, without duplicates."""
        found = [list(dict.fromkeys(filter(None, names))) for names in self.node_inputs]
        for number in self.bodies:
            found[number] = list_reads(self.nodes[number])
        return found

    @cached_property
    def consumers(self) -> Mapping[str, Sequence[int]]:
        """Tensor to the numbers of the nodes that read it, in order."""
        users: defaultdict[str, list[int]] = defaultdict(list)
        for i, names in enumerate(self.reads):
            for name in names:
                users[name].append(i)
        return dict(users)

    def is_used(self, name: str) -> bool:
        """Return whether a node reads a tensor or it is a graph output."""
        return name in self.consumers or name in self.outputs

    @cached_property
    def constant_nodes(self) -> frozenset[int]:
        """Nodes whose outputs are known before the model runs: all their inputs are constants.

        They are not placed: each goes wherever its readers are. Operators of other domains are excluded,
        since nothing is known of them.
        """
        found: set[int] = set()
        constant = set(self.stored_tensors)
        for i, kind in enumerate(self.node_kinds):
            if not constant.issuperset(self.reads[i]) or i in self.bodies:
                continue
            if not kind.is_onnx or kind.op_type in RANDOM_OPERATORS:
                continue
            found.add(i)
            constant.update(self.node_outputs[i])
        return frozenset(found)

    @cached_property
    def constant_names(self) -> frozenset[str]:
        """The tensors whose values are known before the model runs."""
        made = [name for i in self.constant_nodes for name in self.node_outputs[i] if name]
        return frozenset([*self.stored_tensors, *self.sparse_initializers, *made])

    def is_constant(self, name: str) -> bool:
        """Return whether a tensor's value is known before the model runs."""
        return name in self.constant_names

    @cached_property
    def constant_values(self) -> dict[str, NDArray[Any] | None]:
        """A cache of `byoc.model._constants`."""
        return {}

    def find_constant_nodes(self, names: Sequence[str]) -> list[int]:
        """Return the constant nodes that compute the given tensors, in topological order.

        A large Constant node is stored data and not among them.
        """
        found: set[int] = set()
        pending = list(names)
        while pending:
            name = pending.pop()
            node = self.producers.get(name)
            if node in self.constant_nodes and node not in found and name not in self.stored_tensors:
                found.add(node)
                pending.extend(self.reads[node])
        return sorted(found)

    @cached_property
    def value_ranges(self) -> "ValueRanges":
        """The ranges that values of the graph's tensors lie in; those of a body as its node runs it."""
        from byoc.model.ranges import ValueRanges  # noqa: PLC0415 - few graphs are asked for any

        return ValueRanges(self) if self.outer is None else self.outer.value_ranges.enter_body(self)

    @cached_property
    def plain_ranges(self) -> "ValueRanges":
        """The ranges of the graph's tensors in any run, also one that an index beyond its table ends."""
        from byoc.model.ranges import PlainRanges  # noqa: PLC0415 - few graphs are asked for any

        return PlainRanges(self) if self.outer is None else self.outer.plain_ranges.enter_body(self)

    @cached_property
    def functions(self) -> Mapping[tuple[str, str, str], onnx.FunctionProto]:
        """The functions of the model by domain, name and overload."""
        if self.outer is not None:
            return self.outer.functions
        return {(each.domain, each.name, each.overload): each for each in self.proto.functions}

    @cached_property
    def opsets(self) -> Mapping[str, int]:
        """Domain (the main one as the empty text) to the version of its operator set."""
        return {
            "" if entry.domain == "ai.onnx" else entry.domain: entry.version
            for entry in self.proto.opset_import
        }

    def get_opset(self, node: NodeProto) -> int:
        """Return the operator-set version of a node's operator."""
        return self.opsets.get("" if is_onnx(node) else node.domain, 1)

    def get_schema(self, node: NodeProto) -> OperatorSchema | None:
        """Return the schema of a node's operator, None if neither ONNX nor onnxruntime has one."""
        return get_schema(node.op_type, node.domain, self.get_opset(node))

    def get_attributes(self, node: NodeProto) -> dict[str, Any]:
        """Return the attributes in effect on a node: the stated ones, and the defaults of its schema."""
        schema = self.get_schema(node)
        if schema is None:
            return get_stated_attributes(node)
        return get_effective_attributes(node, schema, self.types)


def _map_bodies(node: NodeProto) -> dict[tuple[str, int], GraphProto]:
    """Return the bodies of a node by attribute and position in it."""
    return {
        (attribute.name, position): graph
        for attribute in node.attribute
        for position, graph in enumerate([attribute.g] if attribute.HasField("g") else attribute.graphs)
    }
