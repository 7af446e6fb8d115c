"""The pass that folds constant factors and summands into the convolution or matrix product before them.

Caffe and Paddle write scale and bias of a layer as a Mul and an Add of one number for each channel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from byoc.passes._affine_folding import Array, find_linear_maker, fold_affine, read_floats
from byoc.passes._cleaning import CleanPass
from byoc.passes._graph_edits import GraphEdits


@dataclass(frozen=True)
class FoldScales(CleanPass):
    """Fold Mul, Add, Sub, Div by constants into the Conv, ConvTranspose or Gemm that they alone read.

    The constants have one number, or one for each channel. Results differ in the last digits. One node
    behind each linear operator is folded at a time.
    """

    name: ClassVar[str] = "fold-scales"
    operators: ClassVar[frozenset[str]] = frozenset({"Mul", "Add", "Sub", "Div"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Replace the linear node before each, where that can be."""
        for number in numbers:
            for position in (0, 1):
                if self._fold(edits, number, position):
                    break

    def _fold(self, edits: GraphEdits, number: int, position: int) -> bool:
        """Fold a node, one of whose inputs a linear one makes; return whether that could be."""
        index = edits.index
        op, names = index.node_kinds[number].op_type, index.node_inputs[number]
        if position and op == "Div":
            return False
        maker = find_linear_maker(edits, number, names[position])
        value = None if maker is None else read_floats(edits, names[1 - position])
        shape = index.get_shape(names[position])
        if maker is None or value is None or not shape:
            return False
        axis = _find_axis(edits, maker)
        channels = shape[axis]
        numbers = _spread(value, len(shape), axis, channels) if isinstance(channels, int) else None
        if numbers is None:
            return False
        ones, zeros = np.ones(len(numbers)), np.zeros(len(numbers))
        sign = -1.0 if position else 1.0
        with np.errstate(all="ignore"):  # what is infinite then is not folded
            factor, offset = {
                "Mul": (numbers, zeros),
                "Div": (1 / numbers, zeros),
                "Add": (ones, numbers),
                "Sub": (sign * ones, -sign * numbers),
            }[op]
            fold_affine(edits, maker, number, factor, offset)
        return maker in edits.replaced


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
