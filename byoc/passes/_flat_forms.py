"""The form of 3-D operators in two dimensions, on images whose rows are the frames of a video.

`[N, C, D, H, W]` becomes `[N, C, D, H * W]`, another shape for the same bytes. It is for windows along
the depth alone, convolutions of single elements among them, and for what takes each channel as a whole.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from byoc._dataclasses import dataclass
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
from byoc.passes._twin_forms import Dimension, TwinnedTensors, restate

# The windows of 3-D convolutions and pools, by their depth, and the extents of volumes.

RANK = 5  # of a batch of volumes with channels
DEPTH = 2  # the axis of frames

WEIGHTS = {"Conv": 1, "ConvInteger": 1, "ConvTranspose": 1, "QLinearConv": 3}
"""The operators of convolution, and the position of their weights."""

_WINDOW = ("kernel_shape", "strides", "dilations", "output_shape", "output_padding")
"""The attributes of a window with a number for each axis; `pads` has two."""

ZERO_POINTS = {"ConvInteger": 2, "QLinearConv": 2}
"""The position of the zero point of what some of them read."""
POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
GLOBAL_POOLS = frozenset({"GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"})
Extent = int | None
Dims = tuple[Extent, Extent, Extent, Extent, Extent]
Tap = Sequence[int | None]
"""For each frame that is made the one that is read, None for one of padding."""


def read_dims(index: GraphIndex, name: str) -> Dims | None:
    """Return the extents of a volume; None unless all are known but one of batch, rows and columns."""
    shape = index.get_shape(name)
    if shape is None or len(shape) != RANK:
        return None
    n, c, d, h, w = (each if isinstance(each, int) else None for each in shape)
    if not c or not d or [n, h, w].count(None) > 1 or 0 in (n, h, w):
        return None
    return n, c, d, h, w


def multiply(one: Extent, other: Extent) -> Extent:
    """Return the product of two extents, None where one is not known."""
    return None if one is None or other is None else one * other


def to_tensor(value: NDArray[Any]) -> TensorProto:
    """Return an array as a stored tensor."""
    return numpy_helper.from_array(np.ascontiguousarray(value))


@dataclass(frozen=True)
class VolumeWindow:
    """The window of a convolution or pool over volumes; `pads` are those before and behind its depth.

    `is_along_depth` says that it has one element of each frame, and `depths` are those of what is read
    and made.
    """

    kernel: tuple[int, ...]
    stride: int
    dilation: int
    pads: tuple[int, int]
    is_along_depth: bool
    depths: tuple[int, int]

    @classmethod
    def of_node(cls, index: GraphIndex, number: int) -> "VolumeWindow | None":
        """Return the window of a node; None where it is not known."""
        node, op = index.nodes[number], index.node_kinds[number].op_type
        stated = get_stated_attributes(node)
        given, made = (
            read_dims(index, name)
            for name in (index.node_inputs[number][0], index.node_outputs[number][0])
        )
        shape: Any = stated.get("kernel_shape")
        if shape is None and op in WEIGHTS:
            shape = (index.get_shape(index.node_inputs[number][WEIGHTS[op]]) or ())[2:]
        if shape is None or len(shape) != RANK - 2 or not all(isinstance(each, int) for each in shape):
            return None
        depths = given[DEPTH] if given else None, made[DEPTH] if made else None
        if not depths[0] or not depths[1]:
            return None
        strides, dilations = (stated.get(each, [1, 1, 1]) for each in ("strides", "dilations"))
        pads = stated.get("pads", [0] * 6)
        shapes = any(any(stated.get(each, ())) for each in ("output_shape", "output_padding"))
        along = (
            [*shape[1:], *strides[1:]] == [1, 1, 1, 1]
            and not any([*pads[1:3], *pads[4:]])
            and not shapes
        )
        own = cls(
            tuple(shape),
            strides[0],
            dilations[0],
            (pads[0], pads[3]),
            along,
            (depths[0], depths[1]),
        )
        return own._pad(stated, op)

    def _pad(self, stated: Mapping[str, Any], op: str) -> "VolumeWindow | None":
        """Return the window with the padding along its depth that it leaves to `auto_pad`."""
        automatic = stated.get("auto_pad", "NOTSET")
        if automatic == "VALID":
            return self._with_pads(0, 0)
        if op == "ConvTranspose" and (automatic != "NOTSET" or stated.get("output_shape")):
            return (
                self._with_pads(0, 0)
                if not self.has_depth and self.depths[0] == self.depths[1]
                else None
            )
        if automatic == "NOTSET":
            return self
        # As ONNX has it: a window for every `stride` frames, an odd one more behind for SAME_UPPER.
        given, made = self.depths
        total = (made - 1) * self.stride + (self.kernel[0] - 1) * self.dilation + 1 - given
        if total < 0 and self.has_depth:
            return None  # onnxruntime cuts what is not under any window
        less, more = max(total, 0) // 2, max(total, 0) - max(total, 0) // 2
        return self._with_pads(*((less, more) if automatic == "SAME_UPPER" else (more, less)))

    def _with_pads(self, before: int, behind: int) -> "VolumeWindow":
        return VolumeWindow(
            self.kernel, self.stride, self.dilation, (before, behind), self.is_along_depth, self.depths
        )

    @property
    def has_depth(self) -> bool:
        """Whether the window reads other frames than those that it makes one of."""
        return self.kernel[0] > 1 or self.stride > 1 or any(self.pads)

    def list_taps(self, transposed: bool) -> list[Tap]:
        """Return for each step of the kernel along the depth which frames are under it."""
        given, made = self.depths
        taps: list[Tap] = []
        for step in range(self.kernel[0]):
            shift = step * self.dilation - self.pads[0]
            if transposed:  # which frame adds to one, through this step
                places = [frame - shift for frame in range(made)]
                found = [each // self.stride if each % self.stride == 0 else -1 for each in places]
            else:
                found = [frame * self.stride + shift for frame in range(made)]
            taps.append([place if 0 <= place < given else None for place in found])
        return taps


def drop_depth(node: NodeProto) -> None:
    """Remove the depth from the attributes of a window."""
    stated = get_stated_attributes(node)
    for name in _WINDOW:
        if name in stated:
            set_attribute(node, helper.make_attribute(name, stated[name][1:]))
    if "pads" in stated:
        pads = stated["pads"]
        set_attribute(node, helper.make_attribute("pads", [*pads[1:3], *pads[4:]]))


def keep_depth(node: NodeProto) -> None:
    """Leave the depth alone in the attributes of a window, along rows; columns have a window of one."""
    stated = get_stated_attributes(node)
    for name in _WINDOW:
        if name in stated:
            one = 0 if name == "output_padding" else 1
            set_attribute(node, helper.make_attribute(name, [stated[name][0], one]))
    if "pads" in stated:
        pads = stated["pads"]
        set_attribute(node, helper.make_attribute("pads", [pads[0], 0, pads[3], 0]))


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

    def change_dims(self, dims: Sequence[Dimension]) -> Sequence[Dimension]:
        """Return the extents with one axis in place of the last two."""
        merged = Dimension()
        if all(each.HasField("dim_value") for each in dims[-_LAST:]):
            merged.dim_value = dims[-2].dim_value * dims[-1].dim_value
        return [*dims[:-_LAST], merged]

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
    window = VolumeWindow.of_node(index, number)
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
