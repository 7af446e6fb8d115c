"""Operators that can run on transposed tensors, with the inputs and outputs that are transposed.

By the operators' definitions in ONNX, each at the version that the model uses.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from onnx import NodeProto

from byoc.boundary.convert._graph_tensors import AxisOrder, GraphTensors, permute, permute_axis
from byoc.model import get_input, get_stated_attributes, is_onnx

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
