"""How much work a node is: floating-point operations and bytes, counted from the real shapes.

A multiplication and an addition are two operations. Counts follow the operators' definitions in the
ONNX operator documentation; the transcendental functions (Exp, a power) count as one each, as is usual
in roofline models (Williams, Waterman, Patterson 2009).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from onnx import NodeProto

from byoc.graph.attributes import written
from byoc.graph.index import GraphIndex
from byoc.graph.types import TensorType
from byoc.graph.walk import is_onnx

# They give another shape to the same bytes, so neither side spends anything on them.
VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
# They move or repeat bytes and compute nothing.
_MOVES = frozenset({"Concat", "Transpose", "Slice", "Split", "Gather", "Pad", "Expand", "Tile", "Cast"})
# Operations for each element of the output.
_PER_ELEMENT = {
    "Relu": 1,
    "LeakyRelu": 2,
    "Clip": 2,
    "Add": 1,
    "Sub": 1,
    "Mul": 1,
    "Div": 1,
    "Sigmoid": 3,
    "Tanh": 5,
    "BatchNormalization": 2,  # folded into a scale and a shift when the model is compiled
    "Softmax": 4,  # maximum, exponential, sum, division
}


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes; `estimated` when the operator or a shape was not known exactly."""

    operations: float
    bytes: float
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of every tensor; one that is not known gets a stand-in, and is counted.

    An unknown dimension counts as 1, a tensor of unknown rank as `fallback` bytes.
    """

    types: Mapping[str, TensorType]
    fallback: int = 4096

    def known(self, name: str) -> bool:
        """Return whether every dimension of a tensor is known."""
        kind = self.types.get(name)
        return kind is not None and kind.elements is not None

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape with 1 for unknown dimensions; empty for an unknown rank."""
        kind = self.types.get(name)
        if kind is None or kind.shape is None:
            return ()
        return tuple(dim if isinstance(dim, int) else 1 for dim in kind.shape)

    def bytes(self, name: str) -> int:
        """Return a tensor's bytes, or the stand-in."""
        kind = self.types.get(name)
        if kind is None or kind.shape is None:
            return self.fallback
        return TensorType(kind.dtype, self.shape(name)).bytes or 0


def work(index: GraphIndex, sizes: Sizes, nodes: tuple[int, ...]) -> Work:
    """Return the work of nodes that run as one.

    Operations add up; bytes are those of the tensors that enter and leave, since what is made and used
    inside never reaches memory.
    """
    made = {name for i in nodes for name in index.nodes[i].output if index.is_used(name)}
    entering = dict.fromkeys(name for i in nodes for name in index.reads[i] if name not in made)
    inside = set(nodes)
    leaving = [
        name
        for name in made
        if name in index.outputs or not inside.issuperset(index.consumers.get(name, ()))
    ]
    operations, estimated = 0, not all(map(sizes.known, (*entering, *made)))
    moved = [i for i in nodes if not is_onnx(index.nodes[i]) or index.nodes[i].op_type not in VIEWS]
    for i in moved:
        count, exact = _operations(index.nodes[i], sizes)
        operations += count
        estimated |= not exact
    touched = sum(map(sizes.bytes, (*entering, *leaving))) if moved else 0
    return Work(_float(operations), _float(touched), estimated)


def _float(count: int) -> float:
    return float(min(count, 10**30))  # shapes can state more than a float can hold


def _operations(node: NodeProto, sizes: Sizes) -> tuple[int, bool]:
    """Return a node's operations, and whether its operator is one that is counted exactly."""
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
    return counter(node, written(node), sizes, output), True


_Attributes = Mapping[str, Any]


def _conv(node: NodeProto, _: _Attributes, sizes: Sizes, output: int) -> int:
    weight = sizes.shape(node.input[1])  # (M, C / group, kH, kW)
    bias = 1 if len(node.input) > 2 and node.input[2] else 0
    return output * (2 * prod(weight[1:]) + bias)


def _gemm(node: NodeProto, attributes: _Attributes, sizes: Sizes, output: int) -> int:
    first = sizes.shape(node.input[0])
    inner = first[0 if attributes.get("transA") else -1] if first else 1
    bias = 1 if len(node.input) > 2 and node.input[2] else 0
    return output * (2 * inner + bias)


def _matmul(node: NodeProto, _: _Attributes, sizes: Sizes, output: int) -> int:
    first = sizes.shape(node.input[0])
    return 2 * output * (first[-1] if first else 1)


def _pool(_: NodeProto, attributes: _Attributes, __: Sizes, output: int) -> int:
    return output * prod(map(int, attributes.get("kernel_shape", (1,))))


def _global_pool(node: NodeProto, _: _Attributes, sizes: Sizes, __: int) -> int:
    return prod(sizes.shape(node.input[0]))


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
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "LRN": _lrn,
    "Sum": _sum,
}
