"""Models of one operator drawn at random, in floats, whole numbers and bools: no rule was tuned on them.

The operators are those of `held_out_cases`, as they are without quantization, and some seventy more, in
operator sets from 13 to 19, each with other extents, attributes and values in each draw. Floats are
numbers that float16 holds: what is rounded on its way in would be no fault of an operator. What a model
computes is onnxruntime's word, without optimizations.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from byoc.errors import ByocError
from byoc.onnxrt import open_session, run_session, without_optimizations
from helpers.asking import Data, Question
from helpers.one_node_models import OneNode

sys.path[:0] = [str(Path(__file__).parents[1] / "ethos_u_suite")]

from held_out_cases import DRAWN as QUANTIZED  # noqa: E402 - needs the path
from one_node import Given, Stored  # noqa: E402 - needs the path

Array = np.ndarray[Any, Any]
Operand = Given | Stored | Array | None
"""A computed operand of floats, a stored one of floats, a stored array, or none."""

_OPSETS = (13, 14, 15, 16, 17, 18, 19)
_MOST = 60_000  # elements of what a model reads: larger ones take long, and show no more
_AXES_ARE_INPUTS = 18  # of reductions; of ReduceSum from 13 on
_TOLERANCES = {"float16": (1e-2, 1e-2)}
_FLOATS, _WHOLE = ("float32",) * 5 + ("float16",), ("int32", "int64")
_ANY = (*_FLOATS, *_WHOLE, "bool")
_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
               "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")  # fmt: skip
_UNARY = ("Abs", "Neg", "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Sigmoid", "HardSigmoid", "Softplus",
          "Softsign", "ThresholdedRelu", "Tanh", "Exp", "Erf", "Atan", "Asinh", "Round", "Floor", "Ceil",
          "Sign", "Shrink", "Mish", "HardSwish", "Sin", "Cos", "Sinh", "Cosh")  # fmt: skip
_POSITIVE, _WITHIN_ONE = ("Log", "Sqrt", "Reciprocal", "Acosh"), ("Acos", "Asin", "Atanh", "Tan")
_EQUATIONS = ("ij,jk->ik", "bij,bjk->bik", "ij->ji", "bij->b", "ij,ij->ij", "bhid,bhjd->bhij", "ii->i")


class Draw:
    """A model being drawn: its generator, its operator set, and the dtype that its floats have."""

    def __init__(self, seed: int) -> None:
        """Draw an operator set and a dtype."""
        self.random, self.values = Random(seed), np.random.default_rng(seed)
        self.opset = self.random.choice(_OPSETS)
        self.dtype = self.random.choice(_FLOATS)

    def shape(self, least: int = 1, most: int = 5) -> tuple[int, ...]:
        """Return extents; each fifth is 1."""
        rank = self.random.randint(least, most)
        longest = {1: 2000, 2: 150, 3: 40, 4: 20}.get(rank, 7)
        one = self.random.random
        return tuple(1 if one() < 0.2 else self.random.randint(2, longest) for _ in range(rank))

    def array(self, shape: Sequence[int], dtype: str = "", kind: str = "any") -> Array:
        """Return values: normal ones, `positive`, or `within one`; whole numbers from -9 to 9."""
        dtype = dtype or self.dtype
        if dtype == "bool":
            return self.values.random(shape) < 0.5
        if dtype.startswith("int"):
            return self.values.integers(-9, 10, shape).astype(dtype)
        values = 2 * self.values.standard_normal(shape)
        if kind == "positive":
            values = np.abs(values) + 1
        elif kind == "within one":
            values = self.values.uniform(-0.9, 0.9, shape)
        return values.astype(np.float16).astype(dtype)

    def axis(self, rank: int) -> int:
        """Return an axis, counted from either end."""
        return self.random.randint(-rank, rank - 1)


Parts = tuple[str, list[Array | None], int, dict[str, Any], int]
"""An operator, its operands, how many of the first are computed, its attributes, its results."""


def draw_cases(seed: int, count: int) -> list[OneNode]:
    """Return `count` models of one operator with data, no two alike; the same seed draws the same."""
    made: dict[str, OneNode] = {}
    pick, number = Random(seed), 0
    kinds = [key for key in (*_DRAWN, *QUANTIZED) for _ in range(min(len(key), 6))]
    while len(made) < count:
        number += 1
        key, draw = pick.choice(kinds), Draw(seed * 100_000 + number)
        op = draw.random.choice(key)
        parts = _DRAWN[key](draw, op) if key in _DRAWN else _without_quantization(draw, key, op)
        for one in _make_case(draw, parts):
            made.setdefault(one.name, one)
    return list(made.values())


def _without_quantization(draw: Draw, key: tuple[str, ...], op: str) -> Parts:
    """Return what `held_out_cases` draws, in floats."""
    op, operands, more = QUANTIZED[key](draw.random, op)
    results = more.pop("results", 1)
    for name in ("same", "points", "dtype", "opset"):
        more.pop(name, None)
    kind = "within one" if op in {"Exp", "Pow", "Acosh"} else "any"
    kind = "positive" if op in {*_POSITIVE, "Pow", "Div"} else kind
    arrays = [
        draw.array(each.shape, kind=kind) if isinstance(each, Given | Stored) else _like(draw, each)
        for each in operands
    ]
    order = [isinstance(each, Given) for each in operands]
    computed = order.index(False) if False in order else len(order)
    if not computed:  # a constant comes first
        return op, arrays, -1, more, results
    return op, arrays, computed, more, results


def _like(draw: Draw, array: Any) -> Any:
    """Return bounds and values to pad by in the dtype of the floats; scales of Resize stay."""
    bounds = isinstance(array, np.ndarray) and array.dtype.kind == "f" and not array.ndim
    return array.astype(draw.dtype) if bounds else array


def _make_case(draw: Draw, parts: Parts) -> list[OneNode]:
    """Return the case, or none where the operator set has no such operator or it does not run."""
    op, operands, computed, attributes, results = parts
    names = ["" if each is None else f"x{i}" for i, each in enumerate(operands)]
    given = range(1, 2) if computed < 0 else range(computed)
    inputs = {names[i]: operands[i] for i in given}
    if sum(each.size for each in operands if each is not None) > _MOST:
        return []
    outputs = [f"y{number}" for number in range(results)]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, name="asked", **attributes)],
        "drawn",
        [_describe(name, array) for name, array in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(each, name) for name, each in zip(names, operands, strict=True)
         if each is not None and name not in inputs],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", draw.opset)], ir_version=8)
    try:
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        with without_optimizations():
            session = open_session(model)
        data = []
        for again in (False, True):
            asked = {name: _shuffle(draw, each) if again else each for name, each in inputs.items()}
            data.append((asked, run_session(session, asked)))
    except (ByocError, onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
        return []
    for value in model.graph.output:
        value.CopyFrom(_describe(value.name, data[0][1][value.name]))
    if any(not np.isfinite(each).all() or not each.size for _, made in data for each in made.values()):
        return []
    rtol, atol = _TOLERANCES.get(draw.dtype, (1e-3, 1e-5))
    question = Question(model.SerializeToString(), tuple(Data(*each, rtol, atol) for each in data))
    return [OneNode(_name(draw.opset, parts), "drawn", model, question)]


def _shuffle(draw: Draw, array: Any) -> Any:
    """Return floats in another order; whole numbers may be places, which have theirs."""
    return draw.values.permuted(array) if array.dtype.kind == "f" and array.ndim else array


def _describe(name: str, array: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def _name(opset: int, parts: Parts) -> str:
    op, operands, computed, attributes, _ = parts
    shown = [op]
    for number, each in enumerate(operands):
        if each is None:
            shown.append("-")
        elif each.dtype == np.int64 and each.size <= 10 and number >= computed:
            shown.append(str(each.tolist()))
        else:
            stored = "" if number < computed or number == -computed else " stored"
            shown.append(f"{each.dtype}{list(each.shape)}{stored}")
    shown += [f"{name}={value}" for name, value in attributes.items()]
    return ", ".join([*shown, f"opset {opset}"])


def _draw_unary(draw: Draw, op: str) -> Parts:
    kind = "positive" if op in _POSITIVE else "within one" if op in _WITHIN_ONE else "any"
    attributes: dict[str, Any] = {}
    if (
        op in {"LeakyRelu", "Elu", "Celu", "ThresholdedRelu", "HardSigmoid"}
        and draw.random.random() < 0.6
    ):
        attributes["alpha"] = draw.random.choice((0.1, 0.25, 0.5, 1.0, 1.5))
    return op, [draw.array(draw.shape(), kind=kind)], 1, attributes, 1


def _draw_whole(draw: Draw, op: str) -> Parts:
    dtype = {"Not": "bool", "BitwiseNot": "int32"}.get(op) or draw.random.choice(_WHOLE)
    return op, [draw.array(draw.shape(), dtype)], 1, {}, 1


def _draw_cast(draw: Draw, op: str) -> Parts:
    to = draw.random.choice(("float32", "float16", "float64", "int32", "int64", "bool", "int8", "uint8"))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    return op, [draw.array(draw.shape(), draw.random.choice(_ANY))], 1, {"to": kind}, 1


def _draw_pair(draw: Draw, op: str) -> Parts:
    """Draw operands that are broadcast, either of them stored or none."""
    dtype = draw.random.choice((*_FLOATS, *_WHOLE, *_WHOLE))
    if op in {"And", "Or", "Xor"}:
        dtype = "bool"
    elif op in {"BitwiseAnd", "BitwiseOr", "BitwiseXor"}:
        dtype, draw.opset = draw.random.choice(_WHOLE), max(draw.opset, 18)
    elif op in {"Pow", "Mean", "Sum"}:
        dtype = draw.dtype
    shape = draw.shape()
    other = tuple(1 if draw.random.random() < 0.3 else each for each in shape)
    other = other[draw.random.randint(0, len(other) - 1) :]
    kind = "positive" if op in {"Div", "Mod", "Pow"} else "any"
    arrays: list[Array | None] = [draw.array(shape, dtype, kind), draw.array(other, dtype, kind)]
    if op in {"Div", "Mod"} and dtype in _WHOLE:
        arrays = [
            None if each is None else np.where(each == 0, 3, each).astype(dtype) for each in arrays
        ]
    if draw.random.random() < 0.3 and op not in {"Pow"}:
        arrays.reverse()
    attributes = {"fmod": 1} if op == "Mod" and (dtype in _FLOATS or draw.random.random() < 0.5) else {}
    return op, arrays, draw.random.choice((-1, 1, 1, 2, 2)), attributes, 1


def _draw_where(draw: Draw, op: str) -> Parts:
    shape, dtype = draw.shape(), draw.random.choice(_ANY)
    arrays = [draw.array(_shrink(draw, shape), each) for each in ("bool", dtype, dtype)]
    return op, list(arrays), draw.random.choice((1, 2, 3)), {}, 1


def _shrink(draw: Draw, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(1 if draw.random.random() < 0.25 else each for each in shape)


def _draw_convolution(draw: Draw, op: str) -> Parts:
    rank, group = draw.random.choice((1, 1, 2, 2, 3)), draw.random.choice((1, 1, 1, 2, 4))
    kernel = [draw.random.randint(1, 5 if rank < 3 else 3) for _ in range(rank)]
    image = [draw.random.randint(6, {1: 60, 2: 24, 3: 9}[rank]) for _ in range(rank)]
    channels, filters = group * draw.random.randint(1, 6), group * draw.random.randint(1, 6)
    weights = (filters, channels // group) if op == "Conv" else (channels, filters // group)
    arrays: list[Array | None] = [draw.array((draw.random.choice((1, 1, 2)), channels, *image)),
                                  draw.array((*weights, *kernel))]  # fmt: skip
    if draw.random.random() < 0.5:
        arrays.append(draw.array((filters,)))
    attributes: dict[str, Any] = {
        "group": group,
        "strides": [draw.random.choice((1, 1, 2, 3)) for _ in kernel],
    }
    if draw.random.random() < 0.3:
        attributes["dilations"] = [draw.random.choice((1, 2)) for _ in kernel]
    if draw.random.random() < 0.25:
        attributes["auto_pad"] = draw.random.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif draw.random.random() < 0.6:
        attributes["pads"] = [draw.random.randint(0, each // 2) for each in (*kernel, *kernel)]
    return op, arrays, draw.random.choice((1, 1, 1, 2)), attributes, 1


def _draw_pool(draw: Draw, op: str) -> Parts:
    rank = draw.random.choice((1, 2, 2, 3))
    kernel = [draw.random.randint(1, 5 if rank < 3 else 3) for _ in range(rank)]
    image = [draw.random.randint(6, {1: 60, 2: 24, 3: 9}[rank]) for _ in range(rank)]
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [draw.random.choice((1, 1, 2, 3, 4)) for _ in kernel],
    }
    if draw.random.random() < 0.25:
        attributes["auto_pad"] = draw.random.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif draw.random.random() < 0.6:
        attributes["pads"] = [draw.random.randint(0, each // 2) for each in (*kernel, *kernel)]
    if op != "LpPool" or draw.opset >= 18:
        attributes["ceil_mode"] = draw.random.choice((0, 0, 1))
    if op == "AveragePool":
        attributes["count_include_pad"] = draw.random.choice((0, 1))
    image = [draw.random.choice((1, 2)), draw.random.randint(1, 8), *image]
    return op, [draw.array(image)], 1, attributes, 1


def _draw_normalization(draw: Draw, op: str) -> Parts:
    shape = draw.shape(3, 4)
    image, channels = draw.array(shape), shape[1]
    if op == "BatchNormalization":
        statistics = [draw.array((channels,), kind="positive") for _ in range(4)]
        return op, [image, *statistics], 1, {}, 1
    if op == "InstanceNormalization":
        return op, [image, draw.array((channels,)), draw.array((channels,))], 1, {}, 1
    if op == "LayerNormalization":
        draw.opset, axis = max(draw.opset, 17), draw.random.choice((-1, -1, -1, 1, -2))
        scales = [draw.array(shape[axis:]) for _ in range(draw.random.choice((1, 2)))]
        return (
            op,
            [image, *scales],
            draw.random.choice((1, 1, 3)) if len(scales) == 2 else 1,
            {"axis": axis},
            1,
        )
    if op == "LRN":
        return op, [image], 1, {"size": draw.random.choice((1, 3, 5, 4)), "alpha": 0.01}, 1
    if op == "MeanVarianceNormalization":
        return op, [image], 1, {"axes": draw.random.choice(([0, 2, 3], [2, 3], [1], [1, 2, 3]))}, 1
    return op, [image], 1, {"axis": draw.axis(len(shape)), "p": draw.random.choice((1, 2))}, 1


def _draw_along(draw: Draw, op: str) -> Parts:
    shape = draw.shape()
    return op, [draw.array(shape)], 1, {"axis": draw.axis(len(shape))}, 1


def _draw_reduction(draw: Draw, op: str) -> Parts:
    shape, dtype = draw.shape(), draw.random.choice((*_FLOATS, *_WHOLE))
    kind = "positive" if op == "ReduceLogSum" else "within one" if op == "ReduceProd" else "any"
    count = draw.random.randint(1, len(shape))
    axes = [
        draw.random.choice((each, each - len(shape)))
        for each in draw.random.sample(range(len(shape)), count)
    ]
    attributes: dict[str, Any] = {"keepdims": draw.random.choice((0, 1))}
    data = draw.array(shape, dtype, kind)
    if op == "ReduceProd" and dtype in _WHOLE:
        data = np.sign(data)  # products that overflow have no definition
    arrays: list[Array | None] = [data]
    if draw.random.random() < 0.2:
        return op, arrays, 1, attributes, 1
    if op == "ReduceSum" or draw.opset >= _AXES_ARE_INPUTS:
        return op, [*arrays, np.array(axes)], 1, attributes, 1
    return op, arrays, 1, {**attributes, "axes": axes}, 1


def _draw_places(draw: Draw, op: str) -> Parts:
    shape = draw.shape()
    attributes = {"axis": draw.axis(len(shape)), "keepdims": draw.random.choice((0, 1))}
    distinct = draw.values.permutation(2 * int(np.prod(shape)))[: int(np.prod(shape))] % 2048
    return (
        op,
        [distinct.reshape(shape).astype(draw.random.choice((*_FLOATS, *_WHOLE)))],
        1,
        attributes,
        1,
    )


def _draw_cumulation(draw: Draw, op: str) -> Parts:
    shape = draw.shape()
    attributes = {"exclusive": draw.random.choice((0, 1)), "reverse": draw.random.choice((0, 1))}
    draw.dtype = "float32"
    return op, [draw.array(shape, kind="within one"), np.array(draw.axis(len(shape)))], 1, attributes, 1


def _draw_gather(draw: Draw, op: str) -> Parts:
    shape = draw.shape(2)
    rank, data = len(shape), draw.array(shape, draw.random.choice(_ANY))
    axis = draw.axis(rank)
    computed = draw.random.choice((1, 1, 2))
    if op == "Gather":
        indices = draw.values.integers(-shape[axis], shape[axis], draw.shape(1, 2)[:2])
        return op, [data, indices.ravel()[:40].reshape(-1)], 1, {"axis": axis}, 1
    if op == "GatherND":
        depth = draw.random.randint(1, rank)
        indices = np.stack([draw.values.integers(0, each, 5) for each in shape[:depth]], -1)
        return op, [data, indices], computed, {}, 1
    if op == "ScatterND":
        depth = draw.random.randint(1, rank)
        flat = draw.values.permutation(int(np.prod(shape[:depth])))[:4]
        indices = np.stack(np.unravel_index(flat, shape[:depth]), -1).astype(np.int64)
        updates = draw.array((len(indices), *shape[depth:]), str(data.dtype))
        return op, [data, indices, updates], draw.random.choice((1, 3)), {}, 1
    indices = np.argsort(draw.values.random(shape), axis)
    if op == "GatherElements":
        return op, [data, indices], computed, {"axis": axis}, 1
    return (
        op,
        [data, indices, draw.array(shape, str(data.dtype))],
        draw.random.choice((1, 3)),
        {"axis": axis},
        1,
    )


def _draw_view(draw: Draw, op: str) -> Parts:  # noqa: PLR0911 - one for each operator
    """Draw what moves elements, of any dtype."""
    shape, dtype = draw.shape(2, 4), draw.random.choice(_ANY)
    data, rank = draw.array(shape, dtype), len(shape)
    if op == "Transpose":
        return op, [data], 1, {"perm": draw.random.sample(range(rank), rank)}, 1
    if op == "Trilu":
        draw.opset = max(draw.opset, 14)
        return (
            op,
            [data, np.array(draw.random.randint(-3, 3))],
            1,
            {"upper": draw.random.choice((0, 1))},
            1,
        )
    if op == "Reshape":
        return (
            op,
            [data, np.array(draw.random.choice(([-1], [shape[0], -1], [-1, shape[-1]], [0, -1, 1])))],
            1,
            {},
            1,
        )
    if op == "Tile":
        return op, [data, np.array([draw.random.choice((1, 1, 2, 3)) for _ in shape])], 1, {}, 1
    if op == "Expand":
        wide = [draw.random.choice((2, 3)) if each == 1 else each for each in shape]
        return op, [data, np.array(wide)], 1, {}, 1
    if op == "Concat":
        axis = draw.axis(rank)
        other = list(shape)
        other[axis] = draw.random.randint(1, 9)
        return op, [data, draw.array(other, dtype)], draw.random.choice((1, 2)), {"axis": axis}, 1
    if op == "Slice":
        axis = draw.axis(rank)
        start, step = draw.random.randrange(shape[axis]), draw.random.choice((1, 1, 2, -1))
        bounds = [start, 2**40 if step > 0 else -(2**40), axis, step]
        return op, [data, *(np.array([each]) for each in bounds)], 1, {}, 1
    if op == "Pad":
        pads = np.array([draw.random.choice((0, 0, 1, 2)) for _ in range(2 * rank)])
        modes = ("constant", "constant", "edge", "reflect")
        return op, [data, pads], 1, {"mode": draw.random.choice(modes)}, 1
    if op == "CenterCropPad":
        draw.opset = max(draw.opset, 18)
        return op, [data, np.array([each + draw.random.choice((-1, 0, 2)) for each in shape])], 1, {}, 1
    return op, [data], 1, {"axis": draw.random.randint(0, rank)} if op == "Flatten" else {}, 1


def _draw_image(draw: Draw, op: str) -> Parts:
    block = draw.random.randint(1, 3)
    batch, channels, height, width = (draw.random.randint(1, 5) for _ in range(4))
    if op == "DepthToSpace":
        image = draw.array((batch, channels * block**2, height, width))
        return op, [image], 1, {"blocksize": block, "mode": draw.random.choice(("DCR", "CRD"))}, 1
    if op == "SpaceToDepth":
        return (
            op,
            [draw.array((batch, channels, height * block, width * block))],
            1,
            {"blocksize": block},
            1,
        )
    draw.opset, draw.dtype = max(draw.opset, 16), "float32"
    modes = ("bilinear", "nearest") if draw.opset < 20 else ("linear", "nearest")
    grid = draw.array((batch, height + 2, width + 1, 2), kind="within one")
    attributes = {"mode": draw.random.choice(modes), "align_corners": draw.random.choice((0, 1))}
    attributes["padding_mode"] = draw.random.choice(("zeros", "border", "reflection"))
    return (
        op,
        [draw.array((batch, channels, height + 4, width + 3)), grid],
        draw.random.choice((1, 2)),
        attributes,
        1,
    )


def _draw_product(draw: Draw, op: str) -> Parts:
    sizes = {letter: draw.random.randint(1, 12) for letter in "bhijkd"}
    equation = draw.random.choice(_EQUATIONS)
    operands = [
        draw.array([sizes[each] for each in part]) for part in equation.split("->")[0].split(",")
    ]
    computed = len(operands) if draw.random.random() < 0.6 else 1
    return op, list(operands), computed, {"equation": equation}, 1


def _draw_selection(draw: Draw, op: str) -> Parts:
    shape = draw.shape()
    axis = draw.axis(len(shape))
    if op == "TopK":
        _, (values, *_), _, _, _ = _draw_places(draw, op)
        assert values is not None
        axis = draw.axis(values.ndim)
        count = np.array([draw.random.randint(1, values.shape[axis])])
        return op, [values, count], 1, {"axis": axis, "largest": draw.random.choice((0, 1))}, 2
    if op == "OneHot":
        depth = draw.random.randint(2, 9)
        indices = draw.values.integers(0, depth, draw.shape(1, 3)).astype(draw.random.choice(_WHOLE))
        ends = np.array(
            [0, draw.random.choice((1, 3))], draw.random.choice(("float32", "int64", "int32"))
        )
        return op, [indices, np.array(depth), ends], 1, {"axis": draw.random.choice((-1, -1, 0))}, 1
    if op == "Compress":
        return op, [draw.array(shape), np.resize([True, False, True], shape[axis])], 1, {"axis": axis}, 1
    return op, [draw.array(draw.shape(2, 2))], 1, {"k": draw.random.randint(-2, 2)}, 1


_DRAWN: Mapping[tuple[str, ...], Callable[[Draw, str], Parts]] = {
    (*_UNARY, *_POSITIVE, *_WITHIN_ONE): _draw_unary,
    ("Abs", "Neg", "Sign", "Not", "BitwiseNot"): _draw_whole,
    ("Cast", "Cast"): _draw_cast,
    ("Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Pow", "Mean", "Sum", "Equal", "Greater", "Less",
     "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr",
     "BitwiseXor"): _draw_pair,
    ("Where", "Where"): _draw_where,
    ("Conv", "Conv", "ConvTranspose", "ConvTranspose"): _draw_convolution,
    ("MaxPool", "AveragePool", "LpPool", "LpPool"): _draw_pool,
    ("BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN",
     "MeanVarianceNormalization", "LpNormalization"): _draw_normalization,
    ("Softmax", "LogSoftmax", "Hardmax"): _draw_along,
    _REDUCTIONS: _draw_reduction,
    ("ArgMax", "ArgMin"): _draw_places,
    ("CumSum",): _draw_cumulation,
    ("Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements"): _draw_gather,
    ("Transpose", "Trilu", "Reshape", "Tile", "Expand", "Concat", "Slice", "Pad",
     "CenterCropPad", "Flatten",
     "Identity"): _draw_view,
    ("DepthToSpace", "SpaceToDepth", "GridSample"): _draw_image,
    ("Einsum",): _draw_product,
    ("TopK", "OneHot", "Compress", "EyeLike"): _draw_selection,
}  # fmt: skip
