"""The form of 3-D operators in two dimensions, on images whose rows are the frames of a video.

`[N, C, D, H, W]` becomes `[N, C, D, H * W]`, another shape for the same bytes. It is for windows along
the depth alone, convolutions of single elements among them, and for what takes each channel as a whole.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from onnx import NodeProto, TensorProto, TypeProto, helper

from byoc.model import (
    GraphIndex,
    build_node,
    get_constant_value,
    get_stated_attributes,
    is_dequantize,
    is_qdq_node,
    set_attribute,
)
from byoc.passes._planar_forms import (
    ALONG_AXIS,
    BROADCAST,
    IMAGE_OPERATORS,
    SOFTMAX_OPSET,
    UNARY,
    ImageForm,
    is_blocked,
    is_plain_batchnorm,
)
from byoc.passes._simplify import GraphEdits
from byoc.passes._twin_forms import TwinnedTensors
from byoc.passes._volume_windows import RANK, WEIGHTS, Window, keep_depth, restate, to_tensor

_LEAST_OPSET = 7  # from which operands are broadcast as now
_WINDOWED = frozenset({*WEIGHTS, "AveragePool", "LpPool", "MaxPool"})
_LAST = 2  # how many axes become one


@dataclass(frozen=True)
class FlatForm(ImageForm):
    """Compute 3-D operators with windows along the depth, pools of all and normalizations as 2-D ones.

    It runs where rules take the one and not the other. Rows and columns become one axis.
    """

    name: ClassVar[str] = "flat-form"
    suffix: ClassVar[str] = "flat"
    moves_data: ClassVar[bool] = True

    def describe(self, index: GraphIndex, number: int) -> TwinnedTensors | None:
        """Return the volumes of a node and what is added to them or multiplied with them."""
        kind, node = index.node_kinds[number], index.nodes[number]
        if not kind.is_onnx or number in index.constant_nodes or number in index.bodies:
            return None
        reads, makes = index.node_inputs[number], index.node_outputs[number]
        made = [i for i, name in enumerate(makes) if name]
        find = _FINDERS.get(kind.op_type) if index.get_opset(node) >= _LEAST_OPSET else None
        given = () if find is None else find(index, number)
        volumes = [
            *(reads[i] for i in given if kind.op_type not in BROADCAST),
            *(makes[i] for i in made),
        ]
        if not given or not made or not all(_is_flat(index, name) for name in volumes):
            return None
        return TwinnedTensors(frozenset(given), frozenset(made))

    def convert(
        self, edits: GraphEdits, number: int, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Sequence[NodeProto]:
        """Return the node on images whose rows are frames."""
        node = deepcopy(edits.index.nodes[number])
        node.input[:], node.output[:] = inputs, outputs
        op, stated = node.op_type, get_stated_attributes(node)
        if op in _WINDOWED:
            keep_depth(node)
        elif is_qdq_node(node) or op in ALONG_AXIS:
            axis = stated.get("axis", None if is_qdq_node(node) else ALONG_AXIS[op])
            if axis is not None:
                set_attribute(node, helper.make_attribute("axis", axis % RANK))
        return [node]

    def change_type(self, kind: TypeProto) -> TypeProto:
        """Return the type with one axis in place of the last two."""
        made = TypeProto()
        made.CopyFrom(kind)
        dims = list(kind.tensor_type.shape.dim)
        del made.tensor_type.shape.dim[:]
        merged = type(dims[0])()
        if all(each.HasField("dim_value") for each in dims[-_LAST:]):
            merged.dim_value = dims[-2].dim_value * dims[-1].dim_value
        made.tensor_type.shape.dim.extend([*dims[:-_LAST], merged])
        return made

    def change_constant(self, edits: GraphEdits, name: str) -> TensorProto | None:
        """Return a stored tensor with one axis in place of its last two, wherever its data is."""
        tensor = edits.index.stored_tensors.get(name)
        if tensor is not None:
            *dims, h, w = tensor.dims
            return restate(tensor, [*dims, h * w])
        value = get_constant_value(edits.index, name)
        if value is None or value.ndim < _LAST:
            return None
        return to_tensor(value.reshape(*value.shape[:-2], value.shape[-2] * value.shape[-1]))

    def enter(self, edits: GraphEdits, name: str, twin: str) -> Sequence[NodeProto]:
        """Return a Reshape, or the DequantizeLinear of weights that are stored with fewer axes."""
        index = edits.index
        maker = index.producers.get(name)
        if maker is not None and maker in index.constant_nodes and is_dequantize(index.nodes[maker]):
            node = deepcopy(index.nodes[maker])
            changed = self.change_constant(edits, node.input[0])
            if changed is not None and not is_blocked(node):
                node.input[0] = edits.store(changed, f"{node.input[0]}_{self.suffix}")
                node.output[0] = twin
                node.name = edits.names.new_node(twin)
                return [node]
        rank = index.get_rank(name) or RANK
        shape = np.array([*[0] * (rank - _LAST), -1], np.int64)
        stored = edits.store(shape, f"{name}_shape")
        return [build_node("Reshape", [name, stored], [twin], edits.names.new_node(twin))]

    def leave(self, edits: GraphEdits, twin: str, name: str) -> Sequence[NodeProto]:
        """Return a Reshape."""
        known = edits.index.get_shape(name) or ()
        extents = [each if isinstance(each, int) else 0 for each in known[:-_LAST]]
        extents += [each if isinstance(each, int) else -1 for each in known[-_LAST:]]
        shape = np.array(extents, np.int64)
        stored = edits.store(shape, f"{name}_shape")
        node = edits.names.new_node(f"{name}_reshape")
        return [build_node("Reshape", [twin, stored], [name], node)]


def _is_flat(index: GraphIndex, name: str) -> bool:
    """Return whether a tensor has the form: a volume of which rows or columns have a known extent."""
    shape = index.get_shape(name)
    if shape is None or len(shape) != RANK or 0 in shape:
        return False
    return any(isinstance(each, int) for each in shape[-_LAST:])


def _find_images(index: GraphIndex, number: int) -> Collection[int]:
    """Return the positions of what an operator of images reads; none of one that trains."""
    op = index.node_kinds[number].op_type
    trains = op == "BatchNormalization" and not is_plain_batchnorm(index, index.nodes[number])
    return () if trains else IMAGE_OPERATORS[op][0]


def _find_element(index: GraphIndex, number: int) -> Collection[int]:
    """Return the position of what an elementwise node reads; none where rows have several scales."""
    node = index.nodes[number]
    if is_qdq_node(node) and index.get_rank(index.node_inputs[number][1]) != 0:
        axis = get_stated_attributes(node).get("axis", 1)
        return (0,) if _is_before(axis) and not is_blocked(node) else ()
    return (0,)


def _find_along(index: GraphIndex, number: int) -> Collection[int]:
    """Return the positions of what a node along an axis reads; none where that is of rows or columns."""
    op = index.node_kinds[number].op_type
    old = "Softmax" in op and index.get_opset(index.nodes[number]) < SOFTMAX_OPSET
    axis = get_stated_attributes(index.nodes[number]).get("axis", ALONG_AXIS[op])
    if old or not _is_before(axis):
        return ()
    return range(len(index.node_inputs[number])) if op == "Concat" else (0,)


def _is_before(axis: int) -> bool:
    return axis % RANK < RANK - _LAST


def _find_windowed(index: GraphIndex, number: int) -> Collection[int]:
    """Return the positions of image and weights of a node whose window is along the depth alone."""
    node, op = index.nodes[number], index.node_kinds[number].op_type
    window = Window.of_node(index, number)
    if window is None or not window.is_along_depth:
        return ()
    if op == "MaxPool" and any(node.output[1:]) and get_stated_attributes(node).get("storage_order", 0):
        return ()
    if op not in WEIGHTS:
        return (0,)
    weights = index.node_inputs[number][WEIGHTS[op]]
    maker = index.producers.get(weights)
    if maker is not None and is_dequantize(index.nodes[maker]):
        scaled = index.nodes[maker]
        axis: Any = get_stated_attributes(scaled).get("axis", 1)
        if is_blocked(scaled) or not _is_before(axis):
            return ()
    return (0, WEIGHTS[op]) if _is_flat(index, weights) else ()


def _find_operands(index: GraphIndex, number: int) -> Collection[int]:
    """Return the operands with rows and columns; none where one cannot be broadcast."""
    made = index.get_shape(index.node_outputs[number][0]) or ()
    found = []
    for position, name in enumerate(index.node_inputs[number]):
        shape = index.get_shape(name)
        if shape is None or len(shape) > RANK:
            return ()
        if all(each == 1 for each in shape) and len(shape) < _LAST:
            continue
        extents = [each if isinstance(each, int) else None for each in shape[-_LAST:]]
        if len(shape) < _LAST or None in extents:
            return ()
        if tuple(shape[-_LAST:]) != tuple(made[-_LAST:]) and extents != [1, 1]:
            return ()
        found.append(position)
    return found


_FINDERS: Mapping[str, Callable[[GraphIndex, int], Collection[int]]] = {
    **dict.fromkeys(IMAGE_OPERATORS, _find_images),
    **dict.fromkeys(_WINDOWED, _find_windowed),
    **dict.fromkeys(UNARY, _find_element),
    **dict.fromkeys(BROADCAST, _find_operands),
    **dict.fromkeys(ALONG_AXIS, _find_along),
}
"""For operators that have the form: which inputs are volumes, none where a node has none."""
