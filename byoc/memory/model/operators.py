"""Which operators make no bytes of their own, and which may write over what they read."""

from onnx import NodeProto
from onnx.defs import OpSchema

from byoc.graph.attributes import written
from byoc.graph.index import GraphIndex
from byoc.graph.values import constant_value
from byoc.graph.walk import is_onnx

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
    """Return whether a node's first output is the bytes of its first input."""
    if not is_onnx(node) or node.op_type not in VIEWS:
        return False
    return node.op_type != "Dropout" or not _trains(index, node)


def outputs_made(index: GraphIndex, node: NodeProto) -> list[str]:
    """Return what a node writes: not the optional outputs that nothing reads."""
    schema = index.schema(node)
    optional = {
        name
        for name, formal in zip(node.output, schema.outputs if schema else (), strict=False)
        if formal.option == OpSchema.FormalParameterOption.Optional
    }
    return [name for name in node.output if name and (name not in optional or index.is_used(name))]


def pointwise_inputs(node: NodeProto) -> tuple[int, ...]:
    """Return the positions of the inputs of which element i is read for nothing but element i made.

    For inputs of as many elements as the first output; the others are broadcast.
    """
    if not is_onnx(node):
        return ()
    if node.op_type in _PLAIN or (node.op_type in VIEWS and node.op_type != "Dropout"):
        return tuple(range(len(node.input)))
    return _POINTWISE_IN.get(node.op_type, ())


_PLAIN = frozenset(_POINTWISE.split())


def _trains(index: GraphIndex, node: NodeProto) -> bool:
    opset = index.opset(node)
    if opset < _IS_TEST:
        return not written(node).get("is_test", 0)
    if opset < _TRAINING_MODE or len(node.input) < 3 or not node.input[2]:
        return False
    value = constant_value(index, node.input[2])
    return value is None or bool(value.any())
