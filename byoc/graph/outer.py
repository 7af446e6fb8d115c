"""The quantized side of tensors next to DequantizeLinear and QuantizeLinear."""

from dataclasses import dataclass

from onnx import NodeProto

from byoc.graph.index import GraphIndex
from byoc.graph.types import TensorType
from byoc.graph.unshare import is_dequantize, is_quantize


@dataclass(frozen=True, slots=True)
class Outer:
    """The quantization of a tensor: its quantized type, and the names of scale and zero point."""

    kind: TensorType | None
    scale: str
    zero_point: str


def outer_of_read(index: GraphIndex, tensor: str) -> Outer | None:
    """Return the quantization of an input, None unless a DequantizeLinear makes it."""
    number = index.producer.get(tensor)
    node = None if number is None else index.nodes[number]
    if node is None or not is_dequantize(node):
        return None
    return _outer(index, node, node.input[0])


def outer_of_made(index: GraphIndex, tensor: str) -> Outer | None:
    """Return the quantization of an output, None unless only QuantizeLinear nodes read it."""
    readers = [index.nodes[number] for number in index.consumers.get(tensor, ())]
    if not readers or tensor in index.outputs:
        return None
    if not all(is_quantize(node) and node.input[0] == tensor for node in readers):
        return None
    return _outer(index, readers[0], readers[0].output[0])


def _outer(index: GraphIndex, node: NodeProto, tensor: str) -> Outer:
    scale, zero_point = (*node.input[1:], "", "")[:2]
    return Outer(index.types.get(tensor), scale, zero_point)
