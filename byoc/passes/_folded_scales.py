"""The pass that folds constant factors and summands into convolutions and matrix products beside them.

Caffe and Paddle write scale and bias of a layer as a Mul and an Add of one number for each channel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from byoc.passes._affine_folding import Array, find_linear_maker, fold_affine, read_floats
from byoc.passes._cleaning import CleanPass
from byoc.passes._forward_folding import fold_into_readers
from byoc.passes._graph_edits import GraphEdits


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
