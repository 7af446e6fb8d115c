"""Operators that are views, and operators that can overwrite an operand."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import FunctionProto, NodeProto

from byoc.model import GraphIndex, get_constant_value, get_stated_attributes, is_onnx, list_node_captures

VIEWS = {
    "Reshape": "the elements stay in their order, whatever the shape",
    "Flatten": "a Reshape to two axes",
    "Squeeze": "a Reshape without some axes of extent 1",
    "Unsqueeze": "a Reshape with more axes of extent 1",
    "Identity": "the same tensor under another name",
    "Dropout": "the same tensor where it does not train",
}
"""Operators whose first output is the bytes of their first input, and why."""

_POINTWISE = """
    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr
    BitwiseXor Cast CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater
    GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish
    Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus
    Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
"""
# These do so with some of their inputs; what they read of the others is at other places.
_POINTWISE_IN = {
    "BatchNormalization": (0,),
    "DequantizeLinear": (0,),
    "QuantizeLinear": (0,),
    "ScatterElements": (0,),
    "ScatterND": (0,),
    "TensorScatter": (0,),
}
# From this operator-set version on Dropout has an input that says whether it trains, and before the
# other one an attribute did; in between it never does.
_TRAINING_MODE, _IS_TEST = 12, 7


def is_view(index: GraphIndex, node: NodeProto) -> bool:
    """Tell whether a node's first output is the bytes of its first input."""
    if not is_onnx(node) or node.op_type not in VIEWS:
        return False
    return node.op_type != "Dropout" or not _trains(index, node)


def written_outputs(index: GraphIndex, node: NodeProto) -> list[str]:
    """Return the outputs that a node writes, without optional ones that nothing reads."""
    schema = index.get_schema(node)
    optional = {
        name
        for name, formal in zip(node.output, schema.outputs if schema else (), strict=False)
        if formal.optional
    }
    return [name for name in node.output if name and (name not in optional or index.is_used(name))]


def pointwise_inputs(node: NodeProto) -> tuple[int, ...]:
    """Return the inputs, by position, whose element i is read only for element i of the output.

    This holds for inputs with as many elements as the first output; others are broadcast.
    """
    if not is_onnx(node):
        return ()
    if node.op_type in _PLAIN or (node.op_type in VIEWS and node.op_type != "Dropout"):
        return tuple(range(len(node.input)))
    return _POINTWISE_IN.get(node.op_type, ())


_PLAIN = frozenset(_POINTWISE.split())


def _trains(index: GraphIndex, node: NodeProto) -> bool:
    opset = index.get_opset(node)
    if opset < _IS_TEST:
        return not get_stated_attributes(node).get("is_test", 0)
    if opset < _TRAINING_MODE or len(node.input) < 3 or not node.input[2]:
        return False
    value = get_constant_value(index, node.input[2])
    return value is None or bool(value.any())


FunctionTable = Mapping[tuple[str, str, str], FunctionProto]


@dataclass(frozen=True)
class TensorOrigin:
    """The origin of a tensor: outer tensors read element by element (`same`), and the other ones.

    An operator never makes fewer elements than an operand it reads element by element, so a tensor with
    as many elements as the result has the same order all along the way.
    """

    same: frozenset[str] = field(default_factory=frozenset)
    other: frozenset[str] = field(default_factory=frozenset)


def find_origins(nodes: Sequence[NodeProto], functions: FunctionTable) -> dict[str, TensorOrigin]:
    """Return the origin of each tensor that some sorted nodes make.

    A function call is treated as the nodes of the function.
    """
    found: dict[str, TensorOrigin] = {}
    for node in nodes:
        function = functions.get((node.domain, node.op_type, node.overload))
        if function is not None:
            inner = find_origins(list(function.node), functions)
            for name, formal in zip(node.output, function.output, strict=False):
                found[name] = _origin_of_call(node, function, inner.get(formal, TensorOrigin()), found)
            continue
        pointwise = pointwise_inputs(node)
        given = [name if position in pointwise else "" for position, name in enumerate(node.input)]
        others = [
            *(n for p, n in enumerate(node.input) if p not in pointwise),
            *list_node_captures(node),
        ]
        first, rest = _join_origins(given, others, found), _join_origins((), (*given, *others), found)
        for position, name in enumerate(node.output):
            found[name] = rest if position else first
    return found


def _join_origins(
    same: Iterable[str], other: Iterable[str], found: Mapping[str, TensorOrigin]
) -> TensorOrigin:
    one = [found.get(name, TensorOrigin(frozenset({name}))) for name in same if name]
    two = [found.get(name, TensorOrigin(frozenset({name}))) for name in other if name]
    alike = frozenset[str]().union(*(each.same for each in one))
    unlike = frozenset[str]().union(
        *(each.other for each in one), *(each.same | each.other for each in two)
    )
    return TensorOrigin(alike - unlike, unlike)


def _origin_of_call(
    call: NodeProto, function: FunctionProto, inner: TensorOrigin, found: Mapping[str, TensorOrigin]
) -> TensorOrigin:
    """Return the origin of an output of a call, in the names of the caller."""
    outer = dict(zip(function.input, call.input, strict=False))
    same = [outer.get(name, "") for name in inner.same]
    return _join_origins(same, [outer.get(name, "") for name in inner.other], found)
