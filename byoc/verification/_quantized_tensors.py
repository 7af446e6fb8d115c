"""The tensors of a model that are integers and represent real numbers."""

from collections.abc import Iterator

import onnx.inliner
from onnx import ModelProto, NodeProto

from byoc.codegen import Region
from byoc.model import (
    CLAMP_OPERATORS,
    VIEW_OPERATORS,
    is_dequantize,
    is_onnx,
    replace_weights,
    walk_graphs,
)

_QUANTIZING_OPERATORS = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
_CONTRIB_DOMAIN = "com.microsoft"
_CONTRIB_OPERATORS = (
    *("QuantizeLinear", "QGemm", "QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearWhere"),
    *("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearReduceMean"),
    *("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"),
)
_MOVING_OPERATORS = VIEW_OPERATORS | CLAMP_OPERATORS | {"Pad", "Resize", "Upsample"}


def find_quantized_tensors(model: ModelProto) -> frozenset[str]:
    """Return the names of the quantized tensors of a model, in bodies and functions as well.

    An operator that only moves numbers, such as Transpose, keeps them quantized, and so does a Resize,
    whose results lie between them. Tensors inside functions have names of their own here.
    """
    light = replace_weights(model, "sparse_initializer")
    if light.functions:
        light = onnx.inliner.inline_local_functions(light)
    nodes = [node for graph in walk_graphs(light.graph) for node in graph.node]
    found = {name for node in nodes for name in _tensors_defined_quantized(node)}
    moving = [
        set(_moved_tensors(node))
        for node in nodes
        if is_onnx(node) and node.op_type in _MOVING_OPERATORS
    ]
    before = -1
    while before < len(found):  # once for each change of direction along a chain of moves
        before = len(found)
        for names in (*moving, *reversed(moving)):
            if not found.isdisjoint(names):
                found |= names
    return frozenset(found)


def _tensors_defined_quantized(node: NodeProto) -> Iterator[str]:
    """Yield the tensors that are quantized by the definition of a node."""
    contrib = node.domain == _CONTRIB_DOMAIN and node.op_type in _CONTRIB_OPERATORS
    if contrib or (is_onnx(node) and node.op_type in _QUANTIZING_OPERATORS):
        yield node.output[0]
    if is_dequantize(node):
        yield node.input[0]


def _moved_tensors(node: NodeProto) -> list[str]:
    """Return the inputs and outputs of a node that hold the same numbers; indices do not."""
    reads = node.input if node.op_type == "Concat" else node.input[:1]
    makes = node.output if node.op_type == "Split" else node.output[:1]
    return [name for name in (*reads, *makes) if name]


def quantized_tensors_of(region: Region) -> frozenset[str]:
    """Return the tensors of a region's model that represent real numbers as integers."""
    contracts = (*region.inputs, *region.outputs)
    with_scale = {contract.name for contract in contracts if contract.scale is not None}
    return find_quantized_tensors(region.model) | with_scale
