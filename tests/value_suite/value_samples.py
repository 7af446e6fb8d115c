"""Inputs that tell kernels apart, for each operator and dtype.

Ends of each integer type, 2**24 and its neighbours, wraps, negative dividends, shifts by the width and
more, half-way values, equal keys, NaN, infinities, -0.0 and denormals.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from exact_values import DTYPES, FLOATS, Arrays, Sample, is_whole
from onnx import helper

ROWS = 300  # of seeded rows where all combinations would be too many
_EDGES = (2**24, 2**31, 2**32, 2**53, 2**63)
_SPECIAL = (
    *(np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 1e37, -1e37, 1e20, -1e20, 1e-20, 70000.0),
    *(
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        -2.5,
        1.0,
        -1.0,
        3.0,
        -3.0,
        100.0,
        -100.0,
        0.25,
        -0.75,
        88.8,
        -103.9,
        6.0,
    ),
    *(16777217.0, -16777216.0, 1 / 3, 0.1),
)
_COLUMNS = 5  # of the weights of products of integers
_SCALES = np.array([0.25, 0.5, 0.125, 1, 0.0625], np.float32)
"""The scales of weights by column: powers of two, so that the exact result is not rounded."""
_TAME = 200.0  # squares of such values add up without an overflow, in float16 as well


def pool(dtype: str) -> Any:
    """Return the values of a dtype that tell kernels apart."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return np.array([False, True])
    if dtype in FLOATS:
        with np.errstate(over="ignore"):
            bits = np.array(_SPECIAL, np.float64).astype(kind).view(f"u{kind.itemsize}")
            return np.unique(bits).view(kind)
    ends = np.iinfo(kind)
    near = {sign * (edge + step) for edge in _EDGES for step in (-1, 0, 1) for sign in (1, -1)}
    small = {-200, -100, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, 100, 127, 128, 200, 255, 256, 40000, 65536}
    wanted = sorted(near | small | {ends.min, ends.min + 1, ends.max - 1, ends.max})
    return np.array([each for each in wanted if ends.min <= each <= ends.max], kind)


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
    low, high = values[finite].min(), values[finite].max()
    zero, three, six = (DTYPES[dtype].type(each) for each in (0, 3, 6))
    yield Sample((values, np.asarray(three)), alike=(1,), note="without a maximum")
    for ends in ((low, high), (three, high), (low, three), (zero, six)):
        yield Sample((values, *map(np.asarray, ends)), alike=(1, 2))


def _rows(dtype: str, width: int) -> Any:
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
    return np.where(np.isfinite(wide) & (abs(wide) > _TAME), 0, wide).astype(values.dtype)


def _uneven(rows: Any) -> Any:
    """Return the rows that have a variance: what is left of others is rounding, divided by almost 0."""
    wide = rows.astype(np.float64)
    return rows[wide.max(1) != wide.min(1)]


def _orderable(rows: Any) -> Any:
    """Return the rows without NaN, which has no place in an order."""
    return rows[~np.isnan(rows.astype(np.float64)).reshape(len(rows), -1).any(1)]


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
            (_orderable(_rows(dtype, 5)), np.array([3], np.int64)),
            {"axis": 1, "largest": largest},
            (1,),
            (1,),
        )


def _cumulating(dtype: str) -> Iterator[Sample]:
    yield Sample((_rows(dtype, 4), np.array(1, np.int64)), alike=(1,), constant=(1,))


def _multiplying(dtype: str, **attributes: Any) -> Iterator[Sample]:
    a = _rows(dtype, 6).reshape(-1, 2, 3)
    yield Sample(
        (a, np.roll(_rows(dtype, 12)[: len(a), :6], 7, 0)[: len(a)].reshape(-1, 3, 2)), attributes
    )


def _gemm(dtype: str) -> Iterator[Sample]:
    values = _rows(dtype, 6)
    for row in (0, 5, 9, len(values) - 1):
        yield Sample((_rows(dtype, 3), values[row].reshape(3, 2), values[row, :2]), alike=(1, 2))


def _selecting(dtype: str) -> Iterator[Sample]:
    a, b = _pairs(dtype)
    yield Sample((np.resize([True, False, True], len(a)), a, b))


def _integer_products(dtype: str) -> Iterator[Sample]:
    """Yield full ranges: sums of 64 products leave 16 bits, and those of 1,200 float32's 24.

    Some have a zero point for each column of the weights, and as many rows as columns as well: then an
    axis that is confused with the other is no error.
    """
    if dtype not in ("uint8", "int8"):
        return
    for count in (64, 1200):
        yield from _products_of(dtype, count)
    for count in (4, _COLUMNS):
        for sample in _products_of(dtype, count):
            a, b, za, zb = sample.inputs
            points = np.minimum(np.arange(_COLUMNS) * 7, np.iinfo(b.dtype).max - zb) + zb
            columns = (a, b, za, points.astype(b.dtype))
            yield replace(sample, inputs=columns, note=f"{sample.note} by column")


def _products_of(dtype: str, count: int) -> Iterator[Sample]:
    ends, drawn = np.iinfo(dtype), np.random.default_rng(1)
    a = drawn.integers(ends.min, ends.max, (24, count), endpoint=True)
    a[:2], a[2:4] = ends.max, ends.min
    for other in ("uint8", "int8"):
        limits = np.iinfo(other)
        b = drawn.integers(limits.min, limits.max, (count, _COLUMNS), endpoint=True)
        b[:, 0], b[:, 1], b[0, 0] = limits.max, limits.min, 1
        for za, zb in ((0, 0), (ends.max, 3), (100, limits.max)):
            zeros = np.array(za, dtype), np.array(zb, other)
            yield Sample(
                (a.astype(dtype), b.astype(other), *zeros),
                alike=(1, 2, 3),
                constant=(2, 3),
                note=f"{count} {other} {za} {zb}",
            )


def _integer_convolutions(dtype: str) -> Iterator[Sample]:
    for sample in _integer_products(dtype):
        a, b, za, zb = sample.inputs
        w = np.ascontiguousarray(b.T).reshape(_COLUMNS, -1, 1, 1)
        yield Sample((a.reshape(len(a), -1, 1, 1), w, za, zb), {}, (1, 2, 3), (2, 3), sample.note)


def _linear_products(dtype: str) -> Iterator[Sample]:
    for sample in _integer_products(dtype):
        a, b, za, zb = sample.inputs
        of_weights = np.float32(0.25) if zb.ndim == 0 else _SCALES
        inputs = (a, np.float32(0.5), za, b, of_weights, zb, np.float32(1024), np.array(100, dtype))
        yield Sample(inputs, {}, tuple(range(1, 8)), (1, 2, 4, 5, 6, 7), sample.note)


def _linear_convolutions(dtype: str) -> Iterator[Sample]:
    for sample in _linear_products(dtype):
        a, sa, za, b, sb, zb, sy, zy = sample.inputs
        if b.dtype == np.uint8 and dtype == "int8":
            continue  # onnxruntime has no such kernel, and no tool writes it
        w = np.ascontiguousarray(b.T).reshape(_COLUMNS, -1, 1, 1)
        zb = np.full_like(zb, zb.flat[0])  # onnxruntime takes no others
        yield Sample(
            (a.reshape(len(a), -1, 1, 1), sa, za, w, sb, zb, sy, zy),
            {},
            tuple(range(1, 8)),
            (1, 2, 4, 5, 6, 7),
            sample.note,
        )


def _quantizing(dtype: str) -> Iterator[Sample]:
    """Yield values half-way between steps, beyond both ends, and infinite; NaN has no step."""
    if dtype not in ("float32", "float16"):
        return
    halves = np.arange(-300, 300) + 0.5
    values = np.concatenate((halves * 0.25, [1e30, -1e30, np.inf, -np.inf, 0, -0.0, 1e-40]))
    with np.errstate(over="ignore"):  # 1e30 is infinite in float16
        values = values.astype(DTYPES[dtype])
    for kind in ("uint8", "int8", "uint16", "int16"):
        for zero in (0, 3):
            yield Sample(
                (values, np.array(0.25, DTYPES[dtype]), np.array(zero, kind)),
                {},
                (1, 2),
                (1, 2),
                f"{kind} {zero}",
            )


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
        if dtype in FLOATS and is_whole(name):
            ends = np.iinfo(kind)
            kept = values[(wide > float(ends.min) - 1) & (wide < float(ends.max))]
        yield Sample((kept,), {"to": helper.np_dtype_to_tensor_dtype(kind)}, note=f"to {name}")


def _lay(dtype: str, *shape: int) -> Any:
    return np.resize(pool(dtype), shape)


def _moves(op: str, dtype: str) -> Iterator[Sample]:
    """Yield inputs of rank 2 and more for views, copies, pools and normalizations."""
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
        "Pad": lambda: [((x, i(1, 0, 0, 2), np.array(DTYPES[dtype].type(1))), {})],
        "Trilu": lambda: [((x, np.array(k)), {"upper": u}) for k in (0, -2) for u in (0, 1)],
        "DepthToSpace": lambda: [((_lay(dtype, 1, 8, 2, 3),), {"blocksize": 2})],
        "SpaceToDepth": lambda: [((_lay(dtype, 1, 2, 4, 6),), {"blocksize": 2})],
        "ScatterElements": lambda: [((x, i(0, -1, 3, 1, -2, -4).reshape(2, 3), x[1:3, 5:8]), {})],
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
        "BatchNormalization": lambda: [((_lay(dtype, 30, 3), *[np.ones(3, DTYPES[dtype])] * 4), {})],
        "LayerNormalization": lambda: [
            ((_uneven(_tame(_rows(dtype, 3))), np.ones(3, DTYPES[dtype])), {})
        ],
        "InstanceNormalization": lambda: [
            ((_tame(_lay(dtype, 30, 2, 4)), *[np.ones(2, DTYPES[dtype])] * 2), {})
        ],
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
    found = [(0, 10, 3), (7, -7, -3)]
    return [
        (tuple(np.array(each, kind) for each in ends), {})
        for ends in found
        if np.iinfo(kind).min <= min(ends)
    ]


_FAMILIES: Sequence[tuple[str, Callable[[str], Iterator[Sample]]]] = (
    (
        "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu "
        "HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round "
        "Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh ThresholdedRelu",
        _unary,
    ),
    (
        "Add And BitwiseAnd BitwiseOr BitwiseXor Equal Greater GreaterOrEqual Less LessOrEqual Max Mean "
        "Min Mul Or Sub Sum Xor",
        _binary,
    ),
    ("Div", _dividing),
    ("Mod", _modulo),
    ("Pow", _raising),
    ("BitShift", _shifting),
    ("Clip", _clipping),
    ("Where", _selecting),
    (
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
        "ReduceSum ReduceSumSquare",
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
    "AveragePool BatchNormalization CenterCropPad Compress Concat DepthToSpace Dropout Expand EyeLike "
    "Flatten Gather GatherElements GatherND GlobalAveragePool GlobalMaxPool InstanceNormalization "
    "LayerNormalization MaxPool NonZero OneHot PRelu Pad Range Reshape ReverseSequence ScatterElements "
    "ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unique Unsqueeze"
)
SAMPLERS: dict[str, Callable[[str], Iterator[Sample]]] = {
    **{op: make for ops, make in _FAMILIES for op in ops.split()},
    **{op: partial(_moves, op) for op in _MOVES.split()},
}
OPERATORS = tuple(sorted(SAMPLERS))
