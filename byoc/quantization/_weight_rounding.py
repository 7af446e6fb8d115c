"""Rounding of weights by the error of the sums that they are in, instead of their own.

To round each weight to the nearest integer makes its own error least, and not that of the sums: inputs
of a layer depend on one another, so that one weight's error makes up for another's. For each output
channel `(w - q) H (w - q)` is made least over integers `q`, with `H` the moments of the inputs' patches:
the objective of AdaRound (Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization",
ICML 2020, section 3), here by coordinate descent from the nearest integers. It never gets larger on the
way. Scales stay as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc.model import (
    WEIGHT_KEY,
    Model,
    get_metadata,
    is_dequantize,
    is_inserted,
    is_onnx,
)
from byoc.quantization._arithmetic import WEIGHTED, read_constant, read_dequantized
from byoc.quantization._patch_moments import MAX_INPUTS, PatchMoments, WeightedNode, measure_moments

Float64Array = NDArray[np.float64]
_SWEEPS = 3  # over all weights of a channel; later ones change next to none
_BLOCK = 128  # weights whose changes are applied to the others together
_DAMPING = 0.01  # of the mean square of inputs, added to each: few samples say little of their products
_LEAST_RANK = 2


def round_weights(
    floats: Model, quantized: Model, samples: Sequence[Mapping[str, Any]]
) -> dict[str, NDArray[np.float32]]:
    """Return the weights of a quantized model's linear nodes, rounded for samples, by their names.

    They are the real numbers that the integers stand for, of the shape of the float weights. Left out
    are weights that several nodes read, and those of nodes that add up more than 4,608 products.
    """
    found = {each.weighted.node.output[0]: each for each in _find_rounded(floats, quantized)}
    nodes = [each.weighted for each in found.values()]
    made = {}
    for weighted, moments in measure_moments(quantized, nodes, samples):
        each = found[weighted.node.output[0]]
        made[each.name] = each.round(moments)
    return made


@dataclass(frozen=True, eq=False)
class _RoundedNode:
    """A linear node, the name of its float weights, these, and what they are rounded to."""

    weighted: WeightedNode
    name: str
    weights: Float64Array
    rounded: Float64Array
    scale: Float64Array

    def round(self, moments: PatchMoments) -> NDArray[np.float32]:
        """Return the weights rounded by the moments of patches; a bias takes up their mean."""
        node = self.weighted.node
        has_bias = len(node.input) > 2 and bool(node.input[2])
        products = moments.covariance if has_bias else moments.products
        rows, start = (self.weighted.to_rows(each / self.scale) for each in (self.weights, self.rounded))
        steps = self.weighted.from_rows(descend(rows, np.rint(start), products))
        return np.asarray(steps * self.scale, np.float32)


def count_large_nodes(floats: Model, quantized: Model) -> int:
    """Return the number of linear nodes that add up too many products for their moments."""
    return sum(each.inputs > MAX_INPUTS for each, _, _ in _find_weighted(floats, quantized))


def _find_rounded(floats: Model, quantized: Model) -> Iterator[_RoundedNode]:
    """Yield the nodes of a quantized model whose weights can be rounded by moments."""
    for weighted, name, maker in _find_weighted(floats, quantized):
        if weighted.inputs > MAX_INPUTS or not weighted.can_be_patched:
            continue
        weights = read_constant(floats.index, name, floats.folder).astype(np.float64)
        rounded, scale = read_dequantized(quantized.index, maker, quantized.folder)
        yield _RoundedNode(weighted, name, weights, rounded, scale)


def _find_weighted(floats: Model, quantized: Model) -> Iterator[tuple[WeightedNode, str, NodeProto]]:
    """Yield the nodes of a quantized model whose weights byoc rounded, and which alone read them.

    Beside each are the name of its float weights, and the DequantizeLinear of those that it reads.
    """
    index = quantized.index
    for node in index.nodes:
        if not is_onnx(node) or node.op_type not in WEIGHTED:
            continue
        number = index.producers.get(node.input[1])
        if number is None or len(index.consumers[node.input[1]]) > 1:
            continue
        maker = index.nodes[number]
        name = get_metadata(maker, WEIGHT_KEY)
        if not _is_weight(maker) or len(floats.index.consumers.get(name, ())) > 1:
            continue
        shape = [each for each in floats.index.get_shape(name) or () if isinstance(each, int)]
        if len(shape) < _LEAST_RANK or (node.op_type == "MatMul" and len(shape) > _LEAST_RANK):
            continue
        yield WeightedNode(node, tuple(shape)), name, maker


def _is_weight(node: NodeProto) -> bool:
    return is_inserted(node) and is_dequantize(node) and bool(get_metadata(node, WEIGHT_KEY))


def descend(weights: Float64Array, start: Float64Array, products: Float64Array) -> Float64Array:
    """Return integers near weights, `[G, M, D]`, by descent from others, for moments `[G, D, D]`.

    Weight after weight becomes the integer that is best beside all others. None is beyond the least and
    the greatest of the integers to start from.
    """
    low, high = start.min(initial=0), start.max(initial=0)
    count = weights.shape[2]
    power = np.einsum("gii->gi", products)
    moments = products.copy()
    diagonal = np.einsum("gii->gi", moments)  # a view
    diagonal += _DAMPING * power.mean(axis=1, keepdims=True)
    diagonal[diagonal <= 0] = 1.0  # what is 0 in all patches
    found = start.copy()
    slopes = np.matmul(weights - found, moments)
    for _ in range(_SWEEPS):
        before_sweep = found.copy()
        for first in range(0, count, _BLOCK):
            part = slice(first, first + _BLOCK)
            before = found[:, :, part].copy()
            inside = moments[:, part, part]
            local = slopes[:, :, part].copy()
            for number in range(before.shape[2]):
                column = first + number
                old = found[:, :, column]
                best = old + local[:, :, number] / diagonal[:, np.newaxis, column]
                new = np.clip(np.rint(best), low, high)
                local -= (new - old)[:, :, np.newaxis] * inside[:, np.newaxis, number]
                found[:, :, column] = new
            slopes -= np.matmul(found[:, :, part] - before, moments[:, part])
        if np.array_equal(before_sweep, found):
            break
    return found
