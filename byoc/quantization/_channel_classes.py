"""Channels of tensors: their statistics over samples, and those that may have a factor together.

A convolution absorbs factors of its input and output channels into its weights. Between two convolutions
stand operators that keep a positive factor of a channel as it is: `relu(x / s) = relu(x) / s`, sums of
what has one factor, pools, concatenations. Channels that such operators connect are a class, which has
one factor. A class that reaches anything else, or an input or output of the graph, is fixed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from byoc import onnxrt
from byoc._dataclasses import dataclass
from byoc.model import (
    GraphIndex,
    Model,
    build_node,
    copy_without,
    find_constant_value,
    get_stated_attributes,
    is_onnx,
)
from byoc.numerics import merge_groups
from byoc.quantization._calibrators import CHANNELS
from byoc.quantization._weights import is_depthwise
from byoc.support import report_step

Integers = NDArray[np.int64]
Float64Array = NDArray[np.float64]
_HOMOGENEOUS = frozenset(
    [
        *("Relu", "LeakyRelu", "PRelu", "Identity", "Dropout", "Resize", "Upsample"),
        *("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    ]
)
_SUMS = frozenset({"Add", "Sub", "Sum", "Max", "Min"})
_GATES = frozenset({"Sigmoid", "HardSigmoid", "Softmax"})
LINEAR = frozenset({"Conv", "ConvTranspose", "Gemm"})
"""Operators that absorb factors into constant weights, their second input."""


@dataclass(frozen=True)
class ChannelClasses:
    """The class of each channel, `[C]` by tensor name; which classes are `fixed`, `[classes]`."""

    of_tensor: Mapping[str, Integers]
    fixed: NDArray[np.bool_]


def find_channel_classes(index: GraphIndex) -> ChannelClasses:
    """Return the classes of the channels (axis 1) of a main graph's float tensors but constants."""
    return _ClassFinder(index).find()


def list_linear_nodes(index: GraphIndex) -> list[int]:
    """Return the nodes that absorb factors: linear ones with constant weights and bias, by number."""
    return [
        number
        for number in range(len(index.nodes))
        if number not in index.constant_nodes and _is_linear(index, number)
    ]


def _is_linear(index: GraphIndex, number: int) -> bool:
    node = index.nodes[number]
    if not is_onnx(node) or node.op_type not in LINEAR:
        return False
    if get_stated_attributes(node).get("transA", 0):
        return False
    shapes = [index.get_shape(name) for name in node.input[1:] if name and index.is_constant(name)]
    if len(shapes) != len([*filter(None, node.input[1:])]) or any(shape is None for shape in shapes):
        return False
    return all(
        shape is not None and len([extent for extent in shape if extent != 1]) <= 1
        for shape in shapes[1:]
    )


class _ClassFinder:
    """Channels by number: that of a tensor's channel is the tensor's offset and the channel."""

    def __init__(self, index: GraphIndex) -> None:
        self.index = index
        self.channels: dict[str, Integers] = {}
        self.same: list[Integers] = []
        self.fixed: list[Integers] = []
        count = 0
        for name in (*index.inputs, *(name for node in index.nodes for name in node.output if name)):
            channels = self._count_channels(name)
            if channels and name not in self.channels:
                self.channels[name] = np.arange(count, count + channels)
                count += channels
        self.count = count

    def _count_channels(self, name: str) -> int:
        shape = self.index.get_shape(name)
        if (
            self.index.is_constant(name)
            or self.index.get_dtype(name) != "float32"
            or not shape
            or len(shape) < 2
        ):
            return 0
        return shape[1] if isinstance(shape[1], int) else 0

    def find(self) -> ChannelClasses:
        for number, node in enumerate(self.index.nodes):
            if number not in self.index.constant_nodes and not _is_linear(self.index, number):
                self._connect(number, node)
        self._fix((*self.index.inputs, *self.index.outputs))
        pairs = np.concatenate([np.zeros((0, 2), np.int64), *self.same])
        roots = np.asarray(merge_groups(self.count, pairs.tolist()), np.int64).reshape(-1)
        _, classes = np.unique(roots, return_inverse=True)
        fixed = np.zeros(int(classes.max(initial=-1)) + 1, np.bool_)
        for channels in self.fixed:
            fixed[classes[channels]] = True
        return ChannelClasses(
            {name: classes[channels] for name, channels in self.channels.items()}, fixed
        )

    def _connect(self, number: int, node: NodeProto) -> None:
        """Connect channels that an operator keeps the factor of, or fix all that it reads and makes."""
        reads = [name for name in self.index.reads[number] if not self.index.is_constant(name)]
        makes = [name for name in node.output if name]
        groups = self._find_equal(number, node, reads, makes) if is_onnx(node) else None
        if groups is None:
            self._fix((*reads, *makes))
            return
        for group in groups:
            first, *others = group
            if any(len(other) != len(first) for other in others):
                self._fix((*reads, *makes))
                return
        for first, *others in groups:
            self.same += [np.stack([first, other], axis=1) for other in others]

    def _find_equal(
        self, number: int, node: NodeProto, reads: list[str], makes: list[str]
    ) -> list[list[Integers]] | None:
        """Return channels that an operator gives the same factor, None where it keeps none."""
        op, attributes = node.op_type, get_stated_attributes(node)
        if op in ("Mul", "Div"):
            reads = self._drop_gate(node, reads)
        if op in ("Concat", "Split") and attributes.get("axis", 0) % max(self._rank(makes[0]), 1) == 1:
            return self._split_channels(reads, makes)
        known = [self.channels[name] for name in (*reads, *makes[:1]) if name in self.channels]
        if not reads or len(known) != len(reads) + 1:
            return None
        ranks = {self._rank(name) for name in (*reads, makes[0])}
        keeps = {
            **dict.fromkeys(_HOMOGENEOUS, not attributes.get("extrapolation_value", 0.0)),
            **dict.fromkeys(_SUMS, len(reads) == len([*filter(None, node.input)]) and len(ranks) == 1),
            **dict.fromkeys(("Mul", "Div"), len(reads) == 1),
            **dict.fromkeys(("Flatten", "Reshape", "Squeeze"), self._keeps_channels(reads[0], makes[0])),
            "Concat": True,
            "Pad": self._pads_zeros(node, attributes),
        }
        return [known] if keeps.get(op, False) else None

    def _drop_gate(self, node: NodeProto, reads: list[str]) -> list[str]:
        """Return the operands of a product without its gate, which is fixed; none without a gate."""
        if len(reads) == 1:
            return reads if node.op_type == "Mul" or reads[0] == node.input[0] else []
        gates = [name for name in reads if self._is_gate(name)]
        if len(gates) != 1 or (node.op_type == "Div" and gates[0] == node.input[0]):
            return []
        self._fix(gates)
        return [name for name in reads if name not in gates]

    def _split_channels(self, reads: list[str], makes: list[str]) -> list[list[Integers]] | None:
        """Return the channels of the parts of a Concat or Split, each with those of the whole."""
        parts, whole = (reads, makes) if len(makes) == 1 else (makes, reads)
        if len(whole) != 1 or any(name not in self.channels for name in (*parts, *whole)):
            return None
        ends = np.cumsum([len(self.channels[name]) for name in parts])
        if ends[-1] != len(self.channels[whole[0]]):
            return None
        pieces = np.split(self.channels[whole[0]], ends[:-1])
        return [[piece, self.channels[name]] for piece, name in zip(pieces, parts, strict=True)]

    def _rank(self, name: str) -> int:
        return self.index.get_rank(name) or 0

    def _is_gate(self, name: str) -> bool:
        maker = self.index.producers.get(name)
        return (
            maker is not None
            and is_onnx(self.index.nodes[maker])
            and self.index.nodes[maker].op_type in _GATES
        )

    def _pads_zeros(self, node: NodeProto, attributes: Mapping[str, Any]) -> bool:
        if attributes.get("mode", "constant") not in ("constant", b"constant"):
            return True
        if len(node.input) < 3 or not node.input[2]:
            return not attributes.get("value", 0.0)
        value = find_constant_value(self.index, node.input[2], None)
        return value is not None and not np.any(value)

    def _keeps_channels(self, read: str, made: str) -> bool:
        """Return whether a view makes `[N, C]` of `[N, C, 1, ...]`."""
        before, after = self.index.get_shape(read) or (), self.index.get_shape(made) or ()
        return before[:2] == after[:2] and all(extent == 1 for extent in (*before[2:], *after[2:]))

    def _fix(self, names: Iterable[str]) -> None:
        self.fixed += [self.channels[name] for name in names if name in self.channels]


@dataclass(frozen=True)
class LinearChannels:
    """The channels that the weights of a linear node connect.

    `inputs` and `outputs` have the shape of the weights' first two axes: the channel that each is
    multiplied with, and the one that it adds to.
    """

    inputs: Integers
    outputs: Integers

    @classmethod
    def of_node(cls, node: NodeProto, shape: tuple[int, ...]) -> "LinearChannels":
        """Return the channels of a node's weights by their shape (ONNX: Conv, ConvTranspose, Gemm)."""
        attributes = get_stated_attributes(node)
        rows, columns = np.indices(shape[:2])
        if node.op_type == "Gemm":
            return cls(columns, rows) if attributes.get("transB", 0) else cls(rows, columns)
        groups = int(attributes.get("group", 1))
        other = rows // (shape[0] // groups) * shape[1] + columns
        return cls(other, rows) if node.op_type == "Conv" else cls(rows, other)


# Chains of nodes around depthwise convolutions, which can be computed in groups of channels.

_FUNCTIONS = frozenset(
    [
        *("Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Gelu"),
        *("Mish", "Softplus", "Swish", "Identity"),
    ]
)
_WITH_NUMBERS = frozenset({"Add", "Sub", "Mul", "Div"})


@dataclass(frozen=True, eq=False)
class ChannelChain:
    """Nodes, by number, that are computed in groups of channels.

    The first is a convolution, `depthwise` the one that its channels go through; what stands between and
    behind are functions of each element. `readers` are convolutions that read the `last` tensor.
    """

    nodes: tuple[int, ...]
    depthwise: int
    readers: tuple[int, ...]
    last: str


def find_chains(index: GraphIndex, least: int) -> Iterator[ChannelChain]:
    """Yield the chains around depthwise convolutions that no factors equalize; none shares a node.

    A depthwise convolution has at least `least` channels, of each of which it makes one.
    """
    linear = set(list_linear_nodes(index))
    classes = find_channel_classes(index)
    taken: set[int] = set()
    for number in sorted(linear):
        node = index.nodes[number]
        if not _is_splittable(index, node, least):
            continue
        before = _walk_up(index, node.input[0], linear)
        after, last = _walk_down(index, node.output[0])
        readers = index.consumers.get(last, ())
        fixed = classes.fixed[classes.of_tensor[node.input[0]]].all()
        if before is None or not fixed or not readers or last in index.outputs:
            continue
        if not all(_absorbs_order(index, reader, last, linear) for reader in readers):
            continue
        chain = ChannelChain((*before, number, *after), number, tuple(sorted(set(readers))), last)
        if taken.isdisjoint(chain.nodes):
            taken.update(chain.nodes)
            yield chain


def _is_splittable(index: GraphIndex, node: NodeProto, least: int) -> bool:
    """Return whether a convolution makes one channel of each that it reads, of at least `least`."""
    shape = index.get_shape(node.input[1])
    groups = get_stated_attributes(node).get("group", 1)
    return is_depthwise(index, node) and groups >= least and shape is not None and shape[0] == groups


def _walk_up(index: GraphIndex, name: str, linear: set[int]) -> tuple[int, ...] | None:
    """Return the convolution of all channels and the functions behind it that make a tensor."""
    found: list[int] = []
    while name not in index.outputs and len(index.consumers.get(name, ())) == 1:
        number = index.producers.get(name)
        if number is None:
            return None
        found.append(number)
        node = index.nodes[number]
        if number in linear:
            dense = node.op_type == "Conv" and get_stated_attributes(node).get("group", 1) == 1
            return tuple(reversed(found)) if dense else None
        position = _find_operand(index, number)
        if position is None:
            return None
        name = node.input[position]
    return None


def _walk_down(index: GraphIndex, name: str) -> tuple[tuple[int, ...], str]:
    """Return the functions of each element behind a tensor, and the last tensor that they make."""
    found: list[int] = []
    while name not in index.outputs and len(index.consumers.get(name, ())) == 1:
        (number,) = index.consumers[name]
        if _find_operand(index, number) is None:
            break
        found.append(number)
        name = index.nodes[number].output[0]
    return tuple(found), name


def _find_operand(index: GraphIndex, number: int) -> int | None:
    """Return the input that a node computes a function of each element of, None if it does not."""
    node = index.nodes[number]
    if not is_onnx(node) or number in index.constant_nodes:
        return None
    if node.op_type in _FUNCTIONS:
        return 0
    constants = [position for position, name in enumerate(node.input) if _is_number(index, name)]
    if node.op_type not in _WITH_NUMBERS or len(constants) != 1:
        return None
    return 1 - constants[0]


def _is_number(index: GraphIndex, name: str) -> bool:
    shape = index.get_shape(name)
    return index.is_constant(name) and shape is not None and all(extent == 1 for extent in shape)


def _absorbs_order(index: GraphIndex, number: int, name: str, linear: set[int]) -> bool:
    """Return whether a node reads channels in any order, as a convolution of all channels does."""
    node = index.nodes[number]
    return (
        number in linear
        and node.op_type == "Conv"
        and node.input[0] == name
        and get_stated_attributes(node).get("group", 1) == 1
    )


# The statistics of channels over samples.

AXES_ARE_INPUTS = 18  # of ReduceMin, ReduceMax and ReduceMean, from this operator set on


@dataclass(frozen=True)
class ChannelStatistics:
    """Least and greatest value, mean, mean square of each channel of a tensor: `[C]`, float64."""

    low: Float64Array
    high: Float64Array
    mean: Float64Array
    power: Float64Array

    @property
    def reach(self) -> Float64Array:
        """The greatest magnitude of each channel, `[C]`."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


def measure_channels(
    model: Model,
    names: Sequence[str],
    samples: Iterable[Mapping[str, Any]],
    title: str,
    kept: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, ChannelStatistics]:
    """Return the statistics of tensors of the main graph over samples; all have more than one axis.

    Channels are along axis 1, or along the axes `kept` of a tensor, in the order of its elements. The
    operator set of the model is 13 or newer. What is not finite in a sample does not count.
    """
    axes = {name: (kept or {}).get(name, (CHANNELS,)) for name in names}
    found = _reduce_channels(model, axes, samples, title, _STATISTICS)
    return {name: ChannelStatistics(*each) for name, each in found.items()}


def measure_channel_means(
    model: Model, names: Sequence[str], samples: Iterable[Mapping[str, Any]], title: str
) -> dict[str, Float64Array]:
    """Return the mean of each channel (axis 1) of tensors over samples, as `measure_channels` does."""
    axes = dict.fromkeys(names, (CHANNELS,))
    found = _reduce_channels(model, axes, samples, title, ("mean",))
    return {name: mean for name, (mean,) in found.items()}


_REDUCTIONS = {"low": "ReduceMin", "high": "ReduceMax", "mean": "ReduceMean", "power": "ReduceMean"}
_MERGED = {"low": "min", "high": "max", "mean": "mean", "power": "mean"}
_STATISTICS = ("low", "high", "mean", "power")


def _reduce_channels(
    model: Model,
    axes: Mapping[str, Sequence[int]],
    samples: Iterable[Mapping[str, Any]],
    title: str,
    wanted: Sequence[str],
) -> dict[str, list[Float64Array]]:
    """Return the `wanted` statistics of tensors, in that order; channels are along the axes of each."""
    index = model.index
    proto = copy_without(model.proto, "output")
    for number, (name, kept) in enumerate(axes.items()):
        prefix = f"byoc.channels.{number}"
        square = f"{prefix}.square"
        if "power" in wanted:
            proto.graph.node.append(build_node("Mul", [name, name], [square]))
        steps = [(_REDUCTIONS[each], square if each == "power" else name) for each in wanted]
        made = add_channel_reductions(proto, steps, index.get_rank(name) or 0, prefix, kept)
        proto.graph.output.extend(onnx.ValueInfoProto(name=each) for each in made)
    with onnxrt.without_optimizations():
        session = onnxrt.open_session(proto, model.folder)
    seen: list[list[Float64Array]] = []
    for number, sample in enumerate(samples, 1):
        report_step(f"{title}: sample {number}")
        found = onnxrt.run_session(session, sample).values()
        seen.append([np.asarray(value, np.float64).ravel() for value in found])
    count = len(wanted)
    return {
        name: [
            _merge_samples([one[count * at + i] for one in seen], _MERGED[each])
            for i, each in enumerate(wanted)
        ]
        for at, name in enumerate(axes)
    }


def _merge_samples(values: Sequence[Float64Array], how: str) -> Float64Array:
    """Return the `min`, `max` or `mean` of what samples gave; 0 for what is finite in none.

    An empty tensor has no least value and no mean, as that of the objects that a detector did not find.
    """
    return np.asarray(getattr(np.ma.masked_invalid(np.stack(values)), how)(axis=0).filled(0.0))


def add_channel_reductions(
    proto: ModelProto,
    steps: Sequence[tuple[str, str]],
    rank: int,
    prefix: str,
    kept: Sequence[int] = (CHANNELS,),
) -> list[str]:
    """Add reductions (operator, tensor) to one value a channel, `[C]`; return the names of the results.

    All tensors are of that rank; channels are along the axes `kept`. The model is changed; names of what
    is added begin with `prefix`.
    """
    version = next(each.version for each in proto.opset_import if not each.domain)
    axes = [axis for axis in range(rank) if axis not in kept]
    more: dict[str, Any] = {"axes": axes}
    inputs: list[str] = []
    if version >= AXES_ARE_INPUTS:
        more, inputs = {}, [f"{prefix}.axes"]
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(axes, np.int64), inputs[0]))
    made = [f"{prefix}.{number}" for number in range(len(steps))]
    for (operator, tensor), name in zip(steps, made, strict=True):
        proto.graph.node.append(build_node(operator, [tensor, *inputs], [name], keepdims=0, **more))
    return made
