"""Replace the large weights of an exported model by a note of how to draw them again."""

import lzma
import math
import re

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

IR_VERSION = 10  # the first with metadata of tensors, and what the rest of the zoo is written with
SMALL = 64  # values; fewer are scalars, scales, anchors of one cell: they stay
# Compressed to less than this share of its bytes, a tensor is no noise but something laid out:
# anchors, masks, grids. Weights compress to nine tenths.
STRUCTURED = 0.5


def strip(model: onnx.ModelProto, keep: str) -> tuple[list[str], list[str]]:
    """Take the values out of the weights of `model`, in place; return names of the large tensors kept.

    A weight keeps its name, type and dimensions, and gets `centre` and `reach` of the uniform
    distribution with its mean and standard deviation as metadata. Tensors whose names match the
    regular expression `keep` stay. The second list names the tensors that were stripped.
    """
    kept, stripped = [], []
    for tensor in model.graph.initializer:
        size = math.prod(tensor.dims)
        if tensor.data_type != TensorProto.FLOAT or size < SMALL:
            continue
        values = numpy_helper.to_array(tensor).astype("<f4")
        if (keep and re.search(keep, tensor.name)) or _is_structured(values):
            kept.append(f"{tensor.name} {list(tensor.dims)}")
            continue
        stripped.append(f"{tensor.name} {list(tensor.dims)}")
        centre = float(values.mean())
        reach = float(values.std()) * math.sqrt(3.0)
        if abs(centre) < 0.1 * reach:
            centre = 0.0
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        for key, number in (("centre", centre), ("reach", reach)):
            tensor.metadata_props.add(key=key, value=f"{number:.3g}")
    return kept, stripped


def tidy(model: onnx.ModelProto) -> None:
    """Drop what only helps to debug the export, and name each node after its first output."""
    model.ir_version = IR_VERSION
    _tidy(model.graph, "")
    del model.metadata_props[:]
    model.ClearField("doc_string")


def _tidy(graph: onnx.GraphProto, scope: str) -> None:
    graph.ClearField("doc_string")
    if not scope:
        del graph.value_info[:]
    for position, node in enumerate(graph.node):
        node.ClearField("doc_string")
        del node.metadata_props[:]
        node.name = scope + (node.name or f"{node.op_type}_{position}")
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            if attribute.HasField("g"):
                _tidy(attribute.g, f"{node.name}/{attribute.name}/")


def pack(model: onnx.ModelProto) -> bytes:
    """Return the stripped model as the bytes of a `.onnx.xz` file."""
    return lzma.compress(model.SerializeToString(deterministic=True), preset=9 | lzma.PRESET_EXTREME)


def _is_structured(values: np.ndarray) -> bool:
    data = values.tobytes()
    return len(lzma.compress(data[: 1 << 20])) < STRUCTURED * len(data[: 1 << 20])
