"""Classes of tensors that share one scale.

Views and concatenations return the values that they read, so one scale for both is exact; other
operators have one scale for all their tensors if the target asks for it (`quantization.same_scale`). The
range of a class is the union of the ranges of its tensors; a quantization given by the user takes
precedence.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from onnx import NodeProto

from byoc.errors import InputError
from byoc.model import CLAMP_OPERATORS, VIEW_OPERATORS, GraphIndex, is_onnx, may_be_float
from byoc.numerics import merge_groups
from byoc.quantization._arithmetic import (
    QuantizationParams,
    ScaleRequirement,
    compute_params,
)
from byoc.quantization._candidates import QuantizationCandidate, TensorRequirement
from byoc.quantization._channel_statistics import CHANNELS
from byoc.quantization._ranges import ChannelRange, GivenQuantization, Range

_SYMMETRIC = "int16"
_LEAST_SHARE = 2.0**-24  # of the widest channel: the digits of a float32


def find_scale_classes(index: GraphIndex, units: Sequence[QuantizationCandidate]) -> Mapping[str, str]:
    """Return for each tensor that shares its scale with others if units are quantized their first."""
    groups: list[list[str]] = []
    for unit in units:
        inner = {name for number in unit.unit.nodes for name in index.nodes[number].output}
        for number in unit.unit.nodes:
            groups.append(list(_tensors_of_one_scale(index, index.nodes[number], unit, inner)))
    names = list(dict.fromkeys(name for group in groups for name in group))
    position = {name: i for i, name in enumerate(names)}
    roots = merge_groups(len(names), ([position[name] for name in group] for group in groups))
    return {name: names[root] for name, root in zip(names, roots, strict=True)}


def shares_scale(node: NodeProto, unit: QuantizationCandidate) -> bool:
    """Return whether all tensors of a node share one scale, including constants that it reads."""
    concat = is_onnx(node) and node.op_type == "Concat"
    return concat or unit.requirements.needs_same_scale(node)


def _tensors_of_one_scale(
    index: GraphIndex, node: NodeProto, unit: QuantizationCandidate, inner: set[str]
) -> Iterator[str]:
    floats = [name for name in (*node.input, *node.output) if name and may_be_float(index, name)]
    if shares_scale(node, unit):
        yield from floats
    elif not is_onnx(node):
        return
    elif node.op_type in VIEW_OPERATORS or (node.op_type in CLAMP_OPERATORS and node.input[0] in inner):
        yield node.input[0]
        yield from (name for name in node.output if name in floats)


def combine_requirements(uses: Sequence[TensorRequirement], dtype: str | None) -> ScaleRequirement:
    """Return the requirements for a class: the first use's preferred dtype that suits the most uses.

    Zero points of int16 are 0, as in TensorFlow Lite's 16x8 scheme: what they could gain is one bit.
    """
    first = uses[0].dtypes
    common = [one for one in first if all(one in use.dtypes for use in uses)] or list(first)
    chosen = dtype if dtype is not None else common[0]
    symmetric = chosen == _SYMMETRIC or any(use.symmetric for use in uses)
    return ScaleRequirement(chosen, symmetric, any(use.power_of_two for use in uses))


def compute_class_params(
    entries: Mapping[str, Range | GivenQuantization], form: ScaleRequirement
) -> QuantizationParams | None:
    """Return the quantization of a class from the ranges of its tensors.

    None if there are negative values, and the form has none. Raises InputError if the user gave two of
    its tensors different scales.
    """
    given = {name: entry for name, entry in entries.items() if isinstance(entry, GivenQuantization)}
    if given:
        (first, entry), *others = given.items()
        for name, other in others:
            if other != entry:
                raise InputError(
                    f"calibration: '{first}' and '{name}' must have one scale and zero point, "
                    "and different ones are given"
                )
        return convert_given(entry)
    ranges = [entry for entry in entries.values() if isinstance(entry, Range)]
    low, high = min(r.low for r in ranges), max(r.high for r in ranges)
    return compute_params(low, high, form)


def convert_given(given: GivenQuantization) -> QuantizationParams:
    """Return the quantization that a user gave for a tensor."""
    scale, points = np.asarray(given.scale, np.float32), np.asarray(given.zero_point, np.int64)
    if given.axis is None:
        return QuantizationParams(scale.reshape(()), points.reshape(()), given.dtype)
    return QuantizationParams(scale, points, given.dtype, given.axis)


def compute_channel_params(channels: ChannelRange, form: ScaleRequirement) -> QuantizationParams | None:
    """Return a quantization with a scale for each channel, None as `compute_class_params`.

    A channel that is narrower than `_LEAST_SHARE` of the widest one holds rounding errors alone, and
    gets that range: no multiplier of an accelerator has the ratio of sums to a scale of its own.
    """
    reach = np.maximum(np.abs(channels.low), np.abs(channels.high))
    least = reach.max(initial=0.0) * _LEAST_SHARE
    high = np.where(reach < least, least, channels.high)
    return compute_params(channels.low, high, form, CHANNELS)
