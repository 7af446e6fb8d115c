"""Models of one operator on values that reach: what a device must compute, by definition, at the ends of types.

For each operator and dtype come models of one node and rows of inputs: the ends of each integer type,
2**24 and its neighbours, wraps, negative dividends, shifts by the width and more, half-way values, equal
keys, NaN, infinities, -0.0, denormals, and extents of 0. Whole numbers are held to exact arithmetic in
Python's integers, floats to onnx.reference. Rows that leave what a target promises of values (its
arithmetic contract) are left out, so that what remains has to be right.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from ml_dtypes import bfloat16
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

OPSET = 21
ROWS = 300  # of seeded rows where all combinations would be too many

DTYPES = {
    **{np.dtype(each).name: np.dtype(each) for each in (np.float16, np.float32, np.float64, bool)},
    **{np.dtype(f"{sign}int{bits}").name: np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bfloat16": np.dtype(bfloat16),
}
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_EDGES = (2**24, 2**31, 2**32, 2**53, 2**63)
_SPECIAL = (
    *(np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 1e37, -1e37, 1e20, -1e20, 1e-20, 70000.0),
    *(0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1.0, -1.0, 3.0, -3.0, 100.0, -100.0, 0.25, -0.75, 88.8, -103.9, 6.0),
    *(16777217.0, -16777216.0, 1 / 3, 0.1),
)
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


@dataclass(frozen=True, eq=False)
class ValueCase:
    """A model around one operator, its inputs, and what it must compute."""

    name: str
    op: str
    dtype: str
    form: str
    model: onnx.ModelProto
    inputs: dict[str, Any]
    expected: dict[str, Any]


def pool(dtype: str) -> Any:
    """Return the values of a dtype that tell kernels apart."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return np.array([False, True])
    if dtype in _FLOATS:
        with np.errstate(over="ignore"):
            return np.unique(np.array(_SPECIAL, np.float64).astype(kind).view(f"u{kind.itemsize}")).view(kind)
    ends = np.iinfo(kind)
    near = {sign * (edge + step) for edge in _EDGES for step in (-1, 0, 1) for sign in (1, -1)}
    small = {-200, -100, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, 100, 127, 128, 200, 255, 256, 40000, 65536}
    wanted = sorted(near | small | {ends.min, ends.min + 1, ends.max - 1, ends.max})
    return np.array([each for each in wanted if ends.min <= each <= ends.max], kind)


def is_whole(dtype: str) -> bool:
    """Return whether a dtype is one of integers."""
    return dtype not in (*_FLOATS, "bool")


# ---- exact arithmetic of whole numbers: Python's integers, in arrays of objects


def _truncate(a: Any, b: Any) -> Any:
    return np.frompyfunc(lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1), 2, 1)(a, b)


def _shift(a: Any, b: Any, left: bool) -> Any:
    return np.frompyfunc(lambda x, y: (x << min(y, 128)) if left else x >> min(y, 128), 2, 1)(a, b)


def _power(a: Any, b: Any) -> Any:
    return np.frompyfunc(lambda x, y: x**y, 2, 1)(a, b)


def _sum_rows(data: Any, axes: Any = None) -> Any:
    return np.add.reduce(data, axis=1, keepdims=True)


def _cumulate(data: Any, axis: Any) -> Any:
    return np.cumsum(data, axis=1)


EXACT: Mapping[str, Callable[..., Any]] = {
    "Abs": lambda x: abs(x),
    "Neg": lambda x: -x,
    "Sign": lambda x: np.frompyfunc(lambda v: (v > 0) - (v < 0), 1, 1)(x),
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
    "Clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
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
    "ReduceMean": lambda data, axes: (_truncate if data.dtype == object else np.divide)(_sum_rows(data), data.shape[1]),
    "CumSum": _cumulate,
    "MatMul": lambda a, b: np.matmul(a, b),
    "Einsum": lambda a, b, equation="": np.matmul(a, b),
    "Gemm": lambda a, b, c: np.matmul(a, b) + c,
    "MaxPool": lambda x: np.maximum(
        np.maximum(x[..., 1:, 1:], x[..., :-1, 1:]), np.maximum(x[..., 1:, :-1], x[..., :-1, :-1])
    ),
}
"""What operators make of whole numbers before they wrap; operators that are not here are held to onnx.reference."""

def _log_softmax(sample: Sample) -> list[Any]:
    x = np.asarray(sample.inputs[0])
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        less = wide - wide.max(1, keepdims=True)
        return [(less - np.log(np.exp(less).sum(1, keepdims=True))).astype(x.dtype)]


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


_FLOATS_EXACT: Mapping[str, Callable[[Sample], list[Any]]] = {
    "AveragePool": _average,  # onnx.reference takes NaN for padding
    "OneHot": _mark,  # onnx.reference multiplies by infinities
    "LogSoftmax": _log_softmax,  # onnx.reference takes the logarithm of 0
    "QuantizeLinear": _quantize,  # onnx.reference overflows beyond 32 bits
}
_STATED = ("Cast", "DequantizeLinear", "DynamicQuantizeLinear")  # their dtypes are part of what they compute

_SUMMED = {
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


# ---- inputs


def _unary(dtype: str) -> Iterator[Sample]:
    yield Sample([pool(dtype)])


def _pairs(dtype: str, keep: Callable[[Any, Any], Any] | None = None) -> tuple[Any, Any]:
    values = pool(dtype)
    a, b = np.repeat(values, len(values)), np.tile(values, len(values))
    if keep is None:
        return a, b
    kept = keep(a, b)
    return a[kept], b[kept]


def _binary(dtype: str) -> Iterator[Sample]:
    yield Sample(_pairs(dtype))


def _dividing(dtype: str, **attributes: Any) -> Iterator[Sample]:
    """Yield dividends and divisors; a whole number by 0, or the lowest by -1, has no defined result."""
    if not is_whole(dtype):
        yield Sample(_pairs(dtype), attributes)
        return
    lowest = np.iinfo(DTYPES[dtype]).min
    minus = lowest < 0

    def defined(a: Any, b: Any) -> Any:
        return (b != 0) & ~((a == lowest) & (b.astype(object) == -1) & minus)

    yield Sample(_pairs(dtype, defined), attributes)


def _modulo(dtype: str) -> Iterator[Sample]:
    if is_whole(dtype):
        yield from _dividing(dtype)
    yield from _dividing(dtype, fmod=1)


def _raising(dtype: str) -> Iterator[Sample]:
    if not is_whole(dtype):
        values = pool(dtype)
        few = np.array([0, 1, 2, 3, -1, 0.5, -0.5, -2, np.inf, np.nan], DTYPES[dtype])
        yield Sample((np.repeat(values, len(few)), np.tile(few, len(values))))
        return
    values, powers = pool(dtype), np.array([0, 1, 2, 3, 5], DTYPES[dtype])
    yield Sample((np.repeat(values, 5), np.tile(powers, len(values))))


def _shifting(dtype: str) -> Iterator[Sample]:
    values, bits = pool(dtype), 8 * DTYPES[dtype].itemsize
    by = np.array([0, 1, 2, 7, bits - 1, bits, bits + 1, 200], DTYPES[dtype])
    for direction in ("LEFT", "RIGHT"):
        yield Sample((np.repeat(values, len(by)), np.tile(by, len(values))), {"direction": direction})


def _clipping(dtype: str) -> Iterator[Sample]:
    values = pool(dtype)
    finite = np.isfinite(values.astype(np.float64))
    low, middle, high = values[finite].min(), DTYPES[dtype].type(3), values[finite].max()
    for ends in ((low, high), (middle, high), (low, middle), (DTYPES[dtype].type(0), DTYPES[dtype].type(6))):
        yield Sample((values, *map(np.asarray, ends)), alike=(1, 2))


def _rows(dtype: str, width: int, ties: bool = False) -> Any:
    """Return rows of values: seeded ones, and each value beside its neighbours and itself."""
    values = pool(dtype)
    drawn = np.random.default_rng(width).choice(len(values), (ROWS, width))
    beside = (np.arange(len(values))[:, None] + np.arange(width)) % len(values)
    equal = np.repeat(np.arange(len(values))[:, None], width, 1)
    small = np.flatnonzero((values.astype(np.float64) > -120) & (values.astype(np.float64) < 120))
    tame = np.random.default_rng(0).choice(small, (20, width))
    return values[np.concatenate((drawn, beside, equal, tame))]


def _tame(values: Any) -> Any:
    """Return values of which no sum of squares overflows."""
    wide = values.astype(np.float64)
    return np.where(np.isfinite(wide) & (abs(wide) > 200), 0, wide).astype(values.dtype)


def _orderable(rows: Any) -> Any:
    """Return the rows without NaN, which has no place in an order."""
    return rows[~np.isnan(rows.astype(np.float64)).reshape(len(rows), -1).any(1)] if rows.dtype.kind not in "iub" else rows


def _reducing(dtype: str) -> Iterator[Sample]:
    yield Sample((_rows(dtype, 3), np.array([1], np.int64)), alike=(1,), constant=(1,))


def _softening(dtype: str) -> Iterator[Sample]:
    yield Sample((_rows(dtype, 3),), {"axis": 1})


def _choosing(dtype: str) -> Iterator[Sample]:
    yield Sample((_orderable(_rows(dtype, 4)),), {"axis": 1})


def _choosing_last(dtype: str) -> Iterator[Sample]:
    yield from _choosing(dtype)
    yield Sample((_orderable(_rows(dtype, 4)),), {"axis": 1, "select_last_index": 1})


def _top(dtype: str) -> Iterator[Sample]:
    for largest in (1, 0):
        yield Sample(
            (_orderable(_rows(dtype, 5)), np.array([3], np.int64)), {"axis": 1, "largest": largest}, (1,), (1,)
        )


def _cumulating(dtype: str) -> Iterator[Sample]:
    yield Sample((_rows(dtype, 4), np.array(1, np.int64)), alike=(1,), constant=(1,))


def _multiplying(dtype: str, **attributes: Any) -> Iterator[Sample]:
    a = _rows(dtype, 6).reshape(-1, 2, 3)
    yield Sample((a, np.roll(_rows(dtype, 12)[: len(a), :6], 7, 0)[: len(a)].reshape(-1, 3, 2)), attributes)


def _gemm(dtype: str) -> Iterator[Sample]:
    values = _rows(dtype, 6)
    for row in (0, 5, 9, len(values) - 1):
        yield Sample((_rows(dtype, 3), values[row].reshape(3, 2), values[row, :2]), alike=(1, 2))


def _selecting(dtype: str) -> Iterator[Sample]:
    a, b = _pairs(dtype)
    yield Sample((np.resize([True, False, True], len(a)), a, b))


def _integer_products(dtype: str) -> Iterator[Sample]:
    """Yield full ranges of both factors: 64 products of 255 by 127 leave 16 bits, and stay in float32's 24."""
    if dtype not in ("uint8", "int8"):
        return
    ends, drawn = np.iinfo(dtype), np.random.default_rng(1)
    a = np.concatenate((np.full((2, 64), ends.max), np.full((2, 64), ends.min), drawn.integers(ends.min, ends.max, (20, 64), endpoint=True)))
    for other in ("uint8", "int8"):
        limits = np.iinfo(other)
        b = drawn.integers(limits.min, limits.max, (64, 5), endpoint=True)
        b[:, 0], b[:, 1] = limits.max, limits.min
        for za, zb in ((0, 0), (ends.max, 3), (100, limits.max)):
            zeros = np.array(za, dtype), np.array(zb, other)
            yield Sample((a.astype(dtype), b.astype(other), *zeros), alike=(1, 2, 3), constant=(2, 3), note=f"{other} {za} {zb}")


def _integer_convolutions(dtype: str) -> Iterator[Sample]:
    for sample in _integer_products(dtype):
        a, b, za, zb = sample.inputs
        w = np.ascontiguousarray(b.T).reshape(5, 64, 1, 1)
        yield Sample((a.reshape(len(a), 64, 1, 1), w, za, zb), {}, (1, 2, 3), (2, 3), sample.note)


def _linear_products(dtype: str) -> Iterator[Sample]:
    for sample in _integer_products(dtype):
        a, b, za, zb = sample.inputs
        scales = [np.float32(each) for each in (0.5, 0.25, 1024)]
        inputs = (a, scales[0], za, b, scales[1], zb, scales[2], np.array(100, dtype))
        yield Sample(inputs, {}, tuple(range(1, 8)), (1, 2, 4, 5, 6, 7), sample.note)


def _linear_convolutions(dtype: str) -> Iterator[Sample]:
    for sample in _linear_products(dtype):
        a, sa, za, b, sb, zb, sy, zy = sample.inputs
        if b.dtype == np.uint8 and dtype == "int8":
            continue  # onnxruntime has no such kernel, and no tool writes it
        w = np.ascontiguousarray(b.T).reshape(5, 64, 1, 1)
        yield Sample((a.reshape(len(a), 64, 1, 1), sa, za, w, sb, zb, sy, zy), {}, tuple(range(1, 8)), (1, 2, 4, 5, 6, 7), sample.note)


def _quantizing(dtype: str) -> Iterator[Sample]:
    """Yield values half-way between steps, beyond both ends, and infinite; NaN has no step."""
    if dtype not in ("float32", "float16"):
        return
    halves = np.arange(-300, 300) + 0.5
    values = np.concatenate((halves * 0.25, [1e30, -1e30, np.inf, -np.inf, 0, -0.0, 1e-40])).astype(DTYPES[dtype])
    for kind in ("uint8", "int8", "uint16", "int16"):
        for zero in (0, 3):
            yield Sample((values, np.array(0.25, DTYPES[dtype]), np.array(zero, kind)), {}, (1, 2), (1, 2), f"{kind} {zero}")


def _dequantizing(dtype: str) -> Iterator[Sample]:
    if dtype in ("uint8", "int8", "uint16", "int16", "int32"):
        for zero in (0, 3)[: 1 if dtype == "int32" else 2]:
            yield Sample((pool(dtype), np.float32(0.3), np.array(zero, dtype)), {}, (1, 2), (1, 2))


def _dynamic(dtype: str) -> Iterator[Sample]:
    if dtype == "float32":
        for values in (np.arange(-64, 191) / 2, [-5.0, -1.0], [1.0, 3.0]):
            yield Sample((np.array(values, np.float32),), alike=(0,))


def _casting(dtype: str) -> Iterator[Sample]:
    """Yield casts to every dtype; a float that the integer type does not hold has no defined result."""
    values = pool(dtype)
    wide = values.astype(np.float64)
    for name, kind in DTYPES.items():
        kept = values
        if dtype in _FLOATS and is_whole(name):
            ends = np.iinfo(kind)
            kept = values[(wide > float(ends.min) - 1) & (wide < float(ends.max))]
        yield Sample((kept,), {"to": helper.np_dtype_to_tensor_dtype(kind)}, note=f"to {name}")


# Views and copies: inputs of rank 2 and more, made of the values.


def _lay(dtype: str, *shape: int) -> Any:
    return np.resize(pool(dtype), shape)


def _moves(op: str, dtype: str) -> Iterator[Sample]:
    x, i = _lay(dtype, 4, 15), lambda *values: np.array(values, np.int64)
    made: dict[str, Callable[[], Sequence[tuple[Arrays, dict[str, Any]]]]] = {
        "Concat": lambda: [((x, x[::-1].copy()), {"axis": 1})],
        "Reshape": lambda: [((x, i(5, 12)), {})],
        "Transpose": lambda: [((x,), {"perm": [1, 0]})],
        "Flatten": lambda: [((x,), {"axis": 0})],
        "Squeeze": lambda: [((x[None], i(0)), {})],
        "Unsqueeze": lambda: [((x, i(1)), {})],
        "Expand": lambda: [((x[:1], i(3, 15)), {})],
        "Tile": lambda: [((x, i(1, 2)), {})],
        "Gather": lambda: [((x, i(3, -1, 0, -4)), {"axis": 0})],
        "GatherElements": lambda: [((x, np.resize([0, -1, 3, -4, 1], (2, 15))), {"axis": 0})],
        "GatherND": lambda: [((x, np.array([[0, -1], [-4, 3]])), {})],
        "Slice": lambda: [
            ((x, i(0, -100), i(2**62, 2**31), i(1, 0), i(2, 1)), {}),
            ((x, i(-1), i(-(2**63)), i(1), i(-1)), {}),
        ],
        "Split": lambda: [((x, i(7, 8)), {"axis": 1})],
        "Pad": lambda: [((x, i(1, 0, 0, 2), pool(dtype)[-1].reshape(())), {})],
        "Trilu": lambda: [((x, np.array(k)), {"upper": u}) for k in (0, -2) for u in (0, 1)],
        "DepthToSpace": lambda: [((_lay(dtype, 1, 8, 2, 3),), {"blocksize": 2})],
        "SpaceToDepth": lambda: [((_lay(dtype, 1, 2, 4, 6),), {"blocksize": 2})],
        "ScatterElements": lambda: [((x, np.array([[0, -1, 3], [1, -2, -4]]), x[1:3, 5:8]), {"axis": 0})],
        "ScatterND": lambda: [((x, np.array([[0], [-2]]), x[2:]), {})],
        "Compress": lambda: [((x, np.resize([True, False], 15)), {"axis": 1})],
        "ReverseSequence": lambda: [((x, i(*([4, 2, 1] * 5))), {"time_axis": 0, "batch_axis": 1})],
        "OneHot": lambda: [((i(0, -1, 5, 2), np.array(4), pool(dtype)[[1, -1]]), {})],
        "NonZero": lambda: [((x,), {})],
        "Size": lambda: [((x,), {})],
        "Shape": lambda: [((x,), {})],
        "CenterCropPad": lambda: [((x, i(2, 17)), {})],
        "Unique": lambda: [((_orderable(x.reshape(-1, 1)),), {"sorted": 1})],
        "Range": lambda: _ranges(dtype),
        "EyeLike": lambda: [((x,), {})],
        "MaxPool": lambda: [((_lay(dtype, 1, 2, 6, 6),), {"kernel_shape": [2, 2], "strides": [1, 1]})],
        "GlobalMaxPool": lambda: [((_lay(dtype, 2, 30, 1, 2),), {})],
        "GlobalAveragePool": lambda: [((_lay(dtype, 2, 30, 1, 2),), {})],
        "AveragePool": lambda: [((_lay(dtype, 1, 2, 6, 6),), {"kernel_shape": [2, 2]})],
        "PRelu": lambda: [((x, np.array(0.3, DTYPES[dtype]) if not is_whole(dtype) else x[:1, :1]), {})],
        "Dropout": lambda: [((x,), {})],
        "BatchNormalization": lambda: [((_lay(dtype, 30, 3), *(np.ones(3, DTYPES[dtype]) for _ in range(4))), {})],
        "LayerNormalization": lambda: [((_tame(_rows(dtype, 3)), np.ones(3, DTYPES[dtype])), {})],
        "InstanceNormalization": lambda: [((_tame(_lay(dtype, 30, 2, 4)), *(np.ones(2, DTYPES[dtype]) for _ in range(2))), {})],
    }  # fmt: skip
    for inputs, attributes in made[op]():
        alike = tuple(range(1, len(inputs)))
        floats = op in ("BatchNormalization", "LayerNormalization", "InstanceNormalization", "PRelu")
        indices = [place for place in alike if inputs[place].dtype == np.int64 and dtype != "int64"]
        yield Sample(inputs, attributes, (0, *alike) if not floats else alike, tuple(indices))


def _ranges(dtype: str) -> list[tuple[Arrays, dict[str, Any]]]:
    kind = DTYPES[dtype]
    if not is_whole(dtype):
        return [(tuple(np.array(each, kind) for each in (0, 1, 0.1)), {})]
    top = np.iinfo(kind).max
    found = [(0, 10, 3), (top - 5, top, 2), (7, -7, -3)]
    return [
        (tuple(np.array(each, kind) for each in ends), {})
        for ends in found
        if np.iinfo(kind).min <= min(ends)
    ]


_FAMILIES: Sequence[tuple[str, Callable[[str], Iterator[Sample]]]] = (
    (
        "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid "
        "HardSwish IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin "
        "Sinh Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Identity",
        _unary,
    ),
    (
        "Add And BitwiseAnd BitwiseOr BitwiseXor Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min "
        "Mul Or Sub Sum Xor",
        _binary,
    ),
    ("Div", _dividing),
    ("Mod", _modulo),
    ("Pow", _raising),
    ("BitShift", _shifting),
    ("Clip", _clipping),
    ("Where", _selecting),
    (
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare",
        _reducing,
    ),
    ("Softmax LogSoftmax", _softening),
    ("Hardmax", _choosing),
    ("ArgMax ArgMin", _choosing_last),
    ("TopK", _top),
    ("CumSum", _cumulating),
    ("MatMul", _multiplying),
    ("Einsum", lambda dtype: _multiplying(dtype, equation="bij,bjk->bik")),
    ("Gemm", _gemm),
    ("MatMulInteger", _integer_products),
    ("ConvInteger", _integer_convolutions),
    ("QLinearMatMul", _linear_products),
    ("QLinearConv", _linear_convolutions),
    ("QuantizeLinear", _quantizing),
    ("DequantizeLinear", _dequantizing),
    ("DynamicQuantizeLinear", _dynamic),
    ("Cast", _casting),
)
_MOVES = (
    "Concat Reshape Transpose Flatten Squeeze Unsqueeze Expand Tile Gather GatherElements GatherND Slice Split "
    "Pad Trilu DepthToSpace SpaceToDepth ScatterElements ScatterND Compress ReverseSequence OneHot NonZero Size "
    "Shape CenterCropPad Unique Range EyeLike MaxPool GlobalMaxPool GlobalAveragePool AveragePool PRelu Dropout "
    "BatchNormalization LayerNormalization InstanceNormalization"
).split()
_MAKERS: dict[str, Callable[[str], Iterator[Sample]]] = {
    **{op: make for ops, make in _FAMILIES for op in ops.split()},
    **{op: (lambda dtype, op=op: _moves(op, dtype)) for op in _MOVES},
}
OPERATORS = tuple(_MAKERS)
_LIMITED = {"OneHot": 2, "Where": 1}  # which input the dtype is that of, if not the first
_NO_DEFINITION = {("OneHot", "bool")}  # onnx.reference cannot run it
_OUTPUTS = {"TopK": 2, "Split": 2, "DynamicQuantizeLinear": 3}
_FORMS = ("variables", "later constant", "first constant", "folded", "empty", "empty constant")


@dataclass(frozen=True)
class Promises:
    """What a device promises of values, the keys of an arithmetic contract; the defaults are ONNX's definition."""

    exact_below: int | None = None
    overflow: str = "wraps"
    nan: str = "kept"
    infinities: str = "kept"
    denormals: str = "kept"
    equal_keys: str = "first"
    halves: str = "even"


_NUMBERS = Promises(nan="any", infinities="any", denormals="flushed", halves="any")  # what constants are


def takes(op: str, dtype: str) -> bool:
    """Return whether ONNX defines an operator for a dtype, of its first input unless that is another's."""
    schema = onnx.defs.get_schema(op, OPSET)
    place = _LIMITED.get(op, 0)
    if (op, dtype) in _NO_DEFINITION or op.startswith("ReduceLog") and is_whole(dtype):
        return False
    named = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    return place < len(schema.inputs) and f"tensor({named})" in schema.inputs[place].types


def value_cases(op: str, dtype: str, promises: Any = Promises(), forms: Sequence[str] = _FORMS) -> Iterator[ValueCase]:
    """Yield the models of an operator and dtype, on values for which the promises say a definite result."""
    if not takes(op, dtype):
        return
    for number, sample in enumerate(_MAKERS[op](dtype)):
        kept = _keep(op, sample, promises)
        numbers = _keep(op, sample, _NUMBERS) if kept is not None else None
        for form in forms if kept is not None else ():
            chosen = numbers if form == "folded" and dtype in _FLOATS else kept
            if chosen is None:
                continue
            name = f"{op} {dtype} {number} {sample.note}"
            made = _case(name, op, dtype, form, chosen, compute(op, chosen, promises))
            if made is not None:
                yield made


def compute(op: str, sample: Sample, promises: Any = Promises()) -> list[Any]:
    """Return what an operator makes of a sample, by definition."""
    if op in EXACT and all(each.dtype.kind in "iu" for each in map(np.asarray, sample.inputs)):
        made = EXACT[op](*(np.asarray(each).astype(object) for each in sample.inputs), **_plain(sample.attributes))
        made = np.asarray(made, object)
        if made.size and isinstance(made.reshape(-1)[0], bool | np.bool_):
            return [made.astype(bool)]
        return [_fit(made, np.asarray(sample.inputs[0]).dtype, promises.overflow)]
    if op in _FLOATS_EXACT:
        return _FLOATS_EXACT[op](sample)
    wide = _widen(op, sample)
    model = _model(op, wide, tuple(range(len(wide.inputs))), {})
    feeds = dict(zip(_names(wide), wide.inputs, strict=True))
    with np.errstate(all="ignore"):
        made = [np.asarray(each) for each in ReferenceEvaluator(model).run(None, feeds)]
        kind = np.asarray(sample.inputs[_LIMITED.get(op, 0)]).dtype
        return [each.astype(kind) if each.dtype == np.float64 and wide is not sample else each for each in made]


def _widen(op: str, sample: Sample) -> Sample:
    """Return a sample with floats in float64, in which onnx.reference rounds less; the same where that cannot be."""
    arrays = [np.asarray(each) for each in sample.inputs]
    if op in _STATED or not takes(op, "float64") or not any(each.dtype.name in _FLOATS for each in arrays):
        return sample
    inputs = [each.astype(np.float64) if each.dtype.name in _FLOATS else each for each in arrays]
    return Sample(inputs, sample.attributes, sample.alike, sample.constant, sample.note)


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name in ("fmod", "direction", "equation")}


def _fit(values: Any, dtype: Any, overflow: str) -> Any:
    ends = np.iinfo(dtype)
    if overflow == "saturates":
        return np.minimum(np.maximum(values, int(ends.min)), int(ends.max)).astype(dtype)
    span = 1 << ends.bits
    return np.asarray((values - int(ends.min)) % span + int(ends.min), object).astype(dtype)


def _keep(op: str, sample: Sample, promises: Any) -> Sample | None:
    """Return the rows of a sample for which the promises say a definite result; None where no row is left."""
    inputs = [np.asarray(each) for each in sample.inputs]
    rows = [place for place in range(len(inputs)) if place not in sample.alike]
    alike = [each for place, each in enumerate(inputs) if place in sample.alike]
    if any(not _is_definite(each.reshape(1, -1), promises).all() for each in alike):
        return None
    if not rows:
        return sample
    inside = np.ones(len(inputs[rows[0]]), bool)
    for place in rows:
        inside &= _is_definite(inputs[place].reshape(len(inside), -1), promises)
    whole = op in EXACT and all(each.dtype.kind in "iu" for each in inputs)
    if op in _SUMMED and inputs[0].dtype.name in _FLOATS:
        inside &= _is_conditioned(op, inputs, sample)
    if whole:
        given = [each.astype(object) for each in inputs]
        made = np.asarray(EXACT[op](*given, **_plain(sample.attributes)), object).reshape(len(inside), -1)
        summed = _SUMMED.get(op)
        way = made if summed is None else summed(*given, **_plain(sample.attributes)).reshape(len(inside), -1)
        if promises.exact_below is not None:
            inside &= (abs(way) <= promises.exact_below).all(1).astype(bool) & (abs(made) <= promises.exact_below).all(1).astype(bool)
        if promises.overflow == "any":
            ends = np.iinfo(inputs[0].dtype)
            inside &= ((way >= int(ends.min)) & (way <= int(ends.max)) & (made <= int(ends.max)) & (made >= int(ends.min))).all(1).astype(bool)
    if promises.halves == "any" and op == "QuantizeLinear":
        inside &= np.mod(inputs[0].astype(np.float64) / inputs[1].astype(np.float64), 1) != 0.5
    if promises.equal_keys == "any":
        first = inputs[rows[0]]
        distinct = [len(np.unique(row)) == len(row) for row in first.reshape(len(first), -1)]
        inside &= np.array(distinct, bool)
    if not inside.any():
        return None
    kept = [each[inside] if place in rows else each for place, each in enumerate(inputs)]
    trial = Sample(kept, sample.attributes, sample.alike, sample.constant, sample.note)
    if any(each.dtype.kind == "f" or each.dtype.name == "bfloat16" for each in inputs):
        made = compute(op, trial, promises)
        if all(len(each) == len(kept[rows[0]]) for each in made if each.ndim):
            fine = np.logical_and.reduce([_is_definite(each.reshape(len(each), -1), promises) for each in made if each.ndim])
            kept = [each[fine] if place in rows else each for place, each in enumerate(kept)]
            trial = Sample(kept, sample.attributes, sample.alike, sample.constant, sample.note)
    if promises.exact_below is not None and len(kept[rows[0]]):
        made = compute(op, trial, promises)
        if all(each.ndim and len(each) == len(kept[rows[0]]) for each in made):
            fine = np.logical_and.reduce([_is_definite(each.reshape(len(each), -1), promises) for each in made])
            kept = [each[fine] if place in rows else each for place, each in enumerate(kept)]
            trial = Sample(kept, sample.attributes, sample.alike, sample.constant, sample.note)
    return trial if len(kept[rows[0]]) else None


def _is_conditioned(op: str, inputs: Arrays, sample: Sample) -> Any:
    """Return for each row whether a sum of floats hangs neither on its order nor on an overflow on the way."""
    most = {"float16": 6e4, "bfloat16": 1e38, "float32": 1e38}.get(inputs[0].dtype.name, 1e300)
    wide = [each.astype(np.float64) if each.dtype.name in _FLOATS else each for each in inputs]
    finite = [np.where(np.isfinite(each), each, 0) if each.dtype == np.float64 else each for each in wide]
    with np.errstate(all="ignore"):
        made = np.asarray(EXACT.get(op, EXACT["ReduceSum"])(*wide, **_plain(sample.attributes)))
        way = np.asarray(_SUMMED[op](*finite, **_plain(sample.attributes)))
        made = way if op == "ReduceL2" else made
        fine = (way < most) & (~np.isfinite(made) | (abs(made) >= way / 8))
    return fine.reshape(len(fine), -1).all(1)


def _is_definite(rows: Any, promises: Any) -> Any:
    """Return for each row of an input whether the promises cover its values."""
    if rows.dtype.kind in "iu":
        if promises.exact_below is None:
            return np.ones(len(rows), bool)
        return (abs(rows.astype(object)) <= promises.exact_below).all(1).astype(bool)
    if rows.dtype.kind == "b":
        return np.ones(len(rows), bool)
    wide = rows.astype(np.float64)
    least = float(np.finfo(np.float32).tiny) if rows.dtype.name in ("float32", "bfloat16") else 2.0**-14 if rows.dtype == np.float16 else 1e-300
    fine = np.ones(len(rows), bool)
    if promises.nan == "any":
        fine &= ~np.isnan(wide).any(1)
    if promises.infinities == "any":
        fine &= ~np.isinf(wide).any(1)
    if promises.denormals == "flushed":
        fine &= ~((wide != 0) & (abs(wide) < least)).any(1)
    return fine


def _names(sample: Sample) -> list[str]:
    return [f"x{place}" for place in range(len(sample.inputs))]


def _model(op: str, sample: Sample, variable: Sequence[int], read_by: dict[str, Any]) -> onnx.ModelProto:
    names = _names(sample)
    outputs = [f"y{place}" for place in range(_OUTPUTS.get(op, 1))]
    nodes = [helper.make_node(op, names, outputs, name="n", **sample.attributes)]
    arrays = [np.asarray(each) for each in sample.inputs]
    inputs = [_describe(names[place], arrays[place]) for place in variable]
    results = list(outputs)
    for output, other in read_by.items():
        nodes.append(helper.make_node("Concat", [output, f"z{output}"], [f"w{output}"], axis=0))
        inputs.append(_describe(f"z{output}", other))
        results[results.index(output)] = f"w{output}"
    stored = [numpy_helper.from_array(arrays[place], names[place]) for place in range(len(names)) if place not in variable]
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=each) for each in results], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def _describe(name: str, value: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _case(name: str, op: str, dtype: str, form: str, sample: Sample, expected: Sequence[Any]) -> ValueCase | None:
    """Return the model of a form; None where the operator has no such form."""
    names = _names(sample)
    free = [place for place in range(len(names)) if place not in sample.constant]
    variable: Sequence[int] = free
    read_by: dict[str, Any] = {}
    if form == "later constant":
        variable = [0]
    elif form == "first constant":
        variable = free[1:]
    elif form == "folded":
        variable = []
    if not form.startswith("empty") and form != "variables" and list(variable) == free or (form == "first constant" and not variable):
        return None
    arrays = [np.asarray(each) for each in sample.inputs]
    if form == "empty":
        rows = [place for place in range(len(names)) if place not in sample.alike]
        if not rows or op in ("ArgMax", "ArgMin"):
            return None
        arrays = [each[:0] if place in rows else each for place, each in enumerate(arrays)]
        sample = Sample(arrays, sample.attributes, sample.alike, sample.constant)
        expected = [each[:0] for each in expected]
    if form == "empty constant":
        shapes = {each.shape for each in arrays}
        if sample.alike or len(arrays) < 2 or shapes != {(len(arrays[0]),)}:
            return None
        arrays = [arrays[0][:0], *(each[:1] for each in arrays[1:])]
        sample = Sample(arrays, sample.attributes)
        expected, variable = [each[:0] for each in expected], free[1:]
    if form == "folded":
        if any(each.ndim == 0 for each in expected):
            return None
        read_by = {f"y{place}": each for place, each in enumerate(expected)}
    model = _model(op, sample, variable, read_by)
    inputs = {names[place]: arrays[place] for place in variable}
    wanted = {f"y{place}": each for place, each in enumerate(expected)}
    for output, other in read_by.items():
        inputs[f"z{output}"] = other
        wanted = {("w" + key if key == output else key): (np.concatenate((each, each)) if key == output else each) for key, each in wanted.items()}
    del model.graph.output[:]
    model.graph.output.extend(_describe(key, each) for key, each in wanted.items())
    return ValueCase(f"{name} {form}", op, dtype, form, model, inputs, wanted)
