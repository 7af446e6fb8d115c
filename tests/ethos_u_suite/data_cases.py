"""Operators that move data, and those that resize images."""

from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Any

import numpy as np
from one_node import Given, Operand, Stored

Question = tuple[str, Sequence[Operand], dict[str, Any]]


def make_data_cases() -> Iterator[Question]:
    """Yield operators, operands and what else a case says."""
    yield from _shapes()
    yield from _transpositions()
    yield from _joined()
    yield from _slices()
    yield from _pads()
    yield from _repeats()
    yield from _resizes()


def _shapes() -> Iterator[Question]:
    shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = (
        ((24,), (2, 3, 4)), ((2, 3, 4), (24,)), ((1, 8, 5, 6), (1, 240)), ((2, 8, 5, 6), (2, 240)),
        ((2, 240), (2, 8, 5, 6)), ((1, 8, 5, 6), (1, 2, 4, 5, 6)), ((1, 2, 4, 5, 6), (1, 8, 5, 6)),
        ((1, 8, 6, 6), (1, 8, 3, 2, 3, 2)), ((2, 2, 2, 2, 2, 2), (64,)), ((1,), (1, 1, 1, 1, 1, 1)),
        ((2, 1, 2, 1, 2, 1, 2), (16,)), ((16,), (2, 1, 2, 1, 2, 1, 2)), ((65536,), (256, 256)),
        ((65537,), (1, 65537)), ((300, 300), (90000,)), ((70000, 2), (140000,)), ((1, 1), ()),
        ((1, 8, 5, 6), (8, 1, 6, 5)), ((4, 6), (3, 8)), ((1, 8, 5, 6), (0, -1)),
    )  # fmt: skip
    for (before, behind), same, dtype in product(shapes, (True, False), ("int8", "int16")):
        more = {"same": same, "dtype": dtype}
        yield "Reshape", [Given(before), np.array(behind, np.int64)], more
    yield "Reshape", [Given((2, 3)), np.array([6])], {"dtype": "uint8"}
    for shape, axis in product(((2, 3), (1, 8, 5, 6), (2, 3, 4, 5, 6), (7,)), (0, 1, -1)):
        yield "Flatten", [Given(shape)], {"axis": axis}
        yield "Unsqueeze", [Given(shape), np.array([axis])], {}
    for shape, axes in (
        ((1, 8, 1, 1), [2, 3]), ((2, 1, 3), [1]), ((1, 2, 1, 3, 1, 2), [0, 2]), ((1, 1), [0, 1]),
        ((1, 65536), [0]), ((1, 1, 2, 2, 1, 2, 2), [0]),
    ):  # fmt: skip
        yield "Squeeze", [Given(shape), np.array(axes)], {}
    yield "Squeeze", [Given((1, 8, 1, 1))], {}
    yield "Squeeze", [Given((1, 8, 1, 1))], {"axes": [2, 3], "opset": 11}
    yield "Dropout", [Given((1, 8, 5, 6))], {}


def _transpositions() -> Iterator[Question]:
    for rank, shape in ((2, (3, 5)), (3, (3, 5, 7)), (4, (1, 8, 5, 6)), (4, (2, 8, 5, 6))):
        for perm in permutations(range(rank)):
            yield "Transpose", [Given(shape)], {"perm": perm}
    for perm in list(permutations(range(5)))[::4]:
        yield "Transpose", [Given((2, 3, 4, 5, 6))], {"perm": perm}
    for perm in list(permutations(range(6)))[::29]:
        yield "Transpose", [Given((2, 3, 2, 4, 2, 3))], {"perm": perm}
    for shape in ((65535, 2), (65536, 2), (2, 65536), (65537, 2), (70000, 2), (1000, 1000), (2, 70000)):
        yield "Transpose", [Given(shape)], {"perm": [1, 0]}
    for shape, perm in (
        ((1, 1, 2, 2, 2, 2, 3), [6, 5, 4, 3, 2, 1, 0]), ((2,) * 7, [6, 5, 4, 3, 2, 1, 0]),
        ((2,) * 7, [0, 1, 2, 3, 4, 6, 5]), ((7,), [0]), ((1, 4, 28, 56, 56), [0, 2, 1, 3, 4]),
        ((20, 30, 40, 5, 6), [4, 3, 2, 1, 0]), ((2, 256, 3, 256), [0, 2, 1, 3]),
    ):  # fmt: skip
        for dtype in ("int8", "int16"):
            yield "Transpose", [Given(shape)], {"perm": perm, "dtype": dtype}
    yield "Transpose", [Given((3, 5))], {"dtype": "uint8"}


def _joined() -> Iterator[Question]:
    for shape, same, dtype in product(
        ((7,), (3, 7), (2, 3, 7), (1, 8, 5, 6), (2, 8, 5, 6), (1, 2, 3, 4, 5), (2, 2, 3, 2, 3, 4)),
        (True, False),
        ("int8", "int16"),
    ):
        for axis in {-1, 0, len(shape) // 2}:
            more = {"axis": axis, "same": same, "dtype": dtype}
            yield "Concat", [Given(shape), Given(shape)], more
    for count, axis in product((1, 3, 9), (0, 1)):
        yield "Concat", [Given((2, 3))] * count, {"axis": axis}
    yield "Concat", [Given((1, 8, 5, 6)), Stored((1, 2, 5, 6), point=1)], {"axis": 1}
    yield "Concat", [Given((2, 3)), Given((2, 3))], {"axis": 1, "dtype": "uint8"}
    yield "Concat", [Given((1, 2, 2, 2, 2, 2, 2))] * 2, {"axis": 1}
    for extent in (40000, 65535, 65536, 70000):
        yield "Concat", [Given((1, extent)), Given((1, extent))], {"axis": 1}
        yield "Concat", [Given((1, extent)), Given((1, extent))], {"axis": 0}
    for shape, axis, same in product(
        ((8,), (4, 8), (2, 4, 8), (1, 8, 4, 6), (2, 8, 4, 6), (1, 2, 4, 4, 8), (2, 2, 2, 4, 2, 4)),
        (-1, 0, 1),
        (True, False),
    ):
        if axis >= len(shape) or shape[axis] % 2:
            continue
        half = np.array([shape[axis] // 2] * 2)
        yield "Split", [Given(shape), half], {"axis": axis, "results": 2, "same": same}
    yield "Split", [Given((1, 9)), np.array([2, 3, 4])], {"axis": 1, "results": 3}
    yield "Split", [Given((1, 9))], {"axis": 1, "results": 3, "num_outputs": 3}
    yield "Split", [Given((1, 9))], {"axis": 1, "results": 3, "split": [3, 3, 3], "opset": 11}
    yield "Split", [Given((1, 9)), np.array([4, 5])], {"axis": 1, "results": 2, "dtype": "int16"}
    for extent in (65536, 140000):
        yield "Split", [Given((1, extent)), np.array([8, extent - 8])], {"axis": 1, "results": 2}
    yield "Split", [Given((1, 2, 1, 2, 1, 2, 4)), np.array([2, 2])], {"axis": 6, "results": 2}
    yield "Gather", [Given((4, 8)), np.array([0, 2])], {"axis": 0}
    yield "Gather", [Given((4, 8)), np.array(1)], {"axis": 1}


def _slices() -> Iterator[Question]:
    for shape, step, first, last in product(
        ((9,), (4, 9), (1, 8, 5, 9), (2, 8, 5, 9), (1, 2, 3, 4, 9), (2, 2, 2, 2, 2, 9)),
        (1, 2, -1),
        (0, 2, -3),
        (5, 9, 2**31 - 1),
    ):
        back = (-1, 2) if first == 0 else (first, -(2**31))
        begin, end = back if step < 0 else (first, last)
        bounds = [np.array([each]) for each in (begin, end, -1, step)]
        yield "Slice", [Given(shape), *bounds], {}
    bounds = [np.array(each) for each in ([1, 1], [3, 4])]
    yield "Slice", [Given((4, 9)), *bounds], {}
    yield "Slice", [Given((4, 9)), *bounds, np.array([0, 1])], {}
    yield "Slice", [Given((4, 9)), *bounds, np.array([0, 1]), np.array([1, 1])], {"dtype": "int16"}
    yield "Slice", [Given((4, 9)), *bounds, np.array([0, 1])], {"dtype": "uint8"}
    for extent in (65536, 70000):
        bounds = [np.array([each]) for each in (0, 100, 1)]
        yield "Slice", [Given((1, extent)), *bounds], {}
    bounds = [np.array([each]) for each in (0, 1, 2)]
    yield "Slice", [Given((1, 2, 2, 2, 2, 2, 2)), *bounds], {}


def _pads() -> Iterator[Question]:
    for shape in ((9,), (4, 9), (2, 4, 9), (1, 8, 5, 9), (2, 8, 5, 9), (1, 2, 3, 4, 9), (2,) * 6):
        rank = len(shape)
        for axis, amounts in product(range(rank), ((1, 2), (0, 3), (-1, 0), (-1, 2))):
            pads = np.zeros(2 * rank, np.int64)
            pads[axis], pads[rank + axis] = amounts
            yield "Pad", [Given(shape), pads], {}
    pads = np.array([0, 0, 1, 1, 0, 0, 2, 2])
    image = Given((1, 8, 5, 9))
    for value in (0.0, 1.0, -2.5, 100.0):
        yield "Pad", [image, pads, np.array(value, np.float32)], {}
    yield "Pad", [image, pads, Stored((), point=0)], {}
    for mode in ("edge", "reflect", "wrap"):
        yield "Pad", [image, pads], {"mode": mode, "opset": 19}
    yield "Pad", [image, np.array([1, 2]), None, np.array([3])], {}
    yield "Pad", [image, np.array([1, 2]), None, np.array([-1])], {}
    for dtype in ("int16", "uint8"):
        yield "Pad", [image, pads], {"dtype": dtype}
    yield "Pad", [Given((1, 2, 1, 2, 1, 2, 2)), np.array([0] * 13 + [1])], {}
    for extent in (65535, 65536, 70000):
        yield "Pad", [Given((1, extent)), np.array([0, 1, 0, 1])], {}
        yield "Pad", [Given((1, 1, 1, extent)), np.array([0, 0, 1, 0, 0, 0, 0, 0])], {}
    for amount in (30, 31, 32, 64, 300):
        yield "Pad", [Given((1, 2, 5, 9)), np.array([0, 0, amount, amount, 0, 0, 0, 0])], {}
    yield "Pad", [image], {"pads": [0, 0, 1, 1, 0, 0, 2, 2], "opset": 10}


def _repeats() -> Iterator[Question]:
    for shape, counts in (
        ((3,), [2]), ((2, 3), [2, 1]), ((2, 3), [3, 4]), ((1, 8, 5, 6), [1, 1, 2, 2]),
        ((1, 8, 5, 6), [2, 1, 1, 1]), ((1, 2, 3, 4, 5), [2, 1, 1, 2, 1]),
        ((2,) * 6, [2] * 6), ((1, 1, 2, 2, 2, 2, 2), [1, 2, 1, 1, 1, 1, 1]), ((2, 3), [1, 1]),
        ((1, 8, 1, 1), [1, 1, 64, 64]), ((1, 70000), [2, 1]),
    ):  # fmt: skip
        for dtype in ("int8", "int16", "uint8"):
            yield "Tile", [Given(shape), np.array(counts)], {"dtype": dtype}
        behind = [extent * count for extent, count in zip(shape, counts, strict=True)]
        yield "Expand", [Given(shape), np.array(behind)], {}
    yield "Expand", [Given((1, 3)), np.array([4, 2, 3])], {}
    for op, block, dtype in product(("DepthToSpace", "SpaceToDepth"), (2, 3, 4), ("int8", "int16")):
        image = Given((1, 2 * block**2, 3 * block, 2 * block))
        yield op, [image], {"blocksize": block, "dtype": dtype}
        batch = Given((2, *image.shape[1:]))
        yield op, [batch], {"blocksize": block, "dtype": dtype}
        if op == "DepthToSpace":
            yield op, [image], {"blocksize": block, "mode": "CRD", "dtype": dtype}


def _resizes() -> Iterator[Question]:
    places = ("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel")
    nearest = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    for place, rounding, factors in product(
        places, nearest, ((2, 2), (3, 3), (4, 4), (8, 8), (2, 1), (1, 3), (2, 4))
    ):
        scales = np.array([1, 1, *factors], np.float32)
        more = {"mode": "nearest", "coordinate_transformation_mode": place, "nearest_mode": rounding}
        yield "Resize", [Given((1, 8, 5, 6)), None, scales], more
    for place, factors in product(
        places, ((2, 2), (3, 3), (4, 4), (8, 8), (2, 1), (1, 3), (2, 4), (5, 5), (16, 16), (1.5, 1.5))
    ):
        scales = np.array([1, 1, *factors], np.float32)
        more = {"mode": "linear", "coordinate_transformation_mode": place}
        yield "Resize", [Given((1, 8, 6, 6)), None, scales], more
        yield "Resize", [Given((2, 8, 6, 6)), None, scales], more
    for mode, sizes, shape in product(
        ("nearest", "linear", "cubic"),
        ((1, 8, 10, 12), (1, 8, 9, 11), (1, 8, 3, 3), (1, 16, 5, 6), (1, 8, 5, 6), (1, 8, 1, 1)),
        ((1, 8, 5, 6), (1, 8, 1, 1)),
    ):
        for place in places[:3]:
            more = {"mode": mode, "coordinate_transformation_mode": place}
            more |= {"nearest_mode": "floor"} if mode == "nearest" else {}
            yield "Resize", [Given(shape), None, None, np.array(sizes)], more
    scales = np.array([1, 1, 2, 2], np.float32)
    for mode, dtype in product(("nearest", "linear"), ("int16", "uint8")):
        more = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        yield "Resize", [Given((1, 8, 5, 6)), None, scales], {**more, "dtype": dtype}
    more = {"mode": "linear", "antialias": 1, "coordinate_transformation_mode": "half_pixel"}
    yield "Resize", [Given((1, 8, 5, 6)), None, scales], more
    more = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    yield "Resize", [Given((4, 6)), None, scales[:2]], more
    yield "Resize", [Given((1, 8, 5, 6)), None, scales[2:]], {**more, "axes": [2, 3]}
    yield "Resize", [Given((1, 8, 5, 6)), scales], {"mode": "nearest", "opset": 10}
    yield "Resize", [Given((1, 8, 5, 6)), scales], {"mode": "linear", "opset": 10}
