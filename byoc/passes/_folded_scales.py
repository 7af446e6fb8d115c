"""The pass that folds constant factors and summands into convolutions and matrix products beside them.

Caffe and Paddle write scale and bias of a layer as a Mul and an Add of one number for each channel.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar

import numpy as np
from onnx import NodeProto

from byoc._dataclasses import dataclass, field
from byoc.model import get_stated_attributes
from byoc.passes._affine_folding import (
    Array,
    find_linear_maker,
    fold_affine,
    is_storable,
    list_parameters,
    note_folded,
    read_bias,
    read_floats,
    set_bias,
    store_floats,
)
from byoc.passes._cleaning import CleanPass
from byoc.passes._simplify import GraphEdits


@dataclass(frozen=True)
class FoldScales(CleanPass):
    """Fold Mul, Add, Sub, Div by constants into the Conv, ConvTranspose or Gemm before or behind them.

    The constants have one number, or one for each channel. The operator before is taken if nothing else
    reads its result, else those behind if nothing else reads the node's. Results differ in the last
    digits. One node beside each linear operator is folded at a time. With `through_sums` a factor goes
    through an Add or Sub of a constant, which makes another tensor then, to the operators behind.
    """

    through_sums: bool = False
    name: ClassVar[str] = "fold-scales"
    operators: ClassVar[frozenset[str]] = frozenset({"Mul", "Add", "Sub", "Div"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Replace the linear nodes beside each, where that can be."""
        for number in numbers:
            for fold in (_fold_backward, partial(_fold_forward, through_sums=self.through_sums)):
                changed = number in edits.replaced or number in edits.removed
                if changed or any(fold(edits, number, position) for position in (0, 1)):
                    break


def _fold_backward(edits: GraphEdits, number: int, position: int) -> bool:
    """Fold a node into the linear one that makes an input of it; return whether that could be."""
    maker = find_linear_maker(edits, number, edits.index.node_inputs[number][position])
    affine = None if maker is None else _read_affine(edits, number, position, _find_axis(edits, maker))
    if maker is None or affine is None:
        return False
    with np.errstate(all="ignore"):  # what is infinite then is not folded
        fold_affine(edits, maker, number, *affine)
    return maker in edits.replaced


def _fold_forward(edits: GraphEdits, number: int, position: int, *, through_sums: bool) -> bool:
    """Fold a node into all the linear ones that read it; return whether that could be."""
    name = edits.find_root(edits.index.node_inputs[number][position])
    affine = _read_affine(edits, number, position, axis=1)
    if affine is None or edits.index.is_constant(name):
        return False
    with np.errstate(all="ignore"):  # what is infinite then is not folded
        return fold_into_readers(edits, number, name, affine, through_sums=through_sums)


def _read_affine(edits: GraphEdits, number: int, position: int, axis: int) -> tuple[Array, Array] | None:
    """Return factor and offset of each channel of an input that a node computes with, `[channels]`.

    None where the node does not compute that, with its other input as a constant.
    """
    index = edits.index
    op, names = index.node_kinds[number].op_type, index.node_inputs[number]
    if position and op == "Div":
        return None
    value = read_floats(edits, names[1 - position])
    shape = index.get_shape(names[position])
    if value is None or not shape or not -len(shape) <= axis < len(shape):
        return None
    channels = shape[axis]
    numbers = _spread(value, len(shape), axis, channels) if isinstance(channels, int) else None
    if numbers is None:
        return None
    ones, zeros = np.ones(len(numbers)), np.zeros(len(numbers))
    sign = -1.0 if position else 1.0
    with np.errstate(all="ignore"):
        return {
            "Mul": (numbers, zeros),
            "Div": (1 / numbers, zeros),
            "Add": (ones, numbers),
            "Sub": (sign * ones, -sign * numbers),
        }[op]


def _find_axis(edits: GraphEdits, maker: int) -> int:
    """Return the axis of a linear node's result that has its channels."""
    return -1 if edits.index.node_kinds[maker].op_type == "Gemm" else 1


def _spread(value: Array, rank: int, axis: int, channels: int) -> Array | None:
    """Return a constant as one number for each channel, None where it is of another shape."""
    if value.size == 1 and value.ndim <= rank:
        return np.full(channels, value.item())
    shape = (1,) * (rank - value.ndim) + value.shape
    wanted = [1] * rank
    wanted[axis] = channels
    return value.ravel() if list(shape) == wanted else None


# Affine operations of each channel, folded into the weights of the linear operators that read them.
#
# What an activation makes may be scaled before convolutions read it. No linear operator stands
# before the factor, but those that read it are linear. A factor passes through a sum with a
# constant, `s * x + b = s * (x + b / s)`. An offset is folded where nothing is padded beside what
# it is added to.


@dataclass(frozen=True, eq=False)
class _ChangedReader:
    """A node that takes a factor and an offset in: by other constants (by input), and another bias."""

    number: int
    constants: Mapping[int, Array]
    bias: Array | None = None
    is_sum: bool = False


@dataclass(frozen=True, eq=False)
class _ForwardFolding:
    """A factor and an offset, `[channels]` (axis 1), that the readers of tensors may take in."""

    edits: GraphEdits
    factor: Array
    offset: Array
    through_sums: bool
    changed: list[_ChangedReader] = field(default_factory=list)

    def absorb(self, name: str) -> bool:
        """Gather how all readers of a tensor change; return whether all can take it in."""
        readers = self.edits.list_readers(name)
        return (
            bool(readers)
            and not self.edits.is_output(name)
            and all(self._change(number, name) for number in readers)
        )

    def _change(self, number: int, name: str) -> bool:
        index = self.edits.index
        kind = index.node_kinds[number]
        inputs = [self.edits.find_root(each) for each in index.node_inputs[number]]
        if not kind.is_onnx or number in self.edits.replaced or inputs.count(name) != 1:
            return False
        position = inputs.index(name)
        if kind.op_type in ("Add", "Sub"):
            return self.through_sums and self._change_sum(number, 1 - position)
        return position == 0 and self._change_linear(number)

    def _change_sum(self, number: int, position: int) -> bool:
        """Divide the constant of a sum by the factor, which its readers take in."""
        index = self.edits.index
        value = read_floats(self.edits, index.node_inputs[number][position])
        rank = index.get_rank(index.node_inputs[number][1 - position])
        # A constant of more axes would put the channels on another axis of the sum.
        if value is None or rank is None or rank < 2 or value.ndim > rank or np.any(self.offset):
            return False
        one = np.all(self.factor == self.factor[0])
        rest = value / (self.factor[0] if one else self.factor.reshape(-1, *[1] * (rank - 2)))
        grows = rest.size > max(value.size, len(self.factor))
        if grows or not is_storable(self.edits, number, rest):
            return False
        self.changed.append(_ChangedReader(number, {position: rest}, is_sum=True))
        return self.absorb(index.node_outputs[number][0])

    def _change_linear(self, number: int) -> bool:
        """Multiply a weight by the factor, and add to the bias what the offset makes."""
        index = self.edits.index
        node, inputs = index.nodes[number], index.node_inputs[number]
        spread = _SPREAD.get(node.op_type)
        weight = read_floats(self.edits, inputs[1]) if spread is not None else None
        if spread is None or weight is None:
            return False
        attributes = get_stated_attributes(node)
        try:
            scaled = weight * spread(self.factor, weight, attributes)
        except ValueError:  # the channels are other ones
            return False
        bias = None
        if np.any(self.offset):
            if not _sums_all(node.op_type, attributes):
                return False
            products = weight * spread(self.offset, weight, attributes)
            sums = _sum_outputs(node.op_type, products, attributes)
            before = read_bias(self.edits, inputs[2] if len(inputs) > 2 else "", len(sums))
            if before is None:
                return False
            bias = before * attributes.get("beta", 1.0) + attributes.get("alpha", 1.0) * sums
        if not is_storable(self.edits, number, scaled, *([] if bias is None else [bias])):
            return False
        self.changed.append(_ChangedReader(number, {1: scaled}, bias))
        return True


def fold_into_readers(
    edits: GraphEdits,
    number: int,
    name: str,
    affine: tuple[Array, Array],
    *,
    through_sums: bool,
) -> bool:
    """Let what reads `factor * x + offset` read x, called `name`, instead; return whether that can be.

    Factor and offset are `[channels]`, axis 1 of x. The node of that number computes this now, and goes.
    What a sum with a constant makes that the factor passes through is another tensor, with a new name.
    """
    index = edits.index
    made = index.node_outputs[number][0]
    folding = _ForwardFolding(edits, *affine, through_sums)
    if not folding.absorb(made):
        return False
    names = {made: name}
    for one in folding.changed:
        node, inputs = deepcopy(index.nodes[one.number]), index.node_inputs[one.number]
        for position, value in one.constants.items():
            stored = store_floats(edits, one.number, value, f"{inputs[position]}_folded")
            node.input[position] = stored
        if one.bias is not None:
            set_bias(node, store_floats(edits, one.number, one.bias, f"{node.output[0]}_bias"))
        for position, read in enumerate(inputs):
            if edits.find_root(read) in names:
                node.input[position] = names[edits.find_root(read)]
        if one.is_sum:
            names[index.node_outputs[one.number][0]] = _rename_output(edits, node)
        edits.replace(one.number, node)
        note_folded(edits, one.number, number)
    edits.remove(number)
    edits.drop_parameters(list_parameters(index, number, *(one.number for one in folding.changed)))
    return True


def _rename_output(edits: GraphEdits, node: NodeProto) -> str:
    """Rename the output of a node, and return the new name."""
    before = node.output[0]
    node.output[0] = edits.names.new_tensor(f"{before}_unscaled")
    edits.types[node.output[0]] = edits.index.type_protos[before]
    return node.output[0]


def _sums_all(op: str, attributes: Mapping[str, Any]) -> bool:
    """Return whether each result sums over all of the kernel, so that none has padding in it."""
    if op == "Gemm":
        return True
    unpadded = attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    return op == "Conv" and unpadded and not any(attributes.get("pads", ()))


def _sum_outputs(op: str, products: Array, attributes: Mapping[str, Any]) -> Array:
    """Return the sum of what goes into each output channel of a Conv or Gemm, `[channels]`."""
    across = op == "Gemm" and not attributes.get("transB", 0)
    return np.asarray(products.sum(axis=0 if across else tuple(range(1, products.ndim))))


def _spread_conv(values: Array, weight: Array, attributes: Mapping[str, Any]) -> Array:
    """Return the value of its input channel at each weight of a Conv, `[O, I / groups, 1, ...]`."""
    groups = attributes.get("group", 1)
    rows = np.repeat(values.reshape(groups, weight.shape[1]), weight.shape[0] // groups, axis=0)
    return rows.reshape(*rows.shape, *[1] * (weight.ndim - 2))


def _spread_transposed_conv(values: Array, weight: Array, attributes: Mapping[str, Any]) -> Array:
    return values.reshape(weight.shape[0], *[1] * (weight.ndim - 1))


def _spread_gemm(values: Array, weight: Array, attributes: Mapping[str, Any]) -> Array:
    if attributes.get("transA", 0):
        raise ValueError
    across = bool(attributes.get("transB", 0))
    return values.reshape((1, weight.shape[1]) if across else (weight.shape[0], 1))


_SPREAD = {
    "Conv": _spread_conv,
    "ConvTranspose": _spread_transposed_conv,
    "Gemm": _spread_gemm,
}
