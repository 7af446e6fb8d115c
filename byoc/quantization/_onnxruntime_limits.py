"""Quantized nodes that onnxruntime's optimizations replace by some that do not run."""

from onnx import NodeProto

from byoc.model import GraphIndex, get_node_name


def find_refused_convolutions(index: GraphIndex) -> list[str]:
    """Return the convolutions that onnxruntime's QLinearConv, which it fuses them to, refuses to run.

    They have an unsigned zero point for each channel of what they read or make, and no bias; with one
    they stay as they are (onnxruntime 1.32), and so do those in int8 on most machines.
    """

    def has_channels(node: NodeProto, op: str) -> bool:
        if node.op_type != op or (index.get_rank(node.input[1]) or 0) == 0:
            return False
        zero_points = [*node.input, ""][2]  # uint8 where there are none
        return not zero_points or (index.get_dtype(zero_points) or "").startswith("uint")

    found = []
    for node in index.nodes:
        if node.op_type != "Conv" or len([*filter(None, node.input)]) > 2:
            continue
        maker = index.producers.get(node.input[0])
        readers = index.consumers.get(node.output[0], ())
        if (maker is not None and has_channels(index.nodes[maker], "DequantizeLinear")) or any(
            has_channels(index.nodes[reader], "QuantizeLinear") for reader in readers
        ):
            found.append(f"'{get_node_name(node)}'")
    return found
