"""The quantized side of tensors next to DequantizeLinear and QuantizeLinear."""

from dataclasses import dataclass

from onnx import NodeProto

from byoc.graph.index import GraphIndex
from byoc.graph.types import TensorType
from byoc.graph.unshare import is_dequantize, is_quantize


@dataclass(frozen=True, slots=True)
class TensorQuantization:
    """The quantization of a tensor: its quantized type, and the names of scale and zero point."""

    quantized_type: TensorType | None
    scale: str
    zero_point: str


def get_input_quantization(index: GraphIndex, tensor: str) -> TensorQuantization | None:
    """Return the quantization of an input, None unless a DequantizeLinear makes it."""
    number = index.producers.get(tensor)
    node = None if number is None else index.nodes[number]
    if node is None or not is_dequantize(node):
        return None
    return _read_quantization(index, node, node.input[0])


def get_output_quantization(index: GraphIndex, tensor: str) -> TensorQuantization | None:
    """Return the quantization of an output, None unless only QuantizeLinear nodes read it."""
    readers = [index.nodes[number] for number in index.consumers.get(tensor, ())]
    if not readers or tensor in index.outputs:
        return None
    if not all(is_quantize(node) and node.input[0] == tensor for node in readers):
        return None
    return _read_quantization(index, readers[0], readers[0].output[0])


def _read_quantization(index: GraphIndex, node: NodeProto, tensor: str) -> TensorQuantization:
    scale, zero_point = (*node.input[1:], "", "")[:2]
    return TensorQuantization(index.types.get(tensor), scale, zero_point)
