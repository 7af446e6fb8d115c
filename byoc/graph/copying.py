"""Copies of models without parts that are about to be replaced, which saves copying weights twice."""

from google.protobuf.message import Message
from onnx import ModelProto


def copy_without(source: ModelProto, *graph_fields: str) -> ModelProto:
    """Return a copy of a model whose main graph lacks the given fields (`node`, `initializer`, ...)."""
    result = ModelProto()
    _copy_fields(source, result, {"graph"})
    _copy_fields(source.graph, result.graph, set(graph_fields))
    return result


def _copy_fields(source: Message, result: Message, but: set[str]) -> None:
    for descriptor, value in source.ListFields():
        if descriptor.name in but:
            continue
        if isinstance(value, (bool, int, float, str, bytes)):
            setattr(result, descriptor.name, value)
        elif isinstance(value, Message):
            getattr(result, descriptor.name).CopyFrom(value)
        else:
            getattr(result, descriptor.name).extend(value)
