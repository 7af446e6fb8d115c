"""Which integers of a model stand for real numbers: what is quantized, or about to be dequantized."""

from collections.abc import Iterator

import onnx.inliner
from onnx import ModelProto, NodeProto

from byoc.boundary.scales import is_dequantize
from byoc.graph.copying import copy_without
from byoc.graph.walk import is_onnx, walk_graphs
from byoc.quantize.operators import CLAMPS, VIEWS

# What the first output of these holds is quantized.
_MAKING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
_MOVING = VIEWS | CLAMPS | {"Pad"}


def quantized_tensors(model: ModelProto) -> frozenset[str]:
    """Return the names of the quantized tensors of a model, bodies and what functions hold included.

    What only moves quantized numbers, such as a Transpose, leaves them quantized. Tensors inside of
    functions have names of their own here.
    """
    light = copy_without(model, "initializer", "sparse_initializer")
    light.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
        if tensor.name not in {value.name for value in model.graph.input}
    )
    if light.functions:
        light = onnx.inliner.inline_local_functions(light)
    nodes = [node for graph in walk_graphs(light.graph) for node in graph.node if is_onnx(node)]
    found = {name for node in nodes for name in _said(node)}
    while True:  # once for each change of direction that what moves numbers makes
        before = len(found)
        for node in (*nodes, *reversed(nodes)):
            if node.op_type in _MOVING and not found.isdisjoint(_moved(node)):
                found.update(_moved(node))
        if len(found) == before:
            return frozenset(found)


def _said(node: NodeProto) -> Iterator[str]:
    if node.op_type in _MAKING:
        yield node.output[0]
    if is_dequantize(node):
        yield node.input[0]


def _moved(node: NodeProto) -> list[str]:
    """Return what a node reads and makes that is the same numbers: indices are none of them."""
    reads = node.input if node.op_type == "Concat" else node.input[:1]
    makes = node.output if node.op_type == "Split" else node.output[:1]
    return [name for name in (*reads, *makes) if name]
