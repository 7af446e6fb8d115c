"""Operations of a node by formula, from the shapes that it had in onnxruntime.

A multiplication and an addition are two operations, everything else is one for each element written.
Written from the operators' definitions, and independent of byoc's own counts.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import onnx
from onnx import NodeProto
from reference_run import Execution

_Attributes = Mapping[str, Any]

# They move bytes or look at shapes.
_NO_OPERATIONS = frozenset(
    {
        *(
            "Cast",
            "CastLike",
            "Concat",
            "Constant",
            "ConstantOfShape",
            "DepthToSpace",
            "Dropout",
            "Expand",
        ),
        *("EyeLike", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "If", "Loop", "Pad"),
        *("Range", "Reshape", "Scan", "Scatter", "ScatterElements", "ScatterND", "SequenceAt"),
        *("SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceLength", "Shape", "Size"),
        *("Slice", "SpaceToDepth", "Split", "SplitToSequence", "Squeeze", "Tile", "Transpose", "Trilu"),
        *("Unsqueeze", "ConcatFromSequence"),
    }
)


def count_operations(node: NodeProto, execution: Execution) -> int:
    """Return the operations of one run of a node."""
    if node.op_type in _NO_OPERATIONS:
        return 0
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    formula = _FORMULAS.get(node.op_type)
    if formula is None:
        return prod(execution.outputs[0]) if execution.outputs else 0
    return formula(node, attributes, execution)


def count_multiplications(node: NodeProto, execution: Execution) -> int:
    """Return the multiplications of a convolution or a matrix product, 0 for other operators."""
    kernel = node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")
    return count_operations(node, execution) // 2 if kernel else 0


def _conv(_: NodeProto, __: _Attributes, run: Execution) -> int:
    return 2 * prod(run.outputs[0]) * prod(run.inputs[1][1:])


def _qlinear_conv(_: NodeProto, __: _Attributes, run: Execution) -> int:
    return 2 * prod(run.outputs[0]) * prod(run.inputs[3][1:])


def _conv_transpose(_: NodeProto, __: _Attributes, run: Execution) -> int:
    return 2 * prod(run.inputs[0]) * prod(run.inputs[1][1:])


def _gemm(_: NodeProto, attributes: _Attributes, run: Execution) -> int:
    inner = run.inputs[0][0 if attributes.get("transA") else 1]
    return 2 * prod(run.outputs[0]) * inner


def _matmul(_: NodeProto, __: _Attributes, run: Execution) -> int:
    return 2 * prod(run.outputs[0]) * (run.inputs[0][-1] if run.inputs[0] else 1)


def _matmul_nbits(_: NodeProto, attributes: _Attributes, run: Execution) -> int:
    return 2 * prod(run.outputs[0]) * int(attributes["K"])


def _group_query_attention(_: NodeProto, attributes: _Attributes, run: Execution) -> int:
    # Scores and their product with the values: batch x heads x queries x keys x head size, twice.
    batch, queries = run.inputs[0][:2]
    keys, head = run.outputs[1][2:]
    return 2 * 2 * batch * int(attributes["num_heads"]) * queries * keys * head


def _multi_head_attention(_: NodeProto, __: _Attributes, run: Execution) -> int:
    query, key = run.inputs[:2]
    return 2 * 2 * prod(query) * key[1]


def _attention(_: NodeProto, __: _Attributes, run: Execution) -> int:
    (batch, tokens, _), kernel = run.inputs[:2]
    projection = 2 * batch * tokens * prod(kernel)
    return projection + 2 * 2 * batch * tokens * tokens * (kernel[1] // 3)


def _recurrent(gates: int) -> Callable[[NodeProto, _Attributes, Execution], int]:
    def count(_: NodeProto, __: _Attributes, run: Execution) -> int:
        steps, batch = run.inputs[0][
            :2
        ]  # (steps, batch, inputs); W: (directions, gates * hidden, inputs)
        return 2 * steps * batch * (prod(run.inputs[1]) + prod(run.inputs[2])) + gates * steps * batch

    return count


def _pool(_: NodeProto, attributes: _Attributes, run: Execution) -> int:
    return prod(run.outputs[0]) * prod(attributes.get("kernel_shape", (1,)))


def _read_once(_: NodeProto, __: _Attributes, run: Execution) -> int:
    return prod(run.inputs[0])


def _einsum(_: NodeProto, attributes: _Attributes, run: Execution) -> int:
    equation = attributes["equation"].decode().replace(" ", "")
    extents: dict[str, int] = {}
    for letters, shape in zip(equation.split("->")[0].split(","), run.inputs, strict=True):
        extents.update(zip(letters, shape, strict=True))
    return len(run.inputs) * prod(extents.values())


_FORMULAS: Mapping[str, Callable[[NodeProto, _Attributes, Execution], int]] = {
    "Attention": _attention,
    "AveragePool": _pool,
    "Conv": _conv,
    "ConvInteger": _conv,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "FusedMatMul": _matmul,
    "GRU": _recurrent(3),
    "Gemm": _gemm,
    "GlobalAveragePool": _read_once,
    "GlobalMaxPool": _read_once,
    "GroupQueryAttention": _group_query_attention,
    "LSTM": _recurrent(4),
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "MatMulNBits": _matmul_nbits,
    "MaxPool": _pool,
    "MultiHeadAttention": _multi_head_attention,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _matmul,
    "RNN": _recurrent(1),
    "ReduceMax": _read_once,
    "ReduceMean": _read_once,
    "ReduceMin": _read_once,
    "ReduceProd": _read_once,
    "ReduceSum": _read_once,
}
