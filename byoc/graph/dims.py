"""Giving symbolic dimensions a value, everywhere in a model."""

from collections.abc import Iterator, Mapping

from onnx import ModelProto, TensorShapeProto, TypeProto

from byoc.errors import InputError, nearest
from byoc.graph.walk import walk_graphs


def symbols(proto: ModelProto) -> list[str]:
    """Return the names of the symbolic dimensions of the graph inputs, in order."""
    names: dict[str, None] = {}
    for value in proto.graph.input:
        names.update((dim.dim_param, None) for dim in _dims(value.type) if dim.dim_param)
    return list(names)


def fix_dims(proto: ModelProto, values: Mapping[str, int]) -> ModelProto:
    """Return a copy in which each named symbolic dimension has its value, bodies included.

    Raises InputError for a name that no graph input uses, and for a value below 1.
    """
    known = symbols(proto)
    for name, size in values.items():
        if name not in known:
            there = f"symbolic dimensions: {', '.join(known)}" if known else "no dimension has a name"
            raise InputError(f"no input has a dimension named '{name}'{nearest(name, known)}; {there}")
        if size < 1:
            raise InputError(f"dimension {name}={size}: a size is at least 1")
        if size >= 2**63:
            raise InputError(f"dimension {name}={size}: a size is less than 2**63")
    result = ModelProto()
    result.CopyFrom(proto)
    for graph in walk_graphs(result.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in _dims(value.type):
                if dim.dim_param in values:
                    dim.dim_value = values[dim.dim_param]
    return result


def _dims(proto: TypeProto) -> Iterator[TensorShapeProto.Dimension]:
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        yield from getattr(proto, kind).shape.dim
    elif kind in ("sequence_type", "optional_type"):
        yield from _dims(getattr(proto, kind).elem_type)
