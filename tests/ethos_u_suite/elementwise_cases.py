"""Operators on each element: of two and several operands, of one, activations."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from one_node import Given, Operand, Stored

_SHAPES: tuple[tuple[int, ...], ...] = (
    (), (1,), (7,), (3, 7), (2, 3, 7), (1, 8, 5, 6), (2, 8, 5, 6), (1, 2, 3, 4, 5), (2, 2, 3, 2, 3, 4),
    (1, 1, 2, 2, 2, 2, 3),
)  # fmt: skip
_EXTENTS: tuple[tuple[int, ...], ...] = (
    (65535,), (65536,), (65537,), (70000,), (1, 65536), (65536, 1), (1, 65536, 1, 1), (1, 1, 65536, 1),
    (1, 1, 1, 65536), (65536, 2), (1, 2, 1, 65536), (300, 300),
)  # fmt: skip
_PAIRS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((1, 8, 5, 6), (1, 8, 1, 1)), ((1, 8, 5, 6), (8, 1, 1)), ((1, 8, 5, 6), (6,)),
    ((1, 8, 5, 6), (1, 1, 5, 6)), ((1, 8, 5, 6), (1,)), ((1, 8, 5, 6), ()), ((1, 8, 1, 6), (1, 8, 5, 1)),
    ((1, 8, 1, 1), (1, 1, 5, 6)), ((2, 8, 5, 6), (1, 8, 5, 6)), ((2, 8, 5, 6), (2, 1, 5, 6)),
    ((2, 8, 5, 6), (1, 8, 1, 1)), ((2, 1, 5, 6), (1, 8, 5, 6)), ((3, 7), (7,)), ((3, 7), (3, 1)),
    ((3, 1), (1, 7)), ((2, 3, 7), (3, 7)), ((2, 3, 7), (2, 1, 7)), ((2, 3, 4, 5, 6), (4, 5, 6)),
    ((2, 3, 4, 5, 6), (2, 3, 4, 5, 6)), ((2, 3, 4, 5, 6), (2, 1, 4, 1, 6)),
    ((2, 2, 2, 3, 2, 3), (2, 3, 2, 3)), ((2, 2, 2, 3, 2, 3), (2, 2, 1, 3, 2, 1)),
)  # fmt: skip
_FUNCTIONS: dict[str, dict[str, Any]] = {
    name: {}
    for name in [
        "Relu",
        "Abs",
        "Acos",
        "Asin",
        "Atan",
        "Ceil",
        "Celu",
        "Cos",
        "Cosh",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Log",
        "Mish",
        "Neg",
        "Reciprocal",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
        "Identity",
        "Acosh",
        "Asinh",
        "Atanh",
    ]
} | {"Gelu": {"opset": 20}, "Swish": {"opset": 24}}

Question = tuple[str, Sequence[Operand], dict[str, Any]]


def make_elementwise_cases() -> Iterator[Question]:
    """Yield operators, operands and what else a case says."""
    yield from _pairs()
    yield from _functions()
    yield from _clips()
    yield from _slopes()
    yield from _softmaxes()


def _pairs() -> Iterator[Question]:
    ops = ("Add", "Sub", "Mul", "Max", "Min")
    for op, shape in product(ops, _SHAPES):
        yield op, [Given(shape), Given(shape)], {}
    for op, (one, other) in product(ops, _PAIRS):
        yield op, [Given(one), Given(other)], {}
        yield op, [Given(one), Stored(other, point=2)], {}
    for op, (one, other) in product(("Add", "Sub", "Mul"), _PAIRS[::2]):
        yield op, [Given(other), Given(one)], {}
        yield op, [Stored(one, point=2), Given(other)], {}
    for op, shape in product(ops, _EXTENTS):
        yield op, [Given(shape), Given(shape)], {}
    for op, dtype, shape in product(ops, ("int16", "uint8"), ((1, 8, 5, 6), (2, 3))):
        yield op, [Given(shape), Given(shape)], {"dtype": dtype}
        yield op, [Given(shape), Given((1,))], {"dtype": dtype}
        yield op, [Given(shape), Stored((1,), dtype=dtype)], {"dtype": dtype}
    for op, shape in product(("Div", "Pow"), ((1, 8, 5, 6), (2, 3), (7,))):
        yield op, [Given(shape), Given(shape)], {}
        yield op, [Given(shape), Stored((1,))], {}
        yield op, [Given(shape), Stored(shape)], {}
        yield op, [Stored((1,)), Given(shape)], {}
    for shape, power, dtype in product(
        ((1, 8, 5, 6), (2, 3)), (2, 3, -1, 0), (np.float32, np.int32, np.int64)
    ):
        yield "Pow", [Given(shape), np.array([power], dtype)], {}
        yield "Pow", [np.array([power + 0.5], np.float32), Given(shape)], {}
    for op, count, shape in product(("Sum", "Max", "Min"), (1, 2, 3, 5), ((1, 8, 5, 6), (2, 3), (2,))):
        yield op, [Given(shape)] * count, {}
    yield "Sum", [Given((1, 8, 5, 6)), Given((8, 1, 1)), Given((6,))], {}
    yield "Sum", [Given((1, 8, 5, 6)), Stored((8, 1, 1))], {}
    yield "Sum", [Given((4, 6)), Given((4, 6))], {"dtype": "int16"}
    yield "Mean", [Given((4, 6)), Given((4, 6))], {}
    yield "Equal", [Given((4, 6)), Given((4, 6))], {}


def _functions() -> Iterator[Question]:
    few = ((7,), (2, 3, 7), (2, 8, 5, 6), (1, 2, 3, 4, 5))
    for op, more in _FUNCTIONS.items():
        shapes = _SHAPES if op in ("Relu", "Sigmoid", "Exp", "LeakyRelu", "Identity") else few
        for shape in shapes:
            yield op, [Given(shape)], more
        for dtype in ("int16", "uint8"):
            yield op, [Given((1, 8, 5, 6))], {**more, "dtype": dtype} | _newer(more, dtype)
    for op, shape in product(("Relu", "Sigmoid", "HardSwish", "Tanh", "Neg"), _EXTENTS):
        yield op, [Given(shape)], {}
        yield op, [Given(shape)], {"same": True}


def _newer(more: dict[str, Any], dtype: str) -> dict[str, Any]:
    return {"opset": max(more.get("opset", 0), 21)} if dtype == "int16" else {}


def _clips() -> Iterator[Question]:
    bounds: Sequence[tuple[float | None, float | None]] = (
        (0.0, 6.0), (0.0, None), (None, 6.0), (-1.0, 1.0), (None, None), (0.5, 2.5), (-3.0, 0.0), (2, 1)
    )  # fmt: skip
    for (low, high), dtype, same in product(bounds, ("int8", "int16", "uint8"), (True, False)):
        limits = [None if each is None else np.array(each, np.float32) for each in (low, high)]
        yield "Clip", [Given((1, 8, 5, 6)), *limits], {"dtype": dtype, "same": same}
    limits = [np.array(each, np.float32) for each in (0.0, 6.0)]
    for shape in (*_SHAPES, *_EXTENTS):
        yield "Clip", [Given(shape), *limits], {}


def _slopes() -> Iterator[Question]:
    slopes = ((8, 1, 1), (1,), (1, 8, 1, 1), (6,), (8, 5, 6), (1, 8, 5, 6))
    for slope, batch, dtype in product(slopes, (1, 2), ("int8", "int16")):
        if batch == 2 and len(slope) == 4 and slope[1:] != (1, 1):
            continue
        kind = "int8" if dtype == "int8" else "int16"
        yield "PRelu", [Given((batch, 8, 5, 6)), Stored(slope, dtype=kind)], {"dtype": dtype}
    yield "PRelu", [Given((1, 8, 5, 6)), Given((8, 1, 1))], {}
    yield "PRelu", [Given((3, 7)), Stored((7,))], {}
    yield "PRelu", [Given((2, 2, 3, 4, 5)), Stored((2, 1, 1, 1))], {}
    yield "PRelu", [Given((1, 8, 5, 6)), Stored((8, 1, 1), point=5)], {}
    yield "PRelu", [Given((1, 8, 5, 6)), Stored((8, 1, 1), axis=0)], {}
    for shape in _EXTENTS:
        yield "PRelu", [Given(shape), Stored((1,))], {}
        yield "PRelu", [Given(shape), Stored((shape[-1],))], {}


def _softmaxes() -> Iterator[Question]:
    for shape in _SHAPES[1:]:
        for axis in range(-1, len(shape)):
            yield "Softmax", [Given(shape)], {"axis": axis}
    for shape in (*_EXTENTS, (1, 32767), (1, 32768), (1, 32769), (1, 4096), (4096, 1), (256, 257),
                  (8, 257, 256), (12, 197, 197), (3, 65536, 2), (2, 32768, 3)):  # fmt: skip
        yield "Softmax", [Given(shape)], {"axis": -1}
        yield "Softmax", [Given(shape)], {"axis": 0}
        if len(shape) == 4:
            yield "Softmax", [Given(shape)], {"axis": 1}
    for dtype, opset in product(("int8", "int16", "uint8"), (11, 13)):
        more = {"dtype": dtype, "opset": 21 if dtype == "int16" else opset}
        yield "Softmax", [Given((1, 8, 5, 6))], {**more, "axis": 1}
        yield "Softmax", [Given((3, 10))], more
    yield "LogSoftmax", [Given((3, 10))], {}
