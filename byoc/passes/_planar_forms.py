"""The form of 1-D convolutions, pools and normalizations in two dimensions: images of one row.

`[N, C, L]` becomes `[N, C, 1, L]`, and each window gets an extent of 1 along the new axis, a stride and
a dilation of 1 and no padding, so that every sum has the same terms. What lies between such nodes is
brought along: elementwise operators, and those along an axis.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
from onnx import NodeProto, TensorProto, helper

from byoc._dataclasses import dataclass, field
from byoc.model import (
    FLOAT_DTYPES,
    GraphIndex,
    build_node,
    get_constant_value,
    get_stated_attributes,
    is_dequantize,
    is_qdq_node,
    set_attribute,
)
from byoc.passes._simplify import GraphEdits
from byoc.passes._twin_forms import Dimension, TwinForm, TwinnedTensors, is_among, restate

# The form of means and extremes over whole images as global pools.
#
# PyTorch's exporters write an adaptive pool to one pixel as GlobalAveragePool or, the newer one, as
# a ReduceMean over the axes of the image. Both are the same; accelerators mostly have the pool.

_POOLS: Mapping[str, str] = {"ReduceMean": "GlobalAveragePool", "ReduceMax": "GlobalMaxPool"}
_FIRST = 2  # axes in front of those of an image: the batch and the channels
_MOST = 3  # axes of an image that pools of runtimes take


@dataclass(frozen=True)
class PooledMean(TwinForm):
    """Compute a ReduceMean or ReduceMax over all axes of images as a global pool.

    It runs where rules take the pool and not the reduction. The axes stay, with an extent of 1.
    """

    name: ClassVar[str] = "pooled-mean"
    suffix: ClassVar[str] = "pooled"

    def find_candidates(
        self, index: GraphIndex, operators: Collection[str] | None = None
    ) -> Iterator[int]:
        """Yield the reductions of a graph that are global pools."""
        for number, kind in enumerate(index.node_kinds):
            pool = _POOLS.get(kind.operator)
            if pool is not None and is_among(pool, operators) and self.describe(index, number):
                yield number

    def describe(self, index: GraphIndex, number: int) -> TwinnedTensors | None:
        """Return that no tensor has another form, None for a node that is no global pool."""
        node = index.nodes[number]
        if index.node_kinds[number].operator not in _POOLS or number in index.constant_nodes:
            return None
        shape, attributes = index.get_shape(node.input[0]), index.get_attributes(node)
        if shape is None or not attributes.get("keepdims", 1) or not 1 <= len(shape) - _FIRST <= _MOST:
            return None
        if index.get_dtype(node.input[0]) not in FLOAT_DTYPES:
            return None
        axes = _read_axes(index, node, attributes.get("axes"))
        image = [*range(_FIRST, len(shape))]
        is_whole = axes is not None and sorted(axis % len(shape) for axis in axes) == image
        return TwinnedTensors(frozenset(), frozenset()) if is_whole else None

    def convert(
        self, edits: GraphEdits, number: int, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Sequence[NodeProto]:
        """Return the pool."""
        node = edits.index.nodes[number]
        return [build_node(_POOLS[node.op_type], inputs[:1], outputs, node.name)]


def _read_axes(index: GraphIndex, node: NodeProto, stated: Sequence[int] | None) -> list[int] | None:
    """Return the axes that a reduction states, as an attribute or a constant; None where it does not."""
    if stated:
        return list(stated)
    value = get_constant_value(index, node.input[1]) if len(node.input) > 1 and node.input[1] else None
    return None if value is None or not value.size else [int(axis) for axis in value.ravel()]


_RANK = 3  # of a batch of sequences with channels
_AXES_OPSET = 13  # ONNX opset from which the axes of Squeeze and Unsqueeze are an input
_BROADCAST_OPSET = 7  # from which operands are broadcast without an attribute that says so
_INPUTS_OPSET = 11  # from which Pad and Resize take their numbers as inputs
SOFTMAX_OPSET = 13  # from which Softmax is along one axis


# The operators of images, with the positions of what they read and make that are images or weights.
IMAGE_OPERATORS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "Conv": ((0, 1), (0,)),
    "ConvInteger": ((0, 1), (0,)),
    "ConvTranspose": ((0, 1), (0,)),
    "QLinearConv": ((0, 3), (0,)),
    "MaxPool": ((0,), (0, 1)),
    **dict.fromkeys(("AveragePool", "LpPool"), ((0,), (0,))),
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"), ((0,), (0,))),
    **dict.fromkeys(("BatchNormalization", "GroupNormalization", "InstanceNormalization"), ((0,), (0,))),
}
# What each attribute of a window is along the new axis.
_NEUTRAL = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_shape": 1, "output_padding": 0}
UNARY = frozenset(
    [
        *("Abs", "Cast", "Ceil", "Celu", "Clip", "Cos", "DequantizeLinear", "Dropout", "Elu", "Erf"),
        *("Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish"),
        *("Neg", "Not", "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign"),
        *("Sin", "Softplus", "Softsign", "Sqrt", "Swish", "Tanh", "ThresholdedRelu"),
    ]
)
"""Operators on each element of their first input."""
BROADCAST = frozenset(
    [
        *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max"),
        *("Mean", "Min", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"),
    ]
)
"""Operators on each element, whose operands are broadcast."""
ALONG_AXIS = {"Concat": 1, "LogSoftmax": -1, "LpNormalization": -1, "Softmax": -1, "Split": 0}
"""Operators along an axis, and the axis where none is stated; Concat always states it."""


def _move_axis(axis: int, rank: int = _RANK) -> int:
    """Return an axis of a tensor in its twin, which has one more before the last."""
    axis = axis + rank if axis < 0 else axis
    return rank if axis == rank - 1 else axis


@dataclass(frozen=True)
class ImageForm(TwinForm):
    """A form of convolutions, pools and normalizations on images of another rank."""

    image_operators: ClassVar[Collection[str]] = IMAGE_OPERATORS
    """The operators of images that have the form for their own sake."""

    def is_source(self, index: GraphIndex, number: int) -> bool:
        """Return whether a node that has the form is worth bringing into it for its own sake."""
        return index.node_kinds[number].op_type in self.image_operators

    def find_candidates(
        self, index: GraphIndex, operators: Collection[str] | None = None
    ) -> Iterator[int]:
        """Yield the operators of images of a graph that have the form."""
        kinds = {
            id(kind)
            for kind in set(index.node_kinds)
            if kind.op_type in self.image_operators and is_among(kind.operator, operators)
        }
        for number, kind in enumerate(index.node_kinds) if kinds else ():
            if id(kind) not in kinds or self.describe(index, number) is None:
                continue
            if self.is_source(index, number):
                yield number

    def find_companions(self, index: GraphIndex, chosen: Set[int]) -> Iterator[int]:
        """Yield the nodes between chosen ones and other such operators, these, and those behind either.

        What dequantizes for one of them is brought along, too.
        """
        lifted = {*chosen, *_Ancestors(self, index).find(chosen)}
        made = {name for number in lifted for name in index.node_outputs[number] if name}
        for number in range(len(index.nodes)):
            if number in lifted or made.isdisjoint(index.node_inputs[number]):
                continue
            twinned = self.describe(index, number)
            if twinned is not None and any(index.node_inputs[number][i] in made for i in twinned.inputs):
                lifted.add(number)
                made.update(filter(None, index.node_outputs[number]))
        for number in sorted(lifted):
            makers = (index.producers.get(name) for name in index.node_inputs[number])
            lifted.update(
                maker
                for maker in makers
                if maker is not None
                and is_dequantize(index.nodes[maker])
                and self.describe(index, maker) is not None
            )
        yield from sorted(lifted - chosen)


@dataclass(frozen=True)
class PlanarForm(ImageForm):
    """Compute 1-D convolutions, pools and normalizations as 2-D ones, on images of one row.

    It runs where rules take the one and not the other.
    """

    name: ClassVar[str] = "planar-form"
    suffix: ClassVar[str] = "2d"

    def describe(self, index: GraphIndex, number: int) -> TwinnedTensors | None:
        """Return the images of a node and what is added to them or multiplied with them."""
        kind = index.node_kinds[number]
        if not kind.is_onnx or number in index.constant_nodes or number in index.bodies:
            return None
        given, made = _find_images(index, number)
        reads, makes = index.node_inputs[number], index.node_outputs[number]
        names = [*(reads[i] for i in given), *(makes[i] for i in made)]
        if kind.op_type in BROADCAST:  # operands of rank 2 have a twin of rank 3
            names = [name for name in names if index.get_rank(name) != _RANK - 1]
        if not given or not made or any(index.get_rank(name) != _RANK for name in names):
            return None
        return TwinnedTensors(frozenset(given), frozenset(made))

    def convert(
        self, edits: GraphEdits, number: int, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Sequence[NodeProto]:
        """Return the node on images of one row."""
        node = deepcopy(edits.index.nodes[number])
        node.input[:], node.output[:] = inputs, outputs
        op, stated = node.op_type, get_stated_attributes(node)
        if op in IMAGE_OPERATORS:
            for name, neutral in _NEUTRAL.items():
                if name in stated:
                    set_attribute(node, helper.make_attribute(name, [neutral, *stated[name]]))
            if "pads" in stated:
                before, after = stated["pads"]
                set_attribute(node, helper.make_attribute("pads", [0, before, 0, after]))
        elif is_qdq_node(node):
            if "axis" in stated:
                set_attribute(node, helper.make_attribute("axis", _move_axis(stated["axis"])))
        elif op in ALONG_AXIS:
            axis: int = stated.get("axis", ALONG_AXIS[op])
            set_attribute(node, helper.make_attribute("axis", _move_axis(axis)))
        elif op in _CONVERTED:
            _CONVERTED[op](edits, number, node)
        return [node]

    def change_dims(self, dims: Sequence[Dimension]) -> Sequence[Dimension]:
        """Return the extents of an image of one row."""
        return [*dims[:-1], Dimension(dim_value=1), *dims[-1:]]

    def change_constant(self, edits: GraphEdits, name: str) -> TensorProto | None:
        """Return a stored tensor with an axis of 1 before the last, wherever its data is."""
        tensor = edits.index.stored_tensors.get(name)
        return None if tensor is None else restate(tensor, [*tensor.dims[:-1], 1, *tensor.dims[-1:]])

    def enter(self, edits: GraphEdits, name: str, twin: str) -> Sequence[NodeProto]:
        """Return an Unsqueeze, or the DequantizeLinear of weights that are stored as 2-D ones."""
        index = edits.index
        maker = index.producers.get(name)
        if maker is not None and maker in index.constant_nodes and is_dequantize(index.nodes[maker]):
            node = deepcopy(index.nodes[maker])
            stored = index.stored_tensors.get(node.input[0])
            if stored is not None and len(stored.dims) > 1 and not is_blocked(node):
                axis = get_stated_attributes(node).get("axis", 1)
                changed = self.change_constant(edits, node.input[0])
                assert changed is not None
                node.input[0] = edits.store(changed, f"{node.input[0]}_{self.suffix}")
                node.output[0] = twin
                node.name = edits.names.new_node(twin)
                if "axis" in get_stated_attributes(node):
                    moved = _move_axis(axis, len(stored.dims))
                    set_attribute(node, helper.make_attribute("axis", moved))
                return [node]
        return [_change_rank(edits, "Unsqueeze", name, twin, name)]

    def leave(self, edits: GraphEdits, twin: str, name: str) -> Sequence[NodeProto]:
        """Return a Squeeze."""
        return [_change_rank(edits, "Squeeze", twin, name, name)]


def _find_images(index: GraphIndex, number: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the positions of what a node reads and makes that may be images; none without a form."""
    node, op = index.nodes[number], index.node_kinds[number].op_type
    reads, makes = index.node_inputs[number], index.node_outputs[number]
    made = [i for i, name in enumerate(makes) if name]
    if op in IMAGE_OPERATORS:
        given, named = IMAGE_OPERATORS[op]
        plain = op != "BatchNormalization" or is_plain_batchnorm(index, node)
        return (given, [i for i in named if i in made]) if plain else ((), ())
    if op in UNARY:
        return ((), ()) if is_qdq_node(node) and is_blocked(node) else ((0,), made)
    if op in BROADCAST and index.get_opset(node) >= _BROADCAST_OPSET:
        ranks = [index.get_rank(name) for name in reads]
        known = [rank for rank in ranks if rank is not None and rank <= _RANK]
        return [i for i, rank in enumerate(known) if rank > 1], made if len(known) == len(ranks) else ()
    if (op in ALONG_AXIS or op in _CONVERTED) and _can_convert(index, number):
        return range(len(reads)) if op == "Concat" else (0,), made
    return (), ()


@dataclass(eq=False)
class _Ancestors:
    """The nodes with a form that nodes depend on through nodes with a form, back to their sources.

    `known` says of each node whether one is among it and those before it.
    """

    form: ImageForm
    index: GraphIndex
    known: dict[int, bool] = field(default_factory=dict)

    def find(self, chosen: Set[int]) -> Iterator[int]:
        """Yield those of nodes that have a form."""
        for number in sorted(chosen):
            self._search(number)
        yield from (number for number, holds in self.known.items() if holds and number not in chosen)

    def _search(self, start: int) -> None:
        pending = [start]
        while pending:
            number = pending[-1]
            twinned = self.form.describe(self.index, number)
            if number in self.known or twinned is None:
                self.known.setdefault(number, False)
                pending.pop()
                continue
            reads = self.index.node_inputs[number]
            makers = {self.index.producers.get(reads[i]) for i in twinned.inputs} - {None}
            missing = [maker for maker in makers if maker is not None and maker not in self.known]
            if missing:
                pending.extend(missing)
                continue
            is_source = self.form.is_source(self.index, number)
            self.known[number] = is_source or any(
                self.known[maker] for maker in makers if maker is not None
            )
            pending.pop()


def is_blocked(node: NodeProto) -> bool:
    """Return whether a QDQ node has a scale for each block."""
    return bool(get_stated_attributes(node).get("block_size", 0))


def is_plain_batchnorm(index: GraphIndex, node: NodeProto) -> bool:
    """Return whether a BatchNormalization has one scale for each channel, and does not train."""
    stated = get_stated_attributes(node)
    trains = stated.get("training_mode", 0) or any(node.output[1:])
    return bool(stated.get("spatial", 1)) and not trains and index.get_opset(node) >= _BROADCAST_OPSET


def _change_rank(edits: GraphEdits, op: str, given: str, made: str, like: str) -> NodeProto:
    """Return a node that adds or removes the axis before the last of a tensor."""
    axis = (edits.index.get_rank(like) or _RANK) - 1
    name = edits.names.new_node(f"{like}_{op.lower()}")
    if edits.index.opsets.get("", 1) < _AXES_OPSET:
        return build_node(op, [given], [made], name, axes=[axis])
    axes = edits.store(np.array([axis], np.int64), f"{like}_axes")
    return build_node(op, [given, axes], [made], name)


# Operators whose numbers for each axis are inputs.


def _can_convert(index: GraphIndex, number: int) -> bool:
    """Return whether the axes of a node are known, and have a form in two dimensions."""
    node = index.nodes[number]
    op, stated, opset = node.op_type, get_stated_attributes(node), index.get_opset(node)
    names = [*index.node_inputs[number], "", "", "", "", ""]
    if op in ("Softmax", "LogSoftmax"):
        return opset >= SOFTMAX_OPSET
    if op == "Pad":
        pads = get_constant_value(index, names[1]) if names[1] else None
        return opset >= _INPUTS_OPSET and not names[3] and pads is not None and pads.size == 2 * _RANK
    if op == "Slice":
        parts = [get_constant_value(index, name) for name in names[1:5] if name]
        return len(node.input) > 2 and all(part is not None for part in parts)
    if op == "Resize":
        numbers = [get_constant_value(index, name) for name in names[2:4] if name]
        plain = stated.get("mode", "nearest") in ("nearest", "linear") and "axes" not in stated
        whole = all(each is not None and each.size in (0, _RANK) for each in numbers)
        policy = stated.get("keep_aspect_ratio_policy", "stretch")
        crops = stated.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        return opset >= _INPUTS_OPSET and plain and whole and policy == "stretch" and not crops
    return True


def _convert_pad(edits: GraphEdits, number: int, node: NodeProto) -> None:
    pads = get_constant_value(edits.index, node.input[1])
    assert pads is not None
    before, after = pads[:_RANK].tolist(), pads[_RANK:].tolist()
    made = [*before[:-1], 0, before[-1], *after[:-1], 0, after[-1]]
    node.input[1] = edits.store(np.array(made, np.int64), f"{node.input[1]}_2d")


def _convert_slice(edits: GraphEdits, number: int, node: NodeProto) -> None:
    starts = get_constant_value(edits.index, node.input[1])
    assert starts is not None
    names = [*node.input, "", ""][:5]
    axes = get_constant_value(edits.index, names[3]) if names[3] else np.arange(starts.size)
    assert axes is not None
    moved = [_move_axis(int(axis)) for axis in axes.ravel()]
    names[3] = edits.store(np.array(moved, starts.dtype), f"{node.output[0]}_axes")
    node.input[:] = names if names[4] else names[:4]


def _convert_resize(edits: GraphEdits, number: int, node: NodeProto) -> None:
    for position in range(2, len(node.input)):
        name = node.input[position]
        value = get_constant_value(edits.index, name) if name else None
        if value is not None and value.size:
            made = np.insert(value, _RANK - 1, 1)
            node.input[position] = edits.store(made.astype(value.dtype), f"{name}_2d")
    if len(node.input) > 1:
        node.input[1] = ""  # the region of interest, which no mode but cropping reads


_CONVERTED: Mapping[str, Callable[[GraphEdits, int, NodeProto], Any]] = {
    "Pad": _convert_pad,
    "Resize": _convert_resize,
    "Slice": _convert_slice,
}
