"""The form of means and extremes over whole images as global pools.

PyTorch's exporters write an adaptive pool to one pixel as GlobalAveragePool or, the newer one, as a
ReduceMean over the axes of the image. Both are the same; accelerators mostly have the pool.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnx import NodeProto

from byoc.model import FLOAT_DTYPES, GraphIndex, build_node, get_constant_value
from byoc.passes._simplify import GraphEdits
from byoc.passes._twin_forms import TwinForm, TwinnedTensors, is_among

_POOLS: Mapping[str, str] = {"ReduceMean": "GlobalAveragePool", "ReduceMax": "GlobalMaxPool"}
_FIRST = 2  # axes in front of those of an image: the batch and the channels
_MOST = 3  # axes of an image that pools of runtimes take


@dataclass(frozen=True)
class PooledMean(TwinForm):
    """Compute a ReduceMean or ReduceMax over all axes of images as a global pool.

    It runs where rules take the pool and not the reduction. The axes stay, with an extent of 1.
    """

    name: ClassVar[str] = "pooled-mean"
    suffix: ClassVar[str] = "pooled"

    def find_candidates(
        self, index: GraphIndex, operators: Collection[str] | None = None
    ) -> Iterator[int]:
        """Yield the reductions of a graph that are global pools."""
        for number, kind in enumerate(index.node_kinds):
            pool = _POOLS.get(kind.operator)
            if pool is not None and is_among(pool, operators) and self.describe(index, number):
                yield number

    def describe(self, index: GraphIndex, number: int) -> TwinnedTensors | None:
        """Return that no tensor has another form, None for a node that is no global pool."""
        node = index.nodes[number]
        if index.node_kinds[number].operator not in _POOLS or number in index.constant_nodes:
            return None
        shape, attributes = index.get_shape(node.input[0]), index.get_attributes(node)
        if shape is None or not attributes.get("keepdims", 1) or not 1 <= len(shape) - _FIRST <= _MOST:
            return None
        if index.get_dtype(node.input[0]) not in FLOAT_DTYPES:
            return None
        axes = _read_axes(index, node, attributes.get("axes"))
        image = [*range(_FIRST, len(shape))]
        is_whole = axes is not None and sorted(axis % len(shape) for axis in axes) == image
        return TwinnedTensors(frozenset(), frozenset()) if is_whole else None

    def convert(
        self, edits: GraphEdits, number: int, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Sequence[NodeProto]:
        """Return the pool."""
        node = edits.index.nodes[number]
        return [build_node(_POOLS[node.op_type], inputs[:1], outputs, node.name)]


def _read_axes(index: GraphIndex, node: NodeProto, stated: Sequence[int] | None) -> list[int] | None:
    """Return the axes that a reduction states, as an attribute or a constant; None where it does not."""
    if stated:
        return list(stated)
    value = get_constant_value(index, node.input[1]) if len(node.input) > 1 and node.input[1] else None
    return None if value is None or not value.size else [int(axis) for axis in value.ravel()]
