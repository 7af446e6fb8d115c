"""Calls of the kernels of integers of 8 and 16 bits, and nodes that are one of them alone.

Sums are exact, in 32 bits, or in 64 where their bound is beyond. MatMulInteger and ConvInteger give them
back as they are.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc._dataclasses import dataclass, replace
from byoc.model import is_onnx, is_quantize
from byoc.standalone._integer_graph import format_integer, get_flip, read_scale
from byoc.standalone._kernel_calls import (
    IMAGE_RANKS,
    count_band,
    describe_convolution,
    describe_pool,
    find_batches,
)
from byoc.standalone._program_graph import SCRATCH, Call, Operand, ProgramGraph, format_float

Array = NDArray[Any]
WIDE_KERNELS = frozenset(
    ["kernel_convolve_wide", "kernel_convolve_depthwise_wide", "kernel_multiply_wide"]
)
"""The functions of `source/wide_integers.c`."""
INTEGER_KERNELS = WIDE_KERNELS.union(
    [
        *("kernel_convolve_int", "kernel_convolve_depthwise_int", "kernel_multiply_int"),
        "kernel_add_int",
        *("kernel_scale_int", "kernel_pool_max_int", "kernel_pool_average_int", "kernel_look_up"),
        *("kernel_quantize", "kernel_dequantize"),
    ]
)
"""Those, and the functions of `source/integers.c` and `source/int_windows.c`."""
IN_PLACE = frozenset({"kernel_look_up", "kernel_add_int", "kernel_scale_int"})
"""Kernels that read each element right before they write it."""

TILE_ROWS, _WIDTH, _COLUMNS, _SHALLOW, _DEEP = 6, 16, 64, 256, 1024  # of `source/integers.c`
_MOST_PAIRS = 128  # MOST_TERMS of `source/int_windows.c`
_MOST_SUM = 2**31 - 1  # of 32 bits
_EXACT = "{32, 0, 0, 0, 0, 0}"  # integers that are not rounded
_MOST_TERMS = 2**31 // 2**16  # of such a sum, of products of any two numbers of 8 bits less zero points


def make_integer_call(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call for a single node on integers, None where there is none."""
    maker = _SINGLE.get(node.op_type) if is_onnx(node) else None
    return None if maker is None else maker(graph, node)


@dataclass(frozen=True, eq=False)
class IntegerOperand:
    """An operand of integers, and its scales and zero points, one for all of it or one a channel."""

    tensor: str
    dtype: str
    scales: Array
    zeros: Array

    @property
    def c_type(self) -> str:
        return format_integer(self.dtype)

    @property
    def zero(self) -> int:
        """The zero point among numbers from 0 on."""
        return int(self.zeros.reshape(-1)[0]) + get_flip(self.dtype)

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the largest element less its zero point."""
        limits = np.iinfo(self.dtype)
        return limits.min - int(self.zeros.max()), limits.max - int(self.zeros.min())

    @property
    def reach(self) -> int:
        """The largest magnitude of an element less its zero point."""
        low, high = self.ends
        return max(-low, high)


@dataclass(frozen=True)
class SumWidth:
    """The bound of sums of products, and whether the wide kernels are to compute them."""

    largest: int
    wide: bool

    def holds(self, bias: Array) -> bool:
        """Return whether integers can be added to the sums."""
        found = int(np.max(np.abs(bias.astype(np.int64)), initial=0))
        return self.wide or self.largest + found <= _MOST_SUM


def find_sum_width(
    one: IntegerOperand, other: IntegerOperand, depth: int, stored: Array | None
) -> SumWidth:
    """Return the width of sums of `depth` products.

    `stored` are the elements of `other` where they are known, as `[sums, depth]`. Then the bound is
    exact: the largest sum of a channel's magnitudes times the reach of the other operand.
    """
    largest = depth * one.reach * other.reach
    if largest > _MOST_SUM and stored is not None:
        zeros = other.zeros.reshape(-1, 1)
        sums = np.abs(stored.astype(np.int64) - zeros).sum(axis=1)
        largest = one.reach * int(sums.max(initial=0))
    limits = np.iinfo(np.int16)
    short = all(limits.min <= low and high <= limits.max for low, high in (one.ends, other.ends))
    return SumWidth(largest, largest > _MOST_SUM or not short)


def describe_int_convolution(  # noqa: PLR0913, PLR0917 - what the call is of
    graph: ProgramGraph,
    node: NodeProto,
    given: tuple[IntegerOperand, IntegerOperand],
    rounding: str,
    constants: tuple[Operand, Operand, Operand, Operand],
    result: str,
    wide: bool = False,
) -> Call:
    """Return the call of a convolution; `constants` are weights' zero points, bias, scales, offsets."""
    x, weights = given
    shape = graph.get_shape(weights.tensor)
    depth = prod(shape[1:])
    attributes = graph.index.get_attributes(node)
    conv = describe_convolution(graph, node, "{0, 0, 0}")
    per_channel = int(weights.zeros.size > 1)
    structure = f"{{{conv}, {x.c_type}, {weights.c_type}, {per_channel}, {rounding}}}"
    form = "wide" if wide else "int"
    x_zero: Operand = store_zeros(x.zeros, x.dtype)
    operands = (x.tensor, x_zero, weights.tensor, *constants, result, SCRATCH)
    groups = int(attributes.get("group", 1))
    y = graph.get_shape(node.output[0])
    apart = (attributes.get("dilations") or [1])[-1] > 1
    pairs = prod(shape[2:-1]) * (shape[-1] if apart else (shape[-1] + 1) // 2)
    if shape[1] == 1 and (shape[0] == groups or groups > 1) and pairs <= _MOST_PAIRS:
        scratch = count_band(attributes, shape[2:], y[2:])
        return Call(f"kernel_convolve_depthwise_{form}", operands, "kernel_int_conv", structure, scratch)
    scratch = _count_scratch(depth, wide)
    return Call(f"kernel_convolve_{form}", operands, "kernel_int_conv", structure, scratch)


def _count_scratch(depth: int, wide: bool) -> int:
    """Return the bytes of rows and columns that a product widens to 16 bits, or to 32."""
    columns = _COLUMNS if depth <= _SHALLOW else 2 * _WIDTH if depth <= _DEEP else _WIDTH
    return (TILE_ROWS + columns) * (depth + depth % 2) * (4 if wide else 2)


def store_zeros(zeros: Array, dtype: str) -> Array | None:
    """Return zero points as they are stored, None where all are 0."""
    return zeros.astype(dtype) if zeros.any() else None


def describe_int_product(  # noqa: PLR0913, PLR0917 - what the call is of
    shapes: tuple[tuple[int, ...], ...],
    transposed: bool,
    operands: tuple[Operand, ...],
    types: tuple[str, str, int, int],
    rounding: str,
    constant: Array | None = None,
    wide: bool = False,
) -> Call | None:
    """Return the call of a product; `types` are those of a and b, and whether zero points are several.

    `constant` is the value of b where it is known.
    """
    batches = (
        None
        if transposed and len(shapes[0]) != len(shapes[1])
        else find_batches(*_straighten(shapes, transposed))
    )
    if batches is None:
        return None
    (count, rows, depth, cols), (a_batch, b_batch) = batches
    if rows < TILE_ROWS and count == 1 and not transposed and constant is not None:
        # Few rows are multiplied by columns that lie as rows do.
        transposed, operands = True, (*operands[:2], constant.reshape(depth, cols).T, *operands[3:])
    b_steps = (1, depth) if transposed else (cols, 1)
    values = (count, rows, depth, cols, a_batch, b_batch, *b_steps, *types, rounding)
    structure = f"{{{', '.join(map(str, values))}}}"
    function = "kernel_multiply_wide" if wide else "kernel_multiply_int"
    return Call(function, operands, "kernel_int_product", structure, _count_scratch(depth, wide))


def _straighten(shapes: tuple[tuple[int, ...], ...], transposed: bool) -> tuple[tuple[int, ...], ...]:
    a, b, y = shapes
    return (a, (*b[:-2], b[-1], b[-2]), y) if transposed else (a, b, y)


def _make_largest(graph: ProgramGraph, node: NodeProto) -> Call | None:
    integers = graph.get_dtype(node.input[0]) in ("int8", "uint8") and not any(node.output[1:])
    return describe_int_max(graph, node, node.input[0], node.output[0]) if integers else None


def describe_int_max(graph: ProgramGraph, node: NodeProto, x: str, result: str) -> Call | None:
    """Return the call that takes the largest integers of the windows of a MaxPool."""
    pool = describe_pool(graph, node)
    if pool is None:
        return None
    dtype = graph.get_dtype(x)
    structure = f"{{{pool}, {format_integer(dtype)}, 0, 0.0f, {_EXACT}}}"
    row = graph.get_shape(x)[-1] * np.dtype(dtype).itemsize
    return Call("kernel_pool_max_int", (x, result, SCRATCH), "kernel_int_pool", structure, row)


def _make_quantize(graph: ProgramGraph, node: NodeProto) -> Call | None:
    scale = read_scale(graph.index, node, graph.folder)
    floats = node.input[0] if is_quantize(node) else node.output[0]
    if scale is None or graph.get_dtype(floats) != "float32":
        return None
    function = "kernel_quantize" if is_quantize(node) else "kernel_dequantize"
    count = prod(graph.get_shape(floats))
    parts = (count, scale.shifted_zero, format_integer(scale.dtype), format_float(float(scale.scale)))
    structure = f"{{{', '.join(map(str, parts))}}}"
    return Call(function, (node.input[0], node.output[0]), "kernel_int_steps", structure)


def _read_whole(graph: ProgramGraph, name: str, zero: str) -> IntegerOperand | None:
    """Return an operand of a product that makes whole numbers; its zero points may be computed."""
    dtype = graph.get_dtype(name)
    if dtype not in ("int8", "uint8"):
        return None
    shape = graph.get_shape(zero) if zero else ()
    return IntegerOperand(name, dtype, np.ones(1), np.ones(prod(shape), np.int64))


def _make_whole_product(graph: ProgramGraph, node: NodeProto) -> Call | None:
    names = (*node.input, "", "")[:4]
    a, b = (_read_whole(graph, name, zero) for name, zero in zip(names[:2], names[2:], strict=True))
    if a is None or b is None:
        return None
    shapes = graph.get_shape(names[0]), graph.get_shape(names[1]), graph.get_shape(node.output[0])
    several = [int(each.zeros.size > 1) for each in (a, b)]
    if len(shapes[0]) < 2 or len(shapes[1]) < 2 or not prod(shapes[2]) * shapes[0][-1]:
        return None
    batches = find_batches(*shapes)
    if batches is None or (any(several) and batches[0][0] != 1) or batches[0][2] > _MOST_TERMS:
        return None
    extents = batches[0][1], batches[0][3]
    fits = (each.zeros.size in (1, extent) for each, extent in zip((a, b), extents, strict=True))
    if not all(fits):
        return None
    operands = (
        names[0],
        names[2] or None,
        names[1],
        names[3] or None,
        None,
        None,
        None,
        node.output[0],
        SCRATCH,
    )
    return describe_int_product(
        shapes, False, operands, (a.c_type, b.c_type, several[0], several[1]), _EXACT
    )


def _make_whole_convolution(graph: ProgramGraph, node: NodeProto) -> Call | None:
    names = (*node.input, "", "")[:4]
    x, w = (_read_whole(graph, name, zero) for name, zero in zip(names[:2], names[2:], strict=True))
    if (
        x is None
        or w is None
        or len(graph.get_shape(names[0])) not in IMAGE_RANKS
        or not prod(graph.get_shape(node.output[0]))
    ):
        return None
    shape = graph.get_shape(names[1])
    if w.zeros.size not in (1, shape[0]) or x.zeros.size != 1 or prod(shape[1:]) > _MOST_TERMS:
        return None
    call = describe_int_convolution(
        graph, node, (x, w), _EXACT, (names[3] or None, None, None, None), node.output[0]
    )
    return replace(call, operands=(call.operands[0], names[2] or None, *call.operands[2:]))


_SINGLE: Mapping[str, Callable[[ProgramGraph, NodeProto], Call | None]] = {
    "QuantizeLinear": _make_quantize,
    "DequantizeLinear": _make_quantize,
    "MaxPool": _make_largest,
    "MatMulInteger": _make_whole_product,
    "ConvInteger": _make_whole_convolution,
}
