"""Quantized nodes that onnxruntime's optimizations replace by some that do not run."""

from onnx import NodeProto

from byoc.model import GraphIndex, get_node_name

_SIGNED, _UNSIGNED = "int", "uint"
_MACHINES = {_UNSIGNED: "", _SIGNED: " on Arm"}


def find_refused_convolutions(index: GraphIndex) -> dict[str, list[str]]:
    """Return the convolutions that onnxruntime's QLinearConv, which it fuses them to, refuses to run.

    They have a zero point for each channel of what they read or make, and no bias; with one they stay as
    they are (onnxruntime 1.32). Those in uint8 are by the key "", those in int8 by " on Arm": elsewhere
    onnxruntime fuses int8 only where `session.qdqisint8allowed` is set.
    """

    def find_sign(node: NodeProto, op: str) -> str:
        """Return the sign of the zero points that a node has for channels, empty where it has none."""
        if node.op_type != op or (index.get_rank(node.input[1]) or 0) == 0:
            return ""
        zero_points = [*node.input, ""][2]
        dtype = index.get_dtype(zero_points) if zero_points else "uint8"
        return next((sign for sign in _MACHINES if (dtype or "").startswith(sign)), "")

    found: dict[str, list[str]] = {}
    for node in index.nodes:
        if node.op_type != "Conv" or len([*filter(None, node.input)]) > 2:
            continue
        maker = index.producers.get(node.input[0])
        signs = [] if maker is None else [find_sign(index.nodes[maker], "DequantizeLinear")]
        readers = index.consumers.get(node.output[0], ())
        signs += [find_sign(index.nodes[reader], "QuantizeLinear") for reader in readers]
        for sign, machines in _MACHINES.items():
            if sign in signs:
                found.setdefault(machines, []).append(f"'{get_node_name(node)}'")
                break
    return found
