"""Models without their weights, so that what is done with them costs the same for 1 MB and 1 GB."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from onnx import ModelProto, TensorProto, helper

from byoc.model._graph_index import MIN_IR_OF_DEFAULTS
from byoc.model._tensor_data import count_bytes, is_large, read_raw_bytes
from byoc.model._walk import copy_without, walk_tensors


@dataclass(frozen=True, eq=False)
class DerivedModel:
    """A model made of another one, whose largest weights are copied when the whole model is asked for.

    `light` is what `copy_with_light_weights` made of `source`, edited since; initializers that are new
    there have other names. Neither may be edited any more.
    """

    light: ModelProto
    source: ModelProto

    @cached_property
    def whole(self) -> ModelProto:
        """The model with all its weights."""
        given = {each.name: each for each in self.source.graph.initializer if each.HasField("raw_data")}
        for tensor in self.light.graph.initializer:
            if not tensor.HasField("raw_data") and tensor.name in given:
                tensor.CopyFrom(given[tensor.name])
        return self.light


def copy_with_light_weights(source: ModelProto, limit: float, *graph_fields: str) -> ModelProto:
    """Return a copy of a model whose weights of more than `limit` bytes have a name and a type alone.

    They are those of the main graph that are stored raw. The copy lacks the given fields of the main
    graph.
    """
    result = copy_without(source, "initializer", *graph_fields)
    for tensor in source.graph.initializer:
        copied = result.graph.initializer.add()
        if tensor.HasField("raw_data") and count_bytes(tensor) > limit:
            copied.name, copied.data_type = tensor.name, tensor.data_type
            copied.dims.extend(tensor.dims)
        else:
            copied.CopyFrom(tensor)
    return result


def replace_weights(proto: ModelProto, *graph_fields: str) -> ModelProto:
    """Return a model whose weights, the large and the external initializers, are graph inputs.

    Initializers that a caller may override become inputs, too: no type may depend on their values. The
    main graph lacks the given fields (`value_info`, ...) as well.
    """
    result = copy_without(proto, "initializer", *graph_fields)
    inputs = {value.name for value in proto.graph.input}
    overridable = inputs if proto.ir_version >= MIN_IR_OF_DEFAULTS else set()
    for tensor in proto.graph.initializer:
        small = tensor.data_location != TensorProto.EXTERNAL and not is_large(tensor)
        if small and tensor.name not in overridable:
            result.graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            result.graph.input.append(value)
    return result


def make_skeleton(proto: ModelProto, folder: Path | None) -> ModelProto:
    """Return the model with its weights turned into graph inputs, as `replace_weights` does it.

    Other external tensors are embedded, since the checker does not know the model's folder.
    """
    result = replace_weights(proto)
    for tensor in walk_tensors(result):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.raw_data = read_raw_bytes(tensor, folder)
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    return result
