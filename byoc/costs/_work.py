"""Counting the work of a node: floating-point operations and bytes, from the real shapes.

A multiplication and an addition are two operations. Counts follow the operators' definitions in the
ONNX operator documentation; transcendental functions (Exp, a power) count as one each, as is usual
in roofline models (Williams, Waterman, Patterson 2009).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from onnx import NodeProto

from byoc.costs._work_sizes import Sizes
from byoc.model import (
    GraphIndex,
    get_constant_value,
    get_input,
    get_stated_attributes,
    is_dequantize,
    is_onnx,
    is_qdq_node,
)

# They reinterpret the same bytes with another shape, so they cost nothing on either side.
VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
# They read the shape of their input and none of its bytes.
SHAPES = frozenset({"Shape", "Size"})
# They read as much of their first input as they return, however large it is.
_PARTIAL = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
# They copy bytes and compute nothing.
_MOVES = frozenset(
    {
        *("Cast", "CastLike", "Concat", "ConstantOfShape", "DepthToSpace", "Expand", "EyeLike"),
        *("Gather", "GatherElements", "GatherND", "Pad", "Range", "ReverseSequence", "ScatterElements"),
        *("ScatterND", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Tile", "Transpose", "Trilu"),
    }
)
# Operations for each element of the output.
_PER_ELEMENT = {
    **dict.fromkeys(
        (
            *("Abs", "Add", "And", "Ceil", "Cos", "Div", "Equal", "Erf", "Exp", "Floor", "Greater"),
            *("GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Mod", "Mul", "Neg"),
            *("Not", "Or", "Pow", "PRelu", "Reciprocal", "Relu", "Round", "Sign", "Sin", "Sqrt", "Sub"),
            *("Tan", "Where", "Xor"),
        ),
        1,
    ),
    "LeakyRelu": 2,
    "Clip": 2,
    "Sigmoid": 3,
    "Elu": 3,
    "Softplus": 2,
    "Softsign": 3,
    "HardSigmoid": 4,  # a product, a sum, two bounds
    "HardSwish": 5,
    "Gelu": 5,
    "Tanh": 5,
    "BatchNormalization": 2,  # folded into a scale and a shift when the model is compiled
    "Softmax": 4,  # maximum, exponential, sum, division
    "LogSoftmax": 4,
    "LayerNormalization": 8,  # mean, difference, square, its mean, root, division, scale, shift
    "InstanceNormalization": 8,
    "QuantizeLinear": 4,  # a division, rounding, two bounds
    "DequantizeLinear": 2,
}
# They read each element of their first input once.
_REDUCTIONS = frozenset(
    {
        *("ArgMax", "ArgMin", "CumSum", "GlobalAveragePool", "GlobalMaxPool", "ReduceMax", "ReduceMean"),
        *("ReduceMin", "ReduceProd", "ReduceSum"),
    }
)


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes; `estimated` if the operator or a shape was not known exactly."""

    operations: float
    bytes: float
    estimated: bool = False


def is_view(index: GraphIndex, node: NodeProto) -> bool:
    """Return whether a node returns the bytes that it reads, and so costs nothing on any device."""
    if node.op_type not in VIEWS or not is_onnx(node):
        return False
    if node.op_type != "Dropout":
        return True
    masked = len(node.output) > 1 and index.is_used(node.output[1])
    if masked or len(node.input) < 3 or not node.input[2]:
        return not masked
    training = get_constant_value(index, node.input[2])
    return training is not None and not training.any()


def find_entering_and_leaving(index: GraphIndex, nodes: Collection[int]) -> tuple[list[str], list[str]]:
    """Return the tensors that enter and leave nodes run as one, constants included, in order."""
    made = {name for i in nodes for name in index.nodes[i].output if index.is_used(name)}
    entering = dict.fromkeys(name for i in nodes for name in index.reads[i] if name not in made)
    inside = set(nodes)
    leaving = [
        name
        for i in nodes
        for name in index.nodes[i].output
        if name in made
        and (name in index.outputs or not inside.issuperset(index.consumers.get(name, ())))
    ]
    return list(entering), leaving


def count_work(index: GraphIndex, sizes: Sizes, nodes: tuple[int, ...]) -> Work:
    """Return the work of nodes that run as one.
    Operations add up. Bytes are those of the tensors that enter and leave, since tensors inside never
    reach memory. The input of a lookup (Gather, Slice) counts as the part that is taken from it.
    Constants that a QDQ group dequantizes count as stored, with their scales and zero points.
    """
    entering, leaving = find_entering_and_leaving(index, nodes)
    made = [name for i in nodes for name in index.nodes[i].output if index.is_used(name)]
    operations, estimated = 0, not all(map(sizes.is_known, (*entering, *made)))
    moved = [i for i in nodes if not is_view(index, index.nodes[i])]
    for i in moved:
        count, exact = _operations(index.nodes[i], sizes)
        operations += count
        estimated |= not exact
    touched = 0
    if moved:
        read = {**_bytes_read(index, sizes, nodes), **_stored_bytes(index, sizes, nodes, entering)}
        touched = sum(read[name] for name in entering) + sum(map(sizes.bytes, leaving))
    return Work(_as_float(operations), _as_float(touched), estimated)


def _bytes_read(index: GraphIndex, sizes: Sizes, nodes: Collection[int]) -> dict[str, int]:
    """Return the bytes of each tensor that the nodes read, the largest read of each."""
    result: dict[str, int] = {}
    for i in nodes:
        node = index.nodes[i]
        standard = is_onnx(node)
        for name in index.reads[i]:
            size = sizes.bytes(name)
            if standard and node.op_type in SHAPES:
                size = 0
            elif standard and node.op_type in _PARTIAL and name == node.input[0]:
                size = min(size, sizes.bytes(node.output[0]))
            result[name] = max(result.get(name, 0), size)
    return result


def _stored_bytes(
    index: GraphIndex, sizes: Sizes, nodes: Collection[int], entering: Collection[str]
) -> dict[str, int]:
    """Return the stored bytes of dequantized constants that a QDQ group reads; empty for other nodes."""
    if not any(is_qdq_node(index.nodes[i]) for i in nodes):
        return {}
    result: dict[str, int] = {}
    for name in entering:
        behind = [index.nodes[i] for i in index.find_constant_nodes([name])]
        read = {each for node in behind if is_dequantize(node) for each in node.input if each}
        if read:
            result[name] = sum(map(sizes.bytes, read))
    return result


def _as_float(count: int) -> float:
    return float(min(count, 10**30))  # shapes can state numbers beyond the range of a float


def _operations(node: NodeProto, sizes: Sizes) -> tuple[int, bool]:
    """Return a node's operations, and whether its operator is counted exactly."""
    output = prod(sizes.shape(node.output[0])) if node.output else 0
    if not is_onnx(node):
        return output, False
    if node.op_type in _MOVES:
        return 0, True
    if node.op_type in _PER_ELEMENT:
        return _PER_ELEMENT[node.op_type] * output, True
    counter = _COUNTERS.get(node.op_type)
    if counter is None:
        return output, False
    return counter(node, get_stated_attributes(node), sizes, output), True


_Attributes = Mapping[str, Any]


def _conv(node: NodeProto, _: _Attributes, sizes: Sizes, output: int) -> int:
    weight = sizes.shape(node.input[1])  # (M, C / group, kH, kW)
    bias = 1 if get_input(node, 2) else 0
    return output * (2 * prod(weight[1:]) + bias)


def _gemm(node: NodeProto, attributes: _Attributes, sizes: Sizes, output: int) -> int:
    first = sizes.shape(node.input[0])
    inner = first[0 if attributes.get("transA") else -1] if first else 1
    bias = 1 if get_input(node, 2) else 0
    return output * (2 * inner + bias)


def _matmul(node: NodeProto, _: _Attributes, sizes: Sizes, output: int) -> int:
    first = sizes.shape(node.input[0])
    return 2 * output * (first[-1] if first else 1)


def _pool(_: NodeProto, attributes: _Attributes, __: Sizes, output: int) -> int:
    return output * prod(map(int, attributes.get("kernel_shape", (1,))))


def _reduction(node: NodeProto, _: _Attributes, sizes: Sizes, __: int) -> int:
    return prod(sizes.shape(node.input[0]))


def _conv_transpose(node: NodeProto, _: _Attributes, sizes: Sizes, output: int) -> int:
    weight = sizes.shape(node.input[1])  # (C, M / group, kH, kW): each input meets all but its channel
    bias = output if get_input(node, 2) else 0
    return 2 * prod(sizes.shape(node.input[0])) * prod(weight[1:]) + bias


def _qlinear_conv(node: NodeProto, _: _Attributes, sizes: Sizes, output: int) -> int:
    bias = 1 if get_input(node, 8) else 0
    return output * (2 * prod(sizes.shape(node.input[3])[1:]) + bias)


def _conv_integer(node: NodeProto, _: _Attributes, sizes: Sizes, output: int) -> int:
    return output * 2 * prod(sizes.shape(node.input[1])[1:])


def _lrn(_: NodeProto, attributes: _Attributes, __: Sizes, output: int) -> int:
    # Squares and their sum over the window; then scale, add, power, divide.
    return output * (2 * int(attributes.get("size", 1)) + 4)


def _sum(node: NodeProto, _: _Attributes, __: Sizes, output: int) -> int:
    return output * max(len(node.input) - 1, 0)


_COUNTERS: Mapping[str, Callable[[NodeProto, _Attributes, Sizes, int], int]] = {
    "Conv": _conv,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "ConvInteger": _conv_integer,
    "ConvTranspose": _conv_transpose,
    "MatMulInteger": _matmul,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _matmul,
    **dict.fromkeys(_REDUCTIONS, _reduction),
    "LRN": _lrn,
    **dict.fromkeys(("Max", "Mean", "Min", "Sum"), _sum),
}
