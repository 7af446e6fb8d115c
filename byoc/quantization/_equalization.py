"""Equalization: channels of a tensor are brought to like ranges, by factors that weights absorb.

A tensor in integers has one scale, so that a channel with a small range has few levels; where a
depthwise convolution reads it, nothing makes up for that. Factors of channels (`_channel_classes`) leave
the network what it is, but for rounding in floating point. They are those of Nagel et al., "Data-Free
Quantization Through Weight Equalization and Bias Correction" (ICCV 2019), from ranges measured on data
as in Xiao et al., "SmoothQuant" (ICML 2023): a share of the range goes into the weights of the next
layer. How large a share is chosen for tensors that share channels, by the noise that follows from
uniform rounding errors, `step**2 / 12`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc._dataclasses import dataclass, replace
from byoc.model import (
    VIEW_OPERATORS,
    EditableGraph,
    GraphIndex,
    InferenceResult,
    Model,
    copy_without,
    get_node_name,
    get_stated_attributes,
    is_dequantize,
    is_onnx,
)
from byoc.numerics import merge_groups
from byoc.quantization._accuracy_measures import SampleValues
from byoc.quantization._calibrators import EIGHT_BIT_STEPS, EIGHT_BITS, GivenQuantization, Range, Ranges
from byoc.quantization._channel_classes import (
    ChannelClasses,
    ChannelStatistics,
    LinearChannels,
    find_channel_classes,
    list_linear_nodes,
    measure_channels,
)
from byoc.quantization._weights import read_constant

# Tensors that eight bits are too coarse for: outputs, and operands of a Concat, that get few steps.
#
# A map of scores before their Sigmoid may reach from -40,000 to 20,000 where nine tenths of it lie
# within 700; an answer is where it is above zero. An operand of a Concat shares one scale with
# larger ones.

# Ranges that follow from operators: a Sigmoid lies from 0 to 1, and a HardSwish is 0 below -3.
#
# Data that ranges are measured on seldom has the surest answer of a detector, which would be
# clipped. An input needs no steps where the output no longer changes by as much as a tenth of a
# step of its own. The weights of an attention are no answers: where there are many keys, the largest
# may be a hundredth, and all would be in the first steps of a range to 1.

_OUTPUT_RANGES = {
    "Sigmoid": Range(0.0, 1.0),
    "HardSigmoid": Range(0.0, 1.0),
    "Softmax": Range(0.0, 1.0),
    "Tanh": Range(-1.0, 1.0),
}
_INFINITE = float("inf")
_USEFUL_INPUTS = {
    "HardSwish": Range(-3.0, _INFINITE),
    "Sigmoid": Range(-8.0, 8.0),  # beyond, the output is 0.086 of one step of 255 from its limit
    "Tanh": Range(-4.0, 4.0),  # likewise 0.086
}
_USEFUL_INPUTS_IN_16_BITS = {
    "HardSwish": Range(-3.0, _INFINITE),
    "Sigmoid": Range(-13.5, 13.5),  # 0.090 of one step of 65535
    "Tanh": Range(-6.75, 6.75),  # likewise 0.090
}


def fix_ranges(index: GraphIndex, ranges: Ranges, dtype: str | None = None) -> Ranges:
    """Return measured ranges with those that operators of the main graph fix in their place.

    What operators make has the range that they can make. What is read by such operators alone is limited
    to the numbers that make a difference in what they make, in integers of a type, of 8 bits by default.
    """
    useful = _USEFUL_INPUTS_IN_16_BITS if dtype in ("int16", "uint16") else _USEFUL_INPUTS
    fixed: dict[str, Range | GivenQuantization] = dict(ranges.tensors)
    for node in index.nodes:
        known = _OUTPUT_RANGES.get(node.op_type) if is_onnx(node) else None
        measured = isinstance(fixed.get(node.output[0] if node.output else ""), Range)
        if known is not None and measured and not _is_attention(index, node):
            fixed[node.output[0]] = known
    for name, entry in ranges.tensors.items():
        if isinstance(entry, Range):
            fixed[name] = _limit_range(index, name, fixed, useful)
    return replace(ranges, tensors=fixed)


def _is_attention(index: GraphIndex, node: NodeProto) -> bool:
    """Return whether a Softmax makes the weights of an attention: matrix products mix data by them."""
    if node.op_type != "Softmax":
        return False
    waiting, seen = [node.output[0]], set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        readers = [index.nodes[number] for number in index.consumers.get(name, ())]
        if name in index.outputs or not readers:
            return False
        for reader in readers:
            if reader.op_type in VIEW_OPERATORS and reader.op_type != "Concat":
                waiting += [each for each in reader.output if each not in seen]
            elif reader.op_type != "MatMul" or any(map(index.is_constant, reader.input)):
                return False
    return True


def has_fixed_range(index: GraphIndex, name: str) -> bool:
    """Return whether the operators that make a tensor, but for views behind them, fix its range."""
    number = index.producers.get(name)
    if number is None or not is_onnx(index.nodes[number]):
        return False
    node = index.nodes[number]
    if node.op_type not in VIEW_OPERATORS:
        return node.op_type in _OUTPUT_RANGES
    values = node.input if node.op_type == "Concat" else node.input[:1]
    return all(has_fixed_range(index, each) for each in values)


def _limit_range(
    index: GraphIndex,
    name: str,
    ranges: Mapping[str, Range | GivenQuantization],
    useful: Mapping[str, Range],
) -> Range | GivenQuantization:
    """Return the range of a tensor, limited to what makes a difference to all that read it."""
    entry = ranges[name]
    numbers = index.consumers.get(name, ())
    if not isinstance(entry, Range) or not numbers or name in index.outputs:
        return entry
    limits = [_find_limits(index.nodes[number], useful) for number in numbers]
    low = max(entry.low, min(limit.low for limit in limits))
    high = min(entry.high, max(limit.high for limit in limits))
    return Range(low, high) if low < high else entry


def _find_limits(node: NodeProto, useful: Mapping[str, Range]) -> Range:
    """Return the range of inputs beyond which an output is less than a tenth of a step from its limit.

    `useful` has the ranges of some operators. The range has no limits for operators that are not known.
    """
    everything = Range(-_INFINITE, _INFINITE)
    if not is_onnx(node):
        return everything
    if node.op_type == "HardSigmoid":
        attributes = get_stated_attributes(node)
        slope, offset = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
        return Range(-offset / slope, (1 - offset) / slope) if slope > 0 else everything
    return useful.get(node.op_type, everything)


_USUAL = (0.05, 0.95)  # the quantiles between which values are usual
_FEW_STEPS = 8  # of 255; usual values of the trained networks tried spread over 29 and more, or below 3
# A Concat that leaves fewer to an operand stays in floating point, whatever the noise: large values
# beside small ones, as boxes beside scores, hide in a sum how inexact the small ones are.
_FEW_CONCAT_STEPS = 32
_ADVICE = "--data FOLDER, instead of --calibration, finds the units before it that need finer types"
_MANY = 1 << 20  # values, of which not all need to count

Outputs = Sequence[SampleValues]


def count_usual_steps(index: GraphIndex, expected: Outputs) -> dict[str, float]:
    """Return the float outputs whose usual values lie within few steps of 255, and how many those are.

    `expected` is what the float model gives for samples. An output whose range an operator fixes, as a
    Sigmoid does, is left out: there a value near 0 means 0, however many there are.
    """
    found = {}
    for name in index.outputs:
        first = expected[0][name]
        if not isinstance(first, np.ndarray) or first.dtype.kind != "f" or has_fixed_range(index, name):
            continue
        values = join_samples(expected, name)
        ends = find_usual_ends(values)
        if ends is None:
            continue
        steps = _count_steps(Range(*ends), Range(float(values.min()), float(values.max())))
        if 0 < steps < _FEW_STEPS:
            found[name] = steps
    return found


def find_usual_ends(values: NDArray[Any]) -> tuple[float, float] | None:
    """Return the ends that nine tenths of values lie between, None where there are no finite values.

    Of many values a million or so count, at equal distances.
    """
    some = values.ravel()[:: values.size // _MANY | 1]
    known = some[np.isfinite(some)]
    if not known.size:
        return None
    low, high = np.quantile(known.astype(np.float64), _USUAL)
    return float(low), float(high)


def describe_coarse_outputs(quantized: GraphIndex, ranges: Ranges) -> list[str]:
    """Return a sentence for each output in 8 bits whose usual values lie within few steps of 255.

    `quantized` is the index of a quantized model, `ranges` are those that it was quantized with.
    """
    found = []
    for name, usual in ranges.usual.items():
        whole, number = ranges.tensors.get(name), quantized.producers.get(name)
        if not isinstance(whole, Range) or number is None or name not in quantized.outputs:
            continue
        node = quantized.nodes[number]
        steps = _count_steps(usual, whole)
        in_eight_bits = is_dequantize(node) and quantized.get_dtype(node.input[0]) in EIGHT_BITS
        if in_eight_bits and 0 < steps < _FEW_STEPS:
            found.append(f"{describe_steps(name, steps)}, too few: {_ADVICE}")
    return found


def describe_steps(name: str, steps: float) -> str:
    """Describe how few steps the usual values of an output lie within."""
    return f"nine tenths of the values of '{name}' lie within {steps:.1f} of {EIGHT_BIT_STEPS} steps"


def _count_steps(usual: Range, whole: Range) -> float:
    """Return the steps, of 255 in a range, that usual values spread over."""
    width = whole.width
    return EIGHT_BIT_STEPS * (usual.high - usual.low) / width if width > 0 else float(EIGHT_BIT_STEPS)


@dataclass(frozen=True)
class CoarseConcat:
    """A Concat in one of the units: the steps, of 255, that its narrowest operand gets."""

    unit: str
    operand: str
    steps: int

    def __str__(self) -> str:
        return f"'{self.unit}' leaves {self.steps} of {EIGHT_BIT_STEPS} steps to '{self.operand}'"


def find_coarse_concats(
    index: GraphIndex, units: Collection[str], ranges: Ranges
) -> tuple[CoarseConcat, ...]:
    """Return the Concats among units that leave fewer than 32 steps to an operand.

    Ranges that a user gave as scales do not count.
    """
    found = []
    for node in index.nodes:
        unit = get_node_name(node)
        if node.op_type != "Concat" or not is_onnx(node) or unit not in units:
            continue
        entries = {name: ranges.tensors.get(name) for name in node.input}
        known = {name: each for name, each in entries.items() if isinstance(each, Range)}
        widths = {name: each.width for name, each in known.items() if each.width > 0}
        if widths:
            narrow = min(widths, key=lambda name: widths[name])
            steps = int(EIGHT_BIT_STEPS * widths[narrow] / max(widths.values()))
            found += [CoarseConcat(unit, narrow, steps)] if steps < _FEW_CONCAT_STEPS else []
    return tuple(found)


def join_samples(outputs: Outputs, name: str) -> NDArray[np.float64]:
    """Return the values of an output in all samples, one after another, `[values]`."""
    return np.concatenate([np.asarray(each[name], np.float64).ravel() for each in outputs])


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
