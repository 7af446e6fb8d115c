"""Types of elements that C99 lacks: floats of 4 to 8 bits, bfloat16, and integers of 2 and 4 bits.

A program stores each of their elements in an integer of one or two bytes. What only moves elements moves
those integers. Conversions are kernels (`source/conversions.c`), by the rules of ONNX's Cast,
QuantizeLinear and DequantizeLinear. What computes in bfloat16 computes in float32, and each result is
rounded (`_written_operators`).
"""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc.model import DTYPE_NUMBERS, count_bits, get_stated_attributes, is_onnx
from byoc.standalone._program_graph import Call, ProgramGraph, UnsupportedNodeError
from byoc.standalone._written_operators import CONVERSIONS, MOVERS

_STORED_AS: Mapping[str, str] = {
    **dict.fromkeys(("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"), "uint8"),
    **dict.fromkeys(("float8e8m0", "float4e2m1", "float6e2m3", "float6e3m2"), "uint8"),
    **dict.fromkeys(("int4", "uint4", "int2", "uint2"), "uint8"),
    "bfloat16": "uint16",
}
"""Types that C99 lacks, and those of the integers that hold their bits."""

_LIMITS: Mapping[str, tuple[int, int]] = {
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (2, 4, 8, 16)},
    **{f"uint{bits}": (0, 2**bits - 1) for bits in (2, 4, 8, 16)},
}

_SATURATED = frozenset({"float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0"})
"""Types that the attribute `saturate` is about (ONNX, Cast)."""

_ODD_FORMS = ("block_size", "output_dtype", "precision")
"""Attributes of QuantizeLinear and DequantizeLinear that no other function knows."""

CONVERSION_FILE = "conversions.c"
CONVERSION_KERNELS = frozenset({"kernel_convert", "kernel_quantize_by", "kernel_dequantize_by"})
"""The functions of `CONVERSION_FILE`."""


def find_stored_dtype(dtype: str) -> str:
    """Return the type of the integers that hold elements of a type, itself where C99 has it."""
    return _STORED_AS.get(dtype, dtype)


def view_as_stored(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return an array of a type as the integers that hold its elements; bits above them are 0."""
    if dtype not in _STORED_AS:
        return array
    bits: NDArray[Any] = np.asarray(array, order="C").view(_STORED_AS[dtype])
    known: NDArray[Any] = np.bitwise_and(bits, np.array(2 ** count_bits(dtype) - 1, bits.dtype))
    return known


def require_stored(graph: ProgramGraph, node: NodeProto) -> None:
    """Raise UnsupportedNodeError for a node that computes with a type that C99 lacks."""
    reduces = graph.index.get_attributes(node).get("reduction", "none") not in ("none", b"none")
    if is_onnx(node) and node.op_type in MOVERS and not reduces:
        return
    for name in (*node.input, *node.output):
        if name and graph.get_dtype(name) in _STORED_AS:
            raise UnsupportedNodeError(f"no function computes with {graph.get_dtype(name)}")


def make_conversion_call(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call that converts elements, None where other functions do it.

    Those are for types that C99 has, and for QuantizeLinear and DequantizeLinear of 32-bit floats by
    scales along one axis.
    """
    if not is_onnx(node) or node.op_type not in CONVERSIONS:
        return None
    dtypes = {graph.get_dtype(name) for name in (*node.input, node.output[0]) if name}
    if node.op_type in ("Cast", "CastLike"):
        return _make_cast(graph, node) if dtypes & _STORED_AS.keys() else None
    stated = get_stated_attributes(node)
    is_plain = not any(stated.get(name) for name in _ODD_FORMS) and "float16" not in dtypes
    return None if is_plain and not dtypes & _STORED_AS.keys() else _make_scaling(graph, node)


def _make_cast(graph: ProgramGraph, node: NodeProto) -> Call | None:
    given, made = node.input[0], node.output[0]
    if any(graph.get_dtype(name).startswith("complex") for name in (given, made)):
        return None
    rounding = graph.index.get_attributes(node).get("round_mode", "up")
    rules = _describe_rules(graph, node, rounding.decode() if isinstance(rounding, bytes) else rounding)
    structure = f"{{{prod(graph.get_shape(made))}, {DTYPE_NUMBERS[graph.get_dtype(given)]}, {rules}}}"
    return Call("kernel_convert", (given, made), "kernel_conversion", structure)


def _make_scaling(graph: ProgramGraph, node: NodeProto) -> Call | None:
    """Return the call for a QuantizeLinear or a DequantizeLinear: x, scale, zero points."""
    x, scale, zeros = (*node.input, "")[:3]
    y = node.output[0]
    attributes = graph.index.get_attributes(node)
    shape, extents = graph.get_shape(x), graph.get_shape(scale)
    axis = int(attributes.get("axis", 1))
    axis += len(shape) if axis < 0 else 0
    outer, extent, inner, block = prod(shape), 1, 1, 1
    steps = (0, 0, 0)
    if prod(extents) > 1 or len(extents) > 1:
        outer, extent, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
        steps = (0, 1, 0)
        if attributes.get("block_size", 0):
            block = int(attributes["block_size"])
            steps = (extents[axis] * inner, inner, 1)
    precision = attributes.get("precision", 0) or _find_precision(graph, x, scale)
    is_quantize = node.op_type == "QuantizeLinear"
    if graph.get_dtype(y if is_quantize else x) in _SATURATED:
        zeros = ""  # it is 0 by definition, and minus zero plus it would lose its sign
    low, high = _LIMITS.get(graph.get_dtype(y), (0, 0)) if is_quantize else (0, 0)
    numbers = (outer, extent, inner, block, *steps)
    kinds = (*(DTYPE_NUMBERS[graph.get_dtype(name)] for name in (x, scale)), precision, low, high)
    structure = f"{{{', '.join(map(str, (*numbers, *kinds)))}, {_describe_rules(graph, node, 'up')}}}"
    function = "kernel_quantize_by" if is_quantize else "kernel_dequantize_by"
    return Call(function, (x, scale, zeros or None, y), "kernel_scales", structure)


def _find_precision(graph: ProgramGraph, x: str, scale: str) -> int:
    """Return the type of a quotient without a stated one: the wider of both, as the reference has it."""
    dtypes = {graph.get_dtype(name) for name in (x, scale)}
    if dtypes in ({"float16"}, {"bfloat16"}):
        return DTYPE_NUMBERS[dtypes.pop()]
    return DTYPE_NUMBERS["float64" if "int32" in dtypes else "float32"]


def _describe_rules(graph: ProgramGraph, node: NodeProto, rounding: str) -> str:
    """Return the initializer of a `kernel_rules`."""
    dtype = graph.get_dtype(node.output[0])
    saturates = int(dtype in _SATURATED and bool(graph.index.get_attributes(node).get("saturate", 1)))
    return f"{{{DTYPE_NUMBERS[dtype]}, {saturates}, KERNEL_{rounding.upper()}}}"
