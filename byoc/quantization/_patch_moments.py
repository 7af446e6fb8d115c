"""Second moments of what linear nodes multiply their weights with, measured on samples.

Each result of a linear node is a sum of products of weights with a *patch* of its input: the elements
that the kernel covers. A few patches of each sample, drawn at fixed places, stand for all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto

from byoc.model import Model, copy_without, get_stated_attributes
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.support import report_step

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
            patches = each.take_patches(np.asarray(seen[each.node.input[0]]), generator)
            if not np.isfinite(patches).all():
                continue
            sums[place] += patches.sum(axis=1)
            products[place] += np.matmul(patches.swapaxes(1, 2), patches)
            counts[place] += patches.shape[1]
    return [
        PatchMoments(total / max(count, 1), product / max(count, 1))
        for total, product, count in zip(sums, products, counts, strict=True)
    ]
