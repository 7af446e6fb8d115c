"""The tensors of a graph or a function's body while their types are settled: types, and small values."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from byoc._dataclasses import dataclass, field
from byoc.model._inference._elementwise_shapes import Types, merge_dims
from byoc.model._inference._extents import list_dim_names, parse_dim
from byoc.model._inference._moved_values import MAX_ELEMENTS, Array
from byoc.model._node_kinds import KnownKinds, NodeKind, NodeRecords
from byoc.model._tensor_data import Dim, TensorType, get_graph_types, read_tensor_types, write_type
from byoc.model._walk import is_onnx

# Types merged from several sources, and the context of inference that all graphs of a model share.

_LIMIT = 2**63  # ONNX states extents in 64 bits


class MergedType(NamedTuple):
    """A type merged of what is inferred, was known before, and is stated.

    `corrected` says that what was known before was wrong, `uses_stated` that what is stated added to it.
    """

    kind: TensorType | None
    corrected: bool
    uses_stated: bool


class VisitError(Exception):
    """More visits of nodes than there is time for."""


@dataclass(eq=False)
class InferenceContext:
    """The functions of a model, the names of its open dimensions, and the visits of nodes left.

    `uses_stated` says whether a type is what the file states of a tensor that is no input. `kinds` are
    those of all nodes, `doubtful` the keys of functions whose types ONNX's inference may find otherwise
    than onnxruntime makes them; `attributes`, `inferred` and `merged` keep what was found for a node or
    a tensor, for others that are alike.
    """

    functions: Mapping[tuple[str, str, str], FunctionProto]
    names: frozenset[str]
    ir_version: int
    visits_left: int
    uses_stated: bool = False
    doubtful: frozenset[tuple[str, str, str]] = frozenset()
    kinds: KnownKinds = field(default_factory=dict)
    attributes: dict[object, Mapping[str, Any]] = field(default_factory=dict)
    inferred: dict[object, Sequence[TensorType | None]] = field(default_factory=dict)
    merged: dict[object, "MergedType"] = field(default_factory=dict)

    @classmethod
    def read(cls, model: ModelProto, names: Iterable[str], visits: int) -> "InferenceContext":
        """Return the context of inference in a model."""
        functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        known = frozenset(name for text in names for name in list_dim_names(parse_dim(text)))
        return cls(functions, known, model.ir_version, visits)

    def count_visit(self) -> None:
        """Count a visit of a node. Raises VisitError when none is left."""
        self.visits_left -= 1
        if self.visits_left < 0:
            raise VisitError

    def merge(
        self, inferred: TensorType | None, before: TensorType | None, stated: TensorType | None
    ) -> MergedType:
        """Merge the types of a tensor; alike ones once."""
        key = inferred, before, stated
        found = self.merged.get(key)
        if found is None:
            found = self.merged[key] = self._merge(*key)
        return found

    def _merge(
        self, inferred: TensorType | None, before: TensorType | None, stated: TensorType | None
    ) -> MergedType:
        made = self.clean_type(inferred)
        found = merge_types(made, before)
        corrected = made is not None and before is not None and contradicts(made, before)
        if found is not None and contradicts(stated, found):
            return MergedType(found, corrected, uses_stated=False)
        completed = complete_type(found, stated)
        return MergedType(completed, corrected, completed != found)

    def clean_type(self, kind: TensorType | None) -> TensorType | None:
        """Return a type with extents in canonical form; a name that is no open dimension is unknown."""
        if kind is None or kind.shape is None or is_fixed(kind):
            return kind
        return TensorType(kind.dtype, tuple(map(self._clean_dim, kind.shape)))

    def _clean_dim(self, dim: Dim) -> Dim:
        if not isinstance(dim, str):
            return None if dim is None or not 0 <= dim < _LIMIT else dim
        found = parse_dim(dim)
        return found if list_dim_names(found) <= self.names else None


@lru_cache(1 << 16)
def is_fixed(kind: TensorType) -> bool:
    """Return whether all extents of a type are numbers."""
    return kind.shape is not None and all(type(dim) is int and 0 <= dim < _LIMIT for dim in kind.shape)


def contradicts(one: TensorType | None, other: TensorType) -> bool:
    """Return whether two types cannot both be right."""
    if one is None or one.shape is None or other.shape is None:
        return one is not None and one.dtype != other.dtype
    if one.dtype != other.dtype or len(one.shape) != len(other.shape):
        return True
    pairs = zip(one.shape, other.shape, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def merge_types(first: TensorType | None, second: TensorType | None) -> TensorType | None:
    """Merge two types, both right; where they contradict each other, the first one wins."""
    return _merge(first, second, merge_dims)


def complete_type(found: TensorType | None, stated: TensorType | None) -> TensorType | None:
    """Complete a type that was found: the stated type fills in the rank and extents that it lacks.

    A stated number does not replace the name that an extent follows from: files whose inputs were opened
    afterwards, to take any batch, still state the batch of 1 that they were exported with.
    """
    return _merge(found, stated, lambda one, other: other if one is None else one)


def _merge(
    first: TensorType | None, second: TensorType | None, merge: Callable[[Dim, Dim], Dim]
) -> TensorType | None:
    if first is None or second is None:
        return second if first is None else first
    if second.shape is None or first.dtype != second.dtype:
        return first
    if first.shape is None:
        return TensorType(first.dtype, second.shape)
    if len(first.shape) != len(second.shape):
        return first
    return TensorType(first.dtype, tuple(map(merge, first.shape, second.shape)))


# Of indices, sizes and conditions.
_COUNTING_DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)


@dataclass(eq=False)
class TensorScope:
    """The tensors of some nodes, in which names are resolved as at run time.

    `graph` is the typed graph of the nodes, None for a function's body. `types` are the settled types,
    `values` the small values found so far, `stored` the stored tensors, `others` the names of
    sequences, maps and optionals, `sequences` the types of the elements of those that are known to have
    so many. `bodies` are the scopes of the nodes' bodies, `changed` the tensors
    whose types the graph does not state yet, `varying` those whose rank differs from run to run,
    `corrected` those of which ONNX's inference was wrong, and what follows, `made_inside` those whose
    values a body or a function gave. `known_records` are those of the nodes, `known_stated` the types
    that the file states, if they were read.
    """

    context: InferenceContext
    nodes: Sequence[NodeProto]
    opsets: Mapping[str, int]
    types: dict[str, TensorType]
    stored: Mapping[str, TensorProto] = field(default_factory=dict)
    values: dict[str, Array | None] = field(default_factory=dict)
    graph: GraphProto | None = None
    stated_graph: GraphProto | None = None
    outer: "TensorScope | None" = None
    others: frozenset[str] = frozenset()
    sequences: dict[str, tuple[TensorType | None, ...]] = field(default_factory=dict)
    bodies: dict[int, list["TensorScope"]] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    varying: set[str] = field(default_factory=set)
    corrected: set[str] = field(default_factory=set)
    made_inside: set[str] = field(default_factory=set)
    known_records: NodeRecords | None = None
    known_stated: Mapping[str, TypeProto] | None = None

    @classmethod
    def of_graph(
        cls,
        context: InferenceContext,
        graph: GraphProto,
        stated_graph: GraphProto,
        opsets: Mapping[str, int],
        types: Mapping[str, TypeProto] | None = None,
    ) -> "TensorScope":
        """Return the scope of a graph that ONNX has typed; `stated_graph` is as in the file.

        `types` are those that the graph states, if they were read.
        """
        read, others = _read_types(get_graph_types(graph) if types is None else types)
        cleaned = _clean_types(context, read)
        return cls(
            context,
            graph.node,
            opsets,
            cleaned,
            stored={tensor.name: tensor for tensor in graph.initializer},
            graph=graph,
            stated_graph=stated_graph,
            others=others,
            changed={
                name for name, kind in cleaned.items() if kind is not read[name] and kind != read[name]
            },
        )

    def enter_body(self, number: int, attribute: str) -> "TensorScope | None":
        """Return a new scope of a node's body, None if it has none of that name."""
        body = find_body(self.nodes[number], attribute)
        stated = self.stated_graph.node[number] if self.stated_graph is not None else self.nodes[number]
        around = find_body(stated, attribute)
        if body is None or around is None:
            return None
        inner = TensorScope.of_graph(self.context, body, around, self.opsets)
        inner.outer = self
        return inner

    def find_type(self, name: str) -> TensorType | None:
        """Return the type of a tensor here or in a graph around, None if it is not known."""
        scope: TensorScope | None = self
        while scope is not None:
            if name in scope.types:
                return scope.types[name]
            scope = scope.outer
        return None

    def find_sequence(self, name: str) -> tuple[TensorType | None, ...] | None:
        """Return the types of a sequence's elements, made here or in a graph around, None if unknown."""
        scope: TensorScope | None = self
        while scope is not None:
            if name in scope.sequences:
                return scope.sequences[name]
            scope = scope.outer
        return None

    def is_settled(self, name: str) -> bool:
        """Return whether a tensor made here has a type whose extents are all known."""
        kind = self.types.get(name)
        return name in self.others or (
            kind is not None and kind.shape is not None and None not in kind.shape
        )

    def is_small(self, name: str) -> bool:
        """Return whether a tensor may be a small one of integers or booleans, whose value matters."""
        kind = self.find_type(name)
        if kind is None or kind.shape is None:
            return True
        return kind.dtype in _COUNTING_DTYPES and (kind.elements or 0) <= MAX_ELEMENTS

    def is_open(self, number: int) -> bool:
        """Return whether a type of a node's outputs is not settled."""
        return not all(self.is_settled(name) for name in self.outputs[number] if name)

    def is_wanted(self, number: int) -> bool:
        """Return whether a type of a node's outputs is open, or its value may matter."""
        names = self.outputs[number]
        return self.is_open(number) or any(self.is_small(name) for name in names if name)

    def list_small_inputs(self, number: int) -> list[int]:
        """Return the positions of a node's inputs whose values may matter to types."""
        pairs = enumerate(self.inputs[number])
        return [i for i, name in pairs if name in self.stored or (name and self.is_small(name))]

    def complete_types(self, number: int, types: Types) -> None:
        """Complete the types of a node's outputs: by the given ones, else by what the file states."""
        for i, name in enumerate(self.outputs[number]):
            if not name or name in self.others:
                continue
            before = self.types.get(name)
            stated = self.stated.get(name) if name not in self.varying else None
            merged = self.context.merge(types[i] if i < len(types) else None, before, stated)
            if merged.corrected:
                self.corrected.add(name)
            self.context.uses_stated |= merged.uses_stated
            if merged.kind is not None and merged.kind != before:
                self.types[name] = merged.kind
                self.changed.add(name)

    def reads_corrected(self, number: int) -> bool:
        """Return whether a node without bodies reads a tensor that ONNX's inference was wrong about."""
        scope: TensorScope | None = self
        while scope is not None:
            if scope.corrected and not scope.corrected.isdisjoint(self.inputs[number]):
                return True
            scope = scope.outer
        return False

    def forget_types(self, number: int) -> None:
        """Forget the types of a node's outputs, which follow from wrong ones, but for their dtypes."""
        for name in self.outputs[number]:
            kind = self.types.pop(name, None)
            if kind is not None:
                self.types[name] = TensorType(kind.dtype, None)
                self.corrected.add(name)
                self.changed.add(name)

    def write_types(self) -> None:
        """Write what was found out into the typed graph and its bodies, in place."""
        for scopes in self.bodies.values():
            for scope in scopes:
                scope.write_types()
        if self.graph is None or not self.changed:
            return
        infos = {v.name: v for v in (*self.graph.value_info, *self.graph.output, *self.graph.input)}
        for name, proto in self.write_changed():
            info = infos.get(name)
            if info is None:
                self.graph.value_info.add(name=name, type=proto)
            else:
                info.type.CopyFrom(proto)

    def write_changed(self) -> Iterator[tuple[str, TypeProto]]:
        """Yield the tensors whose types were completed, sorted by name, and the types."""
        written: dict[int, TypeProto] = {}  # tensors share types
        for name in sorted(self.changed):
            kind = self.types[name]
            if id(kind) not in written:
                written[id(kind)] = write_type(kind)
            yield name, written[id(kind)]

    @cached_property
    def stated(self) -> Mapping[str, TensorType]:
        """The types that the file states, none in a function's body."""
        if self.stated_graph is None:
            return {}
        known = self.known_stated
        protos = get_graph_types(self.stated_graph) if known is None else known
        return _clean_types(self.context, read_tensor_types(protos))

    @cached_property
    def records(self) -> NodeRecords:
        """The kinds and tensor names of the nodes, in order."""
        if self.known_records is not None:
            return self.known_records
        return NodeRecords.read(self.nodes, self.context.kinds)

    @cached_property
    def kinds(self) -> Sequence[NodeKind]:
        """The kind of each node."""
        return self.records.kinds

    @cached_property
    def inputs(self) -> Sequence[tuple[str, ...]]:
        """The names of each node's inputs, empty for one that is left out."""
        return self.records.inputs

    @cached_property
    def outputs(self) -> Sequence[tuple[str, ...]]:
        """The names of each node's outputs, empty for one that is left out."""
        return self.records.outputs

    @cached_property
    def imports(self) -> tuple[tuple[str, int], ...]:
        """The versions of operator sets, to tell scopes apart."""
        return tuple(sorted(self.opsets.items()))

    @cached_property
    def producers(self) -> Mapping[str, int]:
        """Tensor to the number of the node that makes it."""
        return {name: i for i, names in enumerate(self.outputs) for name in names if name}

    def get_opset(self, node: NodeProto) -> int:
        """Return the operator-set version of a node's operator."""
        return self.opsets.get("" if is_onnx(node) else node.domain, 1)


def find_body(node: NodeProto, attribute: str) -> GraphProto | None:
    """Return the body that an attribute of a node holds, None if there is none."""
    return next((each.g for each in node.attribute if each.name == attribute), None)


def _read_types(
    protos: Mapping[str, TypeProto],
) -> tuple[dict[str, TensorType], frozenset[str]]:
    """Return the types of tensors among others, and the names of what is no tensor."""
    types = read_tensor_types(protos)
    rest = (name for name in protos if name not in types)
    return types, frozenset(name for name in rest if protos[name].WhichOneof("value") != "tensor_type")


def _clean_types(context: InferenceContext, types: Mapping[str, TensorType]) -> dict[str, TensorType]:
    cleaned = {kind: context.clean_type(kind) for kind in set(types.values())}
    found = ((name, cleaned[kind]) for name, kind in types.items())
    return {name: kind for name, kind in found if kind is not None}
