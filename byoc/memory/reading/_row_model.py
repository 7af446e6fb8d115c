"""The striping problem of a model: layers that can be computed row by row.

The same tensors count as in convention C: inputs until their last read, no weights, no views. An image
(a batch of one) is `[H][C][W]` in memory, with H rows; any other tensor is one row in the order of ONNX.
A Reshape between the two moves bytes, and is then a layer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onnx import NodeProto

from byoc._dataclasses import dataclass, replace
from byoc.memory.reading._stages import TensorSizes, is_view, pointwise_inputs, written_outputs
from byoc.memory.stripes import ALL_ROWS, SAME_ROW, LayerMode, OperandRows, RowLayer, RowTensor
from byoc.model import GraphIndex, collect_attribute_facts, copy_without, get_constant_value, is_onnx

# Operators that compute a row of their result from a few rows of their operands.
#
# An image is a tensor of four axes, the first of extent 1, stored row by row: `[H][C][W]`.
#
# Scratch is what a kernel for one row writes and reads again. A convolution adds up products of
# matrices, tap by tap, and a product is stored before it is added: for a block of channels at a
# time, so that 16 KiB are enough. A row read with a stride is gathered first, since a matrix
# product reads contiguous data. Elementwise additions and comparisons happen in the result itself
# and need no scratch.


@dataclass(frozen=True)
class RowRule:
    """Row-wise execution of a node: `reads` and `may_overwrite` are inputs by name."""

    reads: tuple[tuple[str, OperandRows], ...]
    mode: LayerMode = "rows"
    may_overwrite: tuple[str, ...] = ()
    scratch: int = 0


@dataclass(frozen=True)
class NodeView:
    """A node, its inputs that are not constant, and the extents of tensors."""

    index: GraphIndex
    node: NodeProto
    data: tuple[str, ...]

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes in effect."""
        return collect_attribute_facts(self.index, self.node)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the extents, empty for an unknown tensor."""
        return tuple(dim for dim in self.index.get_shape(name) or () if isinstance(dim, int))

    def is_image(self, name: str) -> bool:
        """Tell whether a tensor is stored row by row."""
        shape = self.shape(name)
        return len(shape) == 4 and shape[0] == 1

    def constant(self, position: int) -> list[Any] | None:
        """Return a small constant input as a list."""
        if position >= len(self.node.input) or not self.node.input[position]:
            return None
        value = get_constant_value(self.index, self.node.input[position])
        return None if value is None else list(value.reshape(-1).tolist())


def find_row_rule(look: NodeView) -> RowRule | None:
    """Return the row-wise execution of a node, None if it needs its operands completely."""
    node = look.node
    if not is_onnx(node) or not look.data or is_view(look.index, node):
        return None  # a view that moves bytes moves them all
    if pointwise_inputs(node):
        return _pointwise_rule(look)
    images = [*look.data, *(name for name in node.output if name)]
    rule = _RULES.get(node.op_type)
    return rule(look) if rule is not None and all(map(look.is_image, images)) else None


def _pointwise_rule(look: NodeView) -> RowRule | None:
    node, made = look.node, look.node.output[0]
    if any(node.output[1:]) or any(
        name not in look.data and _is_data(look, name) for name in node.input
    ):
        return None
    shape = look.shape(made)
    height = shape[2] if look.is_image(made) else 1
    reads, over = [], []
    pointwise = {
        node.input[position] for position in pointwise_inputs(node) if position < len(node.input)
    }
    for name in look.data:
        if look.shape(name) == shape and name in pointwise:
            reads.append((name, SAME_ROW))
            over += [name] if look.index.types[name].dtype == look.index.types[made].dtype else []
        elif height == 1 or (len(look.shape(name)) == 4 and look.shape(name)[2] == 1):
            reads.append((name, ALL_ROWS))
        else:
            return None
    return RowRule(tuple(reads), may_overwrite=tuple(over)) if reads else None


def _is_data(look: NodeView, name: str) -> bool:
    return bool(name) and not look.index.is_constant(name)


def _window_rows(look: NodeView) -> OperandRows | None:
    """Return the rows of a convolution or pooling, None if its attributes are not all known."""
    attributes, height = look.attributes, look.shape(look.data[0])[2]
    kernel = attributes.get("kernel_shape")
    if kernel is None or len(kernel) != 2:
        return None
    stride = attributes.get("strides", [1, 1])[0]
    extent = (kernel[0] - 1) * attributes.get("dilations", [1, 1])[0] + 1
    before = attributes.get("pads", [0] * 4)[0]
    padding = attributes.get("auto_pad", "NOTSET")
    if padding in ("SAME_UPPER", "SAME_LOWER"):
        total = max((-(-height // stride) - 1) * stride + extent - height, 0)
        before = (total + (padding == "SAME_LOWER")) // 2
    elif padding == "VALID":
        before = 0
    return OperandRows(extent, stride, before)


def _convolution_rule(look: NodeView) -> RowRule | None:
    rows = _window_rows(look)
    if rows is None or look.data != (look.node.input[0],):
        return None
    weight, width = look.shape(look.node.input[1]), look.shape(look.node.output[0])[3]
    groups = look.attributes["group"]
    stride = look.attributes.get("strides", [1, 1])[1]
    if weight[1] == 1:  # depthwise: element by element, over all groups at once
        need = count_convolution_scratch(width, weight[0], 1, 1)
    else:
        need = count_convolution_scratch(width, weight[0] // groups, weight[1], stride)
    return RowRule(((look.data[0], rows),), scratch=need)


def _pool_rule(look: NodeView) -> RowRule | None:
    rows = _window_rows(look)
    if rows is None or any(look.node.output[1:]):
        return None
    attributes, extents = look.attributes, list(look.shape(look.data[0])[2:])
    if look.shape(look.node.output[0])[2:] == (1, 1) and attributes["kernel_shape"] == extents:
        padded = attributes.get("auto_pad", "NOTSET") == "NOTSET" and any(attributes.get("pads", []))
        return RowRule(((look.data[0], rows),)) if padded else _global_pool_rule(look)
    return RowRule(((look.data[0], rows),))


def _global_pool_rule(look: NodeView) -> RowRule | None:
    channels = look.shape(look.data[0])[1]
    return RowRule(((look.data[0], SAME_ROW),), "reduction", scratch=count_reduction_scratch(channels))


def _row_by_row_rule(look: NodeView) -> RowRule | None:
    return RowRule(tuple(dict.fromkeys((name, SAME_ROW) for name in look.data)))


def _concat_rule(look: NodeView) -> RowRule | None:
    constant = len(look.data) < len(set(look.node.input))
    return None if constant or look.attributes["axis"] % 4 not in (1, 3) else _row_by_row_rule(look)


def _split_rule(look: NodeView) -> RowRule | None:
    return _row_by_row_rule(look) if look.attributes.get("axis", 0) % 4 in (1, 3) else None


def _resize_rule(look: NodeView) -> RowRule | None:
    """Accept whole-number repetition of pixels alone, by the rules that repeat each (`_REPEATING`)."""
    attributes = look.attributes
    source, made = look.shape(look.data[0]), look.shape(look.node.output[0])
    if 0 in source:
        return None
    times = [b // a for a, b in zip(source, made, strict=True)]
    if attributes.get("mode") != "nearest" or [a * t for a, t in zip(source, times, strict=True)] != [
        *made
    ]:
        return None
    rule = (attributes.get("coordinate_transformation_mode"), attributes.get("nearest_mode"))
    if look.node.op_type == "Resize" and rule not in _REPEATING:
        return None
    return RowRule(((look.data[0], OperandRows(repeat=times[2])),)) if times[:2] == [1, 1] else None


_REPEATING = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))

_RULES: dict[str, Callable[[NodeView], RowRule | None]] = {
    "Conv": _convolution_rule,
    "MaxPool": _pool_rule,
    "AveragePool": _pool_rule,
    "GlobalAveragePool": _global_pool_rule,
    "GlobalMaxPool": _global_pool_rule,
    "LRN": _row_by_row_rule,
    "Concat": _concat_rule,
    "Split": _split_rule,
    "Resize": _resize_rule,
    "Upsample": _resize_rule,
}


def is_channel_shuffle(index: GraphIndex, look: NodeView, nodes: Sequence[NodeProto]) -> bool:
    """Tell whether Reshape, Transpose and Reshape only permute the channels of an image."""
    first, middle, last = nodes
    if [node.op_type for node in nodes] != ["Reshape", "Transpose", "Reshape"]:
        return False
    source, split, made = (
        look.shape(name) for name in (first.input[0], first.output[0], last.output[0])
    )
    permutation = collect_attribute_facts(index, middle).get("perm")
    return (
        look.is_image(first.input[0])
        and source == made
        and len(split) == 5
        and split[0] == 1
        and split[3:] == source[2:]
        and permutation == [0, 2, 1, 3, 4]
    )


_SCRATCH_LIMIT = 16 << 10
"""Bytes of a product, and of a gathered operand, unless one channel alone needs more."""

_FLOAT_BYTES = 4  # bytes of float32


def count_channels_at_once(width: int, channels: int) -> int:
    """Return the number of channels whose rows of `width` elements fit the limit, at least one."""
    return min(max(_SCRATCH_LIMIT // max(width * _FLOAT_BYTES, 1), 1), channels)


def count_convolution_scratch(width: int, out_channels: int, in_channels: int, stride: int) -> int:
    """Return the scratch bytes for a row of `width` elements of each channel of a group."""
    gathered = count_channels_at_once(width, in_channels) if stride > 1 else 0
    return (count_channels_at_once(width, out_channels) + gathered) * width * _FLOAT_BYTES


def count_reduction_scratch(channels: int) -> int:
    """Return the bytes for the sums or maxima of one row, before they join those of earlier rows."""
    return channels * _FLOAT_BYTES


# The striping problem of a model: layers that can be computed row by row.


@dataclass(frozen=True)
class RowwiseModel:
    """The arguments of `stripe`, and their relation to the graph.

    `nodes` gives for each layer, by name, the nodes it computes. `storage_of` gives for each tensor in
    the arena the tensor among `tensors` that holds it.
    """

    tensors: tuple[RowTensor, ...]
    layers: tuple[RowLayer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: Mapping[str, tuple[int, ...]]
    storage_of: Mapping[str, str]


def read_row_model(index: GraphIndex, source: str = "model") -> RowwiseModel:
    """Return the row-wise layers of a graph whose extents are all known.

    Nodes that compute constants, or from shapes alone, are left out, as are inputs that nothing reads.
    Raises InputError, beginning with `source`, for a tensor of unknown size.
    """
    index = _store_defaults(index)
    reader = _RowModelReader(index, TensorSizes(index, source))
    for name in index.inputs:
        if index.is_used(name):
            reader.add_tensor(name)
    inputs = tuple(reader.storage)
    for number in range(len(index.nodes)):
        if number not in reader.sizes.constant_nodes:
            reader.add(number)
    outputs = dict.fromkeys(reader.storage[name] for name in index.outputs if name in reader.storage)
    return RowwiseModel(
        tuple(reader.tensors.values()),
        tuple(reader.layers),
        inputs,
        tuple(outputs),
        reader.nodes,
        reader.storage,
    )


def _store_defaults(index: GraphIndex) -> GraphIndex:
    """Return an index in which stored tensors are constants, even those that a caller may override."""
    stored = {tensor.name for tensor in index.graph.initializer}
    given = [value for value in index.graph.input if value.name not in stored]
    if index.body is not None or not index.has_default_inputs or len(given) == len(index.graph.input):
        return index
    proto = copy_without(index.proto, "input")
    proto.graph.input.extend(given)
    return replace(index, proto=proto)


class _RowModelReader:
    """Converts nodes to layers, in order."""

    def __init__(self, index: GraphIndex, sizes: TensorSizes) -> None:
        self.index, self.sizes = index, sizes
        self.tensors: dict[str, RowTensor] = {}
        self.layers: list[RowLayer] = []
        self.nodes: dict[str, tuple[int, ...]] = {}
        self.storage: dict[str, str] = {}
        self.skipped: set[int] = set()

    def add_tensor(self, name: str) -> None:
        """Add a tensor with bytes of its own."""
        size = self.sizes.count_bytes(name)
        shape = self.index.types[name].shape or ()
        rows = shape[2] if len(shape) == 4 and shape[0] == 1 else 1
        rows = rows if isinstance(rows, int) and rows else 1
        self.tensors[name] = RowTensor(name, rows, size // rows)
        self.storage[name] = name

    def add(self, number: int) -> None:
        """Add a node."""
        node = self.index.nodes[number]
        if number in self.skipped:
            return
        data = tuple(name for name in self.index.reads[number] if name in self.storage)
        look = NodeView(self.index, node, tuple(dict.fromkeys(data)))
        shuffle = self._find_shuffle(look, number)
        if shuffle:
            self.skipped.update(shuffle[1:])
            last = self.index.nodes[shuffle[-1]]
            self._add_layer(shuffle, last, RowRule(((node.input[0], SAME_ROW),)))
        elif is_view(self.index, node) and data == (node.input[0],) and self._same_bytes(look, node):
            self.storage[node.output[0]] = self.storage[data[0]]
            self._add_layer(
                (number,), node, RowRule(((data[0], SAME_ROW),))
            )  # of what it makes besides: a mask
        else:
            whole = RowRule(tuple((name, ALL_ROWS) for name in look.data), "whole")
            self._add_layer((number,), node, find_row_rule(look) or whole)

    def _find_shuffle(self, look: NodeView, number: int) -> tuple[int, ...]:
        """Return the three nodes of a channel shuffle that begins here, if there is one."""
        numbers = [number]
        while len(numbers) < 3:
            made = self.index.nodes[numbers[-1]].output[0]
            readers = self.index.consumers.get(made, ())
            if len(readers) != 1 or made in self.index.outputs:
                return ()
            numbers.append(readers[0])
        found = is_channel_shuffle(self.index, look, [self.index.nodes[n] for n in numbers])
        return tuple(numbers) if found else ()

    def _same_bytes(self, look: NodeView, node: NodeProto) -> bool:
        """Tell whether a view's elements have the same order in memory as those it views."""
        source, made = look.shape(node.input[0]), look.shape(node.output[0])
        if source == made:
            return True
        return all(
            not look.is_image(name) or look.shape(name)[2] == 1
            for name in (node.input[0], node.output[0])
        )

    def _add_layer(self, numbers: Sequence[int], node: NodeProto, rule: RowRule) -> None:
        writes = [name for name in written_outputs(self.index, node) if name not in self.storage]
        for name in writes:
            self.add_tensor(name)
        if not writes:
            return
        name = writes[0]
        reads = dict.fromkeys((self.storage[each], rows) for each, rows in rule.reads)
        over = dict.fromkeys(self.storage[each] for each in rule.may_overwrite)
        self.layers.append(
            RowLayer(name, tuple(reads), tuple(writes), rule.mode, tuple(over), rule.scratch)
        )
        self.nodes[name] = tuple(numbers)
