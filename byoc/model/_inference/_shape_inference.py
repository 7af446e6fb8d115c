"""Shape inference, and contradictions between inferred and stated types.

Inferred types take precedence over stated ones: exporters and optimizers leave stale shapes behind, and
onnxruntime infers, too.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from functools import cache, lru_cache
from itertools import chain, islice

import onnx
from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, helper

from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError
from byoc.model._inference._moved_values import MAX_ELEMENTS, Array
from byoc.model._inference._scope_values import find_value
from byoc.model._inference._scopes import InferenceContext, TensorScope, complete_type, contradicts
from byoc.model._inference._settling import MAX_VISITS, count_loop_trips, settle_types
from byoc.model._inference._window_shapes import check_nodes
from byoc.model._node_kinds import NodeRecords
from byoc.model._tensor_data import (
    DTYPE_NUMBERS,
    Dim,
    get_graph_types,
    get_stated_types,
    make_tensor_type,
    rate_knowledge,
    read_type,
    write_type,
)
from byoc.model._walk import (
    copy_without,
    is_onnx,
    list_bodies,
    list_own_names,
    walk_dims,
    walk_graphs,
    walk_value_infos,
)
from byoc.model.schemas import FormalParameter, get_schema

# Values of small tensors that follow from inputs' types and constants, looked up by name.


@dataclass(frozen=True, eq=False)
class KnownValues:
    """The values of a graph's small tensors: stored ones, and those that nodes make of known types.

    They are right for every run if the types in the graph are.
    """

    scope: TensorScope

    @classmethod
    def of_graph(cls, typed: GraphProto, model: ModelProto, opsets: Mapping[str, int]) -> "KnownValues":
        """Return the values of the main graph of a model, which has the types of its tensors stated."""
        names = [
            dim.dim_param
            for value in typed.input
            for dim in value.type.tensor_type.shape.dim
            if dim.dim_param
        ]
        context = InferenceContext.read(model, names, MAX_VISITS)
        return cls(TensorScope.of_graph(context, typed, typed, opsets))

    @classmethod
    def of_settled(cls, scope: TensorScope) -> "KnownValues":
        """Return the values of a main graph whose types are settled, with those that were found then.

        They are those that `of_graph` finds: what a body, a function or a node without a size limit made
        is left out, and so is what follows from it.
        """
        beyond = scope.made_inside | {
            name
            for name, value in scope.values.items()
            if value is not None and value.size > MAX_ELEMENTS
        }
        dropped = set(beyond)
        for node in scope.nodes if beyond else ():
            if not dropped.isdisjoint(node.output) or not dropped.isdisjoint(node.input):
                dropped.update(filter(None, node.output))
        values = {name: value for name, value in scope.values.items() if name not in dropped}
        # Neither what the file states nor the scopes of bodies are kept: values do not need them.
        return cls(replace(scope, values=values, stated_graph=scope.graph, bodies={}, known_stated=None))

    def enter_body(self, number: int, attribute: str) -> "KnownValues | None":
        """Return the values in a body of a node, None if it has none of that name."""
        scope = self.scope.enter_body(number, attribute)
        if scope is None:
            return None
        assert scope.graph is not None
        scope.values.update((value.name, None) for value in scope.graph.input)
        return KnownValues(scope)

    def count_trips(self, number: int) -> Dim:
        """Return the trip count of a Loop: a number or an expression of extents, None if unknown."""
        body = self.enter_body(number, "body")
        return None if body is None else count_loop_trips(self.scope, number, body.scope)

    def find_shape(self, name: str) -> tuple[Dim, ...] | None:
        """Return the shape of a tensor, None if its rank is not known."""
        kind = self.scope.find_type(name)
        return None if kind is None else kind.shape

    def find(self, name: str) -> Array | None:
        """Return the value of a tensor, None unless each of its at most 1,024 elements is known.

        The array must not be written to.
        """
        value = find_value(self.scope, name)
        return None if value is None or value.dtype == object else value

    def find_elements(self, name: str) -> list[Dim] | None:
        """Return the elements of an integer tensor, in rows, which may depend on open dimensions.

        An element is a number, an expression of extents, or None where it is not known. None is returned
        where nothing is known, and for more than 1,024 elements.
        """
        value = find_value(self.scope, name)
        if value is None or value.dtype.kind not in "iuO":
            return None
        return [dim if dim is None or isinstance(dim, str) else int(dim) for dim in value.ravel()]


def clear_negative_dims(proto: ModelProto, records: NodeRecords | None = None) -> ModelProto:
    """Return a model in which dimensions stated as negative numbers are unknown.

    Some exporters write -1 for unknown. onnxruntime reads it that way, but ONNX's shape inference
    computes with the number, and a Slice along such an axis ends the process. A model without such
    dimensions is returned unchanged. `records` are those of the main graph's nodes, if they were read.
    """
    graph = proto.graph
    values: Iterable[ValueInfoProto] = (*graph.input, *graph.output, *graph.value_info)
    if proto.functions or records is None or records.has_bodies:
        values = walk_value_infos(proto)
    if not any(_has_negative_dim(value.type.SerializeToString()) for value in values):
        return proto
    result = deepcopy(proto)
    for value in walk_value_infos(result):
        for dim in walk_dims(value.type):
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
    return result


@lru_cache(1 << 16)
def _has_negative_dim(data: bytes) -> bool:
    return any(dim.dim_value < 0 for dim in walk_dims(TypeProto.FromString(data)))


TypesByName = dict[str, TypeProto]

# Nested calls of functions can expand to more nodes than there is time to visit.
_MAX_INLINED_NODES = 250_000


@dataclass(frozen=True, eq=False)
class InferenceResult:
    """The result of shape inference.

    `type_protos` are the types of the main graph's tensors, `typed_graph` is the graph with types in
    its bodies, too (None when inference failed), `notes` are sentences for the user. `certain` says that
    the types follow from inputs and constants alone, whatever the file states of other tensors. `known`
    are the values of small tensors as far as types followed from them, None where no type did. `records`
    are those of the main graph's nodes, if they were read.
    """

    type_protos: TypesByName
    typed_graph: GraphProto | None
    notes: tuple[str, ...]
    certain: bool = False
    known: KnownValues | None = None
    records: NodeRecords | None = None


def infer_types(skeleton: ModelProto, stated: Mapping[str, TypeProto]) -> InferenceResult:
    """Infer the types of all tensors of a model, in bodies, too.

    `skeleton` is the model without large weights; `stated` are the types in the file. Raises InputError
    for a node that no runtime executes.
    """
    check_nodes(skeleton)
    return infer_checked_types(clear_negative_dims(skeleton), stated)


def infer_checked_types(
    skeleton: ModelProto,
    stated: Mapping[str, TypeProto] | None = None,
    records: NodeRecords | None = None,
) -> InferenceResult:
    """Infer types as `infer_types`, for a model that `check_nodes` passed and without negative dims.

    Without `stated` types those are taken that the skeleton states. `records` are those of the main
    graph's nodes, if they were read. Raises InputError for functions that ONNX takes for invalid.
    """
    if records is None:
        records = NodeRecords.read(skeleton.graph.node)
    own = get_stated_types(skeleton)
    stated = own if stated is None else stated
    bare = copy_without(skeleton, "value_info")
    graphs = list(walk_graphs(bare.graph)) if records.has_bodies else [bare.graph]
    for graph in graphs:
        del graph.value_info[:]
        clear_output_shapes(graph)
        if records.has_bodies:
            _clear_loop_inputs(graph)
    try:
        if bare.functions and count_inlined_nodes(bare) > _MAX_INLINED_NODES:
            raise ValueError(f"its functions stand for more than {_MAX_INLINED_NODES} nodes")
        typed = onnx.shape_inference.infer_shapes(bare)
        types = get_stated_types(typed)
        settled = settle_types(typed, skeleton, records, types, own)
    except onnx.checker.ValidationError as error:  # functions that call themselves, or share a name
        raise InputError(f"not valid ONNX: {' '.join(str(error).split())}") from None
    except (onnx.shape_inference.InferenceError, EncodeError, RuntimeError, ValueError) as error:
        note = f"shapes are known only where stated: {' '.join(str(error).split())}"
        return InferenceResult(complete_dtypes(skeleton, None, dict(stated), records), None, (note,))
    notes = []
    bodies = islice(walk_graphs(skeleton.graph), 1, None) if records.has_bodies else ()
    certain = not settled.uses_stated and not any(body.value_info for body in bodies)
    types |= settled.list_changed()
    for name, kind in stated.items():
        if name in types and (kind is types[name] or kind == types[name]):
            continue
        said, found = read_type(kind), read_type(types[name]) if name in types else None
        if said is None or found is None:
            if rate_knowledge(kind) > rate_knowledge(types.get(name)):
                types[name], certain = kind, False
        elif contradicts(said, found):
            notes.append(f"the model says that '{name}' is {said}, but it is {found}")
        elif rate_knowledge(kind) > rate_knowledge(types[name]) and name not in settled.varying:
            types[name], certain = write_type(complete_type(found, said) or said), False
    completed = types if settled.complete else complete_dtypes(skeleton, typed.graph, types, records)
    known = None if settled.scope is None else KnownValues.of_settled(settled.scope)
    return InferenceResult(completed, typed.graph, tuple(notes), certain, known)


def _clear_loop_inputs(graph: GraphProto) -> None:
    """Clear in place the shapes that bodies of Loops state for what they carry: they may change."""
    for body in (body for node in graph.node if node.op_type == "Loop" for body in list_bodies(node)):
        for value in body.input[2:]:
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")


def clear_output_shapes(graph: GraphProto) -> None:
    """Clear the stated shapes of a graph's outputs in place, so that inference finds them anew.

    An output that is also an input or an initializer gets the type of that. Otherwise ONNX's inference
    would use the cleared type for it, and infer no shape of its readers.
    """
    given = {value.name: value.type for value in graph.input}
    for tensor in graph.initializer:
        given.setdefault(tensor.name, make_tensor_type(tensor.data_type, tensor.dims))
    for value in graph.output:
        if value.name in given:
            value.type.CopyFrom(given[value.name])
        elif value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")


def count_inlined_nodes(model: ModelProto) -> int:
    """Return the number of nodes of a model with all functions inlined; none is recursive."""
    functions = {(f.domain, f.name, f.overload): f.node for f in model.functions}
    if not functions:
        return sum(len(graph.node) for graph in walk_graphs(model.graph))

    @cache
    def count_function(key: tuple[str, str, str]) -> int:
        return count_nodes(functions[key])

    def count_nodes(nodes: Iterable[NodeProto]) -> int:
        inner = (n for node in nodes for b in list_bodies(node) for g in walk_graphs(b) for n in g.node)
        keys = ((node.domain, node.op_type, node.overload) for node in chain(nodes, inner))
        return sum(count_function(key) if key in functions else 1 for key in keys)

    return count_nodes(model.graph.node)


# Data types that follow from the schemas of operators where shape inference knows nothing.
#
# Tensors of one type variable of a node have one dtype: the weight of a MatMul says what its data
# is, be it the output of an operator that nobody knows. So one operator without inference does not
# hide the types of what is behind it. Only dtypes follow, no shapes.

_MAX_ROUNDS = 8  # forth and back; each carries a type along a chain of any length


def complete_dtypes(
    model: ModelProto, typed: GraphProto | None, types: TypesByName, records: NodeRecords
) -> TypesByName:
    """Return types with the dtypes that follow from schemas; those in bodies are added to `typed`.

    `typed` is the model's graph with inferred types in its bodies, None if there is none; `records` are
    those of the main graph's nodes.
    """
    named = {"", *types}
    if not records.has_bodies and all(map(named.issuperset, (*records.inputs, *records.outputs))):
        return types
    opsets = {"" if i.domain == "ai.onnx" else i.domain: i.version for i in model.opset_import}
    called = {(function.domain, function.name) for function in model.functions}

    sparse = {tensor.values.name for tensor in model.graph.sparse_initializer}

    def find_dtypes(nodes: Iterable[NodeProto], known: TypesByName) -> TypesByName:
        standing = nodes
        if called:
            standing = [node for node in nodes if (node.domain, node.op_type) not in called]
        found = _find_dtypes(standing, opsets, known)
        return {name: kind for name, kind in found.items() if name not in sparse}

    result = {**types, **find_dtypes(model.graph.node, types)}
    pending = [(typed, result)] if typed is not None else []
    while pending:
        graph, around = pending.pop()
        for body in (body for node in graph.node for body in list_bodies(node)):
            own = list_own_names(body)
            known = {name: kind for name, kind in around.items() if name not in own}
            known |= {n: kind for n, kind in get_graph_types(body).items() if rate_knowledge(kind)}
            found = find_dtypes(body.node, known)
            body.value_info.extend(
                helper.make_value_info(name, kind) for name, kind in found.items() if name in own
            )
            pending.append((body, {**known, **found}))
    return result


def _find_dtypes(
    nodes: Iterable[NodeProto], opsets: Mapping[str, int], types: Mapping[str, TypeProto]
) -> TypesByName:
    """Return the types of tensors that have none and whose dtype follows, by name."""
    known = {"", *types}
    open_nodes = [
        node for node in nodes if not (known.issuperset(node.output) and known.issuperset(node.input))
    ]
    if not open_nodes:
        return {}
    found: dict[str, str] = {}

    def get_dtype(name: str) -> str | None:
        if name in found:
            return found[name]
        kind = read_type(types[name]) if name in types else None
        return kind.dtype if kind is not None else None

    groups = [group for node in open_nodes for group in _group_by_type(node, opsets)]
    for _ in range(_MAX_ROUNDS):
        before = len(found)
        for names, only in groups:
            dtype = only or next(filter(None, map(get_dtype, names)), None)
            if dtype is not None:
                found.update((name, dtype) for name in names if name not in types)
        if len(found) == before:
            break
        groups.reverse()
    return {
        name: helper.make_tensor_type_proto(DTYPE_NUMBERS[dtype], None) for name, dtype in found.items()
    }


def _group_by_type(
    node: NodeProto, opsets: Mapping[str, int]
) -> Iterator[tuple[Iterable[str], str | None]]:
    """Yield the tensors of a node that have one type, with its dtype if the schema says it."""
    version = opsets.get("" if is_onnx(node) else node.domain)
    schema = get_schema(node.op_type, node.domain, version) if version is not None else None
    if schema is None:
        return
    groups: dict[str, list[str]] = {}
    formals: dict[str, FormalParameter] = {}
    inputs = zip(node.input, schema.list_input_formals(len(node.input)), strict=False)
    outputs = zip(node.output, schema.list_output_formals(len(node.output)), strict=False)
    for name, formal in (*inputs, *outputs):
        if name and formal.homogeneous and formal.dtypes:
            groups.setdefault(formal.type_str, []).append(name)
            formals[formal.type_str] = formal
    for type_str, names in groups.items():
        dtypes = formals[type_str].dtypes
        yield names, next(iter(dtypes)) if len(dtypes) == 1 else None
