"""Shape inference, fixing of symbolic dimensions, contradictions between inferred and stated types.

Inferred types take precedence over stated ones: exporters and optimizers leave stale shapes behind, and
onnxruntime infers, too.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import chain

import onnx
from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorShapeProto, TypeProto, ValueInfoProto

from byoc.errors import InputError, suggest_nearest
from byoc.model._graph_index import get_stated_types
from byoc.model._tensor_data import rate_knowledge, read_type
from byoc.model._walk import copy_without, walk_bodies, walk_graphs


def list_symbolic_dims(proto: ModelProto) -> list[str]:
    """Return the names of the symbolic dimensions of the graph inputs, in order."""
    names: dict[str, None] = {}
    for value in proto.graph.input:
        names.update((dim.dim_param, None) for dim in _walk_dims(value.type) if dim.dim_param)
    return list(names)


def fix_dims(proto: ModelProto, values: Mapping[str, int]) -> ModelProto:
    """Return a copy in which symbolic dimensions have the given values, in bodies and functions, too.

    Raises InputError for a name that no graph input has, and for a value below 1.
    """
    known = list_symbolic_dims(proto)
    for name, size in values.items():
        if name not in known:
            there = f"symbolic dimensions: {', '.join(known)}" if known else "no dimension has a name"
            raise InputError(
                f"no input has a dimension named '{name}'{suggest_nearest(name, known)}; {there}"
            )
        if size < 1:
            raise InputError(f"dimension {name}={size}: a size is at least 1")
        if size >= 2**63:
            raise InputError(f"dimension {name}={size}: a size is less than 2**63")
    result = deepcopy(proto)
    for value in _walk_value_infos(result):
        for dim in _walk_dims(value.type):
            if dim.dim_param in values:
                dim.dim_value = values[dim.dim_param]
    return result


def clear_negative_dims(proto: ModelProto) -> ModelProto:
    """Return a model in which dimensions stated as negative numbers are unknown.

    Some exporters write -1 for unknown. onnxruntime reads it that way, but ONNX's shape inference
    computes with the number, and a Slice along such an axis ends the process. A model without such
    dimensions is returned unchanged.
    """
    if not any(
        dim.dim_value < 0 for value in _walk_value_infos(proto) for dim in _walk_dims(value.type)
    ):
        return proto
    result = deepcopy(proto)
    for value in _walk_value_infos(result):
        for dim in _walk_dims(value.type):
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
    return result


def _walk_value_infos(proto: ModelProto) -> Iterator[ValueInfoProto]:
    """Yield the type annotations of all graphs, bodies and functions."""
    functions = [graph for f in proto.functions for node in f.node for graph in walk_bodies(node)]
    for outer in (proto.graph, *functions):
        for graph in walk_graphs(outer):
            yield from (*graph.input, *graph.output, *graph.value_info)
    for function in proto.functions:
        yield from function.value_info


def _walk_dims(proto: TypeProto) -> Iterator[TensorShapeProto.Dimension]:
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        yield from getattr(proto, kind).shape.dim
    elif kind in ("sequence_type", "optional_type"):
        yield from _walk_dims(getattr(proto, kind).elem_type)


TypesByName = dict[str, TypeProto]

# The elements of all vectors whose values are propagated: about two seconds of work.
_MAX_VECTOR_ELEMENTS = 1 << 20
# Nested calls of functions can expand to more nodes than there is time to visit.
_MAX_INLINED_NODES = 250_000


@dataclass(frozen=True, eq=False)
class InferenceResult:
    """The result of shape inference.

    `type_protos` are the types of the main graph's tensors, `typed_graph` is the graph with types in
    its bodies, too (None when inference failed), `notes` are sentences for the user.
    """

    type_protos: TypesByName
    typed_graph: GraphProto | None
    notes: tuple[str, ...]


def infer_types(skeleton: ModelProto, stated: Mapping[str, TypeProto]) -> InferenceResult:
    """Infer the types of all tensors of a model.

    `skeleton` is the model without large weights; `stated` are the types in the file.
    """
    skeleton = clear_negative_dims(skeleton)
    bare = copy_without(skeleton, "value_info")
    for graph in walk_graphs(bare.graph):
        del graph.value_info[:]
        clear_output_shapes(graph)
    try:
        typed = _infer_model(bare)
        inferred = get_stated_types(typed)
        unknown = {
            n for n, kind in stated.items() if rate_knowledge(kind) > rate_knowledge(inferred.get(n))
        }
        if unknown:  # operators unknown to ONNX: the types that the file states help their consumers
            bare.graph.value_info.extend(v for v in skeleton.graph.value_info if v.name in unknown)
            typed = _infer_model(bare)
            inferred = get_stated_types(typed)
    except (onnx.shape_inference.InferenceError, EncodeError, RuntimeError, ValueError) as error:
        note = f"shapes are known only where stated: {' '.join(str(error).split())}"
        return InferenceResult(dict(stated), None, (note,))
    notes = []
    types = dict(inferred)
    for name, kind in stated.items():
        if rate_knowledge(kind) >= rate_knowledge(inferred.get(name)):
            if name in inferred and _shapes_contradict(kind, inferred[name]):
                said, found = read_type(kind), read_type(inferred[name])
                notes.append(f"the model says that '{name}' is {said}, but it is {found}")
            else:
                types[name] = kind
    return InferenceResult(types, typed.graph, tuple(notes))


def clear_output_shapes(graph: GraphProto) -> None:
    """Clear the stated shapes of a graph's outputs in place, so that inference finds them anew.

    An output that is also an input or an initializer gets the type of that. Otherwise ONNX's inference
    would use the cleared type for it, and infer no shape of its readers.
    """
    given = {value.name: value.type for value in graph.input}
    for tensor in graph.initializer:
        given.setdefault(tensor.name, onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims))
    for value in graph.output:
        if value.name in given:
            value.type.CopyFrom(given[value.name])
        elif value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")


def _infer_model(model: ModelProto) -> ModelProto:
    """Return the model with inferred types; the values of small tensors are used where that is fast.

    ONNX propagates values through every vector of a known length, element by element. Raises ValueError
    when the model has too many nodes after inlining.
    """
    if _count_inlined_nodes(model) > _MAX_INLINED_NODES:
        raise ValueError(f"its functions stand for more than {_MAX_INLINED_NODES} nodes")
    plain = onnx.shape_inference.infer_shapes(model)
    graphs = walk_graphs(plain.graph)
    values = (value for g in graphs for value in (*g.input, *g.output, *g.value_info))
    if sum(_get_vector_length(value.type) for value in values) > _MAX_VECTOR_ELEMENTS:
        return plain
    return onnx.shape_inference.infer_shapes(model, data_prop=True)


def _count_inlined_nodes(model: ModelProto) -> int:
    """Return the number of nodes of a model with all functions inlined; none is recursive."""
    functions = {(f.domain, f.name, f.overload): f.node for f in model.functions}

    @cache
    def count_function(key: tuple[str, str, str]) -> int:
        return count_nodes(functions[key])

    def count_nodes(nodes: Iterable[NodeProto]) -> int:
        inner = (n for node in nodes for b in walk_bodies(node) for g in walk_graphs(b) for n in g.node)
        keys = ((node.domain, node.op_type, node.overload) for node in chain(nodes, inner))
        return sum(count_function(key) if key in functions else 1 for key in keys)

    return count_nodes(model.graph.node)


def _get_vector_length(proto: TypeProto) -> int:
    kind = read_type(proto)
    return (kind.elements or 0) if kind and kind.shape and len(kind.shape) == 1 else 0


def _shapes_contradict(one: TypeProto, other: TypeProto) -> bool:
    mine, theirs = read_type(one), read_type(other)
    if mine is None or theirs is None or mine.shape is None or theirs.shape is None:
        return False
    if len(mine.shape) != len(theirs.shape):
        return True
    pairs = zip(mine.shape, theirs.shape, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
