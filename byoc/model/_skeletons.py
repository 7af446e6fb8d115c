"""Models without their weights, so that what is done with them costs the same for 1 MB and 1 GB."""

from pathlib import Path

from onnx import ModelProto, TensorProto

from byoc.model._graph_index import MIN_IR_OF_DEFAULTS
from byoc.model._tensor_data import is_large, read_raw_bytes
from byoc.model._tensor_types import add_input
from byoc.model._walk import copy_without, walk_tensors


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
            add_input(result.graph, tensor)
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


def inline_functions(model: ModelProto) -> ModelProto:
    """Return a model with the bodies of functions in place of their calls; weights are not read."""
    if not model.functions:
        return model
    from onnx.inliner import inline_local_functions  # noqa: PLC0415 - seldom needed

    flat = inline_local_functions(replace_weights(model))
    result = copy_without(flat, "input", "initializer")
    result.graph.input.extend(model.graph.input)
    result.graph.initializer.extend(model.graph.initializer)
    return result
