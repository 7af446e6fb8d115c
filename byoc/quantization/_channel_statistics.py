"""Statistics of each channel of tensors, measured on samples inside the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from byoc import onnxrt
from byoc.model import build_node, copy_without
from byoc.support import report_step

if TYPE_CHECKING:
    from byoc.model import Model

Float64Array = NDArray[np.float64]
_AXES_ARE_INPUTS = 18  # of ReduceMin, ReduceMax and ReduceMean, from this operator set on
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
    for number, name in enumerate(names):
        prefix = f"byoc.channels.{number}"
        square = f"{prefix}.square"
        proto.graph.node.append(build_node("Mul", [name, name], [square]))
        steps = [("ReduceMin", name), ("ReduceMax", name), ("ReduceMean", name), ("ReduceMean", square)]
        made = add_channel_reductions(proto, steps, index.get_rank(name) or 0, prefix)
        proto.graph.output.extend(onnx.ValueInfoProto(name=each) for each in made)
    with onnxrt.without_optimizations():
        session = onnxrt.open_session(proto, model.folder)
    seen: list[list[Float64Array]] = []
    for number, sample in enumerate(samples, 1):
        report_step(f"{title}: sample {number}")
        seen.append(
            [np.asarray(value, np.float64) for value in onnxrt.run_session(session, sample).values()]
        )
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


def add_channel_reductions(
    proto: ModelProto, steps: Sequence[tuple[str, str]], rank: int, prefix: str
) -> list[str]:
    """Add reductions (operator, tensor) to one value a channel, `[C]`; return the names of the results.

    All tensors are of that rank. The model is changed; names of what is added begin with `prefix`.
    """
    version = next(each.version for each in proto.opset_import if not each.domain)
    axes = [axis for axis in range(rank) if axis != CHANNELS]
    more: dict[str, Any] = {"axes": axes}
    inputs: list[str] = []
    if version >= _AXES_ARE_INPUTS:
        more, inputs = {}, [f"{prefix}.axes"]
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(axes, np.int64), inputs[0]))
    made = [f"{prefix}.{number}" for number in range(len(steps))]
    for (operator, tensor), name in zip(steps, made, strict=True):
        proto.graph.node.append(build_node(operator, [tensor, *inputs], [name], keepdims=0, **more))
    return made
