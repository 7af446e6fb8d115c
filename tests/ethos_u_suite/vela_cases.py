"""The models: operators at and around the edges that codegen, rule file and Vela have."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import onnx
from data_cases import make_data_cases
from elementwise_cases import make_elementwise_cases
from one_node import Given, OneNode, Operand, Stored, make_case

_STRIDES = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (1, 4), (4, 1), (2, 5), (16, 16))


@cache
def make_cases() -> Sequence[OneNode]:
    """Return the models, those that ONNX itself refuses left out."""
    made: dict[tuple[str, str], OneNode] = {}
    makers = (
        _convolutions,
        _depthwise,
        _grouped,
        _transposed,
        _pools,
        _global_pools,
        _reductions,
        _products,
        _quantizations,
        make_elementwise_cases,
        make_data_cases,
        _normalizations,
    )
    for maker in makers:
        for op, operands, attributes in maker():
            try:
                case = make_case(op, operands, **attributes)
            except onnx.shape_inference.InferenceError:
                continue
            made.setdefault((case.op, case.name), case)
    return tuple(made.values())


Question = tuple[str, Sequence[Operand], dict[str, Any]]


def _ask_conv(
    image: tuple[int, ...], filters: tuple[int, ...], op: str = "Conv", **attributes: Any
) -> Question:
    return op, [Given(image), Stored(filters)], attributes


def _convolutions() -> Iterator[Question]:  # noqa: PLR0912 - a loop for each limit
    for strides, dilation, pad, dtype in product(_STRIDES, (1, 2), (0, 1), ("int8", "int16")):
        more = {"strides": strides, "dilations": [dilation] * 2, "pads": [pad] * 4, "dtype": dtype}
        yield _ask_conv((1, 8, 35, 37), (4, 8, 3, 3), **more)
    for strides, auto in product(_STRIDES, ("SAME_UPPER", "SAME_LOWER", "VALID")):
        yield _ask_conv((1, 3, 32, 32), (4, 3, 4, 4), strides=strides, auto_pad=auto)
    for kernel in ((1, 63), (1, 64), (1, 65), (63, 1), (64, 1), (65, 1), (64, 64), (64, 65), (65, 64)):
        yield _ask_conv((1, 2, 70, 70), (2, 2, *kernel))
        yield _ask_conv((1, 2, 70, 70), (2, 2, *kernel), pads=[kernel[0] // 2, kernel[1] // 2] * 2)
    for dilation, kernel in product((7, 8, 9, 16, 21, 31, 32, 33), (2, 3, 4)):
        yield _ask_conv((1, 2, 99, 99), (2, 2, kernel, kernel), dilations=[dilation] * 2)
    for extent in (4095, 4096, 4097, 65535, 65536, 65537, 70000):
        yield _ask_conv((1, 2, 1, extent), (2, 2, 1, 1))
        yield _ask_conv((1, 2, extent, 1), (2, 2, 1, 1))
        yield _ask_conv((1, extent, 1, 1), (2, extent, 1, 1))
        yield _ask_conv((1, 2, 2, 2), (extent, 2, 1, 1))
    for depth, kernel in product((512, 1024, 7225, 8192), (1, 3)):
        yield _ask_conv((1, depth, 3, 3), (1, depth, kernel, kernel))
    for batch, strides in product((2, 3, 8), ((1, 1), (2, 2), (4, 4))):
        yield _ask_conv((batch, 2, 5, 5), (4, 2, 3, 3), strides=strides)
    for filters in (
        Stored((4, 8, 3, 3), axis=0),
        Stored((4, 8, 3, 3), axis=1),
        Stored((4, 8, 3, 3), point=1),
        Stored((4, 8, 3, 3), dtype="uint8", point=128),
        Given((4, 8, 3, 3)),
    ):
        for dtype in ("int8", "uint8", "int16"):
            if isinstance(filters, Given) and dtype != "int8":
                continue
            yield "Conv", [Given((1, 8, 9, 9)), filters], {"dtype": dtype}
    for bias in (
        Stored((4,), dtype="int32"),
        Stored((4,), dtype="int32", axis=0),
        Stored((4,), dtype="int8"),
        Stored((4,), dtype="int32", point=3),
        Given((4,)),
    ):
        yield "Conv", [Given((1, 8, 9, 9)), Stored((4, 8, 3, 3)), bias], {}
    for length, kernel, stride in product((16, 70), (1, 3, 65), (1, 2, 3, 4)):
        yield _ask_conv((1, 8, length), (4, 8, kernel), strides=[stride])
    yield _ask_conv((1, 2, 5, 6, 7), (2, 2, 3, 3, 3))
    for pads in ([2, 0, 0, 3], [0, 5, 5, 0], [4, 4, 4, 4], [0, 0, 0, 70]):
        yield _ask_conv((1, 8, 9, 9), (4, 8, 3, 3), pads=pads)
        yield _ask_conv((1, 8, 9, 9), (4, 8, 3, 3), pads=pads, strides=[4, 2])


def _quantizations() -> Iterator[Question]:
    """Yield operators by zero points of int16, axes of scales, and scales that stay."""
    image = Given((1, 8, 9, 9))
    asked: Sequence[tuple[str, Sequence[Operand], dict[str, Any]]] = (
        ("Relu", [image], {}), ("Add", [image, image], {}), ("Concat", [image, image], {"axis": 1}),
        ("MaxPool", [image], {"kernel_shape": [2, 2]}), ("Conv", [image, Stored((4, 8, 3, 3))], {}),
        ("AveragePool", [image], {"kernel_shape": [2, 2]}), ("Mul", [image, image], {}),
        ("Reshape", [image, np.array([8, 81])], {}), ("Transpose", [image], {"perm": [0, 2, 3, 1]}),
        ("MatMul", [Given((3, 8)), Stored((8, 5))], {}), ("GlobalAveragePool", [image], {}),
    )  # fmt: skip
    pairs = ((0, 0), (5, 0), (0, 5), (7, 7))
    for (op, operands, more), points, same in product(asked, pairs, (True, False)):
        yield op, operands, {**more, "dtype": "int16", "points": points, "same": same}
    for dtype, axis, shape in product(("int8", "int16"), (None, 0, 1), ((8, 8, 3, 3), (4, 8, 1, 1))):
        yield "Conv", [image, Stored(shape, axis=axis)], {"dtype": dtype}
        yield "ConvTranspose", [Given((1, shape[0], 5, 5)), Stored(shape, axis=axis)], {"dtype": dtype}
    for turned, axis, dtype in product((0, 1), (None, 0, 1), ("int8", "int16")):
        yield "Gemm", [Given((3, 6)), Stored((6, 6), axis=axis)], {"transB": turned, "dtype": dtype}
    for group, dtype, axis in product((1, 2, 8), ("int8", "int16"), (None, 0)):
        yield (
            "Conv",
            [image, Stored((16, 8 // group, 3, 3), axis=axis)],
            {"group": group, "dtype": dtype},
        )
    for strides, pad, same, batch, counts in product((3, 4, 7), (0, 1), (True, False), (1, 2), (0, 1)):
        more = {"kernel_shape": [4, 3], "strides": [strides] * 2, "pads": [pad] * 4, "same": same}
        operands = [Given((batch, 4, 33, 35))]
        yield "AveragePool", operands, {**more, "count_include_pad": counts, "dtype": "int16"}
        yield "AveragePool", operands, {**more, "count_include_pad": counts}
        for op, dtype in product(("AveragePool", "MaxPool"), ("int8", "int16")):
            yield op, operands, {**more, "ceil_mode": 1, "dtype": dtype}
    scales = np.array([1, 1, 2.25, 2.25], np.float32)
    for place in ("asymmetric", "half_pixel", "align_corners"):
        more = {"mode": "nearest", "coordinate_transformation_mode": place, "nearest_mode": "floor"}
        yield "Resize", [Given((1, 8, 3, 2)), None, scales], more
        yield "Resize", [Given((1, 8, 3, 2)), None, scales], {**more, "mode": "linear"}
        whole = {"mode": "linear", "coordinate_transformation_mode": place, "exclude_outside": 1}
        yield "Resize", [Given((1, 8, 3, 2)), None, np.ceil(scales)], whole


def _depthwise() -> Iterator[Question]:
    for strides, dilation, pad, times in product(_STRIDES, (1, 2), (0, 1), (1, 2)):
        more = {"strides": strides, "dilations": [dilation] * 2, "pads": [pad] * 4}
        yield _ask_conv((1, 6, 35, 37), (6 * times, 1, 3, 3), group=6, **more)
    for kernel in ((64, 1), (65, 1), (1, 64), (1, 65), (64, 64), (64, 65)):
        yield _ask_conv((1, 4, 70, 70), (4, 1, *kernel), group=4)
    for extent in (4096, 65535, 65536):
        yield _ask_conv((1, extent, 2, 2), (extent, 1, 1, 1), group=extent)
        yield _ask_conv((1, 2, 1, extent), (2, 1, 1, 1), group=2)
    for batch, dtype in product((1, 2), ("int8", "int16", "uint8")):
        yield _ask_conv((batch, 4, 9, 9), (4, 1, 3, 3), group=4, dtype=dtype)
        yield (
            "Conv",
            [Given((batch, 4, 9, 9)), Stored((4, 1, 3, 3), axis=0)],
            {
                "group": 4,
                "dtype": dtype,
            },
        )


def _grouped() -> Iterator[Question]:
    for strides, dilation, pad, group in product(_STRIDES[:6], (1, 2), (0, 1), (2, 4)):
        more = {"strides": strides, "dilations": [dilation] * 2, "pads": [pad] * 4}
        yield _ask_conv((1, 8, 17, 18), (8, 8 // group, 3, 3), group=group, **more)
    yield _ask_conv((2, 8, 17, 18), (8, 4, 3, 3), group=2)


def _transposed() -> Iterator[Question]:
    strides = ((1, 1), (2, 2), (3, 3), (1, 2), (2, 1), (4, 4), (2, 3))
    for stride, kernel, pad in product(strides, (1, 2, 3, 4, 5), (0, 1, 2)):
        yield _ask_conv(
            (1, 8, 7, 9), (8, 4, kernel, kernel), "ConvTranspose", strides=stride, pads=[pad] * 4
        )
    for stride, more in product(((1, 1), (2, 2), (1, 2)), ([0, 0], [1, 1])):
        if max(more) >= min(stride):
            continue
        yield _ask_conv((1, 8, 7, 9), (8, 4, 3, 3), "ConvTranspose", strides=stride, output_padding=more)
    for stride, auto in product(strides[:4], ("SAME_UPPER", "SAME_LOWER", "VALID")):
        yield _ask_conv((1, 8, 7, 9), (8, 4, 3, 3), "ConvTranspose", strides=stride, auto_pad=auto)
    for stride, kernel in product(((1, 1), (1, 2), (2, 2)), ((1, 2), (1, 3), (1, 4), (2, 2))):
        yield _ask_conv((1, 8, 1, 20), (8, 4, *kernel), "ConvTranspose", strides=stride)
    for kernel in ((64, 1), (65, 1), (1, 64), (1, 65), (64, 64), (64, 65)):
        yield _ask_conv((1, 2, 5, 5), (2, 2, *kernel), "ConvTranspose")
    for extra in ({"group": 2}, {"dilations": [2, 2]}, {"dtype": "int16"}, {"dtype": "uint8"}):
        yield _ask_conv((1, 8, 7, 9), (8, 4, 3, 3), "ConvTranspose", **extra)
    for batch in (2, 3):
        yield _ask_conv((batch, 8, 7, 9), (8, 4, 3, 3), "ConvTranspose", strides=[2, 2])
    for axis in (None, 1):
        filters = Stored((8, 4, 3, 3), axis=axis)
        yield "ConvTranspose", [Given((1, 8, 7, 9)), filters], {}
    yield "ConvTranspose", [Given((1, 8, 7, 9)), Given((8, 4, 3, 3))], {}
    yield _ask_conv((1, 8, 7), (8, 4, 3), "ConvTranspose")


def _pools() -> Iterator[Question]:
    image = Given((1, 4, 33, 35))
    for op, strides, kernel, pad, same in product(
        ("MaxPool", "AveragePool"), _STRIDES, (2, 3, 9), (0, 1), (True, False)
    ):
        attributes = {"kernel_shape": [kernel] * 2, "strides": strides, "pads": [pad] * 4, "same": same}
        yield op, [image], attributes
    for op, kernel in product(
        ("MaxPool", "AveragePool"),
        ((8, 8), (9, 9), (64, 64), (64, 65), (65, 1), (256, 1), (257, 1), (1, 256), (1, 257),
         (256, 256), (256, 257), (1, 300)),
    ):  # fmt: skip
        for same in (True, False):
            yield op, [Given((1, 2, 300, 300))], {"kernel_shape": kernel, "same": same}
    for op, auto, ceil, strides in product(
        ("MaxPool", "AveragePool"),
        ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"),
        (0, 1),
        ((1, 1), (2, 2), (3, 2)),
    ):
        more = {"auto_pad": auto, "ceil_mode": ceil, "strides": strides}
        yield op, [image], {"kernel_shape": [3, 3], **more, "same": True}
        yield op, [image], {"kernel_shape": [3, 3], **more}
    for counts, pad, same, ceil in product((0, 1), (1, 4), (True, False), (0, 1)):
        attributes = {"kernel_shape": [9, 9] if pad == 4 else [3, 3], "pads": [pad] * 4, "same": same}
        yield "AveragePool", [image], {**attributes, "count_include_pad": counts, "ceil_mode": ceil}
    for op, batch, dtype, same in product(
        ("MaxPool", "AveragePool"), (1, 2), ("int8", "int16", "uint8"), (True, False)
    ):
        attributes = {"kernel_shape": [3, 3], "dtype": dtype, "same": same}
        yield op, [Given((batch, 4, 9, 9))], attributes
    for op in ("MaxPool", "AveragePool"):
        yield op, [Given((1, 4, 33))], {"kernel_shape": [3]}
        yield op, [Given((1, 2, 5, 6, 7))], {"kernel_shape": [3, 3, 3]}
        for extent in (65535, 65536, 65537):
            yield op, [Given((1, 1, 2, extent))], {"kernel_shape": [2, 2], "same": True}
            yield op, [Given((1, extent, 2, 2))], {"kernel_shape": [2, 2], "same": True}
    yield "MaxPool", [image], {"kernel_shape": [2, 2], "dilations": [2, 2]}
    yield "AveragePool", [image], {"kernel_shape": [2, 2], "dilations": [2, 2], "opset": 19}


def _global_pools() -> Iterator[Question]:
    sizes = (
        (1, 1), (7, 7), (64, 64), (64, 65), (65, 64), (65, 65), (256, 256), (256, 257), (257, 256),
        (300, 300), (1, 4096), (1, 4097), (4096, 1), (4097, 1), (1, 65535), (1, 65536), (1, 65537),
        (65536, 1), (65537, 1), (1, 70000),
    )  # fmt: skip
    for op, size, same in product(("GlobalAveragePool", "GlobalMaxPool"), sizes, (True, False)):
        yield op, [Given((1, 3, *size))], {"same": same}
    for op, batch, dtype in product(
        ("GlobalAveragePool", "GlobalMaxPool"), (1, 2, 5), ("int8", "int16", "uint8")
    ):
        yield op, [Given((batch, 8, 9, 9))], {"dtype": dtype}
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        yield op, [Given((1, 8, 9))], {}
        yield op, [Given((2, 8, 9))], {}
        yield op, [Given((1, 8, 9, 4, 5))], {}
        yield op, [Given((1, 65536, 2, 2))], {}
        yield op, [Given((1, 65535, 2, 2))], {}


def _reductions() -> Iterator[Question]:
    shapes: tuple[tuple[int, ...], ...] = (
        (8,), (5, 8), (2, 5, 8), (1, 4, 6, 8), (2, 4, 6, 8), (1, 2, 3, 4, 5), (2, 2, 3, 2, 3, 4)
    )  # fmt: skip
    ops = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
    for op, shape, keeps in product(ops, shapes, (0, 1)):
        rank = len(shape)
        for axes in {(rank - 1,), (0,), tuple(range(rank)), tuple(range(rank))[-2:], (0, rank - 1)}:
            if len(set(axes)) < len(axes) or (not keeps and len(axes) == rank):
                continue
            yield op, [Given(shape), np.array(axes)], {"keepdims": keeps, **_newest(op)}
    for op, extent in product(ops, (4095, 4096, 4097, 65535, 65536, 65537, 70000)):
        yield op, [Given((1, extent)), np.array([1])], _newest(op)
        yield op, [Given((1, 2, extent, 1)), np.array([2])], _newest(op)
        yield op, [Given((1, 2, 1, extent)), np.array([3])], _newest(op)
        yield op, [Given((1, 2, 2, extent)), np.array([2, 3])], _newest(op)
        yield op, [Given((extent, 2)), np.array([1])], _newest(op)
    for op, dtype in product(ops, ("int16", "uint8")):
        yield op, [Given((1, 4, 6, 8)), np.array([2, 3])], {"dtype": dtype, **_newest(op, dtype)}
        yield op, [Given((1, 4, 6, 8)), np.array([1])], {"dtype": dtype, **_newest(op, dtype)}
    yield "ReduceMean", [Given((1, 4, 6, 8))], {"axes": [2, 3], "opset": 13}
    yield "ReduceMax", [Given((1, 4, 6, 8))], {"axes": [-1, -2], "opset": 13}


def _newest(op: str, dtype: str = "int8") -> dict[str, Any]:
    return {"opset": 18} if dtype == "int8" else {}


def _products() -> Iterator[Question]:
    for left, depth, width in product(
        ((1,), (2,), (65,), (2, 3), (1, 197), (2, 3, 4)), (8, 64), (4, 128)
    ):
        yield "MatMul", [Given((*left, depth)), Stored((depth, width))], {}
    for extent in (4096, 4097, 65535, 65536, 65537, 70000):
        yield "MatMul", [Given((2, extent)), Stored((extent, 2))], {}
        yield "MatMul", [Given((2, 4)), Stored((4, extent))], {}
        yield "MatMul", [Given((extent, 4)), Stored((4, 2))], {}
        yield "Gemm", [Given((2, extent)), Stored((extent, 2))], {}
        yield "Gemm", [Given((2, 4)), Stored((4, extent))], {}
        yield "Gemm", [Given((extent, 4)), Stored((4, 2))], {}
        yield "MatMul", [Given((2, 3, extent)), Given((2, extent, 2))], {}
        yield "MatMul", [Given((1, 3, 4)), Given((1, 4, extent))], {}
        yield "MatMul", [Given((extent, 1, 2)), Given((extent, 2, 1))], {}
    pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = (
        ((4, 8), (8, 5)), ((1, 4, 8), (1, 8, 5)), ((3, 4, 8), (3, 8, 5)), ((2, 3, 4, 8), (2, 3, 8, 5)),
        ((2, 3, 4, 8), (1, 3, 8, 5)), ((2, 3, 4, 8), (8, 5)), ((4, 8), (3, 8, 5)), ((8,), (8, 5)),
        ((4, 8), (8,)), ((8,), (8,)), ((2, 2, 3, 4, 8), (2, 2, 3, 8, 5)), ((12, 197, 64), (12, 64, 197)),
        ((2, 1, 4, 8), (1, 3, 8, 5)),
    )  # fmt: skip
    for one, other in pairs:
        for dtype in ("int8", "int16"):
            yield "MatMul", [Given(one), Given(other)], {"dtype": dtype}
        yield "MatMul", [Given(one), Stored(other)], {}
        yield "MatMul", [Stored(one), Given(other)], {}
    for alpha, beta, trans_a, trans_b, biased in product((1.0, 0.5), (1.0, 2.0), (0, 1), (0, 1), (0, 1)):
        shape, weights = ((8, 3) if trans_a else (3, 8)), ((5, 8) if trans_b else (8, 5))
        operands: list[Operand] = [Given(shape), Stored(weights)]
        operands += [Stored((5,), dtype="int32")] * biased
        attributes = {"alpha": alpha, "beta": beta, "transA": trans_a, "transB": trans_b}
        yield "Gemm", operands, attributes
    for weights_, axis in (((8, 5), 1), ((8, 5), 0), ((8, 5), None)):
        for dtype in ("int8", "int16", "uint8"):
            yield "Gemm", [Given((3, 8)), Stored(weights_, axis=axis)], {"dtype": dtype}
            yield "MatMul", [Given((3, 8)), Stored(weights_, axis=axis)], {"dtype": dtype}
    for bias in ((1, 5), (3, 5), (1,), (3, 1), ()):
        yield "Gemm", [Given((3, 8)), Stored((8, 5)), Stored(bias, dtype="int32")], {}
    for operand in (Given((8, 5)), Stored((8, 5), point=2), Stored((8, 5), dtype="uint8", point=128)):
        yield "Gemm", [Given((3, 8)), operand], {}
        yield "MatMul", [Given((3, 8)), operand], {}
    yield "Gemm", [Given((3, 8)), Stored((8, 5)), Given((5,))], {}
    yield "Gemm", [Given((3, 8)), Stored((8, 5)), Stored((5,), dtype="int8")], {}


def _normalizations() -> Iterator[Question]:
    """BatchNormalization of images and others, of two versions of the operator."""
    shapes = ((1, 16, 5, 6), (2, 16, 5, 6), (1, 1, 1, 1), (1, 65536, 1, 1), (1, 65537, 1, 1), (1, 16, 5))
    for shape, dtype, opset in product(shapes, ("int8", "int16", "uint8"), (0, 13)):
        if dtype == "int16" and opset:
            continue  # in which QuantizeLinear has no 16 bits
        drawn = np.random.default_rng(0)
        parameters = list(drawn.uniform(0.1, 2, (4, shape[1])).astype(np.float32))
        more: dict[str, Any] = {"dtype": dtype, **({"opset": opset} if opset else {})}
        yield "BatchNormalization", [Given(shape), *parameters], more
    parameters = [np.ones(8, np.float32)] * 3
    yield "BatchNormalization", [Given((1, 8, 5, 6)), *parameters, Given((8,))], {}
