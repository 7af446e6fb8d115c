"""Facts of tensors and nodes as plain values, and quantized tensors next to their conversions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import count
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc._dataclasses import dataclass, replace
from byoc.model._constants import get_constant_value
from byoc.model._editable_graph import EditableGraph, replace_names
from byoc.model._graph_index import GraphIndex
from byoc.model._inference._extents import bound_dim
from byoc.model._node_kinds import is_dequantize, is_qdq_node, is_quantize
from byoc.model._tensor_data import FLOAT_DTYPES, Dim, TensorType, count_bits
from byoc.model._walk import copy_without, list_node_names, list_tensor_names
from byoc.numerics import merge_groups
from byoc.support.expressions import make_range

if TYPE_CHECKING:
    from byoc.model._model_loading import Model


# Quantized tensors next to DequantizeLinear and QuantizeLinear, and copies of shared ones.
#
# Quantizers write one DequantizeLinear for a tensor that several operators read. Its output does
# not depend on the reader, so each reader may have a copy.

VIEW_OPERATORS = frozenset(
    [
        *("MaxPool", "GlobalMaxPool", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
        *("Identity", "Dropout", "Slice", "Split", "DepthToSpace", "SpaceToDepth", "Expand", "Tile"),
        *("Gather", "Concat"),
    ]
)
"""Operators whose outputs hold values of their inputs: one scale is exact for both."""

CLAMP_OPERATORS = frozenset({"Relu", "Clip"})
"""Operators that only clamp: behind another operator of one unit they have the scale of their input."""


def may_be_float(index: GraphIndex, name: str) -> bool:
    """Return whether a tensor may be quantized: its dtype is a float or unknown."""
    return index.get_dtype(name) in {None, *FLOAT_DTYPES}


def unshare_dequantize(model: Model) -> Model:
    """Return a model in which no two QDQ groups share the DequantizeLinear of an activation.

    Readers that are connected by floating-point tensors, as the two of x * sigmoid(x), can only be in
    one group. They keep sharing a node, so that a pattern that reads it twice still matches.

    The first reader keeps the original, unless its output is a graph output or captured by a body;
    copies are named `NAME_for_K`. Constant nodes are not copied, since each goes wherever its readers
    are; bodies are not changed. A model without shared nodes is returned as it is.
    """
    index = model.index
    if not any(map(is_dequantize, index.nodes)):
        return model
    islands = _find_islands(index)
    shared = {
        number: readers
        for number, node in enumerate(index.nodes)
        if is_dequantize(node) and number not in index.constant_nodes and _has_stored_scale(index, node)
        if (readers := _group_readers(index, number, islands))
    }
    if not shared:
        return model
    from byoc.model._inference._shape_inference import InferenceResult  # noqa: PLC0415 - much to load

    graph = EditableGraph.of_index(index)
    used = list_tensor_names(index.graph) | list_node_names(index.graph)
    renamed: dict[int, dict[str, str]] = {}
    typed = deepcopy(model.inference.typed_graph)
    known = {value.name: value.type for value in typed.value_info} if typed is not None else {}
    for number, readers in shared.items():
        output = index.nodes[number].output[0]
        for together in readers:
            copy = _copy_renamed(index.nodes[number], used)
            graph.insert_after(number, copy)
            for reader in together:
                renamed.setdefault(reader, {})[output] = copy.output[0]
            if output in model.inference.type_protos:
                graph.types[copy.output[0]] = model.inference.type_protos[output]
            if typed is not None and output in known:
                typed.value_info.add(name=copy.output[0], type=known[output])
    for number, names in renamed.items():
        changed = deepcopy(index.nodes[number])
        replace_names(changed.input, names)
        graph.replace(number, changed)
    proto = copy_without(model.structure)
    graph.write_to(proto.graph)
    if typed is not None:
        graph.write_to(typed)
    values = {**model.inference.type_protos, **graph.types}
    return replace(
        model, structure=proto, inference=InferenceResult(values, typed, model.inference.notes)
    )


def _has_stored_scale(index: GraphIndex, node: NodeProto) -> bool:
    """Return whether a DequantizeLinear can be in a QDQ group, whose scales are known beforehand."""
    return index.is_constant(node.input[1])


def _group_readers(index: GraphIndex, number: int, islands: Sequence[int]) -> Sequence[Sequence[int]]:
    """Return the groups of nodes that need a copy of a DequantizeLinear, one for each group."""
    output = index.nodes[number].output[0]
    users = index.consumers.get(output, ())
    direct = [user for user in users if output in index.nodes[user].input and user not in index.bodies]
    kept = output in index.outputs or len(direct) < len(users)
    together: dict[int, list[int]] = {}
    for user in direct:
        together.setdefault(islands[user], []).append(user)
    found = list(together.values())
    return found if kept else found[1:]


def _find_islands(index: GraphIndex) -> Sequence[int]:
    """Return for each node the number of its island: nodes that can only be in one QDQ group.

    They are connected by floating-point tensors without a DequantizeLinear or QuantizeLinear between
    them.
    """
    together = (
        (number, maker)
        for number, node in enumerate(index.nodes)
        for name in index.reads[number]
        if (maker := index.producers.get(name)) is not None
        and maker not in index.constant_nodes
        and may_be_float(index, name)
        and not any(map(is_qdq_node, (node, index.nodes[maker])))
    )
    return merge_groups(len(index.nodes), together)


def _make_copy_name(name: str, used: set[str]) -> str:
    """Return `name_for_1`, or with the first number that is not in use, and add it to `used`."""
    result = next(each for n in count(1) if (each := f"{name}_for_{n}") not in used)
    used.add(result)
    return result


def _copy_renamed(node: NodeProto, used: set[str]) -> NodeProto:
    result = deepcopy(node)
    result.output[0] = _make_copy_name(node.output[0], used)
    if node.name:
        result.name = _make_copy_name(node.name, used)
    return result


@dataclass(frozen=True, slots=True)
class TensorQuantization:
    """The quantization of a tensor: its quantized type, and the names of scale and zero point.

    `axis` is the dimension along which scales lie, counted from 0 where the rank is known. It says
    nothing where there is one scale.
    """

    quantized_type: TensorType | None
    scale: str
    zero_point: str
    axis: int


def get_input_quantization(index: GraphIndex, tensor: str) -> TensorQuantization | None:
    """Return the quantization of an input, None unless a DequantizeLinear makes it."""
    number = index.producers.get(tensor)
    node = None if number is None else index.nodes[number]
    if node is None or not is_dequantize(node):
        return None
    return _read_quantization(index, node, node.input[0])


def get_output_quantization(index: GraphIndex, tensor: str) -> TensorQuantization | None:
    """Return the quantization of an output, None unless only QuantizeLinear nodes read it."""
    readers = [index.nodes[number] for number in index.consumers.get(tensor, ())]
    if not readers or tensor in index.outputs:
        return None
    if not all(is_quantize(node) and node.input[0] == tensor for node in readers):
        return None
    return _read_quantization(index, readers[0], readers[0].output[0])


def _read_quantization(index: GraphIndex, node: NodeProto, tensor: str) -> TensorQuantization:
    scale, zero_point = (*node.input[1:], "", "")[:2]
    axis, rank = int(index.get_attributes(node).get("axis", 1)), index.get_rank(tensor)
    if axis < 0 and rank is not None:
        axis += rank
    return TensorQuantization(index.types.get(tensor), scale, zero_point, axis)


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
