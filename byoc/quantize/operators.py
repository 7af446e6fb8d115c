"""Operator properties that quantization needs: channels of weights, views, operands and biases."""

from onnx import NodeProto

from byoc.graph.attributes import get_stated_attributes
from byoc.graph.index import GraphIndex
from byoc.graph.walk import is_onnx

VIEWS = frozenset(
    [
        *("MaxPool", "GlobalMaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
        *("Identity", "Dropout", "Slice", "Split", "DepthToSpace", "SpaceToDepth", "Expand", "Tile"),
        *("Gather", "Concat"),
    ]
)
"""What comes out of these went in: one scale is exact, and another one costs accuracy and time."""

CLAMPS = frozenset({"Relu", "Clip"})
"""Behind another operator in one unit these only clamp: they have the scale of what they read."""

OPERANDS = frozenset(
    [
        *("Conv", "ConvTranspose", "Gemm", "MatMul", "Concat", "PRelu"),
        *("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"),
    ]
)
"""A constant is here any other input; elsewhere it is a parameter, and stays float."""

WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""A second input with channels, and perhaps a bias as the third."""


def find_channels(index: GraphIndex, node: NodeProto) -> tuple[int, int] | None:
    """Return the axis of the weights that has the output's channels, and the number of groups.

    ConvTranspose has weights `[C, M / group, ...]` (ONNX, ConvTranspose), so one index of axis 1 stands
    for a channel in each group. None for operators without weights, or weights of unknown rank.
    """
    if not is_onnx(node) or node.op_type not in WEIGHTED:
        return None
    weight_type = index.types.get(node.input[1])
    if weight_type is None or weight_type.shape is None:
        return None
    attributes = get_stated_attributes(node)
    match node.op_type:
        case "Conv":
            return 0, int(attributes.get("group", 1))
        case "ConvTranspose":
            return 1, int(attributes.get("group", 1))
        case "Gemm":
            return (0 if attributes.get("transB", 0) else 1), 1
        case _:
            return (len(weight_type.shape) - 1, 1) if len(weight_type.shape) > 1 else None
