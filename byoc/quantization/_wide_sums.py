"""Residual sums in 16 bits: those before normalizations whose noise in 8 bits is too large.

A sum of a transformer has the features of all layers before it, so one scale is too coarse for most of
them, and a normalization brings these to their full size again. A target that takes additions in 16 bits
keeps such a sum finer, for twice the bytes. What is added comes from a matrix product, whose sums
the target may round to 16 bits just as well: it still multiplies 8 bits, and no conversion stands
between. The normalization, in floating point, reads either type; products behind it read 8 bits.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc._dataclasses import dataclass
from byoc.model import GraphIndex, Model, get_node_name, is_onnx
from byoc.quantization._calibrators import EIGHT_BIT_STEPS
from byoc.quantization._channel_classes import ChannelStatistics, measure_channels
from byoc.quantization._feature_labels import is_normalized
from byoc.quantization._weights import WEIGHTED

LEAST_NOISE = 1e-3  # of the signal: 30 dB below it, noise of one tensor is lost in that of others
_SUMS = ("Add", "Sum")
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class WideSum:
    """A sum that may have 16 bits: the unit that makes it, and the `products` that it alone reads.

    `noise` is that of 8 bits in it, as a share of its signal.
    """

    unit: str
    products: tuple[str, ...]
    noise: float


def find_wide_sums(
    model: Model, units: Mapping[str, Sequence[str]], samples: Sequence[Mapping[str, Any]]
) -> list[WideSum]:
    """Return the sums before normalizations that 8 bits are too coarse for, the noisiest first.

    `units` are the quantized ones, by name, with the names of their nodes. Noise is measured on the
    samples; a sum whose noise is less than a thousandth of its signal is not among those returned.
    """
    index = model.index
    alone = {nodes[0]: unit for unit, nodes in units.items() if len(nodes) == 1}
    sums = {
        node.output[0]: node
        for node in index.nodes
        if is_onnx(node) and node.op_type in _SUMS and get_node_name(node) in alone
    }
    axes = {name: (rank - 1,) for name in sums if (rank := index.get_rank(name) or 0) > 1}
    wanted = {name: kept for name, kept in axes.items() if is_normalized(index, name)}
    if not wanted:
        return []
    seen = measure_channels(model, [*wanted], samples, "sums", wanted)
    found = [
        WideSum(
            alone[get_node_name(sums[name])], tuple(_find_products(index, sums[name])), _rate(seen[name])
        )
        for name in wanted
    ]
    coarse = [each for each in found if each.noise > LEAST_NOISE]
    return sorted(coarse, key=lambda each: -each.noise)


def _find_products(index: GraphIndex, node: NodeProto) -> Iterator[str]:
    """Yield what a sum reads, and nothing else does, that linear nodes make, behind views or not."""
    for name in node.input:
        made: str = name
        while _is_read_once(index, made):
            maker = index.nodes[index.producers[made]]
            if is_onnx(maker) and maker.op_type in WEIGHTED:
                yield name
            if not is_onnx(maker) or maker.op_type not in _VIEWS:
                break
            made = maker.input[0]


def _is_read_once(index: GraphIndex, name: str) -> bool:
    """Return whether a node makes a tensor, and one other node alone reads it."""
    alone = len(index.consumers.get(name, ())) == 1 and name not in index.outputs
    return alone and name in index.producers and not index.is_constant(name)


def _rate(seen: ChannelStatistics) -> float:
    """Return the mean share that the noise of 8 bits has in the features of a tensor."""
    width = max(float(seen.high.max(initial=0.0)), 0.0) - min(float(seen.low.min(initial=0.0)), 0.0)
    variance: NDArray[np.float64] = np.maximum(seen.power - seen.mean**2, 1e-30)
    return float(np.minimum((width / EIGHT_BIT_STEPS) ** 2 / 12 / variance, 1.0).mean())
