"""Facts of tensors and nodes as plain values, for conditions and check functions."""

from collections.abc import Mapping
from math import isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc.expressions import make_range
from byoc.model._constants import get_constant_value
from byoc.model._graph_index import GraphIndex
from byoc.model._quantized_tensors import (
    TensorQuantization,
    get_input_quantization,
    get_output_quantization,
)
from byoc.model._tensor_types import Dim, TensorType, count_bits
from byoc.model.inference import bound_dim

TENSOR_FACTS = (
    *("given", "name", "constant", "dtype", "shape", "rank", "elements", "bytes", "value", "quantized"),
)
"""The keys of the facts of a tensor."""
_SHORT_FLOAT_DTYPES = ("float16", "bfloat16", "float32")

QUANTIZED_FACTS = ("dtype", "bytes", "scale", "zero_point", "axis")
"""The keys of its facts on the quantized side of the DequantizeLinear or QuantizeLinear next to it."""


def collect_tensor_facts(
    index: GraphIndex,
    tensor: str,
    known: TensorType | None = None,
    *,
    ranged: bool = False,
    with_value: bool = True,
) -> dict[str, Any]:
    """Return the known facts of a tensor.

    Keys: given (bool), name, constant (bool), dtype (`float32`), shape (list, None for a dimension that
    is not fixed), rank, elements, bytes, and value (a flat list) of a constant with at most 1,024
    elements. A tensor that DequantizeLinear makes or only QuantizeLinear reads has `quantized`, a
    mapping with dtype and bytes on the quantized side, scale and zero_point (flat lists of at most 1,024
    elements), and axis, along which several scales lie. Facts that are not known are left out.

    `known` is the type of the tensor, that of the graph unless given. If `ranged`, an extent, elements
    and bytes that are not fixed are a `NumberRange` where the user gave ranges of open dimensions.
    Without `with_value` the value is left out.
    """
    if not tensor:
        return {"given": False}
    facts: dict[str, Any] = {"given": True, "name": tensor, "constant": index.is_constant(tensor)}
    known = known or index.types.get(tensor)
    if known is not None:
        facts["dtype"] = known.dtype
        if known.shape is not None:
            facts |= _collect_shape_facts(known, index.planned.ranges if ranged else {})
    value = get_constant_value(index, tensor) if with_value else None
    if value is not None:
        facts["value"] = list_plain_elements(value)
    outer = get_input_quantization(index, tensor) or get_output_quantization(index, tensor)
    if outer is not None and outer.quantized_type is not None:
        facts["quantized"] = _collect_quantized_facts(index, outer, outer.quantized_type)
    return facts


def _collect_quantized_facts(
    index: GraphIndex, outer: TensorQuantization, kind: TensorType
) -> dict[str, Any]:
    facts: dict[str, Any] = {"dtype": kind.dtype}
    if kind.bytes is not None:
        facts["bytes"] = kind.bytes
    scale = get_constant_value(index, outer.scale)
    if scale is not None:
        facts["scale"] = list_plain_elements(scale)
    if not outer.zero_point:
        facts["zero_point"] = [0]
    elif (point := get_constant_value(index, outer.zero_point)) is not None:
        facts["zero_point"] = list_plain_elements(point)
    known = index.types.get(outer.scale)
    if known is not None and len(known.shape or ()) == 1 and known.elements != 1:
        facts["axis"] = outer.axis
    return facts


def _collect_shape_facts(known: TensorType, ranges: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    bounds = [_bound_extent(dim, ranges) for dim in known.shape or ()]
    facts: dict[str, Any] = {
        "shape": [None if ends is None else make_range(*ends) for ends in bounds],
        "rank": len(bounds),
    }
    ends = [each for each in bounds if each is not None]
    if len(ends) == len(bounds):
        elements = [prod(each[i] for each in ends) for i in (0, 1)]
        facts["elements"] = make_range(*elements)
        facts["bytes"] = make_range(*(-(-n * count_bits(known.dtype) // 8) for n in elements))
    return facts


def _bound_extent(dim: Dim, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int] | None:
    """Return the least and the largest size of an extent, None where it has none."""
    if isinstance(dim, int):
        return dim, dim
    ends = bound_dim(dim, ranges) if ranges else None
    return None if ends is None or ends[1] < 0 else (max(ends[0], 0), ends[1])


def list_plain_elements(value: NDArray[Any]) -> list[Any]:
    """Return the elements as plain values; short floats as the decimals that a person would write.

    That is the value itself if it is whole or has at most 6 digits, else the shortest decimal that
    stands for it in its type: 65504, 5.625 and 0.1 for float16.
    """
    flat = value.reshape(-1)
    if flat.dtype.name not in _SHORT_FLOAT_DTYPES:
        return list(flat.tolist())
    return [_to_decimal(element) for element in flat]


def _to_decimal(element: Any) -> float:
    value = float(element)
    if not isfinite(value) or value.is_integer() or float(f"{value:.6g}") == value:
        return value
    if isinstance(element, (np.float16, np.float32)):
        return float(str(element))
    shorter = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((short for short in shorter if float(type(element)(short)) == value), value)


def collect_attribute_facts(index: GraphIndex, node: NodeProto) -> dict[str, Any]:
    """Return the attributes of a node with defaults, without graphs and tensors."""
    return filter_plain(index.get_attributes(node))


def filter_plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are numbers, texts, or lists of these."""
    return {name: value for name, value in values.items() if _is_plain(value)}


def collect_node_facts(index: GraphIndex, node: NodeProto) -> dict[str, Any]:
    """Return op, domain, opset, name and attr (a mapping) of a node."""
    return {
        "op": node.op_type,
        "domain": node.domain,
        "opset": index.get_opset(node),
        "name": node.name,
        "attr": collect_attribute_facts(index, node),
    }


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, str))
