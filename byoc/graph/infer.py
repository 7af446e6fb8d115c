"""Shape inference: what is known of every value of a model, and where the model contradicts itself.

Inference comes first, what the file states second: exporters and optimizers leave stale shapes behind,
and onnxruntime goes by what the operators compute, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from google.protobuf.message import EncodeError
from onnx import GraphProto, ModelProto, TypeProto

from byoc.graph.copying import copy_without
from byoc.graph.index import stated_types
from byoc.graph.types import read_type

Types = dict[str, TypeProto]


@dataclass(frozen=True, eq=False)
class Inferred:
    """What inference gave: the types of the main graph's values, the graph with types in its bodies too
    (None when inference failed), and sentences worth telling the user.
    """

    values: Types
    typed: GraphProto | None
    notes: tuple[str, ...]


def infer_types(skeleton: ModelProto, stated: Mapping[str, TypeProto]) -> Inferred:
    """Return the type of each value of a model.

    `skeleton` is the model without large weights; `stated` are the types that the file gives.
    """
    bare = copy_without(skeleton, "value_info")
    for value in bare.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
    try:
        typed = onnx.shape_inference.infer_shapes(bare, data_prop=True)
        inferred = stated_types(typed)
        unknown = {n for n, kind in stated.items() if _knowledge(kind) > _knowledge(inferred.get(n))}
        if unknown:  # operators that ONNX does not know: what the file says of them helps those behind
            bare.graph.value_info.extend(v for v in skeleton.graph.value_info if v.name in unknown)
            typed = onnx.shape_inference.infer_shapes(bare, data_prop=True)
            inferred = stated_types(typed)
    except (onnx.shape_inference.InferenceError, EncodeError, RuntimeError, ValueError) as error:
        note = f"shapes are known only where stated: {' '.join(str(error).split())}"
        return Inferred(dict(stated), None, (note,))
    notes = []
    types = dict(inferred)
    for name, kind in stated.items():
        if _knowledge(kind) >= _knowledge(inferred.get(name)):
            if name in inferred and _contradict(kind, inferred[name]):
                said, found = read_type(kind), read_type(inferred[name])
                notes.append(f"the model says that '{name}' is {said}, but it is {found}")
            else:
                types[name] = kind
    return Inferred(types, typed.graph, tuple(notes))


def _knowledge(proto: TypeProto | None) -> int:
    """Return how much a type says: nothing, a kind, a rank, and then one for each known extent."""
    if proto is None or proto.WhichOneof("value") is None:
        return 0
    kind = read_type(proto)
    if kind is None or kind.shape is None:
        return 1
    return 2 + sum(isinstance(dim, int) for dim in kind.shape)


def _contradict(one: TypeProto, other: TypeProto) -> bool:
    mine, theirs = read_type(one), read_type(other)
    if mine is None or theirs is None or mine.shape is None or theirs.shape is None:
        return False
    if len(mine.shape) != len(theirs.shape):
        return True
    pairs = zip(mine.shape, theirs.shape, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
