"""Models drawn at random, on which no rule was tuned: other shapes and attributes than the suite's."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
from one_node import Given, OneNode, Operand, Stored, make_case

Question = tuple[str, Sequence[Operand], dict[str, Any]]

_UNARY = ("Abs", "Ceil", "Cos", "Elu", "Erf", "Exp", "HardSwish", "LeakyRelu", "Log", "Neg", "Relu",
          "Round", "Selu", "Sigmoid", "Sqrt", "Tanh", "Identity", "Acosh", "Softplus")  # fmt: skip
_PLACES = ("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel")
_ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
_OPSET = 21
_INVALID = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError)


def make_held_out_cases(seed: int, count: int) -> list[OneNode]:
    """Return `count` models of one operator, all distinct; the same seed draws the same models."""
    draw, made = Random(seed), dict[tuple[str, str], OneNode]()
    while len(made) < count:
        ops = draw.choice(list(DRAWN))
        op, operands, more = DRAWN[ops](draw, draw.choice(ops))
        dtype = draw.choices(("int8", "int16", "uint8"), (16, 3, 1))[0]
        try:
            case = make_case(op, operands, **{"dtype": dtype, "opset": _OPSET, **more})
        except _INVALID:
            continue
        made.setdefault((case.op, case.name), case)
    return list(made.values())


def _shape(draw: Random, rank: int, most: int = 40) -> tuple[int, ...]:
    """Return extents, large ones among few; each fifth is 1."""
    return tuple(1 if draw.random() < 0.2 else draw.randint(2, most) for _ in range(rank))


def _any_shape(draw: Random, least: int = 1) -> tuple[int, ...]:
    rank = draw.randint(least, 6)
    return _shape(draw, rank, {1: 3000, 2: 300, 3: 60, 4: 30}.get(rank, 7))


def _image(draw: Random, channels: int) -> tuple[int, ...]:
    return draw.choice((1, 1, 1, 2, 3)), channels, draw.randint(5, 50), draw.randint(5, 50)


def _window(draw: Random, kernel: Sequence[int], dilated: bool = True) -> dict[str, Any]:
    steps = (1, 1, 1, 2, 2, 3, 4, 6)
    more: dict[str, Any] = {"strides": [draw.choice(steps) for _ in kernel]}
    if dilated and draw.random() < 0.2:
        more["dilations"] = [draw.choice((1, 2, 3)) for _ in kernel]
    if draw.random() < 0.3:
        more["auto_pad"] = draw.choice(("SAME_UPPER", "SAME_LOWER", "VALID"))
    elif draw.random() < 0.6:
        more["pads"] = [draw.randint(0, each // 2) for each in (*kernel, *kernel)]
    return more


def _draw_convolution(draw: Random, op: str) -> Question:
    group = draw.choice((1, 1, 1, 2, 4, 12)) if op == "Conv" else draw.choice((1, 1, 1, 1, 1, 2))
    channels = group * (1 if group == 12 else draw.randint(1, 24))
    filters = group * draw.randint(1, 6)
    kernel = (draw.randint(1, 7), draw.randint(1, 7))
    shape = (filters, channels // group) if op == "Conv" else (channels, filters // group)
    weights = Stored((*shape, *kernel), axis=draw.choice((None, None, 0, 1)))
    operands: list[Operand] = [Given(_image(draw, channels)), weights]
    if draw.random() < 0.5:
        operands.append(Stored((filters,), dtype="int32", axis=draw.choice((None, 0))))
    more = _window(draw, kernel) | {"group": group}
    if op == "ConvTranspose" and draw.random() < 0.8:
        more["strides"] = draw.choice(([1, 1], [2, 2]))
    return op, operands, more


def _draw_pool(draw: Random, op: str) -> Question:
    kernel = [draw.randint(1, 10), draw.randint(1, 10)]
    more = _window(draw, kernel, dilated=op == "MaxPool")
    more |= {"kernel_shape": kernel, "same": draw.random() < 0.5, "ceil_mode": draw.choice((0, 0, 1))}
    if op == "AveragePool" and draw.random() < 0.3:
        more["count_include_pad"] = 1
    return op, [Given(_image(draw, draw.randint(1, 40)))], more


def _draw_global_pool(draw: Random, op: str) -> Question:
    return op, [Given(_shape(draw, draw.choice((3, 4, 4, 4, 5)), 80))], {"same": draw.random() < 0.3}


def _draw_reduction(draw: Random, op: str) -> Question:
    shape = _any_shape(draw)
    axes = draw.sample(range(len(shape)), draw.randint(1, len(shape)))
    return op, [Given(shape), np.array(sorted(axes))], {"keepdims": draw.choice((0, 1))}


def _draw_product(draw: Random, op: str) -> Question:
    rows, depth, columns = (draw.randint(1, 300) for _ in range(3))
    if op == "Gemm":
        turned = draw.choice((0, 1))
        shape = (columns, depth) if turned else (depth, columns)
        operands: list[Operand] = [
            Given((rows, depth)), Stored(shape, axis=draw.choice((None, 0, 1)))
        ]  # fmt: skip
        operands += [Stored((columns,), dtype="int32")] * draw.choice((0, 1))
        return op, operands, {"transB": turned}
    batch = _shape(draw, draw.randint(0, 3), 5)
    if draw.random() < 0.5:
        weights = Stored((depth, columns), axis=draw.choice((None, 0, 1)))
        return op, [Given((*batch, rows, depth)), weights], {}
    return op, [Given((*batch, rows, depth)), Given((*batch, depth, columns))], {}


def _draw_pair(draw: Random, op: str) -> Question:
    shape = _any_shape(draw)
    other = tuple(1 if draw.random() < 0.3 else each for each in shape)[draw.randint(0, len(shape)) :]
    operands: list[Operand] = [Given(shape), draw.choice((Given(other), Stored(other, point=3)))]
    return op, operands if draw.random() < 0.7 else operands[::-1], {}


def _draw_table_pair(draw: Random, op: str) -> Question:
    constant = Stored((1,) * draw.randint(0, 3)) if draw.random() < 0.7 else Given(())
    operands: list[Operand] = [Given(_any_shape(draw)), constant]
    return op, operands if draw.random() < 0.6 else operands[::-1], {}


def _draw_function(draw: Random, op: str) -> Question:
    return op, [Given(_any_shape(draw))], {"same": draw.random() < 0.2}


def _draw_clip(draw: Random, op: str) -> Question:
    bounds = sorted(draw.uniform(-6, 6) for _ in range(2))
    limits = [None if draw.random() < 0.2 else np.array(each, np.float32) for each in bounds]
    return op, [Given(_any_shape(draw)), *limits], {"same": draw.random() < 0.5}


def _draw_slopes(draw: Random, op: str) -> Question:
    shape = _any_shape(draw, 2)
    slope = tuple(each if draw.random() < 0.5 else 1 for each in shape[1:])
    return op, [Given(shape), Stored(slope, point=draw.choice((0, 0, 4)))], {}


def _draw_softmax(draw: Random, op: str) -> Question:
    shape = _any_shape(draw)
    return op, [Given(shape)], {"axis": draw.randint(-len(shape), len(shape) - 1)}


def _draw_concat(draw: Random, op: str) -> Question:
    shape = _any_shape(draw)
    axis = draw.randrange(len(shape))
    operands = [
        Given((*shape[:axis], draw.randint(1, 9), *shape[axis + 1 :])) for _ in range(draw.randint(1, 6))
    ]
    return op, operands, {"axis": axis, "same": draw.random() < 0.5}


def _draw_split(draw: Random, op: str) -> Question:
    shape, sizes = list(_any_shape(draw)), [draw.randint(1, 9) for _ in range(draw.randint(2, 4))]
    axis = draw.randrange(len(shape))
    shape[axis] = sum(sizes)
    return op, [Given(tuple(shape)), np.array(sizes)], {"axis": axis, "results": len(sizes)}


def _draw_slice(draw: Random, op: str) -> Question:
    shape = _any_shape(draw)
    axes = sorted(draw.sample(range(len(shape)), draw.randint(1, len(shape))))
    starts = [draw.randint(-shape[axis], shape[axis] - 1) for axis in axes]
    ends = [draw.choice((draw.randint(1, shape[axis]), 2**40, -1)) for axis in axes]
    steps = [draw.choice((1, 1, 1, 1, 2)) for _ in axes]
    return op, [Given(shape), *(np.array(each) for each in (starts, ends, axes, steps))], {}


def _draw_pads(draw: Random, op: str) -> Question:
    shape = _any_shape(draw)
    pads = np.array([draw.choice((0, 0, 1, 5, -1)) for _ in range(2 * len(shape))])
    value = np.array(draw.uniform(-3, 3), np.float32)
    mode = draw.choices(("constant", "edge"), (9, 1))[0]
    return op, [Given(shape), pads, draw.choice((None, value))], {"mode": mode}


def _draw_shape(draw: Random, op: str) -> Question:
    shape = _any_shape(draw)
    wanted: list[int] = []
    for each in shape:
        factor = draw.choice([n for n in range(1, each + 1) if each % n == 0])
        wanted += draw.choice(([each], [factor, each // factor]))
    return op, [Given(shape), np.array(wanted)], {"same": draw.random() < 0.6}


def _draw_transposition(draw: Random, op: str) -> Question:
    shape = _any_shape(draw)
    return op, [Given(shape)], {"perm": draw.sample(range(len(shape)), len(shape))}


def _draw_repeats(draw: Random, op: str) -> Question:
    shape = _any_shape(draw)
    counts = [draw.choice((1, 1, 2, 3)) for _ in shape]
    if op == "Tile":
        return op, [Given(shape), np.array(counts)], {}
    wide = [count if extent == 1 else extent for count, extent in zip(counts, shape, strict=True)]
    return op, [Given(shape), np.array(wide)], {}


def _draw_blocks(draw: Random, op: str) -> Question:
    block = draw.randint(1, 5)
    batch, depth, height, width = (draw.randint(1, 6) for _ in range(4))
    shape = (batch, depth * block**2, height * block, width * block)
    mode = {"mode": draw.choice(("DCR", "CRD"))} if op == "DepthToSpace" else {}
    return op, [Given(shape)], {"blocksize": block, **mode}


def _draw_resize(draw: Random, op: str) -> Question:
    shape = (draw.choice((1, 1, 2)), draw.randint(1, 20), *_shape(draw, 2, 12))
    more: dict[str, Any] = {
        "mode": draw.choice(("nearest", "linear")),
        "coordinate_transformation_mode": draw.choice(_PLACES),
        "same": draw.random() < 0.5,
    }
    if more["mode"] == "nearest":
        more["nearest_mode"] = draw.choice(_ROUNDINGS)
    factors = [draw.choice((1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 11, 2.25)) for _ in range(2)]
    if draw.random() < 0.6:
        return op, [Given(shape), None, np.array([1, 1, *factors], np.float32)], more
    corners = more["coordinate_transformation_mode"] == "align_corners" and draw.random() < 0.6
    ends = [
        int((each - 1) * factor) + 1 if corners else int(each * factor)
        for each, factor in zip(shape[2:], factors, strict=True)
    ]
    return op, [Given(shape), None, None, np.array([*shape[:2], *ends])], more


def _draw_axes(draw: Random, op: str) -> Question:
    shape = _any_shape(draw)
    if op == "Flatten":
        return op, [Given(shape)], {"axis": draw.randint(0, len(shape))}
    if op == "Unsqueeze":
        return op, [Given(shape), np.array([draw.randint(0, len(shape))])], {}
    ones = [axis for axis, extent in enumerate(shape) if extent == 1]
    return op, [Given(shape), np.array(ones[: draw.randint(1, 3)], np.int64)], {}


DRAWN: Mapping[tuple[str, ...], Callable[[Random, str], Question]] = {
    ("Conv", "Conv", "ConvTranspose"): _draw_convolution,
    ("MaxPool", "AveragePool", "AveragePool"): _draw_pool,
    ("GlobalAveragePool", "GlobalMaxPool"): _draw_global_pool,
    ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"): _draw_reduction,
    ("Gemm", "MatMul"): _draw_product,
    ("Add", "Sub", "Mul", "Max", "Min", "Sum"): _draw_pair,
    ("Div", "Pow"): _draw_table_pair,
    _UNARY: _draw_function,
    ("Clip",): _draw_clip,
    ("PRelu",): _draw_slopes,
    ("Softmax",): _draw_softmax,
    ("Concat",): _draw_concat,
    ("Split",): _draw_split,
    ("Slice",): _draw_slice,
    ("Pad",): _draw_pads,
    ("Reshape",): _draw_shape,
    ("Transpose",): _draw_transposition,
    ("Tile", "Expand"): _draw_repeats,
    ("DepthToSpace", "SpaceToDepth"): _draw_blocks,
    ("Resize",): _draw_resize,
    ("Flatten", "Squeeze", "Unsqueeze"): _draw_axes,
}  # fmt: skip
