"""The form of 3-D convolutions and pools in two dimensions: on the frames of a video, one by one.

`[N, C, D, H, W]` becomes `[D * N, C, H, W]`: the frames are a batch, all first frames before all second
ones, so that frames are taken by their depth along the first axis. A window of depth 1 is a 2-D window
on each frame. A convolution with a deeper kernel reads the frames under its kernel as channels of one:
each sum has the same terms as before, and integers the same results. A depthwise one in floating point
is a sum of depthwise ones. A deeper pool is one on each frame, and one along the depth of what that makes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TypeProto, helper

from byoc.model import (
    DTYPE_NUMBERS,
    GraphIndex,
    build_node,
    find_constant_value,
    get_constant_value,
    get_stated_attributes,
    is_dequantize,
    is_qdq_node,
    set_attribute,
    set_metadata,
)
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
from byoc.passes._twin_forms import TWIN_KEY, TwinnedTensors
from byoc.passes._volume_windows import (
    DEPTH,
    RANK,
    WEIGHTS,
    Dims,
    Extent,
    Tap,
    Window,
    drop_depth,
    keep_depth,
    multiply,
    read_dims,
    restate,
    to_tensor,
)

_SPLIT_OPSET = 13  # ONNX opset from which the sizes of Split are an input
_SLICE_OPSET = 10  # from which the numbers of Slice are inputs
_LEAST_OPSET = (
    7  # from which operands are broadcast as now; Reshape takes its shape as an input from 5 on
)

_ZERO_POINTS = {"ConvInteger": 2, "QLinearConv": 2}
_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_GLOBAL_POOLS = frozenset({"GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"})


@dataclass(frozen=True)
class FrameForm(ImageForm):
    """Compute 3-D convolutions and pools as 2-D ones on frames.

    It runs where rules take the one and not the other. Frames are cut out by Slice, or by Split where
    `split` says that targets have that alone.
    """

    name: ClassVar[str] = "frame-form"
    suffix: ClassVar[str] = "frames"
    moves_data: ClassVar[bool] = True
    image_operators: ClassVar[Collection[str]] = WEIGHTS.keys() | _POOLS

    split: bool = field(default=False, metadata={"help": "Cut frames out by Split, not by Slice."})

    def for_operators(self, operators: Collection[str]) -> Self:
        """Return the form with the operator that targets have to cut frames out."""
        return type(self)("Split" in operators and not {"Slice", "*"} & {*operators})

    def is_source(self, index: GraphIndex, number: int) -> bool:
        """Return whether a node has a window over rows or columns: others have a simpler form."""
        if index.node_kinds[number].op_type not in self.image_operators:
            return False
        window = Window.of_node(index, number)
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
            return _Convolution(edits, number, node, self.split).convert()
        if op in _POOLS or op in _GLOBAL_POOLS:
            return _convert_pool(edits, number, node)
        if is_qdq_node(node) or op in ALONG_AXIS:
            axis = stated.get("axis", None if is_qdq_node(node) else ALONG_AXIS[op])
            if axis is not None:
                set_attribute(node, helper.make_attribute("axis", _move_axis(axis)))
        return [node]

    def change_type(self, kind: TypeProto) -> TypeProto:
        """Return the type of the frames of a volume, or of an operand that has none of its own."""
        made = TypeProto()
        made.CopyFrom(kind)
        dims = list(kind.tensor_type.shape.dim)
        del made.tensor_type.shape.dim[:]
        if len(dims) == RANK:
            merged = type(dims[0])()
            if all(dims[i].HasField("dim_value") for i in (0, DEPTH)):
                merged.dim_value = dims[0].dim_value * dims[DEPTH].dim_value
            elif dims[DEPTH].dim_value == 1:
                merged = dims[0]
            made.tensor_type.shape.dim.extend([merged, dims[1], *dims[3:]])
        else:
            made.tensor_type.shape.dim.extend([*dims[:-3], *dims[-2:]])
        return made

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
        nodes = Nodes(edits, name)
        nodes.order_frames(name, dims, twin)
        return nodes.made

    def leave(self, edits: GraphEdits, twin: str, name: str) -> Sequence[NodeProto]:
        """Return the nodes that make a volume of its frames."""
        dims = read_dims(edits.index, name)
        assert dims is not None
        nodes = Nodes(edits, name)
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
    window = Window.of_node(index, number)
    if window is None or any(index.node_outputs[number][1:]):
        return ()
    return () if window.is_along_depth and window.has_depth else (0,)


def _find_convolved(index: GraphIndex, number: int) -> Collection[int]:
    """Return the position of what a convolution reads; none for one along the depth alone.

    Frames of padding have to be of a size and of a number that are known.
    """
    window = Window.of_node(index, number)
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
    position = _ZERO_POINTS.get(index.node_kinds[number].op_type)
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


def _has_weights(index: GraphIndex, number: int, window: "Window") -> bool:
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
    **dict.fromkeys(_POOLS, _find_pooled),
    **dict.fromkeys(_GLOBAL_POOLS, _find_first),
    "BatchNormalization": _find_normalized,
    **dict.fromkeys(UNARY, _find_element),
    **dict.fromkeys(BROADCAST, _find_operands),
    **dict.fromkeys(ALONG_AXIS, _find_along),
}
"""For operators that have a form on frames: which inputs are volumes, none where a node has none."""


# Nodes.


@dataclass(eq=False)
class Nodes:
    """New nodes around a tensor whose name they begin with; `made` has them in order."""

    edits: GraphEdits
    name: str
    made: list[NodeProto] = field(default_factory=list)

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        dims: Sequence[Extent],
        output: str = "",
        dtype: str = "",
        **attributes: Any,
    ) -> str:
        """Add a node that makes a tensor of some extents, of the dtype of `name`; return its name."""
        names, index = self.edits.names, self.edits.index
        made = output or names.new_tensor(f"{self.name}_{op.lower()}")
        node = build_node(op, inputs, [made], names.new_node(made), **attributes)
        self.made.append(node)
        self.note(node)
        if not output:
            number = DTYPE_NUMBERS[dtype or index.get_dtype(self.name) or "float32"]
            self.edits.types[made] = helper.make_tensor_type_proto(number, dims)
        return made

    def note(self, node: NodeProto) -> None:
        """Record that what a node makes has the numbers of `name`, for ranges that are by its name."""
        for position, _ in enumerate(node.output):
            set_metadata(node, f"{TWIN_KEY}.{position}", self.name)

    def reshape(self, given: str, dims: Sequence[Extent], output: str = "") -> str:
        """Add a Reshape; at most one extent is not known."""
        stated = np.array([-1 if each is None else each for each in dims], np.int64)
        return self.add("Reshape", [given, self.edits.store(stated, f"{self.name}_shape")], dims, output)

    def turn(self, given: str, dims: Sequence[Extent], output: str = "") -> str:
        """Add a Transpose of the first two of four axes, after which the extents are those given."""
        return self.add("Transpose", [given], dims, output, perm=[1, 0, 2, 3])

    def order_frames(self, given: str, dims: Dims, output: str = "") -> str:
        """Add nodes that make frames of a volume."""
        n, c, d, h, w = dims
        if d == 1:
            return self.reshape(given, (n, c, h, w), output)
        turned = self.reshape(given, (multiply(n, c), d, h, w))
        if n == 1:
            return self.turn(turned, (d, c, h, w), output)
        turned = self.turn(turned, (d, multiply(n, c), h, w))
        return self.reshape(turned, (multiply(d, n), c, h, w), output)

    def zeros(self, dims: Sequence[Extent], value: NDArray[Any]) -> str:
        """Return a stored tensor of one number, the same for all that ask for its extents."""
        extents = [each or 0 for each in dims]
        name = f"frames_of_{value.item()}_{value.dtype}_{'x'.join(map(str, extents))}"
        if name not in {tensor.name for tensor in self.edits.stored}:
            return self.edits.store(np.full(extents, value), name)
        return name


@dataclass(eq=False)
class _Convolution:
    """A convolution on frames, whose node has the names of these already."""

    edits: GraphEdits
    number: int
    node: NodeProto
    split: bool

    def convert(self) -> Sequence[NodeProto]:
        """Return the node, behind those that give it the frames under its kernel, and its weights."""
        index, node = self.edits.index, self.node
        given = index.node_inputs[self.number][0]
        window, dims = Window.of_node(index, self.number), read_dims(index, given)
        assert window is not None
        assert dims is not None
        nodes = Nodes(self.edits, given)
        taps = window.list_taps(node.op_type == "ConvTranspose")
        weights = self._slice_weights(dims) if len(taps) > 1 else None
        if weights is not None:
            return self._add_up(nodes, self._take(nodes, node.input[0], dims, taps), dims, weights)
        if taps != [[*range(dims[DEPTH] or 0)]]:
            node.input[0] = self._stack(nodes, node.input[0], dims, taps)
        position = WEIGHTS[node.op_type]
        node.input[position] = self._change_weights(nodes, node.input[position])
        drop_depth(node)
        return [*nodes.made, node]

    def _slice_weights(self, dims: Dims) -> Sequence[NDArray[Any]] | None:
        """Return the weights of each step of a kernel; None unless their results may be added up.

        They may in floating point. That is done where each channel is convolved alone: targets have
        that, and not groups of several channels.
        """
        index, node = self.edits.index, self.node
        groups = get_stated_attributes(node).get("group", 1)
        if node.op_type != "Conv" or groups == 1 or groups != dims[1] or self._read_scale() is not None:
            return None
        value = find_constant_value(index, node.input[1], self.edits.folder)
        if value is None or value.dtype.kind != "f":
            return None
        return [value[:, :, step] for step in range(value.shape[2])]

    def _add_up(
        self, nodes: Nodes, images: Sequence[str], dims: Dims, weights: Sequence[NDArray[Any]]
    ) -> Sequence[NodeProto]:
        """Return a convolution for each step of the kernel, and Adds; the first one has the bias."""
        index, node = self.edits.index, self.node
        made = read_dims(index, index.node_outputs[self.number][0])
        assert made is not None
        n, c, d, h, w = made
        extents = (multiply(n, d), c, h, w)
        drop_depth(node)
        attributes = get_stated_attributes(node)
        total, last = "", node.output[0]
        for step, (image, values) in enumerate(zip(images, weights, strict=True)):
            stored = self.edits.store(to_tensor(values), f"{node.input[1]}_{step}")
            inputs = [image, stored, *(node.input[2:] if step == 0 else ())]
            own = nodes.add("Conv", inputs, extents, **attributes)
            is_last = step == len(weights) - 1
            added = [total, own]
            total = nodes.add("Add", added, extents, last if is_last else "") if total else own
        for each in nodes.made[-2 * len(weights) + 1 :]:
            set_metadata(each, f"{TWIN_KEY}.0", index.node_outputs[self.number][0])
        return nodes.made

    def _stack(self, nodes: Nodes, frames: str, dims: Dims, taps: Sequence[Tap]) -> str:
        """Add nodes that make images whose channels are those of all frames under the kernel.

        The frames of a channel lie beside each other, as they do in the weights.
        """
        n, c, _, h, w = dims
        images = self._take_whole(nodes, frames, dims, taps)
        count, channels = len(taps[0]), multiply(n, c)
        if len(images) == 1:
            return self._divide(nodes, images[0], (count, n, c, h, w))
        tall = (count, channels, multiply(len(images), h), w)
        stacked = self._round(nodes, nodes.add("Concat", images, tall, axis=2), tall)
        made = (multiply(count, n), multiply(c, len(images)), h, w)
        return self._round(nodes, nodes.reshape(stacked, made), made)

    def _take(self, nodes: Nodes, frames: str, dims: Dims, taps: Sequence[Tap]) -> list[str]:
        """Add nodes that make for each tap the frames that are under it."""
        n, c, _, h, w = dims
        count = len(taps[0])
        images = self._take_whole(nodes, frames, dims, taps)
        return [self._divide(nodes, image, (count, n, c, h, w)) for image in images]

    def _divide(self, nodes: Nodes, image: str, dims: Dims) -> str:
        """Return frames, given those of a depth at once."""
        count, n, c, h, w = dims
        if n == 1:
            return image
        made = (multiply(count, n), c, h, w)
        return self._round(nodes, nodes.reshape(image, made), made)

    def _take_whole(self, nodes: Nodes, frames: str, dims: Dims, taps: Sequence[Tap]) -> list[str]:
        """Add nodes that make for each tap the frames that are under it, those of a depth at once."""
        n, c, d, h, w = dims
        channels = multiply(n, c)
        whole = frames
        if n != 1:
            whole = nodes.reshape(frames, (d, channels, h, w))
            whole = self._round(nodes, whole, (d, channels, h, w))
        parts = self._cut(nodes, whole, (d, channels, h, w), taps)
        count = len(taps[0])
        images = []
        for own in parts:
            if len(own) == 1:
                images.append(own[0])
                continue
            joined = nodes.add("Concat", own, (count, channels, h, w), axis=0)
            images.append(self._round(nodes, joined, (count, channels, h, w)))
        return images

    def _cut(
        self, nodes: Nodes, frames: str, dims: tuple[Extent, ...], taps: Sequence[Tap]
    ) -> list[list[str]]:
        """Return for each tap the tensors that its frames are in, frames of padding included."""
        runs = [[*_find_runs(tap, 1 if self.split else 0)] for tap in taps]
        cuts = {
            cut
            for own in runs
            for start, count, _ in own
            if start is not None
            for cut in (start, start + count)
        }
        pieces = self._split(nodes, frames, dims, sorted({0, dims[0] or 0, *cuts})) if self.split else {}
        return [
            [
                name
                for start, count, step in own
                for name in (
                    [self._pad(nodes, (count, *dims[1:]))]
                    if start is None
                    else [pieces[each] for each in sorted(pieces) if start <= each < start + count]
                    if self.split
                    else [self._slice(nodes, frames, dims, (start, count, step))]
                )
            ]
            for own in runs
        ]

    def _split(
        self, nodes: Nodes, frames: str, dims: tuple[Extent, ...], cuts: Sequence[int]
    ) -> dict[int, str]:
        """Add a Split; return its outputs by the first frame in each."""
        sizes = [end - start for start, end in pairwise(cuts)]
        if len(sizes) == 1:
            return {0: frames}
        edits = self.edits
        made = [edits.names.new_tensor(f"{nodes.name}_split") for _ in sizes]
        for name, size in zip(made, sizes, strict=True):
            edits.types[name] = helper.make_tensor_type_proto(self._dtype, (size, *dims[1:]))
        name = edits.names.new_node(made[0])
        if edits.index.opsets.get("", 1) < _SPLIT_OPSET:
            nodes.made.append(build_node("Split", [frames], made, name, axis=0, split=sizes))
        else:
            stored = edits.store(np.array(sizes, np.int64), f"{nodes.name}_sizes")
            nodes.made.append(build_node("Split", [frames, stored], made, name, axis=0))
        nodes.note(nodes.made[-1])
        rounded = [
            self._round(nodes, each, (size, *dims[1:])) for each, size in zip(made, sizes, strict=True)
        ]
        return dict(zip(cuts, rounded, strict=False))

    def _slice(
        self, nodes: Nodes, frames: str, dims: tuple[Extent, ...], run: tuple[int, int, int]
    ) -> str:
        """Add a Slice of some frames, unless they are all that there are."""
        start, count, step = run
        if count == dims[0]:
            return frames
        end = start + (count - 1) * step + 1
        numbers = [
            self.edits.store(np.array([each], np.int64), f"{nodes.name}_{what}")
            for what, each in (("start", start), ("end", end), ("axis", 0), ("step", step))
        ]
        made = (count, *dims[1:])
        return self._round(nodes, nodes.add("Slice", [frames, *numbers], made), made)

    @property
    def _dtype(self) -> int:
        dtype = self.edits.index.get_dtype(self.edits.index.node_inputs[self.number][0])
        return DTYPE_NUMBERS[dtype or "float32"]

    def _pad(self, nodes: Nodes, dims: tuple[Extent, ...]) -> str:
        """Return frames of zeros, or of integers that stand for zero."""
        index = self.edits.index
        quantized = self._read_scale()
        if quantized:
            zero = get_constant_value(index, quantized[1]) if quantized[1] else None
            kind = helper.tensor_dtype_to_np_dtype(
                DTYPE_NUMBERS[index.get_dtype(quantized[2]) or "uint8"]
            )
            value = np.zeros((), kind) if zero is None else zero.reshape(())
            stored = nodes.zeros(dims, value)
            return nodes.add("DequantizeLinear", [stored, *filter(None, quantized[:2])], dims)
        kind = helper.tensor_dtype_to_np_dtype(self._dtype)
        position = _ZERO_POINTS.get(self.node.op_type, len(self.node.input))
        name = self.node.input[position] if len(self.node.input) > position else ""
        zero = get_constant_value(index, name) if name else None
        return nodes.zeros(dims, np.zeros((), kind) if zero is None else zero.reshape(()))

    def _read_scale(self) -> tuple[str, str, str] | None:
        """Return scale, zero point and integers of what is read, if it is dequantized with one scale."""
        index = self.edits.index
        maker = index.producers.get(index.node_inputs[self.number][0])
        if maker is None or not is_dequantize(index.nodes[maker]):
            return None
        given, scale, zero = (*index.node_inputs[maker], "")[:3]
        return (scale, zero, given) if len(index.get_shape(scale) or ()) == 0 else None

    def _round(self, nodes: Nodes, name: str, dims: Sequence[Extent]) -> str:
        """Quantize what a node has moved, as it was before, so that rules see a node in integers.

        The numbers are multiples of the scale, so none of them changes.
        """
        quantized = self._read_scale()
        if quantized is None:
            return name
        scale, zero, integers = quantized
        parameters = [scale, *filter(None, [zero])]
        dtype = self.edits.index.get_dtype(integers) or "uint8"
        rounded = nodes.add("QuantizeLinear", [name, *parameters], dims, dtype=dtype)
        return nodes.add("DequantizeLinear", [rounded, *parameters], dims)

    def _change_weights(self, nodes: Nodes, name: str) -> str:
        """Return weights of the images: the frames of the kernel are channels that are read."""
        index = self.edits.index
        shape: Any = index.get_shape(name)
        outer, inner, depth, *extents = shape
        maker = index.producers.get(name)
        if maker is not None and is_dequantize(index.nodes[maker]):
            node = deepcopy(index.nodes[maker])
            node.input[0] = self._change_weights(
                Nodes(self.edits, node.input[0], nodes.made), node.input[0]
            )
            node.output[0] = self.edits.names.new_tensor(f"{name}_frames")
            node.name = self.edits.names.new_node(node.output[0])
            dims = self._list_extents(shape)
            number = DTYPE_NUMBERS[index.get_dtype(name) or "float32"]
            self.edits.types[node.output[0]] = helper.make_tensor_type_proto(number, dims)
            if "axis" in get_stated_attributes(node):
                axis = get_stated_attributes(node)["axis"] % RANK
                set_attribute(node, helper.make_attribute("axis", axis))
            nodes.made.append(node)
            return node.output[0]
        dims = self._list_extents(shape)
        swaps = self.node.op_type == "ConvTranspose" and depth > 1
        if not swaps and name in index.stored_tensors:
            return self.edits.store(restate(index.stored_tensors[name], dims), f"{name}_frames")
        value = (
            find_constant_value(index, name, self.edits.folder)
            if swaps
            else get_constant_value(index, name)
        )
        if value is not None:
            value = value.transpose(0, 2, 1, 3, 4) if swaps else value
            return self.edits.store(to_tensor(value.reshape(dims)), f"{name}_frames")
        own = Nodes(self.edits, name, nodes.made)
        if swaps:
            turned = (outer, depth, inner, *extents)
            name = own.add("Transpose", [name], turned, perm=[0, 2, 1, 3, 4])
        return own.reshape(name, dims)

    def _list_extents(self, shape: Sequence[int]) -> list[int]:
        """Return the extents of weights of images."""
        outer, inner, depth, *extents = shape
        if self.node.op_type == "ConvTranspose":
            return [outer * depth, inner, *extents]
        return [outer, inner * depth, *extents]


def _find_runs(tap: Tap, step: int) -> Iterable[tuple[int | None, int, int]]:
    """Yield runs of frames, each with its first one, None for padding, its length and its step.

    `step` is the one that all have; 0 if they may have any.
    """
    frames = [*tap]
    while frames:
        start, after = frames[0], frames[1:]
        if start is None:
            count, found = next((i for i, each in enumerate(frames) if each is not None), len(frames)), 1
        else:
            follows = after[0] - start if after and after[0] is not None else 1
            found = step or max(follows, 1)
            count = 1
            while count < len(frames) and frames[count] == start + count * found:
                count += 1
        yield start, count, found
        frames = frames[count:]


def _convert_pool(edits: GraphEdits, number: int, node: NodeProto) -> Sequence[NodeProto]:
    """Return a pool on each frame, and one along the depth of what that makes.

    What a pool makes of a box is what it makes along one axis of what it makes along the others: a
    largest number, a norm, or a mean of as many numbers each.
    """
    index = edits.index
    reads, makes = index.node_inputs[number][0], index.node_outputs[number][0]
    given, made = read_dims(index, reads), read_dims(index, makes)
    assert given is not None
    assert made is not None
    n, c, depth, *_ = given
    h, w = made[3:]
    is_global = node.op_type in _GLOBAL_POOLS
    window = None if is_global else Window.of_node(index, number)
    deep = deepcopy(node)
    if not is_global:
        drop_depth(node)
        keep_depth(deep)
    if depth == 1 if window is None else not window.has_depth:
        return [node]
    # Largest numbers and means lie between those that are read, norms of frames below those of volumes.
    nodes = Nodes(edits, makes if "Lp" in node.op_type else reads)
    output, node.output[0] = node.output[0], edits.names.new_tensor(f"{makes}_each")
    node.name = edits.names.new_node(node.output[0])
    number_of = DTYPE_NUMBERS[index.get_dtype(makes) or "float32"]
    edits.types[node.output[0]] = helper.make_tensor_type_proto(number_of, (multiply(depth, n), c, h, w))
    nodes.made.append(node)
    nodes.note(node)
    channels = multiply(n, c)
    frames = node.output[0] if n == 1 else nodes.reshape(node.output[0], (depth, channels, h, w))
    turned = nodes.turn(frames, (channels, depth, h, w))
    deep.input[0] = nodes.reshape(turned, (n, c, depth, multiply(h, w)))
    nodes.made.append(deep)
    if is_global:
        deep.output[0] = output
        return nodes.made
    deep.output[0] = edits.names.new_tensor(f"{makes}_deep")
    set_metadata(deep, f"{TWIN_KEY}.0", makes)
    deep.name = edits.names.new_node(deep.output[0])
    dims = (n, c, made[DEPTH], multiply(h, w))
    edits.types[deep.output[0]] = helper.make_tensor_type_proto(number_of, dims)
    nodes.order_frames(deep.output[0], made, output)
    return nodes.made
