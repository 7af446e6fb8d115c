"""Statistics of each channel of tensors, measured on samples inside the model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from byoc.model import Model, copy_without
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.support import report_step

Float64Array = NDArray[np.float64]
_AXES_ARE_INPUTS = 18  # of reductions, from this operator set on
CHANNELS = 1
"""The axis of a tensor that has its channels."""


@dataclass(frozen=True)
class ChannelStatistics:
    """Least and greatest value, mean, mean square of each channel of a tensor: `[C]`, float64."""

    low: Float64Array
    high: Float64Array
    mean: Float64Array
    power: Float64Array

    @property
    def reach(self) -> Float64Array:
        """The greatest magnitude of each channel, `[C]`."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


def measure_channels(
    model: Model, names: Sequence[str], samples: Iterable[Mapping[str, Any]], title: str
) -> dict[str, ChannelStatistics]:
    """Return the statistics of tensors of the main graph over samples; all have more than one axis.

    Channels are along axis 1. The operator set of the model is 13 or newer. What is not finite in a
    sample does not count.
    """
    index = model.index
    proto = copy_without(model.proto, "output")
    version = index.opsets.get("", 1)
    for number, name in enumerate(names):
        axes = [axis for axis in range(index.get_rank(name) or 0) if axis != CHANNELS]
        made = _list_reductions(name, f"byoc.channels.{number}", axes, version)
        if version >= _AXES_ARE_INPUTS:
            proto.graph.initializer.append(
                numpy_helper.from_array(np.asarray(axes, np.int64), f"byoc.channels.{number}.axes")
            )
        proto.graph.node.extend(made)
        proto.graph.output.extend(
            onnx.ValueInfoProto(name=node.output[0]) for node in made if node.op_type != "Mul"
        )
    with without_optimizations():
        session = open_session(proto, model.folder)
    seen: list[list[Float64Array]] = []
    for number, sample in enumerate(samples, 1):
        report_step(f"{title}: sample {number}")
        seen.append([np.asarray(value, np.float64) for value in run_session(session, sample).values()])
    merge = ("min", "max", "mean", "mean")
    return {
        name: ChannelStatistics(
            *(_merge_samples([one[4 * at + i] for one in seen], merge[i]) for i in range(4))
        )
        for at, name in enumerate(names)
    }


def _merge_samples(values: Sequence[Float64Array], how: str) -> Float64Array:
    """Return the `min`, `max` or `mean` of what samples gave; 0 for what is finite in none.

    An empty tensor has no least value and no mean, as that of the objects that a detector did not find.
    """
    return np.asarray(getattr(np.ma.masked_invalid(np.stack(values)), how)(axis=0).filled(0.0))


def _list_reductions(name: str, prefix: str, axes: Sequence[int], version: int) -> list[NodeProto]:
    """Return the nodes for the least, the greatest, the mean and the mean square of each channel."""
    more: dict[str, Any] = {"keepdims": 0}
    inputs = [f"{prefix}.axes"]
    if version < _AXES_ARE_INPUTS:
        more["axes"], inputs = list(axes), []
    square = f"{prefix}.square"
    steps = (("ReduceMin", name), ("ReduceMax", name), ("ReduceMean", name), ("ReduceMean", square))
    nodes = [helper.make_node("Mul", [name, name], [square])]
    for number, (operator, source) in enumerate(steps):
        # ReduceMean takes its axes as an input from version 18 on as well.
        nodes.append(helper.make_node(operator, [source, *inputs], [f"{prefix}.{number}"], **more))
    return nodes
