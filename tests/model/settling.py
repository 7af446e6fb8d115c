"""Types that are settled before a model runs, compared with what onnxruntime computes."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, helper

from byoc.model import DTYPE_NUMBERS, Model, TensorType, evaluate_dim, prepare_model


def read(text: str) -> Model:
    """Return the model of ONNX's text form, checked and typed."""
    return prepare_model(onnx.parser.parse_model(text), "model")


def shapes(model: Model) -> dict[str, Any]:
    """Return the shapes of what the nodes of the main graph make."""
    names = [name for node in model.index.nodes for name in node.output if name]
    return {name: model.index.get_shape(name) for name in names}


def run_everything(
    proto: ModelProto, types: Mapping[str, TensorType], feeds: Mapping[str, NDArray[Any]]
) -> dict[str, Any]:
    """Run a model in onnxruntime without its optimizations and return every tensor of its main graph.

    Shapes that the file states are left out, since onnxruntime would use them.
    """
    model = ModelProto()
    model.CopyFrom(proto)
    del model.graph.value_info[:]
    stated = {value.name for value in model.graph.output}
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    for name in (name for node in proto.graph.node for name in node.output if name):
        if name not in stated and name in types:
            kind = helper.make_tensor_type_proto(DTYPE_NUMBERS[types[name].dtype], None)
            model.graph.output.append(helper.make_value_info(name, kind))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def list_contradictions(model: Model, feeds: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the tensors whose settled dtype, rank or an extent is not what onnxruntime computes.

    Raises what onnxruntime raises for a model or inputs that it cannot run.
    """
    types = model.index.types
    sizes = {
        dim.dim_param: size
        for value in model.proto.graph.input
        if value.name in feeds
        for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=True)
        if dim.dim_param
    }
    return [
        f"{name}: {types[name]} is not {array.dtype}{list(array.shape)} at {sizes}"
        for name, array in run_everything(model.proto, types, feeds).items()
        if name in types and isinstance(array, np.ndarray)
        if not _agrees(types[name], array, sizes)
    ]


def _agrees(kind: TensorType, array: NDArray[Any], sizes: Mapping[str, int]) -> bool:
    if DTYPE_NUMBERS[kind.dtype] != helper.np_dtype_to_tensor_dtype(array.dtype):
        return False
    if kind.shape is None:
        return True
    known = [evaluate_dim(dim, sizes) for dim in kind.shape]
    pairs: Iterator[tuple[int | None, int]] = zip(known, array.shape, strict=False)
    return len(known) == array.ndim and all(dim in (None, extent) for dim, extent in pairs)
