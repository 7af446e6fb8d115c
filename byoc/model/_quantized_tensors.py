"""Quantized tensors next to DequantizeLinear and QuantizeLinear, and copies of shared ones.

Quantizers write one DequantizeLinear for a tensor that several operators read. Its output does not
depend on the reader, so each reader may have a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from onnx import NodeProto

from byoc.model import inference
from byoc.model._editable_graph import EditableGraph, replace_names
from byoc.model._qdq import is_dequantize, is_qdq_node, is_quantize
from byoc.model._tensor_types import FLOAT_DTYPES
from byoc.model._walk import copy_without, list_node_names, list_tensor_names
from byoc.numerics import merge_groups

if TYPE_CHECKING:
    from byoc.model._graph_index import GraphIndex
    from byoc.model._model_loading import Model
    from byoc.model._tensor_types import TensorType

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
        if is_dequantize(node) and number not in index.constant_nodes
        if (readers := _group_readers(index, number, islands))
    }
    if not shared:
        return model
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
        model, structure=proto, inference=inference.InferenceResult(values, typed, model.inference.notes)
    )


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
