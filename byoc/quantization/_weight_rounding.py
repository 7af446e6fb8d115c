"""Rounding of weights by the error of the sums that they are in, instead of their own.

To round each weight to the nearest integer makes its own error least, and not that of the sums: inputs
of a layer depend on one another, so that one weight's error makes up for another's. For each output
channel `(w - q) H (w - q)` is made least over integers `q`, with `H` the moments of the inputs' patches:
the objective of AdaRound (Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization",
ICML 2020, section 3), here by coordinate descent from the nearest integers. It never gets larger on the
way. Scales stay as they are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto

from byoc._dataclasses import dataclass
from byoc.model import (
    WEIGHT_KEY,
    Model,
    copy_without,
    get_metadata,
    get_stated_attributes,
    is_dequantize,
    is_inserted,
    is_onnx,
)
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.quantization._weights import WEIGHTED, read_constant, read_dequantized
from byoc.support import report_step

# Second moments of what linear nodes multiply their weights with, measured on samples.
#
# Each result of a linear node is a sum of products of weights with a *patch* of its input: the
# elements that the kernel covers. A few patches of each sample, drawn at fixed places, stand for
# all.

Float64Array = NDArray[np.float64]
_PATCHES = 512  # of each sample
MAX_INPUTS = 4608
"""Nodes that add up more products are left out: the moments of 4,608 inputs take 170 MB."""
_MEMORY = 1 << 30  # bytes of moments that are kept at once


@dataclass(frozen=True, eq=False)
class WeightedNode:
    """A linear node with constant weights of some shape.

    Weights as rows, `[groups, outputs, inputs]`, have a row for each output channel of a group, with its
    inputs in the order of the elements of a patch.
    """

    node: NodeProto
    shape: tuple[int, ...]

    @property
    def groups(self) -> int:
        """The number of groups of channels."""
        return int(self._read_attribute("group", 1)) if "Conv" in self.node.op_type else 1

    @property
    def inputs(self) -> int:
        """The number of products that each result adds up."""
        first, second, *kernel = self.shape
        if self.node.op_type == "Conv":
            return second * prod(kernel)
        if self.node.op_type == "ConvTranspose":
            return first // self.groups * prod(kernel)
        return second if self._is_transposed else first

    @property
    def can_be_patched(self) -> bool:
        """Whether patches are known: pads are stated, and a Gemm reads its operand as it is."""
        padding = self._read_attribute("auto_pad", b"NOTSET")
        return padding in ("NOTSET", b"NOTSET") and not self._read_attribute("transA", 0)

    @property
    def _is_transposed(self) -> bool:
        return bool(self._read_attribute("transB", 0))

    def _read_attribute(self, name: str, default: Any) -> Any:
        return get_stated_attributes(self.node).get(name, default)

    def to_rows(self, weights: NDArray[Any]) -> NDArray[Any]:
        """Return weights of the node's shape as rows."""
        if self.node.op_type == "Conv":
            return weights.reshape(self.groups, self.shape[0] // self.groups, -1)
        if self.node.op_type == "ConvTranspose":
            parts = weights.reshape(self.groups, -1, self.shape[1], prod(self.shape[2:]))
            return parts.swapaxes(1, 2).reshape(self.groups, self.shape[1], -1)
        rows: NDArray[Any] = weights if self._is_transposed else weights.T
        return rows[np.newaxis]

    def from_rows(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rows as weights of the node's shape."""
        if self.node.op_type == "Conv":
            return rows.reshape(self.shape)
        if self.node.op_type == "ConvTranspose":
            parts = rows.reshape(self.groups, self.shape[1], -1, prod(self.shape[2:]))
            return parts.swapaxes(1, 2).reshape(self.shape)
        matrix: NDArray[Any] = rows[0]
        return matrix if self._is_transposed else matrix.T

    def take_patches(self, x: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
        """Return some patches of an input, `[groups, patches, inputs]`.

        Those of a ConvTranspose are of its results before pads are cut off.
        """
        if "Conv" not in self.node.op_type:
            rows = x.reshape(-1, x.shape[-1])
            return rows[_draw(len(rows), generator)][np.newaxis]
        kernel = self.shape[2:]
        strides = self._read_attribute("strides", [1] * len(kernel))
        dilations = self._read_attribute("dilations", [1] * len(kernel))
        offsets = np.unravel_index(np.arange(prod(kernel)), kernel)
        taps = [offset * dilation for offset, dilation in zip(offsets, dilations, strict=True)]
        spans = [(extent - 1) * each + 1 for extent, each in zip(kernel, dilations, strict=True)]
        if self.node.op_type == "Conv":
            pads = self._read_attribute("pads", [0] * 2 * len(kernel))
            x = np.pad(x, [(0, 0), (0, 0), *zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)])
            extents = [
                (extent - span) // stride + 1
                for extent, span, stride in zip(x.shape[2:], spans, strides, strict=True)
            ]
        else:
            extents = [
                (extent - 1) * stride + span
                for extent, span, stride in zip(x.shape[2:], spans, strides, strict=True)
            ]
        image, *places = np.unravel_index(_draw(len(x) * prod(extents), generator), (len(x), *extents))
        if self.node.op_type == "Conv":
            read = [
                place[:, np.newaxis] * stride + tap
                for place, stride, tap in zip(places, strides, taps, strict=True)
            ]
            found = x[(image[:, np.newaxis], slice(None), *read)]
        else:
            away = [place[:, np.newaxis] - tap for place, tap in zip(places, taps, strict=True)]
            read = [each // stride for each, stride in zip(away, strides, strict=True)]
            inside = [
                (each % stride == 0) & (place >= 0) & (place < extent)
                for each, stride, place, extent in zip(away, strides, read, x.shape[2:], strict=True)
            ]
            read = [
                np.clip(place, 0, extent - 1) for place, extent in zip(read, x.shape[2:], strict=True)
            ]
            found = x[(image[:, np.newaxis], slice(None), *read)] * np.all(inside, 0)[..., np.newaxis]
        patches = found.swapaxes(1, 2).reshape(len(image), self.groups, -1)
        return np.asarray(patches.swapaxes(0, 1))


def _draw(count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return at most `_PATCHES` numbers below a count, in order."""
    if count <= _PATCHES:
        return np.arange(count)
    return np.sort(generator.choice(count, _PATCHES, replace=False))


@dataclass(frozen=True, eq=False)
class PatchMoments:
    """The means of patches, `[groups, inputs]`, and of their products, `[groups, inputs, inputs]`."""

    mean: Float64Array
    products: Float64Array

    @property
    def covariance(self) -> Float64Array:
        """The means of products of what is left of patches without their mean."""
        return self.products - self.mean[:, :, np.newaxis] * self.mean[:, np.newaxis]


def measure_moments(
    model: Model, nodes: Iterable[WeightedNode], samples: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[WeightedNode, PatchMoments]]:
    """Yield nodes of a model with the moments of their patches over samples.

    The samples are run again for each group of nodes whose moments fit into a gibibyte.
    """
    for part in _split_by_memory(nodes):
        yield from zip(part, _measure_part(model, part, samples), strict=True)


def _split_by_memory(nodes: Iterable[WeightedNode]) -> Iterator[list[WeightedNode]]:
    part: list[WeightedNode] = []
    used = 0
    for each in nodes:
        size = 8 * each.groups * each.inputs**2
        if part and used + size > _MEMORY:
            yield part
            part, used = [], 0
        part.append(each)
        used += size
    if part:
        yield part


def _measure_part(
    model: Model, nodes: Sequence[WeightedNode], samples: Sequence[Mapping[str, Any]]
) -> list[PatchMoments]:
    proto = copy_without(model.proto, "output")
    names = sorted({each.node.input[0] for each in nodes})
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    with without_optimizations():
        session = open_session(proto, model.folder)
    sums = [np.zeros((each.groups, each.inputs)) for each in nodes]
    products = [np.zeros((each.groups, each.inputs, each.inputs)) for each in nodes]
    counts = [0] * len(nodes)
    for number, sample in enumerate(samples):
        report_step(f"patches: sample {number + 1}")
        seen = run_session(session, sample)
        for place, each in enumerate(nodes):
            generator = np.random.default_rng(number)
            read = np.asarray(seen[each.node.input[0]], np.float32)  # sums of half precision overflow
            patches = each.take_patches(read, generator)
            if not np.isfinite(patches).all():
                continue
            sums[place] += patches.sum(axis=1)
            with np.errstate(over="ignore", invalid="ignore"):  # squares of 1e20 are infinite
                products[place] += np.matmul(patches.swapaxes(1, 2), patches)
            counts[place] += patches.shape[1]
    return [
        PatchMoments(total / max(count, 1), product / max(count, 1))
        for total, product, count in zip(sums, products, counts, strict=True)
    ]


_SWEEPS = 3  # over all weights of a channel; later ones change next to none
_BLOCK = 128  # weights whose changes are applied to the others together
_DAMPING = 0.01  # of the mean square of inputs, added to each: few samples say little of their products
_LEAST_RANK = 2  # of weights that are rounded in groups: a matrix


def round_weights(
    floats: Model, quantized: Model, samples: Sequence[Mapping[str, Any]]
) -> dict[str, NDArray[np.float32]]:
    """Return the weights of a quantized model's linear nodes, rounded for samples, by their names.

    They are the real numbers that the integers stand for, of the shape of the float weights. Left out
    are weights that several nodes read, those of nodes that add up more than 4,608 products, and those
    whose inputs are so large that their squares are beyond float32: these tell nothing.
    """
    found = {each.weighted.node.output[0]: each for each in _find_rounded(floats, quantized)}
    nodes = [each.weighted for each in found.values()]
    made = {}
    for weighted, moments in measure_moments(quantized, nodes, samples):
        each = found[weighted.node.output[0]]
        if np.isfinite(moments.products).all():
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
                change = np.clip(np.rint(best), low, high) - old
                group, row = np.nonzero(change)  # few, after the first sweep
                steps = change[group, row, np.newaxis]
                local[group, row, number + 1 :] -= steps * inside[group, number, number + 1 :]
                found[:, :, column] += change
            slopes -= np.matmul(found[:, :, part] - before, moments[:, part])
        if np.array_equal(before_sweep, found):
            break
    return found
