"""Dimensions in a whole model: fixing symbolic ones, removing negative ones."""

from collections.abc import Iterator, Mapping
from copy import deepcopy

from onnx import ModelProto, TensorShapeProto, TypeProto, ValueInfoProto

from byoc.errors import InputError, suggest_nearest
from byoc.graph.walk import walk_bodies, walk_graphs


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
            raise InputError(f"no input has a dimension named '{name}'{suggest_nearest(name, known)}; {there}")
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
    if not any(dim.dim_value < 0 for value in _walk_value_infos(proto) for dim in _walk_dims(value.type)):
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
