"""What operators compute by definition: whole numbers in Python's integers, floats in float64.

Where onnx.reference is right it is asked; what it computes otherwise than ONNX's text says is here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from ml_dtypes import bfloat16
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

OPSET = 21
_MATRIX = 2  # the rank

DTYPES = {
    **{np.dtype(each).name: np.dtype(each) for each in (np.float16, np.float32, np.float64, bool)},
    **{
        np.dtype(f"{sign}int{bits}").name: np.dtype(f"{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "bfloat16": np.dtype(bfloat16),
}
FLOATS = ("float16", "bfloat16", "float32", "float64")
_OUTPUTS = {"TopK": 2, "Split": 2, "DynamicQuantizeLinear": 3}
TYPED_BY = {"OneHot": 2, "Where": 1}
"""Which input of an operator its dtype is that of, if not the first."""
Arrays = Sequence[Any]


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs of an operator whose rows, along the first axis, are independent of each other.

    `alike` are the positions of inputs that are the same for all rows, `constant` those that are stored
    whatever the form. `attributes` are those of the node.
    """

    inputs: Arrays
    attributes: Mapping[str, Any] = field(default_factory=dict)
    alike: tuple[int, ...] = ()
    constant: tuple[int, ...] = ()
    note: str = ""

    @property
    def rows(self) -> list[int]:
        """The positions of inputs that have rows."""
        return [place for place in range(len(self.inputs)) if place not in self.alike]

    def take(self, chosen: Any) -> "Sample":
        """Return the sample of the chosen rows."""
        inputs = [each[chosen] if place in self.rows else each for place, each in enumerate(self.inputs)]
        return replace(self, inputs=inputs)


def is_whole(dtype: str) -> bool:
    """Return whether a dtype is one of integers."""
    return dtype not in (*FLOATS, "bool")


def _truncate(a: Any, b: Any) -> Any:
    return np.frompyfunc(lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1), 2, 1)(a, b)


def _shift(a: Any, b: Any, left: bool) -> Any:
    return np.frompyfunc(lambda x, y: (x << min(y, 128)) if left else x >> min(y, 128), 2, 1)(a, b)


def _power(a: Any, b: Any) -> Any:
    return np.frompyfunc(lambda x, y: x**y, 2, 1)(a, b)


def _sum_rows(data: Any, axes: Any = None) -> Any:
    return np.add.reduce(data, axis=1, keepdims=True)


def _multiply_integers(a: Any, b: Any, za: Any, zb: Any) -> Any:
    """Return the product of matrices, and of images of one pixel with kernels of one element."""
    points = zb if a.ndim == _MATRIX else np.reshape(zb, (-1, 1, 1, 1))
    left, right = a - za, b - points
    if a.ndim == _MATRIX:
        return np.matmul(left, right)
    return np.matmul(left[:, :, 0, 0], right[:, :, 0, 0].T)[:, :, None, None]


EXACT: Mapping[str, Callable[..., Any]] = {
    "Abs": abs,
    "Neg": lambda x: -x,
    "Sign": np.frompyfunc(lambda v: (v > 0) - (v < 0), 1, 1),
    "Relu": lambda x: np.maximum(x, 0),
    "Identity": lambda x: x,
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": _truncate,
    "Mod": lambda a, b, fmod=0: a - b * _truncate(a, b) if fmod else a % b,
    "Pow": _power,
    "Max": np.maximum,
    "Min": np.minimum,
    "Clip": lambda x, low, *high: np.minimum(np.maximum(x, low), *high) if high else np.maximum(x, low),
    "BitShift": lambda a, b, direction=b"": _shift(a, b, direction in (b"LEFT", "LEFT")),
    "Equal": lambda a, b: a == b,
    "Greater": lambda a, b: a > b,
    "GreaterOrEqual": lambda a, b: a >= b,
    "Less": lambda a, b: a < b,
    "LessOrEqual": lambda a, b: a <= b,
    "ReduceSum": _sum_rows,
    "ReduceMax": lambda data, axes: np.maximum.reduce(data, axis=1, keepdims=True),
    "ReduceMin": lambda data, axes: np.minimum.reduce(data, axis=1, keepdims=True),
    "ReduceProd": lambda data, axes: np.multiply.reduce(data, axis=1, keepdims=True),
    "ReduceL1": lambda data, axes: _sum_rows(abs(data)),
    "ReduceSumSquare": lambda data, axes: _sum_rows(data * data),
    "ReduceMean": lambda data, axes: (_truncate if data.dtype == object else np.divide)(
        _sum_rows(data), data.shape[1]
    ),
    "CumSum": lambda data, axis: np.cumsum(data, axis=1),
    "MatMul": np.matmul,
    "Einsum": lambda a, b, equation="": np.matmul(a, b),
    "Gemm": lambda a, b, c: np.matmul(a, b) + c,
    "MatMulInteger": _multiply_integers,
    "ConvInteger": _multiply_integers,
    "MaxPool": lambda x: np.maximum(
        np.maximum(x[..., 1:, 1:], x[..., :-1, 1:]), np.maximum(x[..., 1:, :-1], x[..., :-1, :-1])
    ),
}
"""What operators make of whole numbers before they wrap; of others onnx.reference is asked."""


def _log_softmax(sample: Sample) -> list[Any]:
    x = np.asarray(sample.inputs[0])
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        less = wide - wide.max(1, keepdims=True)
        return [(less - np.log(np.exp(less).sum(1, keepdims=True))).astype(x.dtype)]


def _clip(sample: Sample) -> list[Any]:
    x, *bounds = map(np.asarray, sample.inputs)
    low, high = (*bounds, ml_dtypes.finfo(x.dtype).max)[:2]
    with np.errstate(invalid="ignore"):
        return [np.minimum(np.maximum(x, low), high).astype(x.dtype)]


def _log_sum_exp(sample: Sample) -> list[Any]:
    x = np.asarray(sample.inputs[0])
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        most = wide.max(1, keepdims=True)
        base = np.where(np.isfinite(most), most, 0)
        return [(base + np.log(np.exp(wide - base).sum(1, keepdims=True))).astype(x.dtype)]


def _quantize(sample: Sample) -> list[Any]:
    x, scale, zero = map(np.asarray, sample.inputs)
    ends = np.iinfo(zero.dtype)
    steps = np.rint(x.astype(np.float64) / scale.astype(np.float64)) + float(zero)
    return [np.clip(steps, ends.min, ends.max).astype(zero.dtype)]


def _average(sample: Sample) -> list[Any]:
    x = np.asarray(sample.inputs[0]).astype(np.float64)
    windows = (x[..., 1:, 1:], x[..., :-1, 1:], x[..., 1:, :-1], x[..., :-1, :-1])
    with np.errstate(all="ignore"):
        return [(sum(windows) / 4).astype(np.asarray(sample.inputs[0]).dtype)]


def _mark(sample: Sample) -> list[Any]:
    indices, depth, (off, on) = sample.inputs
    found = np.arange(int(depth)) == np.asarray(indices)[..., None] % int(depth)
    inside = (np.asarray(indices) >= -int(depth)) & (np.asarray(indices) < int(depth))
    return [np.where(found & inside[..., None], on, off)]


_EXACT_FLOATS: Mapping[str, Callable[[Sample], list[Any]]] = {
    "AveragePool": _average,  # onnx.reference takes NaN for padding
    "OneHot": _mark,  # onnx.reference multiplies by infinities
    "LogSoftmax": _log_softmax,  # onnx.reference takes the logarithm of 0
    "Clip": _clip,  # onnx.reference has no limit where a bound is left out
    "ReduceLogSumExp": _log_sum_exp,  # onnx.reference subtracts infinities
    "QuantizeLinear": _quantize,  # onnx.reference overflows beyond 32 bits
}
_TYPED = ("Cast", "DequantizeLinear", "DynamicQuantizeLinear")  # what they compute depends on dtypes
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")

SUMMED = {
    "ReduceSum": lambda data, axes: _sum_rows(abs(data)),
    "ReduceSumSquare": lambda data, axes: _sum_rows(data * data),
    "ReduceMean": lambda data, axes: _sum_rows(abs(data)),
    "CumSum": lambda data, axis: np.cumsum(abs(data), axis=1),
    "MatMul": lambda a, b: np.matmul(abs(a), abs(b)),
    "Einsum": lambda a, b, equation="": np.matmul(abs(a), abs(b)),
    "Gemm": lambda a, b, c: np.matmul(abs(a), abs(b)) + abs(c),
    "ReduceL2": lambda data, axes: _sum_rows(data * data),
    "ReduceLogSum": lambda data, axes: _sum_rows(abs(data)),
    "ReduceProd": lambda data, axes: np.multiply.reduce(np.maximum(abs(data), 1), axis=1, keepdims=True),
}
"""The greatest magnitude on the way to a result, where that is not the result itself."""


def is_defined(op: str, dtype: str) -> bool:
    """Return whether ONNX defines an operator for a dtype, and onnx.reference can run it."""
    schema = onnx.defs.get_schema(op, OPSET)
    place = TYPED_BY.get(op, 0)
    if (op, dtype) == ("OneHot", "bool") or (op.startswith("ReduceLog") and is_whole(dtype)):
        return False
    named = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    return place < len(schema.inputs) and f"tensor({named})" in schema.inputs[place].types


def compute(op: str, sample: Sample) -> list[Any]:
    """Return what an operator makes of a sample, by definition: one array for each output."""
    arrays = [np.asarray(each) for each in sample.inputs]
    if op in EXACT and all(each.dtype.kind in "iu" for each in arrays):
        given = [each.astype(object) for each in arrays]
        values = np.asarray(EXACT[op](*given, **plain_attributes(sample)), object)
        if op in _COMPARISONS:
            return [values.astype(bool)]
        return [_wrap(values, np.dtype(np.int32) if op.endswith("Integer") else arrays[0].dtype)]
    if op in _EXACT_FLOATS:
        return _EXACT_FLOATS[op](sample)
    wide = _widen(op, sample)
    model = build_model(op, wide, range(len(arrays)), {})
    feeds = dict(zip(name_inputs(wide), wide.inputs, strict=True))
    with np.errstate(all="ignore"):
        made = [np.asarray(each) for each in ReferenceEvaluator(model).run(None, feeds)]
        kind = arrays[TYPED_BY.get(op, 0)].dtype
        widened = wide is not sample
        return [each.astype(kind) if widened and each.dtype == np.float64 else each for each in made]


def _widen(op: str, sample: Sample) -> Sample:
    """Return a sample with floats in float64, in which onnx.reference rounds less, where that can be."""
    arrays = [np.asarray(each) for each in sample.inputs]
    floats = any(each.dtype.name in FLOATS for each in arrays)
    if op in _TYPED or not floats or not is_defined(op, "float64"):
        return sample
    return replace(
        sample,
        inputs=[each.astype(np.float64) if each.dtype.name in FLOATS else each for each in arrays],
    )


def _wrap(values: Any, dtype: Any) -> Any:
    """Return Python's integers as a dtype of so many bits holds them."""
    ends = np.iinfo(dtype)
    return np.asarray((values - int(ends.min)) % (1 << ends.bits) + int(ends.min), object).astype(dtype)


def plain_attributes(sample: Sample) -> dict[str, Any]:
    """Return the attributes that functions of `EXACT` take."""
    return {
        name: value
        for name, value in sample.attributes.items()
        if name in ("fmod", "direction", "equation")
    }


def name_inputs(sample: Sample) -> list[str]:
    """Return the names of a sample's inputs in models."""
    return [f"x{place}" for place in range(len(sample.inputs))]


def build_model(
    op: str, sample: Sample, variable: Sequence[int], joined: Mapping[str, Any]
) -> onnx.ModelProto:
    """Return the model of one node; inputs at the places `variable` come from outside, others are in it.

    A Concat reads the outputs that are in `joined`, with a variable of that shape.
    """
    names = name_inputs(sample)
    arrays = [np.asarray(each) for each in sample.inputs]
    outputs = [f"y{place}" for place in range(_OUTPUTS.get(op, 1))]
    nodes = [helper.make_node(op, names, outputs, name="n", **sample.attributes)]
    inputs = [describe(names[place], arrays[place]) for place in variable]
    for output, other in joined.items():
        nodes.append(helper.make_node("Concat", [output, f"z{output}"], [f"w{output}"], axis=0))
        inputs.append(describe(f"z{output}", other))
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [onnx.ValueInfoProto(name=f"w{each}" if each in joined else each) for each in outputs],
        [
            numpy_helper.from_array(array, name)
            for place, (name, array) in enumerate(zip(names, arrays, strict=True))
            if place not in variable
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def describe(name: str, value: Any) -> onnx.ValueInfoProto:
    """Return a graph's input or output for an array."""
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
