"""The Transposes at its boundary that a target can run itself: its rules are asked about each."""

from collections.abc import Callable
from functools import cache

from onnx import ModelProto, NodeProto, TensorProto, helper

from byoc.boundary.convert import AskedTranspose
from byoc.errors import InputError
from byoc.model import DTYPE_NUMBERS, prepare_model
from byoc.planning._graph_units import annotate_graphs, group_graphs
from byoc.rules import Target

_OPSET = 21  # the first that quantizes to int16


def make_transpose_check(target: Target) -> Callable[[AskedTranspose], bool]:
    """Return a function that says whether a target's rules take a Transpose of an image.

    They take it where they take a model of that Transpose alone, between a DequantizeLinear and a
    QuantizeLinear if the image is quantized. Each question is answered once.
    """

    @cache
    def takes(asked: AskedTranspose) -> bool:
        try:
            index = prepare_model(_make_model(asked), "a Transpose").index
        except InputError:  # a type that ONNX does not transpose or quantize
            return False
        units = group_graphs(index, [target], annotate_graphs(index, [target]))[id(index)].units
        core = {i for i, node in enumerate(index.nodes) if node.op_type == "Transpose"}
        own = (part for unit in units for part in unit.on_device[0] if core & set(part.nodes))
        return all(part.verdict and len(part.nodes) == len(index.nodes) for part in own)

    return takes


def _make_model(asked: AskedTranspose) -> ModelProto:
    shape = asked.kind.shape or ()
    turned = [shape[axis] for axis in asked.order]
    dtype = DTYPE_NUMBERS[asked.kind.dtype]
    stored: list[TensorProto] = []
    nodes: list[NodeProto] = []
    if asked.quantization is None:
        nodes.append(helper.make_node("Transpose", ["x"], ["y"], perm=asked.order))
    else:
        scale, zero = asked.quantization
        stored = [
            helper.make_tensor("s", TensorProto.FLOAT, (), [scale]),
            helper.make_tensor("z", dtype, (), [zero]),
        ]
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "s", "z"], ["d"]),
            helper.make_node("Transpose", ["d"], ["t"], perm=asked.order),
            helper.make_node("QuantizeLinear", ["t", "s", "z"], ["y"]),
        ]
    inputs = [helper.make_tensor_value_info("x", dtype, shape)]
    outputs = [helper.make_tensor_value_info("y", dtype, turned)]
    graph = helper.make_graph(nodes, "transpose", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
