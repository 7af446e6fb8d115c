"""Equalization: channels of a tensor are brought to like ranges, by factors that weights absorb.

A tensor in integers has one scale, so that a channel with a small range has few levels; where a
depthwise convolution reads it, nothing makes up for that. Factors of channels (`_channel_classes`) leave
the network what it is, but for rounding in floating point. They are those of Nagel et al., "Data-Free
Quantization Through Weight Equalization and Bias Correction" (ICCV 2019), from ranges measured on data
as in Xiao et al., "SmoothQuant" (ICML 2023): a share of the range goes into the weights of the next
layer. How large a share is chosen for tensors that share channels, by the noise that follows from
uniform rounding errors, `step**2 / 12`.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.model import EditableGraph, InferenceResult, Model, copy_without
from byoc.numerics import merge_groups
from byoc.quantization._arithmetic import read_constant
from byoc.quantization._channel_classes import (
    ChannelClasses,
    LinearChannels,
    find_channel_classes,
    list_linear_nodes,
)
from byoc.quantization._channel_statistics import ChannelStatistics, measure_channels

Float64Array = NDArray[np.float64]
_SHARES = ((0.0, 0.0), (0.25, 0.0), (0.5, 0.0), (0.75, 0.0), (1.0, 0.0), (0.5, 0.5), (0.25, 0.25))
"""The powers of an activation's range and of the next weights' range that a factor is made of."""
_LEAST = 2.0**-8  # of the ranges of channels to the widest: where less is measured, other data has more
_LEVELS, _WEIGHT_LEVELS = 255, 127


@dataclass(frozen=True)
class _Linear:
    """A linear node: weights `[rows, columns, kernel]` of a `shape`, their channels, its tensors."""

    number: int
    shape: tuple[int, ...]
    weights: Float64Array
    channels: LinearChannels
    read: str
    made: str


def equalize(model: Model, samples: Sequence[Mapping[str, Any]]) -> Model:
    """Return a model with channels equalized, which computes the same but for rounding.

    A model with nothing to equalize is returned as it is. `samples` are those that ranges are measured
    on.
    """
    classes = find_channel_classes(model.index)
    linear = list(_read_linear(model, classes))
    names = sorted(
        {name for one in linear for name in (one.read, one.made) if name in classes.of_tensor}
    )
    if not linear or classes.fixed.all():
        return model
    statistics = measure_channels(model, names, samples, "channels")
    factors = choose_factors(classes, linear, statistics)
    return model if np.all(factors == 1) else apply_factors(model, classes, linear, factors)


def _read_linear(model: Model, classes: ChannelClasses) -> Iterator[_Linear]:
    """Yield the linear nodes that read or make a channel whose class is free."""
    index = model.index
    for number in list_linear_nodes(index):
        node = index.nodes[number]
        known = [
            classes.of_tensor[name]
            for name in (node.input[0], node.output[0])
            if name in classes.of_tensor
        ]
        if any(not classes.fixed[each].all() for each in known):
            weights = read_constant(index, node.input[1], model.folder).astype(np.float64)
            flat = weights.reshape(*weights.shape[:2], -1)
            yield _Linear(
                number,
                weights.shape,
                flat,
                LinearChannels.of_node(node, weights.shape),
                node.input[0],
                node.output[0],
            )


def choose_factors(
    classes: ChannelClasses, linear: Sequence[_Linear], statistics: Mapping[str, ChannelStatistics]
) -> Float64Array:
    """Return the divisors of each class of channels, `[classes]`; 1 for one that is fixed."""
    ranges = _find_relative_ranges(
        classes, {one.read: statistics[one.read].reach for one in linear if one.read in statistics}
    )
    columns = _find_relative_ranges(
        classes,
        {one.read: weights for one in linear if (weights := _find_column_ranges(one)) is not None},
    )
    factors = np.ones(len(classes.fixed))
    for members in _find_coupled(classes, linear):
        own = np.unique(np.concatenate([classes.of_tensor[one.read] for one in members]))
        own = own[~classes.fixed[own]]
        if not own.size:
            continue
        best = np.inf
        kept = factors[own]
        for by_range, by_weights in _SHARES:
            factors[own] = ranges[own] ** by_range / columns[own] ** by_weights
            noise = sum(_estimate_noise(one, classes, factors, statistics) for one in members)
            if noise < best * (1 - 1e-6):
                best, kept = noise, factors[own]
        factors[own] = kept
    return factors


def _find_relative_ranges(classes: ChannelClasses, reaches: Mapping[str, Float64Array]) -> Float64Array:
    """Return the range of each class, relative to the widest channel of a tensor, `[classes]`."""
    found = np.zeros(len(classes.fixed))
    for name, reach in reaches.items():
        if name in classes.of_tensor and reach.max(initial=0.0) > 0:
            np.maximum.at(found, classes.of_tensor[name], reach / reach.max())
    return np.where(found > 0, np.maximum(found, _LEAST), 1.0)


def _find_column_ranges(one: _Linear) -> Float64Array | None:
    """Return the range of the weights of each input channel, None where each has rows of its own."""
    inputs = one.channels.inputs
    if inputs.shape[1] == 1:  # depthwise: a factor of its input is one of a whole row
        return None
    found = np.zeros(int(inputs.max()) + 1)
    np.maximum.at(found, inputs, np.abs(one.weights).max(axis=-1))
    return found


def _find_coupled(classes: ChannelClasses, linear: Sequence[_Linear]) -> list[list[_Linear]]:
    """Return the linear nodes in groups whose inputs share channels."""
    known = [one for one in linear if one.read in classes.of_tensor]
    groups = [classes.of_tensor[one.read].tolist() for one in known]
    roots = merge_groups(len(classes.fixed), groups)
    found: dict[int, list[_Linear]] = {}
    for one, group in zip(known, groups, strict=True):
        found.setdefault(roots[group[0]], []).append(one)
    return list(found.values())


def _estimate_noise(
    one: _Linear,
    classes: ChannelClasses,
    factors: Float64Array,
    statistics: Mapping[str, ChannelStatistics],
) -> float:
    """Return the mean share of noise in a linear node's output channels, of input and weights."""
    seen, made = statistics[one.read], statistics.get(one.made)
    factor = factors[classes.of_tensor[one.read]]
    step = (max((seen.high / factor).max(), 0.0) - min((seen.low / factor).min(), 0.0)) / _LEVELS
    inputs, outputs = one.channels.inputs, one.channels.outputs
    square = (one.weights**2).sum(axis=-1) * factor[inputs] ** 2
    count = int(outputs.max()) + 1
    reach = np.zeros(count)
    np.maximum.at(reach, outputs, np.abs(one.weights).max(axis=-1) * factor[inputs])
    power = np.zeros(count)
    np.add.at(power, outputs, (seen.power / factor**2)[inputs] * one.weights.shape[-1])
    gathered = np.zeros(count)
    np.add.at(gathered, outputs, square)
    noise = (gathered * step**2 + power * (reach / _WEIGHT_LEVELS) ** 2) / 12
    variance = np.ones(count) if made is None else np.maximum(made.power - made.mean**2, 0)
    share = noise / np.maximum(variance, 1e-12 * max(float(variance.max()), 1e-30))
    return float(np.minimum(share, 1.0).mean())


def apply_factors(
    model: Model, classes: ChannelClasses, linear: Sequence[_Linear], factors: Float64Array
) -> Model:
    """Return a model in which the channels of each class are divided by its factor, `[classes]`."""
    index = model.index
    graph = EditableGraph.of_index(index)

    def find_factor(name: str, count: int) -> Float64Array:
        return factors[classes.of_tensor[name]] if name in classes.of_tensor else np.ones(count)

    def store(values: Float64Array, name: str) -> str:
        return graph.store(values.astype(np.float32), f"{name}_equalized")

    for one in linear:
        node = deepcopy(index.nodes[one.number])
        given = find_factor(one.read, int(one.channels.inputs.max()) + 1)
        made = find_factor(one.made, int(one.channels.outputs.max()) + 1)
        if np.all(given == 1) and np.all(made == 1):
            continue
        scaled = one.weights * (given[one.channels.inputs] / made[one.channels.outputs])[..., np.newaxis]
        node.input[1] = store(scaled.reshape(one.shape), node.input[1])
        if len(node.input) > 2 and node.input[2]:
            bias = read_constant(index, node.input[2], model.folder).astype(np.float64)
            whole = np.broadcast_to(bias.reshape(-1), made.shape) / made
            node.input[2] = store(
                whole.reshape(bias.shape if bias.size > 1 else made.shape), node.input[2]
            )
        graph.replace(one.number, node)
    proto = copy_without(model.proto)
    graph.write_to(proto.graph)
    graph.write_stored(proto.graph, graph.list_unread_stored())
    types = {**model.inference.type_protos, **graph.types}
    inference = InferenceResult(types, None, model.inference.notes)
    return replace(model, structure=proto, heavy=None, inference=inference)
