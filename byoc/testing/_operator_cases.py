"""Models of one node: byoc's own in many shapes and types, and those of ONNX's operator tests."""

import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from byoc.errors import InputError
from byoc.testing._cases import DEFAULT_OPSET, Case, parse_one_node

# Operators whose constants are of several types, as models; `DTYPE` stands for the type of floats.
_MODELS = {
    "QuantizeLinear": [
        f"""(DTYPE[2, 3, 4] x) => ({kind}[2, 3, 4] y)
        <DTYPE s = {{0.0078125}}, {kind} z = {{{zero}}}> {{ y = QuantizeLinear(x, s, z) }}"""
        for kind, zero in (("uint8", 128), ("int8", 3))
    ]
    + [
        """(DTYPE[1, 3, 4, 4] x) => (int8[1, 3, 4, 4] y)
        <DTYPE[3] s = {0.0078125, 0.015625, 0.03125}, int8[3] z = {0, 0, 0}>
        { y = QuantizeLinear<axis = 1>(x, s, z) }"""
    ],
    "DequantizeLinear": [
        f"""({kind}[2, 3, 4] x) => (DTYPE[2, 3, 4] y)
        <DTYPE s = {{0.03125}}, {kind} z = {{{zero}}}> {{ y = DequantizeLinear(x, s, z) }}"""
        for kind, zero in (("uint8", 3), ("int8", -2))
    ]
    + [
        """(int8[1, 3, 4, 4] x) => (DTYPE[1, 3, 4, 4] y)
        <DTYPE[3] s = {0.0078125, 0.015625, 0.03125}, int8[3] z = {0, 0, 0}>
        { y = DequantizeLinear<axis = 1>(x, s, z) }"""
    ],
}
_KNOWN_IR_VERSION = 10  # to every onnxruntime that byoc runs with
_SHAPES = ("1x4x6x6", "3x4", "2x3x4", "5", "")
_UNARY = (
    *("Abs", "Acos", "Asin", "Atan", "Ceil", "Celu", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid"),
    *("HardSwish", "Identity", "LeakyRelu", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu"),
    *("Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu", "Dropout"),
    *("IsNaN", "Log", "Cosh", "Sinh"),
)
_BINARY = (
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean"),
    *("Min", "Mod", "Mul", "Or", "Pow", "PRelu", "Sub", "Sum", "Xor"),
)
_REDUCE = ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd")
_IMAGE = "x:1x4x8x8 | "

# Operators with attributes, constants or several outputs, in the notation of `parse_one_node`.
_ONE_NODE_TEXTS = {
    "ArgMax": ["x:2x6 | ArgMax<axis=1, keepdims=0>(x)"],
    "AveragePool": [
        _IMAGE + "AveragePool<kernel_shape=[2,2], strides=[2,2]>(x)",
        _IMAGE + "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)",
        _IMAGE + "AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x)",
    ],
    "BatchNormalization": [_IMAGE + "BatchNormalization(x, scale=4, b=4, mean=4, var=4)"],
    "Cast": ["x:2x3 | Cast<to=1>(x)", "x:2x3 | Cast<to=10>(x)", "x:2x3 | Cast<to=7>(x)"],
    "Clip": [_IMAGE + "Clip(x, lo=, hi=)", "x:3x4 | Clip(x)"],
    "Concat": [
        "x:1x4x5x5 z:1x4x5x5 | Concat<axis=1>(x, z)",
        "x:1x4x5x5 | Concat<axis=1>(x, c=1x2x5x5)",
        "x:2x3 z:4x3 | Concat<axis=0>(x, z)",
    ],
    "Conv": [
        _IMAGE + "Conv(x, w=8x4x1x1, b=8)",
        _IMAGE + "Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w=4x4x3x3, b=4)",
        _IMAGE + "Conv<kernel_shape=[3,3], strides=[2,2], pads=[0,0,1,1]>(x, w=4x4x3x3)",
        _IMAGE + "Conv<kernel_shape=[2,3], pads=[1,0,0,1]>(x, w=5x4x2x3, b=5)",
        _IMAGE + "Conv<group=4, kernel_shape=[3,3]>(x, w=4x1x3x3, b=4)",
        _IMAGE + "Conv<group=2>(x, w=4x2x3x3)",
        _IMAGE + "Conv<dilations=[2,2], pads=[2,2,2,2]>(x, w=4x4x3x3)",
        "x:2x4x9 | Conv<pads=[1,1]>(x, w=4x4x3, b=4)",
    ],
    "ConvTranspose": [
        _IMAGE + "ConvTranspose<strides=[2,2]>(x, w=4x3x2x2, b=3)",
        _IMAGE + "ConvTranspose<pads=[1,1,1,1]>(x, w=4x3x3x3)",
    ],
    "DepthToSpace": [_IMAGE + "DepthToSpace<blocksize=2>(x)"],
    "Expand": ["x:3x1 | Expand(x, s!2x3x4)"],
    "Flatten": ["x:1x4x3x3 | Flatten(x)", "x:2x3x4 | Flatten<axis=2>(x)"],
    "Gather": [
        "x:5x3 | Gather(x, i!4x0x2)",
        "x:2x5 i:3:int64 | Gather<axis=0>(x, i)",
        "x:5x3 | Gather<axis=1>(x, i!2)",
    ],
    "Gemm": [
        "x:2x16 | Gemm(x, w=16x5, b=5)",
        "x:2x16 | Gemm<transB=1>(x, w=5x16, b=5)",
        "x:2x16 | Gemm<alpha=0.5, beta=2.0>(x, w=16x5, b=2x5)",
        "x:1x16 | Gemm<transB=1>(x, w=5x16)",
        "x:16x2 | Gemm<transA=1>(x, w=16x5)",
    ],
    "GlobalAveragePool": [_IMAGE + "GlobalAveragePool(x)", "x:2x3x5x7 | GlobalAveragePool(x)"],
    "GlobalMaxPool": [_IMAGE + "GlobalMaxPool(x)"],
    "InstanceNormalization": [_IMAGE + "InstanceNormalization(x, s=4, b=4)"],
    "LRN": [_IMAGE + "LRN<size=3>(x)"],
    "LayerNormalization": ["x:2x3x8 | LayerNormalization(x, s=8, b=8)"],
    "LogSoftmax": ["x:2x6 | LogSoftmax<axis=1>(x)"],
    "MatMul": [
        "x:3x8 | MatMul(x, w=8x5)",
        "x:2x3x8 | MatMul(x, w=8x5)",
        "x:1x2x3x8 z:1x2x8x5 | MatMul(x, z)",
        "x:3x8 z:8x5 | MatMul(x, z)",
    ],
    "MaxPool": [
        _IMAGE + "MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)",
        _IMAGE + "MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)",
        _IMAGE + "MaxPool<kernel_shape=[3,2], pads=[0,0,1,1]>(x)",
    ],
    "Pad": ["x:1x2x3x3 | Pad(x, p!0x0x1x1x0x0x1x1)"],
    "ReduceSum": ["x:2x3x4 | ReduceSum(x, a!1)"],
    "Reshape": [_IMAGE + "Reshape(x, s!1x4x64)", "x:2x6 | Reshape(x, s!3x4)"],
    "Resize": [_IMAGE + 'Resize<mode="nearest">(x, , , s!1x4x16x16)'],
    "Slice": [_IMAGE + "Slice(x, s!1x2, e!3x8, a!2x3)"],
    "Softmax": ["x:2x6 | Softmax<axis=1>(x)", "x:1x4x3x3 | Softmax<axis=1>(x)"],
    "SpaceToDepth": [_IMAGE + "SpaceToDepth<blocksize=2>(x)"],
    "Split": ["x:4x6 | Split<axis=1>(x, s!2x4) | y, z"],
    "Squeeze": ["x:1x4x1x3 | Squeeze(x, a!0x2)"],
    "Tile": ["x:2x3 | Tile(x, r!2x1)"],
    "TopK": ["x:2x8 | TopK(x, k!3) | y, z"],
    "Transpose": [_IMAGE + "Transpose<perm=[0,2,3,1]>(x)", "x:3x5 | Transpose(x)"],
    "Unsqueeze": ["x:4x3 | Unsqueeze(x, a!0x3)"],
    "Where": ["p:2x3:bool x:2x3 z:2x3 | Where(p, x, z)"],
}


def operator_cases(operator: str, dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield models of one node of an operator, regardless of any target's rules.

    byoc's own models, in the given types, alternate with ONNX's tests, so that the first cover all
    kinds.
    """
    own = chain(
        (
            case
            for text in _own_models(operator)
            for case in (parse_one_node(text, d) for d in dtypes)
            if case
        ),
        _parse_models(operator, dtypes),
    )
    for pair in zip_longest(own, _onnx_test_cases(operator)):
        yield from (case for case in pair if case is not None)


def read_own_cases(own: Sequence[str | ModelProto], dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield a vendor's models: models, and texts in the notation of `parse_one_node` in each dtype.

    Raises InputError for a text that ONNX makes no model of in any of them.
    """
    for given in own:
        if isinstance(given, ModelProto):
            yield Case(given.graph.name or "a model", given)
            continue
        found = [case for case in (parse_one_node(given, dtype) for dtype in dtypes) if case]
        if not found:
            raise InputError(f"cases: '{given}' is no model in {', '.join(dtypes)}")
        yield from found


def _parse_models(operator: str, dtypes: Sequence[str]) -> Iterator[Case]:
    """Yield the models of an operator whose constants are of several types, in each floating type."""
    for number, text in enumerate(_MODELS.get(operator, ())):
        for dtype in dtypes:
            if "float" not in dtype:
                continue
            known = {"float32": "float", "float64": "double"}.get(dtype, dtype)
            header = (
                f'<ir_version: 9, opset_import: ["" : {21 if "16" in dtype else DEFAULT_OPSET}]> case'
            )
            model = onnx.parser.parse_model(f"{header} {text.replace('DTYPE', known)}")
            yield Case(f"{operator} {number + 1} in {dtype}", model)


def _own_models(operator: str) -> Iterator[str]:
    yield from _ONE_NODE_TEXTS.get(operator, ())
    if operator in _UNARY:
        yield from (f"x:{shape} | {operator}(x)" for shape in _SHAPES)
    if operator in _BINARY:
        yield from (f"x:{shape} z:{shape} | {operator}(x, z)" for shape in _SHAPES)
        others = ("1x4x1x1", "", "4x1x1", "1x4x6x6")
        yield from (f"x:1x4x6x6 | {operator}(x, c={shape})" for shape in others)
        yield from (f"x:3x4 | {operator}(x, c={shape})" for shape in ("4", "3x4", ""))
    if operator in _REDUCE:
        yield f"x:1x4x6x6 | {operator}<axes=[2,3]>(x)"
        yield f"x:2x3x4 | {operator}<axes=[-1], keepdims=0>(x)"


def _onnx_test_cases(operator: str) -> Iterator[Case]:
    """Yield ONNX's tests of an operator: unchanged, and with all inputs but one as constants."""
    for test in _onnx_tests(operator):
        model, sets = _lower_opset(test.model), test.data_sets
        if model.functions or not sets:
            continue
        names = [value.name for value in model.graph.input]
        given = dict(zip(names, map(_to_array, sets[0][0]), strict=False))
        if any(value is None for value in given.values()):
            continue
        yield Case(test.name, model, given)
        if len(given) > 1:
            yield _with_constants(test.name, model, given)


def _lower_opset(model: ModelProto) -> ModelProto:
    """Return a test's model in the oldest opset, from ours on, that has its node as it is.

    The tests are in the newest opset, which an older onnxruntime refuses whatever is in the model.
    """
    (entry,), node = model.opset_import, model.graph.node[0]
    since = onnx.defs.get_schema(node.op_type, entry.version).since_version
    lowered = ModelProto()
    lowered.CopyFrom(model)
    lowered.opset_import[0].version = min(entry.version, max(since, DEFAULT_OPSET))
    lowered.ir_version = min(model.ir_version, _KNOWN_IR_VERSION)
    return lowered


def _to_array(value: Any) -> Any:
    """Return a test's value as an array; None for a sequence or an optional."""
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return None if value is None or isinstance(value, list) else np.asarray(value)


def _with_constants(name: str, original: ModelProto, given: dict[str, Any]) -> Case:
    model = ModelProto()
    model.CopyFrom(original)
    model.ir_version = max(model.ir_version, 4)
    first, *others = given
    del model.graph.input[1:]
    model.graph.initializer.extend(numpy_helper.from_array(given[other], other) for other in others)
    return Case(f"{name}, constants", model, {first: given[first]})


@cache
def _onnx_tests(operator: str) -> tuple[Any, ...]:
    """Return ONNX's tests of an operator.

    Generating all tests takes ten seconds; importing one of their modules generates only its own.
    """
    package = "onnx.backend.test.case.node"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they overflow and divide by zero on purpose
        try:
            importlib.import_module(f"{package}.{operator.lower()}")
        except ImportError:
            return ()
    made = getattr(sys.modules[package], "_NodeTestCases", ())
    return tuple(test for test in made if test.model and _single_operator(test.model) == operator)


def _single_operator(model: ModelProto) -> str:
    """Return the operator of a model with one node of ONNX's domain; "" for any other model."""
    nodes = model.graph.node
    return nodes[0].op_type if len(nodes) == 1 and nodes[0].domain in ("", "ai.onnx") else ""


def list_onnx_operators() -> list[str]:
    """Return the names of all operators of ONNX's domain that are not deprecated."""
    schemas = (schema for schema in onnx.defs.get_all_schemas() if schema.domain == "")
    return sorted({schema.name for schema in schemas if not schema.deprecated})
