"""Preparation of a model for quantization: newer versions, and BatchNormalization folded.

Its IR is raised for metadata, its operator set for scales. Scales per channel need operator set 13, 16
bits need 21. The model is converted rather than given onnxruntime's own DequantizeLinear and
QuantizeLinear (domain com.microsoft), which could stand beside any version: ONNX's shape inference, its
reference implementation and the compilers of the regions know only ONNX's operators.

At inference BatchNormalization computes `y = (x - mean) * scale / sqrt(var + epsilon) + B` per channel
(ONNX, BatchNormalization). It is folded into the convolution or matrix product before it, which is
linear, too: weights and bias are scaled, and the bias is shifted.
"""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, numpy_helper

from byoc.errors import InputError
from byoc.model import (
    MIN_IR,
    ConversionError,
    GraphIndex,
    Model,
    NameAllocator,
    convert_opset,
    copy_without,
    get_input,
    get_stated_attributes,
    is_onnx,
    prepare_model,
    set_ir_version,
)
from byoc.quantization._arithmetic import find_channels, read_constant
from byoc.samples import model_samples

PER_CHANNEL = 13
"""From here on QuantizeLinear and DequantizeLinear have an axis."""
SIXTEEN_BITS = 21
"""From here on they take int16 and uint16."""


def upgrade_ir(model: Model) -> Model:
    """Return a model of an IR version whose nodes have metadata; the same model if it already is."""
    if model.proto.ir_version >= MIN_IR:
        return model
    proto = copy_without(model.proto)
    set_ir_version(proto, model.index)
    return replace(model, proto=proto)


def upgrade_opset(model: Model, least: int) -> Model:
    """Return a model of at least a given operator set version; the same model if it already is.

    The weights are not converted. Raises InputError if ONNX's converter fails, or would lose functions.
    """
    version = model.index.opsets.get("", 1)
    if version >= least:
        return model
    why = f"{model.source}: to be quantized it must be of operator set {least} or newer, not {version}"
    proto = copy_without(model.proto)
    try:
        convert_opset(proto, least, model.folder)
    except ConversionError as error:
        raise InputError(f"{why}: {error}") from None
    return replace(
        prepare_model(proto, model.source, model.folder), make_samples=partial(model_samples, model)
    )


_EPSILON = 1e-5


def fold_batch_norm(model: Model) -> Model:
    """Return a model with BatchNormalizations folded into the Conv, ConvTranspose or Gemm before them.

    Their parameters and the weights must be constant and float32, and nothing else may read the tensor
    in between. Outputs keep their names; new weights are named `NAME_folded`. A model with nothing to
    fold is returned as it is.
    """
    index = model.index
    linear_of = {
        number: linear
        for number in range(len(index.nodes))
        if (linear := _find_linear(index, number)) is not None
    }
    if not linear_of:
        return model
    names = NameAllocator(index.graph)
    folded: dict[int, NodeProto] = {}
    stored: list[TensorProto] = []
    for norm, linear in linear_of.items():
        folded[linear], tensors = _fold(model, index.nodes[linear], index.nodes[norm], names)
        stored += tensors
    nodes = [folded.get(i, node) for i, node in enumerate(index.nodes) if i not in linear_of]
    read = {name for node in nodes for name in node.input} | {*index.outputs}
    read.update(name for number in index.bodies for name in index.reads[number])
    proto = copy_without(model.proto, "node", "initializer", "value_info")
    proto.graph.node.extend(nodes)
    before = {name for pair in linear_of.items() for n in pair for name in index.nodes[n].input}
    unread = before - read
    proto.graph.initializer.extend(t for t in model.proto.graph.initializer if t.name not in unread)
    proto.graph.initializer.extend(stored)
    outputs = {name for node in nodes for name in node.output}
    proto.graph.value_info.extend(v for v in model.proto.graph.value_info if v.name in outputs)
    return replace(
        prepare_model(proto, model.source, model.folder), make_samples=partial(model_samples, model)
    )


def _find_linear(index: GraphIndex, number: int) -> int | None:
    """Return the linear node that a node is folded into, if it is a BatchNormalization of that kind."""
    norm = index.nodes[number]
    before = index.producers.get(norm.input[0]) if _is_inference(norm) else None
    if before is None or norm.input[0] in index.outputs or len(index.consumers[norm.input[0]]) > 1:
        return None
    node = index.nodes[before]
    if find_channels(index, node) is None or node.op_type == "MatMul":
        return None
    if node.op_type == "Gemm" and not _is_plain_gemm(index, node):
        return None
    names = (*filter(None, node.input[1:]), *norm.input[1:5])
    if any(index.get_dtype(name) != "float32" or not index.is_constant(name) for name in names):
        return None
    return before


def _is_inference(node: NodeProto) -> bool:
    """Return whether a node is a BatchNormalization over channels that does not train."""
    if node.op_type != "BatchNormalization" or not is_onnx(node) or any(node.output[1:]):
        return False
    attributes = get_stated_attributes(node)
    return not attributes.get("training_mode", 0) and bool(attributes.get("spatial", 1))


def _is_plain_gemm(index: GraphIndex, node: NodeProto) -> bool:
    """Return whether a Gemm's bias is one value per column and not scaled."""
    attributes = get_stated_attributes(node)
    has_bias = get_input(node, 2) in index.types
    return attributes.get("beta", 1.0) == 1.0 and (not has_bias or index.get_rank(node.input[2]) == 1)


def _fold(
    model: Model, node: NodeProto, norm: NodeProto, names: NameAllocator
) -> tuple[NodeProto, list[TensorProto]]:
    """Return a linear node with a BatchNormalization folded into it, and its weights and bias."""
    index = model.index

    def value(name: str) -> NDArray[np.float64]:
        return read_constant(index, name, model.folder).astype(np.float64)

    scale, shift, mean, variance = (value(name) for name in norm.input[1:5])
    factor = scale / np.sqrt(variance + float(get_stated_attributes(norm).get("epsilon", _EPSILON)))
    weights = value(node.input[1])
    layout = find_channels(index, node)
    assert layout is not None
    axis, groups = layout
    bias = value(node.input[2]) if get_input(node, 2) else 0.0
    result = deepcopy(node)
    if groups > 1 and axis == 1:  # a ConvTranspose: each group has channels of its own
        parts = weights.reshape(groups, -1, *weights.shape[1:])
        by_group = factor.reshape(groups, 1, -1, *[1] * (weights.ndim - 2))
        weights = (parts * by_group).reshape(weights.shape)
    else:
        weights = weights * factor.reshape([-1 if i == axis else 1 for i in range(weights.ndim)])
    new = {
        names.new_tensor(f"{node.input[1]}_folded"): weights,
        names.new_tensor(f"{norm.output[0]}_bias"): np.asarray((bias - mean) * factor + shift),
    }
    result.input[1:] = new
    result.output[0] = norm.output[0]
    return result, [numpy_helper.from_array(a.astype(np.float32), name) for name, a in new.items()]
