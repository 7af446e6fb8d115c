"""The form of 3-D convolutions and pools in two dimensions: on the frames of a video, one by one.

`[N, C, D, H, W]` becomes `[D * N, C, H, W]`: the frames are a batch, all first frames before all second
ones, so that frames are taken by their depth along the first axis. A window of depth 1 is a 2-D window
on each frame. A convolution with a deeper kernel reads the frames under its kernel as channels of one:
each sum has the same terms as before, and integers the same results. A depthwise one in floating point
is a sum of depthwise ones. A deeper pool is one on each frame, and one along the depth of its results.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from typing import ClassVar, Self

import numpy as np
from onnx import NodeProto, TensorProto, helper

from byoc._dataclasses import dataclass, field
from byoc.model import (
    GraphIndex,
    find_constant_value,
    get_constant_value,
    get_stated_attributes,
    is_dequantize,
    is_qdq_node,
    set_attribute,
)
from byoc.passes._flat_forms import (
    DEPTH,
    GLOBAL_POOLS,
    POOLS,
    RANK,
    WEIGHTS,
    ZERO_POINTS,
    VolumeWindow,
    multiply,
    read_dims,
    to_tensor,
)
from byoc.passes._frame_nodes import Convolution, FrameNodes, convert_pool
from byoc.passes._planar_forms import (
    ALONG_AXIS,
    BROADCAST,
    SOFTMAX_OPSET,
    UNARY,
    ImageForm,
    is_blocked,
    is_plain_batchnorm,
)
from byoc.passes._simplify import GraphEdits
from byoc.passes._twin_forms import Dimension, TwinnedTensors, restate

_SLICE_OPSET = 10  # from which the numbers of Slice are inputs
_LEAST_OPSET = 7  # from which operands are broadcast as now


@dataclass(frozen=True)
class FrameForm(ImageForm):
    """Compute 3-D convolutions and pools as 2-D ones on frames.

    It runs where rules take the one and not the other. Frames are cut out by Slice, or by Split where
    `split` says that targets have that alone.
    """

    name: ClassVar[str] = "frame-form"
    suffix: ClassVar[str] = "frames"
    moves_data: ClassVar[bool] = True
    image_operators: ClassVar[Collection[str]] = WEIGHTS.keys() | POOLS

    split: bool = field(default=False, metadata={"help": "Cut frames out by Split, not by Slice."})

    def for_operators(self, operators: Collection[str]) -> Self:
        """Return the form with the operator that targets have to cut frames out."""
        return type(self)("Split" in operators and not {"Slice", "*"} & {*operators})

    def is_source(self, index: GraphIndex, number: int) -> bool:
        """Return whether a node has a window over rows or columns: others have a simpler form."""
        if index.node_kinds[number].op_type not in self.image_operators:
            return False
        window = VolumeWindow.of_node(index, number)
        return window is not None and not window.is_along_depth

    def describe(self, index: GraphIndex, number: int) -> TwinnedTensors | None:
        """Return the volumes of a node and what is added to them or multiplied with them."""
        kind = index.node_kinds[number]
        if not kind.is_onnx or number in index.constant_nodes or number in index.bodies:
            return None
        if index.get_opset(index.nodes[number]) < _LEAST_OPSET or not index.node_inputs[number]:
            return None
        reads, makes = index.node_inputs[number], index.node_outputs[number]
        made = [i for i, name in enumerate(makes) if name]
        if not made or any(read_dims(index, makes[i]) is None for i in made):
            return None
        find = _FINDERS.get(kind.op_type)
        given = () if find is None else find(index, number)
        volumes = () if kind.op_type in BROADCAST else given
        if not given or any(read_dims(index, reads[i]) is None for i in volumes):
            return None
        return TwinnedTensors(frozenset(given), frozenset(made))

    def convert(
        self, edits: GraphEdits, number: int, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Sequence[NodeProto]:
        """Return the node on frames, behind nodes that give it the frames under its kernel."""
        node = deepcopy(edits.index.nodes[number])
        node.input[:], node.output[:] = inputs, outputs
        op, stated = node.op_type, get_stated_attributes(node)
        if op in WEIGHTS:
            return Convolution(edits, number, node, self.split).convert()
        if op in POOLS or op in GLOBAL_POOLS:
            return convert_pool(edits, number, node)
        if is_qdq_node(node) or op in ALONG_AXIS:
            axis = stated.get("axis", None if is_qdq_node(node) else ALONG_AXIS[op])
            if axis is not None:
                set_attribute(node, helper.make_attribute("axis", _move_axis(axis)))
        return [node]

    def change_dims(self, dims: Sequence[Dimension]) -> Sequence[Dimension]:
        """Return the extents of the frames of a volume, or of an operand that has none of its own."""
        if len(dims) != RANK:
            return [*dims[:-3], *dims[-2:]]
        merged = Dimension()
        if all(dims[i].HasField("dim_value") for i in (0, DEPTH)):
            merged.dim_value = dims[0].dim_value * dims[DEPTH].dim_value
        elif dims[DEPTH].dim_value == 1:
            merged = dims[0]
        return [merged, dims[1], *dims[3:]]

    def change_constant(self, edits: GraphEdits, name: str) -> TensorProto | None:
        """Return a stored tensor as frames: with other extents, or in another order."""
        tensor = edits.index.stored_tensors.get(name)
        if tensor is None:
            value = get_constant_value(edits.index, name)
        elif len(tensor.dims) < RANK or tensor.dims[DEPTH] == 1:
            kept = tensor.dims[: len(tensor.dims) - 3], tensor.dims[len(tensor.dims) - 2 :]
            return restate(tensor, [extent for part in kept for extent in part])
        else:
            value = find_constant_value(edits.index, name, edits.folder)
        if value is None or value.ndim < 3:
            return None
        if value.ndim < RANK:
            return to_tensor(value.reshape(*value.shape[:-3], *value.shape[-2:]))
        n, c, d, h, w = value.shape
        return to_tensor(value.transpose(2, 0, 1, 3, 4).reshape(d * n, c, h, w))

    def enter(self, edits: GraphEdits, name: str, twin: str) -> Sequence[NodeProto]:
        """Return the nodes that make a batch of frames of a volume."""
        dims = read_dims(edits.index, name)
        assert dims is not None
        nodes = FrameNodes(edits, name)
        nodes.order_frames(name, dims, twin)
        return nodes.made

    def leave(self, edits: GraphEdits, twin: str, name: str) -> Sequence[NodeProto]:
        """Return the nodes that make a volume of its frames."""
        dims = read_dims(edits.index, name)
        assert dims is not None
        nodes = FrameNodes(edits, name)
        n, c, d, h, w = dims
        if d == 1:
            nodes.reshape(twin, dims, name)
            return nodes.made
        given = twin if n == 1 else nodes.reshape(twin, (d, multiply(n, c), h, w))
        turned = nodes.turn(given, (multiply(n, c), d, h, w))
        nodes.reshape(turned, dims, name)
        return nodes.made


# What is twinned.


def _find_first(index: GraphIndex, number: int) -> Collection[int]:
    """Return the position of the first input, which is a volume."""
    return (0,)


def _find_normalized(index: GraphIndex, number: int) -> Collection[int]:
    """Return the position of what a BatchNormalization reads, unless it trains."""
    return (0,) if is_plain_batchnorm(index, index.nodes[number]) else ()


def _find_element(index: GraphIndex, number: int) -> Collection[int]:
    """Return the position of what an elementwise node reads; none where frames have several scales."""
    node = index.nodes[number]
    if is_qdq_node(node) and index.get_rank(index.node_inputs[number][1]) != 0:
        axis = get_stated_attributes(node).get("axis", 1) % RANK
        return () if is_blocked(node) or axis in (0, DEPTH) else (0,)
    return (0,)


def _find_along(index: GraphIndex, number: int) -> Collection[int]:
    """Return the positions of what a node along an axis reads; none where that runs over frames."""
    op = index.node_kinds[number].op_type
    axis: int = get_stated_attributes(index.nodes[number]).get("axis", ALONG_AXIS[op]) % RANK
    old = "Softmax" in op and index.get_opset(index.nodes[number]) < SOFTMAX_OPSET
    if old or axis == 0 or (axis == DEPTH and op != "Concat"):
        return ()
    return range(len(index.node_inputs[number])) if op == "Concat" else (0,)


def _move_axis(axis: int) -> int | None:
    """Return an axis of a volume in its frames; None of the batch, where it has none."""
    return {1: 1, 2: 0, 3: 2, 4: 3}.get(axis % RANK)


def _find_operands(index: GraphIndex, number: int) -> Collection[int]:
    """Return the operands with a depth; none where one cannot be broadcast over frames."""
    made = read_dims(index, index.node_outputs[number][0])
    assert made is not None
    found = []
    for position, name in enumerate(index.node_inputs[number]):
        shape = index.get_shape(name)
        if shape is None or len(shape) > RANK:
            return ()
        if len(shape) <= 2:  # rows and columns
            continue
        dims = read_dims(index, name)
        known = index.is_constant(name) and shape[-3] == 1 and len(shape) < RANK
        own = dims is not None and (dims[::2][:2] in (made[::2][:2], (1, 1)) or made[DEPTH] == 1)
        if not (known or own):
            return ()
        found.append(position)
    return found


def _find_pooled(index: GraphIndex, number: int) -> Collection[int]:
    """Return the position of what a pool reads; none for one along the depth alone, and for places."""
    window = VolumeWindow.of_node(index, number)
    if window is None or any(index.node_outputs[number][1:]):
        return ()
    return () if window.is_along_depth and window.has_depth else (0,)


def _find_convolved(index: GraphIndex, number: int) -> Collection[int]:
    """Return the position of what a convolution reads; none for one along the depth alone.

    Frames of padding have to be of a size and of a number that are known.
    """
    window = VolumeWindow.of_node(index, number)
    dims = read_dims(index, index.node_inputs[number][0])
    if window is None or dims is None or (window.has_depth and window.is_along_depth):
        return ()
    taps = window.list_taps(index.node_kinds[number].op_type == "ConvTranspose")
    padded = any(each is None for tap in taps for each in tap)
    cut = taps != [[*range(window.depths[0])]]
    known = not padded or (None not in dims and _has_zero(index, number))
    new = not cut or index.get_opset(index.nodes[number]) >= _SLICE_OPSET
    return (0,) if known and new and _has_weights(index, number, window) else ()


def _has_zero(index: GraphIndex, number: int) -> bool:
    """Return whether it is known what frames of padding have in them."""
    position = ZERO_POINTS.get(index.node_kinds[number].op_type)
    names = index.node_inputs[number]
    if position is not None and len(names) > position and names[position]:
        value = get_constant_value(index, names[position])
        return value is not None and value.size == 1
    maker = index.producers.get(names[0])
    if maker is None or not is_dequantize(index.nodes[maker]):
        return True
    names = (*index.node_inputs[maker], "")
    value = get_constant_value(index, names[2]) if names[2] else np.zeros(1)
    return value is not None and value.size == 1


def _has_weights(index: GraphIndex, number: int, window: "VolumeWindow") -> bool:
    """Return whether the weights of a convolution have a form for frames.

    Weights with a scale for each of the channels that are read have none where these are stacked.
    """
    name = index.node_inputs[number][WEIGHTS[index.node_kinds[number].op_type]]
    shape = index.get_shape(name)
    if shape is None or len(shape) != RANK or not all(isinstance(each, int) for each in shape):
        return False
    maker = index.producers.get(name)
    if maker is None or not is_dequantize(index.nodes[maker]):
        return True
    node = index.nodes[maker]
    if len(index.get_shape(node.input[1]) or ()) == 0:
        return True
    outer = 1 if index.node_kinds[number].op_type == "ConvTranspose" else 0
    axis = get_stated_attributes(node).get("axis", 1) % RANK
    return not is_blocked(node) and axis < DEPTH and (axis == outer or window.kernel[0] == 1)


_FINDERS: Mapping[str, Callable[[GraphIndex, int], Collection[int]]] = {
    **dict.fromkeys(WEIGHTS, _find_convolved),
    **dict.fromkeys(POOLS, _find_pooled),
    **dict.fromkeys(GLOBAL_POOLS, _find_first),
    "BatchNormalization": _find_normalized,
    **dict.fromkeys(UNARY, _find_element),
    **dict.fromkeys(BROADCAST, _find_operands),
    **dict.fromkeys(ALONG_AXIS, _find_along),
}
"""For operators that have a form on frames: which inputs are volumes, none where a node has none."""
