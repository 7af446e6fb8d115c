"""The nodes of 3-D convolutions and pools on frames, and those that make frames and volumes."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper

from byoc._dataclasses import dataclass, field
from byoc.model import (
    DTYPE_NUMBERS,
    build_node,
    find_constant_value,
    get_constant_value,
    get_stated_attributes,
    is_dequantize,
    set_attribute,
    set_metadata,
)
from byoc.passes._flat_forms import (
    DEPTH,
    GLOBAL_POOLS,
    RANK,
    WEIGHTS,
    ZERO_POINTS,
    Dims,
    Extent,
    Tap,
    VolumeWindow,
    drop_depth,
    keep_depth,
    multiply,
    read_dims,
    to_tensor,
)
from byoc.passes._simplify import GraphEdits
from byoc.passes._twin_forms import TWIN_KEY, restate

SPLIT_OPSET = 13  # ONNX opset from which the sizes of Split are an input


@dataclass(eq=False)
class FrameNodes:
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
class Convolution:
    """A convolution on frames, whose node has the names of these already."""

    edits: GraphEdits
    number: int
    node: NodeProto
    split: bool

    def convert(self) -> Sequence[NodeProto]:
        """Return the node, behind those that give it the frames under its kernel, and its weights."""
        index, node = self.edits.index, self.node
        given = index.node_inputs[self.number][0]
        window, dims = VolumeWindow.of_node(index, self.number), read_dims(index, given)
        assert window is not None
        assert dims is not None
        nodes = FrameNodes(self.edits, given)
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
        self, nodes: FrameNodes, images: Sequence[str], dims: Dims, weights: Sequence[NDArray[Any]]
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

    def _stack(self, nodes: FrameNodes, frames: str, dims: Dims, taps: Sequence[Tap]) -> str:
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

    def _take(self, nodes: FrameNodes, frames: str, dims: Dims, taps: Sequence[Tap]) -> list[str]:
        """Add nodes that make for each tap the frames that are under it."""
        n, c, _, h, w = dims
        count = len(taps[0])
        images = self._take_whole(nodes, frames, dims, taps)
        return [self._divide(nodes, image, (count, n, c, h, w)) for image in images]

    def _divide(self, nodes: FrameNodes, image: str, dims: Dims) -> str:
        """Return frames, given those of a depth at once."""
        count, n, c, h, w = dims
        if n == 1:
            return image
        made = (multiply(count, n), c, h, w)
        return self._round(nodes, nodes.reshape(image, made), made)

    def _take_whole(self, nodes: FrameNodes, frames: str, dims: Dims, taps: Sequence[Tap]) -> list[str]:
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
        self, nodes: FrameNodes, frames: str, dims: tuple[Extent, ...], taps: Sequence[Tap]
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
        self, nodes: FrameNodes, frames: str, dims: tuple[Extent, ...], cuts: Sequence[int]
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
        if edits.index.opsets.get("", 1) < SPLIT_OPSET:
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
        self, nodes: FrameNodes, frames: str, dims: tuple[Extent, ...], run: tuple[int, int, int]
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

    def _pad(self, nodes: FrameNodes, dims: tuple[Extent, ...]) -> str:
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
        position = ZERO_POINTS.get(self.node.op_type, len(self.node.input))
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

    def _round(self, nodes: FrameNodes, name: str, dims: Sequence[Extent]) -> str:
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

    def _change_weights(self, nodes: FrameNodes, name: str) -> str:
        """Return weights of the images: the frames of the kernel are channels that are read."""
        index = self.edits.index
        shape: Any = index.get_shape(name)
        outer, inner, depth, *extents = shape
        maker = index.producers.get(name)
        if maker is not None and is_dequantize(index.nodes[maker]):
            node = deepcopy(index.nodes[maker])
            node.input[0] = self._change_weights(
                FrameNodes(self.edits, node.input[0], nodes.made), node.input[0]
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
        own = FrameNodes(self.edits, name, nodes.made)
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


def convert_pool(edits: GraphEdits, number: int, node: NodeProto) -> Sequence[NodeProto]:
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
    is_global = node.op_type in GLOBAL_POOLS
    window = None if is_global else VolumeWindow.of_node(index, number)
    deep = deepcopy(node)
    if not is_global:
        drop_depth(node)
        keep_depth(deep)
    if depth == 1 if window is None else not window.has_depth:
        return [node]
    # Largest numbers and means lie between those that are read, norms of frames below those of volumes.
    nodes = FrameNodes(edits, makes if "Lp" in node.op_type else reads)
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
