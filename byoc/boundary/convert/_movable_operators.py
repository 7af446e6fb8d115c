"""Operators that can run on transposed tensors, and what is known of the tensors of a graph.

By the operators' definitions in ONNX, each at the version that the model uses.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property, partial
from math import prod
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TypeProto, numpy_helper

from byoc._dataclasses import dataclass, field
from byoc.boundary.convert._tensor_transfers import ModelEditor, RegionBoundary, TransposeShares
from byoc.model import (
    DTYPES,
    EditableGraph,
    TensorType,
    count_bits,
    count_bytes,
    get_input,
    get_stated_attributes,
    is_onnx,
    read_type,
)

# The known types of a graph's tensors, the values of small constants, and orders of axes.
#
# Orders are as in ONNX's Transpose: axis `i` of the output is axis `order[i]` of the input.

AxisOrder = tuple[int, ...]
PortShares = dict[str, float]
T = TypeVar("T")


def identity_order(rank: int) -> AxisOrder:
    """Return the order that changes nothing."""
    return tuple(range(rank))


def invert_order(order: AxisOrder) -> AxisOrder:
    """Return the order that reverts another."""
    return tuple(order.index(axis) for axis in range(len(order)))


def compose_orders(first: AxisOrder, second: AxisOrder) -> AxisOrder:
    """Return the order that is equivalent to two orders in succession."""
    return tuple(first[axis] for axis in second)


def permute(order: AxisOrder, items: Sequence[T]) -> list[T]:
    """Return items given per axis (extents, pads) in the axis order of a transposed tensor."""
    return [items[axis] for axis in order]


def permute_axis(order: AxisOrder, axis: int) -> int:
    """Return the position of an axis, which may count from the end, in a transposed tensor."""
    return order.index(axis % len(order))


def transpose_type(kind: TypeProto | None, order: AxisOrder) -> TypeProto | None:
    """Return the type of a transposed tensor, or None if the rank is not known."""
    if kind is None or len(kind.tensor_type.shape.dim) != len(order):
        return None
    result = deepcopy(kind)
    for i, axis in enumerate(order):
        result.tensor_type.shape.dim[i].CopyFrom(kind.tensor_type.shape.dim[axis])
    return result


def read_order(node: NodeProto, rank: int | None) -> AxisOrder | None:
    """Return the axis order of a Transpose, or None for another node or an unknown rank."""
    if node.op_type != "Transpose" or not is_onnx(node):
        return None
    perm = get_stated_attributes(node).get("perm")
    if perm is not None:
        return tuple(perm)
    return tuple(reversed(range(rank))) if rank is not None else None


# Constants up to this are transposed at compile time; a larger one would be in the bundle twice.
MAX_CONSTANT_BYTES = 4 << 20
# Extents that nobody knows: one image at a time, and an image is not small.
_UNKNOWN_BATCH, _UNKNOWN_EXTENT = 1, 64
_ELEMENT_BYTES = 4  # of float32, as an element of unknown type counts


class GraphTensors:
    """A graph that is edited, with the known types and constants, those around the graph included."""

    def __init__(
        self, edit: ModelEditor, scope: EditableGraph, borders: Sequence[RegionBoundary]
    ) -> None:
        """Take a graph of a model that is edited."""
        self.edit = edit
        self.scope = scope
        self.graph = scope.graph
        self.outer = GraphTensors(edit, scope.outer, borders) if scope.outer is not None else None
        self._borders = borders
        self._read: dict[str, TensorType | None] = {}

    @cached_property
    def _constant_nodes(self) -> Mapping[str, NodeProto]:
        nodes = self.scope.nodes
        return {n.output[0]: n for n in nodes if n.op_type == "Constant" and is_onnx(n)}

    @cached_property
    def stored(self) -> Mapping[str, TensorProto]:
        """The initializers that no caller can override."""
        inputs = {value.name for value in self.graph.input}
        return {t.name: t for t in self.graph.initializer if t.name not in inputs}

    def find_port_shares(self, node: NodeProto, order: AxisOrder) -> tuple[PortShares, PortShares]:
        """Return the inputs and outputs of a call that its region may transpose, none for other nodes.

        Each has, by the name of a tensor in the layout of axis `order`, the price of its Transpose in
        the region as a share of that on the host.
        """
        call = self.edit.calls.get(node.op_type)
        border = self._border_of.get(node.op_type)
        if call is None or border is None or call.node is not node:
            return {}, {}
        layout = border.format.activations
        if layout is None or layout.blocks or order != layout.axis_order:
            return {}, {}
        sides: tuple[PortShares, PortShares] = {}, {}
        for side, names in zip(sides, (node.input, node.output), strict=True):
            for name in names:
                # A tensor of the user's that happens to be in the layout has no origin.
                shares = border.shares.get(self.edit.origins.get(name, ""), TransposeShares())
                share = shares.entering if side is sides[0] else shares.leaving
                if share is not None:
                    side[name] = share
        return sides

    @cached_property
    def _border_of(self) -> Mapping[str, RegionBoundary]:
        return {border.region: border for border in self._borders if border.shares}

    @cached_property
    def _own(self) -> Mapping[str, TypeProto]:
        values = (*self.graph.value_info, *self.graph.input, *self.graph.output)
        return {value.name: value.type for value in values if value.HasField("type")}

    def find_type_proto(self, name: str) -> TypeProto | None:
        """Return the known type of a tensor, or None."""
        found = self._own.get(name) or self.edit.types.get(name)
        if found is None and self.outer is not None:
            found = self.outer.find_type_proto(name)
        if found is None:
            found = next((b.types[name] for b in self._borders if name in b.types), None)
        return found

    def find_type(self, name: str) -> TensorType | None:
        """Return a tensor's type, constants included."""
        if name not in self._read:
            tensor, kind = self.find_tensor(name), self.find_type_proto(name)
            if tensor is not None:
                self._read[name] = TensorType(DTYPES[tensor.data_type], tuple(tensor.dims))
            else:
                self._read[name] = read_type(kind) if kind is not None else None
        return self._read[name]

    def find_rank(self, name: str) -> int | None:
        """Return a tensor's rank, or None if it is not known."""
        kind = self.find_type(name)
        return None if kind is None or kind.shape is None else len(kind.shape)

    def is_single(self, name: str) -> bool:
        """Return whether a tensor has exactly one element and is therefore the same in every layout."""
        kind = self.find_type(name)
        return kind is not None and kind.elements == 1

    def find_tensor(self, name: str) -> TensorProto | None:
        """Return the stored tensor of an initializer or Constant node by name."""
        found = self.stored.get(name)
        node = self._constant_nodes.get(name)
        if node is not None:
            found = next((a.t for a in node.attribute if a.name == "value"), None)
        if found is None and node is None and self.outer is not None and name not in self._own:
            return self.outer.find_tensor(name)
        return found

    def is_constant(self, name: str) -> bool:
        """Return whether a tensor can be transposed at compile time: stored, small, whole bytes."""
        tensor = self.find_tensor(name)
        return (
            tensor is not None
            and tensor.data_location != TensorProto.EXTERNAL
            and tensor.data_type != TensorProto.STRING
            and count_bits(DTYPES[tensor.data_type]) >= 8
            and count_bytes(tensor) <= MAX_CONSTANT_BYTES
        )

    def find_value(self, name: str) -> NDArray[Any] | None:
        """Return the value of a constant, or None if it is not constant or not small."""
        node = self._constant_nodes.get(name)
        if node is not None:
            listed = get_stated_attributes(node)
            for key in ("value_ints", "value_int"):
                if key in listed:
                    return np.asarray(listed[key], np.int64)
        tensor = self.find_tensor(name)
        if tensor is None or not self.is_constant(name):
            return None
        value: NDArray[Any] = numpy_helper.to_array(tensor)
        return value

    def estimate_bytes(self, name: str) -> int:
        """Return the size of a tensor in bytes, at least 1; unknown extents are guessed."""
        kind = self.find_type(name)
        if kind is None or kind.shape is None:
            return _ELEMENT_BYTES * _UNKNOWN_EXTENT**2
        guesses = [_UNKNOWN_BATCH] + [_UNKNOWN_EXTENT] * len(kind.shape)
        extents = (
            dim if isinstance(dim, int) else guess
            for dim, guess in zip(kind.shape, guesses, strict=False)
        )
        return max(1, prod(extents) * count_bits(kind.dtype) // 8)


# Their first input has the layout, and their first output; others are scalars.
_UNARY = """
    Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh
    DynamicQuantizeLinear Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu
    Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt
    Swish Tan Tanh ThresholdedRelu
"""
_BROADCASTING = """
    Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual
    Max Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor
"""
_REDUCTIONS = """
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare
"""
# The others add or multiply, and floats come out otherwise in the last bits where the order is another.
_ORDERLESS = frozenset({"ReduceMax", "ReduceMin"})
# Operators along one axis that an attribute names: its default.
_DEFAULT_AXIS = {"Split": 0, "ArgMax": 0, "ArgMin": 0, "LpNormalization": -1, "Hardmax": -1}
_SOFTMAX = frozenset({"Softmax", "LogSoftmax", "Hardmax"})


@dataclass(frozen=True)
class MovablePorts:
    """The inputs and outputs of a node, by position, that are transposed when the node moves.

    `constants` are inputs that are transposed at compile time. `changes` gives further attributes by
    name, and inputs with lists of integers by position, as functions of the order of the axes.
    """

    inputs: tuple[int, ...]
    constants: tuple[int, ...]
    outputs: tuple[int, ...]
    changes: Mapping[str | int, Callable[[AxisOrder], Any]] = field(default_factory=dict)


def find_ports(node: NodeProto, facts: GraphTensors, rank: int) -> MovablePorts | None:
    """Return the ports of a node on tensors of a rank, or None if it cannot move."""
    find = _FINDERS.get(node.op_type) if is_onnx(node) else None
    return find(node, facts, rank) if find is not None else None


def _outputs_have_rank(node: NodeProto, facts: GraphTensors, rank: int) -> bool:
    return all(facts.find_rank(name) == rank for name in node.output if name)


def _used_outputs(node: NodeProto) -> tuple[int, ...]:
    return tuple(i for i, name in enumerate(node.output) if name)


def _unary_ports(
    node: NodeProto,
    facts: GraphTensors,
    rank: int,
    changes: Mapping[str | int, Callable[[AxisOrder], Any]] = MappingProxyType({}),
) -> MovablePorts | None:
    """Return the ports of an operator whose first input and first output have the layout."""
    if facts.find_rank(node.input[0]) != rank or facts.find_rank(node.output[0]) != rank:
        return None
    return MovablePorts((0,), (), (0,), changes)


def _broadcasting_ports(node: NodeProto, facts: GraphTensors, rank: int) -> MovablePorts | None:
    """Return the ports of an operator whose inputs broadcast to the shape of its output."""
    modern = facts.edit.opset >= 7  # before, they broadcast along an axis that an attribute gives
    data, constants = [], []
    for i, name in enumerate(node.input):
        has = facts.find_rank(name)
        if not name or has is None or has > rank:
            return None
        if facts.is_constant(name) and (modern or has == rank):
            constants.append(i)
        elif has == rank:
            data.append(i)
        elif not facts.is_single(name) or (not modern and "axis" in get_stated_attributes(node)):
            return None
    if not data or not _outputs_have_rank(node, facts, rank):
        return None
    split = [i for i in constants if not facts.is_single(node.input[i])]
    return MovablePorts(tuple(data), tuple(split), (0,))


def _along_axis_ports(node: NodeProto, facts: GraphTensors, rank: int) -> MovablePorts | None:
    """Return the ports of an operator that works along one axis."""
    op = node.op_type
    attributes = get_stated_attributes(node)
    if op in _SOFTMAX and facts.edit.opset < 13:  # which flattened what is before and after the axis
        return None
    if attributes.get("keepdims", 1) != 1 or facts.find_rank(node.input[0]) != rank:
        return None
    if not _outputs_have_rank(node, facts, rank):
        return None
    axis = attributes.get("axis", _DEFAULT_AXIS.get(op, -1))
    return MovablePorts((0,), (), _used_outputs(node), {"axis": partial(permute_axis, axis=axis)})


def _reduction_ports(node: NodeProto, facts: GraphTensors, rank: int) -> MovablePorts | None:
    """Return the ports of a reduction whose result does not depend on the order of the elements.

    The reduction must keep its dimensions (`keepdims`).
    """
    opset, attributes = facts.edit.opset, get_stated_attributes(node)
    if attributes.get("keepdims", 1) != 1:
        return None
    as_input = opset >= (13 if node.op_type == "ReduceSum" else 18)
    axes = _constant_integers(facts, node, 1) if as_input else attributes.get("axes", [])
    none = axes == [] and bool(attributes.get("noop_with_empty_axes", 0))
    if axes is None or not (none or _is_orderless(node, facts)):
        return None
    if not axes:  # all of them, or none
        return _unary_ports(node, facts, rank)
    permuted = {1 if as_input else "axes": lambda order: sorted(_permute_axes(order, axes))}
    return _unary_ports(node, facts, rank, permuted)


def _is_orderless(node: NodeProto, facts: GraphTensors) -> bool:
    """Return whether a reduction gives the same bits for any order of its elements."""
    kind = facts.find_type(node.input[0])
    exact = kind is not None and "int" in kind.dtype
    return node.op_type in _ORDERLESS or (exact and node.op_type in {"ReduceSum", "ReduceProd"})


def _constant_integers(facts: GraphTensors, node: NodeProto, position: int) -> list[int] | None:
    """Return the integers of an input: empty if it is left out, None if they are not known."""
    if len(node.input) <= position or not node.input[position]:
        return []
    value = facts.find_value(node.input[position])
    return None if value is None else [int(number) for number in value.reshape(-1)]


def _concat_ports(node: NodeProto, facts: GraphTensors, rank: int) -> MovablePorts | None:
    attributes = get_stated_attributes(node)
    if "axis" not in attributes and facts.edit.opset >= 4:
        return None
    if any(facts.find_rank(name) != rank for name in node.input) or not _outputs_have_rank(
        node, facts, rank
    ):
        return None
    constants = tuple(i for i, name in enumerate(node.input) if facts.is_constant(name))
    data = tuple(i for i in range(len(node.input)) if i not in constants)
    axis = attributes.get("axis", 1)
    return (
        MovablePorts(data, constants, (0,), {"axis": partial(permute_axis, axis=axis)}) if data else None
    )


def _pad_ports(node: NodeProto, facts: GraphTensors, rank: int) -> MovablePorts | None:
    attributes, opset = get_stated_attributes(node), facts.edit.opset
    if opset < 11:
        key = "pads" if opset >= 2 else "paddings"
        pads = attributes.get(key)
        if pads is None or len(pads) != 2 * rank:
            return None
        return _unary_ports(node, facts, rank, {key: partial(_permute_pads, pads=pads)})
    axes, listed = _constant_integers(facts, node, 3), _constant_integers(facts, node, 1)
    if axes:
        return _unary_ports(node, facts, rank, {3: partial(_permute_axes, axes=axes)})
    if axes is None or listed is None or len(listed) != 2 * rank:
        return None
    return _unary_ports(node, facts, rank, {1: partial(_permute_pads, pads=listed)})


def _permute_pads(order: AxisOrder, pads: list[int]) -> list[int]:
    """Return pads, all beginnings and then all ends, for transposed axes."""
    half = len(order)
    return [*permute(order, pads[:half]), *permute(order, pads[half:])]


def _slice_ports(node: NodeProto, facts: GraphTensors, rank: int) -> MovablePorts | None:
    attributes = get_stated_attributes(node)
    if facts.edit.opset < 10:
        axes = attributes.get("axes", list(range(len(attributes.get("starts", [])))))
        return _unary_ports(node, facts, rank, {"axes": partial(_permute_axes, axes=axes)})
    listed = _constant_integers(facts, node, 3)
    if listed == []:
        starts = facts.find_type(node.input[1])
        listed = list(range(starts.elements)) if starts is not None and starts.elements else None
    if listed is None:
        return None
    return _unary_ports(node, facts, rank, {3: partial(_permute_axes, axes=listed)})


def _permute_axes(order: AxisOrder, axes: list[int]) -> list[int]:
    return [permute_axis(order, axis) for axis in axes]


def _quantize_ports(node: NodeProto, facts: GraphTensors, rank: int) -> MovablePorts | None:
    """Return the ports of QuantizeLinear and DequantizeLinear with one scale or one per slice."""
    if get_stated_attributes(node).get("block_size", 0):
        return None
    scale = node.input[1]
    if facts.find_rank(scale) == 0 or facts.is_single(scale):
        return _unary_ports(node, facts, rank)
    if facts.find_rank(scale) != 1 or facts.edit.opset < 13:
        return None
    axis = get_stated_attributes(node).get("axis", 1)
    return _unary_ports(node, facts, rank, {"axis": partial(permute_axis, axis=axis)})


def _dropout_ports(node: NodeProto, facts: GraphTensors, rank: int) -> MovablePorts | None:
    """Return the ports of a Dropout that does not train."""
    training = facts.find_value(node.input[2]) if get_input(node, 2) else False
    if facts.edit.opset < 7 or training is None or bool(training):
        return None
    if facts.find_rank(node.input[0]) != rank or not _outputs_have_rank(node, facts, rank):
        return None
    return MovablePorts((0,), (), _used_outputs(node))


_FINDERS: dict[str, Callable[[NodeProto, GraphTensors, int], MovablePorts | None]] = {
    **dict.fromkeys(_UNARY.split(), _unary_ports),
    **dict.fromkeys(_BROADCASTING.split(), _broadcasting_ports),
    **dict.fromkeys(_REDUCTIONS.split(), _reduction_ports),
    **dict.fromkeys([*_DEFAULT_AXIS, *_SOFTMAX], _along_axis_ports),
    "Concat": _concat_ports,
    "Pad": _pad_ports,
    "Slice": _slice_ports,
    "QuantizeLinear": _quantize_ports,
    "DequantizeLinear": _quantize_ports,
    "Dropout": _dropout_ports,
}
