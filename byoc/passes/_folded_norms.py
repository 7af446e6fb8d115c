"""The pass that folds BatchNormalization into the convolution or matrix product before it.

At inference BatchNormalization computes `y = (x - mean) * scale / sqrt(var + epsilon) + B` per channel
(ONNX, BatchNormalization), which is affine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from byoc.model import get_stated_attributes
from byoc.passes._affine_folding import Array, find_linear_maker, fold_affine, read_floats
from byoc.passes._cleaning import CleanPass
from byoc.passes._graph_edits import GraphEdits

_FIRST_OPSET = 7  # before, an attribute says whether it trains
_EPSILON = 1e-5


@dataclass(frozen=True)
class FoldBatchNormalization(CleanPass):
    """Fold BatchNormalization into the Conv, ConvTranspose or Gemm whose result it alone reads.

    Results differ in the last digits. Rule files ask for it (`wants: folded_batchnorm`).
    """

    name: ClassVar[str] = "fold-batchnorm"
    operators: ClassVar[frozenset[str]] = frozenset({"BatchNormalization"})

    def edit(self, edits: GraphEdits, numbers: Sequence[int]) -> None:
        """Replace the node before each BatchNormalization, where that can be."""
        for number in numbers:
            maker = _find_maker(edits, number)
            scales = None if maker is None else _read_scales(edits, number)
            if maker is not None and scales is not None:
                with np.errstate(all="ignore"):  # what is infinite then is not folded
                    fold_affine(edits, maker, number, *scales)


def _find_maker(edits: GraphEdits, number: int) -> int | None:
    """Return the node before a normalization that can take it in."""
    index = edits.index
    node = index.nodes[number]
    attributes = get_stated_attributes(node)
    if index.get_opset(node) < _FIRST_OPSET or any(index.node_outputs[number][1:]):
        return None
    if attributes.get("training_mode", 0) or not attributes.get("spatial", 1):
        return None
    return find_linear_maker(edits, number, index.node_inputs[number][0])


def _read_scales(edits: GraphEdits, number: int) -> tuple[Array, Array] | None:
    """Return factor and offset of each channel, float64 (channels,), None if they are not stored."""
    index = edits.index
    values = [read_floats(edits, name) for name in index.node_inputs[number][1:5]]
    if any(value is None or value.ndim != 1 for value in values):
        return None
    scale, bias, mean, variance = (value for value in values if value is not None)
    epsilon = get_stated_attributes(index.nodes[number]).get("epsilon", _EPSILON)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(variance + np.float32(epsilon))
        return factor, bias - mean * factor
