"""Memory layouts of images and convolution weights: where images are, and conversions as ONNX nodes.

ONNX does not mark images, but operators tell: those with spatial axes read and make images; those that
keep the axes of a tensor, such as Relu, Concat or QuantizeLinear, make an image if and only if they read
one. Only tensors of rank 4 are considered.

The notation is that of TVM's and oneDNN's documentation: upper-case letters give the order of the axes
from the outermost to the innermost; a number with a lower-case letter is a block that is split off an
axis. `NHWC` has the channels last. `NCHW16c` is `[N, ceil(C/16), H, W, 16]`, padded with zeros if C is
no multiple of 16. `OIHW16i16o` splits two axes.

Only tensors of rank 4 have a layout.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from math import prod
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from byoc._dataclasses import dataclass, replace
from byoc.model._editable_graph import build_node
from byoc.model._graph_index import GraphIndex
from byoc.model._node_kinds import NodeKind
from byoc.model._tensor_data import DTYPE_NUMBERS, Dim, TensorType, count_bits
from byoc.model._walk import get_input
from byoc.model.schemas import get_schema

# Operators with spatial axes, and the positions of the images among their inputs. All their outputs of
# rank 4 are images; in training BatchNormalization has outputs of rank 1, too.
_IMAGE_OPERATORS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool", "MaxRoiPool", "RoiAlign"), (0,)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), (0,)),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LRN"), (0,)),
    **dict.fromkeys(("Resize", "Upsample", "DepthToSpace", "SpaceToDepth", "GridSample"), (0,)),
    **dict.fromkeys(("Conv", "ConvTranspose", "ConvInteger", "QLinearConv"), (0,)),
    "FusedConv": (0, 3),
    "MaxUnpool": (0, 1),
    "DeformConv": (0, 2, 4),
    "Col2Im": (),
}

# Operators that keep the axes of all their inputs. If one removes an axis, as ReduceMax does without
# keepdims, its output has another rank and is ignored.
_KEEP_AXES = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast CastLike Ceil Celu Cos Cosh Elu Erf Exp FastGelu
    Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not QuickGelu Reciprocal
    Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu

    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual
    Max Mean Min Mod Mul Or Pow PRelu Sub Sum Where Xor

    Hardmax LogSoftmax LpNormalization MeanVarianceNormalization RMSNormalization LayerNormalization
    Softmax

    ArgMax ArgMin CumSum ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare TopK

    Concat QLinearAdd QLinearConcat QLinearLeakyRelu QLinearMul QLinearSigmoid
"""

# Operators that keep the axes of their first input only.
_KEEP_FIRST_AXES = """
    Bernoulli Clip Compress DequantizeLinear Dropout DynamicQuantizeLinear Expand Gather GatherElements
    Pad QuantizeLinear RandomNormalLike RandomUniformLike ReverseSequence ScatterElements ScatterND Slice
    Split Tile Trilu
"""

# The position of the weight among the inputs of convolutions, and its axes.
_WEIGHT_INPUTS = {
    "Conv": (1, "OIHW"),
    "ConvInteger": (1, "OIHW"),
    "FusedConv": (1, "OIHW"),
    "QLinearConv": (3, "OIHW"),
    "DeformConv": (1, "OIHW"),
    "ConvTranspose": (1, "IOHW"),
}


def find_images(index: GraphIndex) -> frozenset[str]:
    """Return the tensors of a graph that are images, without constants, in time linear in its size.

    The bodies of If, Loop and Scan have indices of their own; a tensor that they capture and use as an
    image is one in the graph around them, too.
    """
    if index not in _IMAGES:
        _IMAGES[index] = _find_images(index)
    return _IMAGES[index]


_IMAGES: "WeakKeyDictionary[GraphIndex, frozenset[str]]" = WeakKeyDictionary()


def _find_images(index: GraphIndex) -> frozenset[str]:
    known_images = [
        name
        for inner in index.bodies.values()
        for body in inner
        for name in _find_captured_images(body.index)
    ]
    if not known_images and all(kind.op_type not in _IMAGE_OPERATORS for kind in index.node_kinds):
        return frozenset()  # saves time on large transformers
    data = {
        name for name, kind in index.types.items() if kind.shape is not None and len(kind.shape) == 4
    }
    data -= index.constant_names
    read_by = {kind: _find_images_read(kind) for kind in {*index.node_kinds}}
    kinds, inputs, outputs = index.node_kinds, index.node_inputs, index.node_outputs
    for number, kind in enumerate(kinds):
        positions = read_by[kind]
        if isinstance(positions, tuple) and number not in index.constant_nodes:
            images = [inputs[number][i] for i in positions if i < len(inputs[number])]
            known_images.extend([name for name in (*images, *outputs[number]) if name in data])
    # The tensors that are images if one of them is, by node.
    alike = {
        number: (*inputs[number][read], *outputs[number])
        for number, kind in enumerate(kinds)
        if isinstance(read := read_by[kind], slice) and number not in index.constant_nodes
    }
    producers, consumers = index.producers, index.consumers
    found = set(known_images)
    while known_images:
        name = known_images.pop()
        for number in (producers.get(name, -1), *consumers.get(name, ())):
            if number in alike and name in alike[number]:
                new = [each for each in alike.pop(number) if each in data and each not in found]
                found.update(new)
                known_images.extend(new)
    return frozenset(found)


def _find_images_read(kind: NodeKind) -> tuple[int, ...] | slice | None:
    """Return the inputs that are images, those that are if the outputs are as a slice; else None."""
    if not (kind.is_onnx or kind.domain == "com.microsoft"):
        return None
    if kind.op_type in _IMAGE_OPERATORS:
        return _IMAGE_OPERATORS[kind.op_type]
    if kind.op_type in _KEEP_AXES.split():
        return slice(None)
    return slice(1) if kind.op_type in _KEEP_FIRST_AXES.split() else None


def _find_captured_images(index: GraphIndex) -> frozenset[str]:
    return find_images(index).intersection(index.captured_names)


def find_weights(index: GraphIndex) -> Mapping[str, str]:
    """Return the constants of rank 4 that are weights of convolutions, with their axes.

    The axes are `OIHW`, and `IOHW` for ConvTranspose. A weight behind DequantizeLinear, Cast or Identity
    counts, and so do the tensors between. A weight that two operators read differently is left out.
    """
    found: dict[str, set[str]] = {}
    for node in index.nodes:
        position, axes = _WEIGHT_INPUTS.get(node.op_type, (0, ""))
        name = get_input(node, position) if axes else ""
        while name and index.is_constant(name) and index.get_rank(name) == 4:
            if axes in found.get(name, ()):
                break
            found.setdefault(name, set()).add(axes)
            name = _get_source(index, name)
    return {name: axes.pop() for name, axes in found.items() if len(axes) == 1}


def _get_source(index: GraphIndex, name: str) -> str:
    """Return the tensor with the same axes that a constant is made of, empty for a stored one."""
    number = index.producers.get(name)
    node: NodeProto | None = None if number is None else index.nodes[number]
    if node is None or node.op_type not in ("DequantizeLinear", "QuantizeLinear", "Cast", "Identity"):
        return ""
    return node.input[0]


# Memory layouts of images and convolution weights, and conversions between them as ONNX nodes.


IMAGE = "NCHW"
"""The axes of an image in ONNX's own order: batch, channels, height, width."""

WEIGHT = "OIHW"
"""The axes of a convolution's weight in ONNX's own order."""

_WORD = re.compile(r"(?P<axes>[A-Z]+)(?P<blocks>(?:[0-9]{1,5}[a-z])*)", re.ASCII)
_BLOCK = re.compile(r"([0-9]+)([a-z])", re.ASCII)
_BLOCKS = range(2, 65_537)
_EXPECTED = "the axes N, C, H, W or O, I, H, W in some order, then blocks such as 16c"


@dataclass(frozen=True)
class LayoutStep:
    """An ONNX operator of a layout conversion, with its argument and the type of its output.

    The argument of `Transpose` is a permutation, of `Reshape` a shape in which 0 keeps the extent, of
    `Pad` the number of zeros at the end of each axis, of `Slice` the end of each axis. `Cast` has none.
    """

    op: Literal["Cast", "Pad", "Reshape", "Transpose", "Slice"]
    argument: tuple[int, ...]
    output_type: TensorType


@dataclass(frozen=True)
class TensorLayout:
    """The order of the axes, outermost first, and the blocks (axis as in `axes`, extent) inside them."""

    axes: str
    blocks: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        """Return the layout as rule files spell it."""
        return self.axes + "".join(f"{size}{axis.lower()}" for axis, size in self.blocks)

    @property
    def plain_axes(self) -> str:
        """The axes in ONNX's own order: `IMAGE` or `WEIGHT`."""
        return IMAGE if "N" in self.axes else WEIGHT

    @property
    def is_plain(self) -> bool:
        """Whether this is ONNX's own layout."""
        return self.axes == self.plain_axes and not self.blocks

    def pack_type(self, kind: TensorType) -> TensorType | None:
        """Return the type of a tensor in this layout, given its plain type.

        None when it cannot have the layout: its rank is not 4, or there are blocks and an extent is not
        known (an axis 0 without blocks may have any extent).
        """
        if kind.shape is None or len(kind.shape) != 4:
            return None
        if self.blocks and not self._is_fixed(kind.shape):
            return None
        split = self._split_blocks(kind.shape)
        return TensorType(kind.dtype, tuple(split[i] for i in self._axis_order))

    def make_pack_steps(self, kind: TensorType) -> tuple[LayoutStep, ...]:
        """Return the steps from the plain layout. Raises ValueError where `pack_type` gives None."""
        packed = self.pack_type(kind)
        if packed is None or kind.shape is None:
            raise ValueError(f"{kind} has no layout {self}")
        steps = []
        if self.blocks:
            whole = self._round_up(kind.shape)
            if whole != kind.shape:
                missing = (_count_padding(*dims) for dims in zip(whole, kind.shape, strict=True))
                steps.append(LayoutStep("Pad", tuple(missing), replace(kind, shape=whole)))
            split = self._split_blocks(kind.shape)
            steps.append(
                LayoutStep("Reshape", self._make_reshape_argument(split), replace(kind, shape=split))
            )
        return (*steps, *_make_transpose(self._axis_order, packed))

    def make_unpack_steps(self, kind: TensorType) -> tuple[LayoutStep, ...]:
        """Return the steps back to the plain layout; `kind` is the plain type."""
        if self.pack_type(kind) is None or kind.shape is None:
            raise ValueError(f"{kind} has no layout {self}")
        back = tuple(int(i) for i in np.argsort(self._axis_order))
        steps = [*_make_transpose(back, replace(kind, shape=self._split_blocks(kind.shape)))]
        if self.blocks:
            whole = self._round_up(kind.shape)
            steps.append(
                LayoutStep("Reshape", self._make_reshape_argument(whole), replace(kind, shape=whole))
            )
            if whole != kind.shape:
                # An axis that was not padded, such as a batch of any extent, keeps its extent.
                ends = (
                    dim if isinstance(dim, int) and dim != full else _SLICE_END
                    for dim, full in zip(kind.shape, whole, strict=True)
                )
                steps.append(LayoutStep("Slice", tuple(ends), kind))
        return tuple(steps)

    def pack_array(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a plain array (rank 4, any dtype) in this layout, contiguous, of the same dtype.

        Raises ValueError for another rank.
        """
        if array.ndim != 4:
            raise ValueError(f"rank 4 is needed, not {array.ndim}")
        pairs = zip(self._round_up(array.shape), array.shape, strict=True)
        padded = np.zeros(
            [dim for dim in self._round_up(array.shape) if isinstance(dim, int)], array.dtype
        )
        padded[tuple(slice(dim) for _, dim in pairs)] = array
        split = [dim for dim in self._split_blocks(array.shape) if isinstance(dim, int)]
        return np.ascontiguousarray(padded.reshape(split).transpose(self._axis_order))

    def unpack_array(self, array: NDArray[Any], shape: tuple[int, int, int, int]) -> NDArray[Any]:
        """Return an array in this layout as a plain one of a given shape; the inverse of `pack_array`.

        Raises ValueError when that shape in this layout is not the array's.
        """
        expected = tuple(self._split_blocks(shape)[i] for i in self._axis_order)
        if array.shape != expected:
            raise ValueError(f"{shape} in layout {self} is {expected}, not {array.shape}")
        whole = [dim for dim in self._round_up(shape) if isinstance(dim, int)]
        full = array.transpose(np.argsort(self._axis_order)).reshape(whole)
        return np.ascontiguousarray(full[tuple(map(slice, shape))])

    @cached_property
    def _block_extents(self) -> tuple[tuple[int, ...], ...]:
        """The extents of the blocks of each plain axis, outermost first."""
        return tuple(tuple(n for axis, n in self.blocks if axis == own) for own in self.plain_axes)

    @property
    def axis_order(self) -> tuple[int, ...]:
        """The order of axes of a layout without blocks, as in ONNX's Transpose from the plain one."""
        return self._axis_order

    @cached_property
    def _axis_order(self) -> tuple[int, ...]:
        """The packed axes as positions among the split axes, where blocks follow their axis."""
        starts = np.cumsum([0, *(1 + len(inner) for inner in self._block_extents)]).tolist()
        place = {axis: starts[i] for i, axis in enumerate(self.plain_axes)}
        order = [place[axis] for axis in self.axes]
        for axis, _ in self.blocks:
            place[axis] += 1
            order.append(place[axis])
        return tuple(order)

    def _is_fixed(self, shape: tuple[Dim, ...]) -> bool:
        extents = shape if self._block_extents[0] else shape[1:]
        return all(isinstance(dim, int) and dim > 0 for dim in extents)

    def _round_up(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return a plain shape with extents rounded up to whole blocks."""
        return tuple(
            -(-dim // prod(inner)) * prod(inner) if inner and isinstance(dim, int) else dim
            for dim, inner in zip(shape, self._block_extents, strict=True)
        )

    def _split_blocks(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return a plain shape with blocks as separate axes."""
        split: list[Dim] = []
        for dim, inner in zip(self._round_up(shape), self._block_extents, strict=True):
            split.append(dim // prod(inner) if inner and isinstance(dim, int) else dim)
            split.extend(inner)
        return tuple(split)

    def _make_reshape_argument(self, shape: tuple[Dim, ...]) -> tuple[int, ...]:
        """Return a shape for Reshape; an axis 0 without blocks keeps its extent."""
        first = shape[0] if self._block_extents[0] else 0
        return tuple(dim if isinstance(dim, int) else 0 for dim in (first, *shape[1:]))


_SLICE_END = 2**63 - 1  # a Slice up to here ends at the end of the axis


def parse_layout(word: str) -> TensorLayout:
    """Parse a layout such as `NHWC` or `OIHW16i16o`.

    Raises ValueError with a sentence that names the word.
    """
    match = _WORD.fullmatch(word)
    axes = match["axes"] if match else ""
    if match is None or sorted(axes) not in (sorted(IMAGE), sorted(WEIGHT)):
        raise ValueError(f"'{word}' is no layout: expected {_EXPECTED}{_suggest_case(word)}")
    blocks = []
    for size, axis in _BLOCK.findall(match["blocks"]):
        if axis.upper() not in axes:
            raise ValueError(f"'{word}' is no layout: {size}{axis} is a block of an axis that it lacks")
        if int(size) not in _BLOCKS:
            least, most = _BLOCKS[0], _BLOCKS[-1]
            raise ValueError(
                f"'{word}' is no layout: blocks have {least} to {most} elements, not {size}"
            )
        blocks.append((axis.upper(), int(size)))
    return TensorLayout(axes, tuple(blocks))


def _suggest_case(word: str) -> str:
    """Return a suggestion for a layout in the wrong case, such as `nhwc` and `nChw16c`."""
    likely = re.sub(r"(?<![0-9])[a-z]", lambda letter: letter[0].upper(), word)
    try:
        return f" (did you mean {parse_layout(likely)}?)" if likely != word else ""
    except ValueError:
        return ""


def _make_transpose(order: tuple[int, ...], kind: TensorType) -> Iterator[LayoutStep]:
    if order != tuple(range(len(order))):
        yield LayoutStep("Transpose", order, kind)


def _count_padding(whole: Dim, dim: Dim) -> int:
    return whole - dim if isinstance(whole, int) and isinstance(dim, int) else 0


NameMaker = Callable[[str, TensorType], str]
"""A function from the wanted name and the type of a tensor to a name that is not in use."""

# From this version on Pad has its numbers as an input and not as an attribute, as the others do.
_PAD_INPUTS_OPSET = 11
# onnxruntime (1.31, operator sets 11 to 23) has no Pad for these, but has one for a wider type.
_PAD_DTYPES = {"int16": "int32", "uint16": "int32", "bfloat16": "float32"}


def pack_operand(array: NDArray[Any], layout: TensorLayout) -> NDArray[Any]:
    """Return an operand of images in their layout; axes of extent 1 are broadcast in it as before.

    Raises ValueError for a rank above 4.
    """
    if array.ndim > len(IMAGE):
        raise ValueError(f"an operand of rank {array.ndim} has no layout {layout}")
    full = array.reshape((1,) * (len(IMAGE) - array.ndim) + array.shape)
    extents = dict(zip(layout.plain_axes, full.shape, strict=True))
    blocks = tuple((axis, 1 if extents[axis] == 1 else size) for axis, size in layout.blocks)
    return replace(layout, blocks=blocks).pack_array(full)


@cache
def can_convert_layout(layout: TensorLayout, kind: TensorType | None, opset: int) -> bool:
    """Return whether nodes can convert a tensor of a plain type to a layout and back.

    They cannot where `TensorLayout.pack_type` gives None, several elements share a byte, or the
    operators of that version do not accept the dtype.
    """
    if kind is None or layout.pack_type(kind) is None or count_bits(kind.dtype) < 8:
        return False
    steps = (*layout.make_pack_steps(kind), *layout.make_unpack_steps(kind))
    if layout.blocks and opset < _PAD_INPUTS_OPSET:
        return False
    schemas = [get_schema(step.op, "", opset) for step in steps]
    return all(schema is not None and kind.dtype in schema.get_allowed_dtypes("T") for schema in schemas)


def make_layout_nodes(
    steps: Iterable[LayoutStep], source: str, target: str, name: NameMaker
) -> list[NodeProto]:
    """Make the nodes for conversion steps from tensor `source` to `target`, with their constants.

    No steps give an Identity. Nodes are named after their output. A Pad of a dtype that onnxruntime
    cannot pad is done in a wider type, between two Casts that change no number.
    """
    nodes: list[NodeProto] = []
    steps = list(_make_runnable(steps))
    for i, step in enumerate(steps):
        output = target if i == len(steps) - 1 else name(f"{target}_{step.op.lower()}", step.output_type)
        operands = [source]
        for key, values in _list_constant_inputs(step).items():
            operands.append(name(f"{output}_{key}", TensorType("int64", (len(values),))))
            value = helper.make_tensor(key, TensorProto.INT64, [len(values)], values)
            nodes.append(build_node("Constant", [], operands[-1:], operands[-1], value=value))
        nodes.append(build_node(step.op, operands, [output], output))
        if step.op == "Transpose":
            nodes[-1].attribute.append(helper.make_attribute("perm", step.argument))
        elif step.op == "Cast":
            nodes[-1].attribute.append(
                helper.make_attribute("to", DTYPE_NUMBERS[step.output_type.dtype])
            )
        source = output
    return nodes or [build_node("Identity", [source], [target], target)]


def _make_runnable(steps: Iterable[LayoutStep]) -> Iterator[LayoutStep]:
    """Yield steps whose operators onnxruntime has for their dtypes."""
    for step in steps:
        wider = _PAD_DTYPES.get(step.output_type.dtype) if step.op == "Pad" else None
        if wider is None:
            yield step
            continue
        shape = step.output_type.shape or ()
        before = tuple(
            dim - more if isinstance(dim, int) else dim
            for dim, more in zip(shape, step.argument, strict=True)
        )
        yield LayoutStep("Cast", (), TensorType(wider, before))
        yield replace(step, output_type=TensorType(wider, shape))
        yield LayoutStep("Cast", (), step.output_type)


def _list_constant_inputs(step: LayoutStep) -> dict[str, tuple[int, ...]]:
    """Return the constant inputs of a step's operator in order, by a name for each."""
    rank = len(step.argument)
    if step.op == "Pad":
        return {"pads": (0,) * rank + step.argument}
    if step.op == "Slice":
        return {"starts": (0,) * rank, "ends": step.argument}
    return {"shape": step.argument} if step.op == "Reshape" else {}
