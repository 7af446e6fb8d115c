"""Outputs that eight bits are too coarse for: a few values are so large that the others share few steps.

A map of scores before their Sigmoid may reach from -40,000 to 20,000 where nine tenths of it lie within
700; an answer is where it is above zero. Noise as a share of the whole power does not show that nothing
is left of these tenths, so there noise counts by the size of each value.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.model import VIEW_OPERATORS, GraphIndex, get_node_name, is_dequantize, is_onnx
from byoc.numerics import convert_to_db
from byoc.quantization._channel_statistics import CHANNELS
from byoc.quantization._fixed_ranges import has_fixed_range
from byoc.quantization._ranges import EIGHT_BITS, Range, Ranges

_USUAL = (0.05, 0.95)  # the quantiles between which values are usual
_NEAR = 0.1  # the quantile of sizes below which values are near to 0
_FEW_STEPS = 8  # of 255; usual values of the trained networks tried spread over 29 and more, or below 3
_LEVELS = 255
_FEW_VALUES = 32  # with one sign in a channel, in all samples, for which errors are chance
_ADVICE = "--data FOLDER, instead of --calibration, finds the units before it that need finer types"
_MANY = 1 << 20  # values, of which not all need to count
_MAX_ACCURACY = 30.0  # dB; more does not count: errors are then 3 % of the deviation of usual values

Outputs = Sequence[Mapping[str, Any]]


def count_usual_steps(index: GraphIndex, expected: Outputs) -> dict[str, float]:
    """Return the float outputs whose usual values lie within few steps of 255, and how many those are.

    `expected` is what the float model gives for samples. An output whose range an operator fixes, as a
    Sigmoid does, is left out: there a value near 0 means 0, however many there are.
    """
    found = {}
    for name, first in expected[0].items():
        if not isinstance(first, np.ndarray) or first.dtype.kind != "f" or has_fixed_range(index, name):
            continue
        values = _join(expected, name)
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
    return f"nine tenths of the values of '{name}' lie within {steps:.1f} of {_LEVELS} steps"


def _count_steps(usual: Range, whole: Range) -> float:
    """Return the steps, of 255 in a range, that usual values spread over."""
    width = max(whole.high, 0.0) - min(whole.low, 0.0)
    return _LEVELS * (usual.high - usual.low) / width if width > 0 else float(_LEVELS)


def measure_size_accuracy(name: str, expected: Outputs, actual: Outputs) -> float:
    """Return the signal-to-noise ratio (variance to noise) of the sizes of an output, to 30 dB.

    Sizes are asinh(x / s), where a tenth of the values that are not 0 are nearer to 0 than s: so noise
    counts by itself in these, and in larger ones by its share of the value.
    """
    signal, other = _join(expected, name), _join(actual, name)
    sizes = np.abs(signal[signal != 0])
    near = max(float(np.quantile(sizes, _NEAR)), float(np.finfo(np.float32).tiny)) if sizes.size else 1.0
    signal, other = np.arcsinh(signal / near), np.arcsinh(other / near)
    noise = float(np.mean((signal - other) ** 2))
    return min(convert_to_db(float(np.var(signal)), noise), _MAX_ACCURACY)


def measure_sign_accuracy(name: str, expected: Outputs, actual: Outputs) -> float:
    """Return the accuracy of the signs of an output in its worst channel, at most 30 dB.

    It is the share of errors, 1 - F1, of the sign that is the rarer one in a channel (axis 1; an output
    without is one channel): where logits are above 0 stands for where applications find something.
    Channels with few values of a sign do not count.
    """
    signs, others = (_split_channels(outputs, name) > 0 for outputs in (expected, actual))
    counts, wholes = signs.sum(axis=1), signs.shape[1]
    found = [_MAX_ACCURACY]
    for sign, other, count in zip(signs, others, counts, strict=True):
        if min(count, wholes - count) < _FEW_VALUES:
            continue
        rarer = count <= wholes - count
        kept = int(((sign == rarer) & (other == rarer)).sum())
        wrong = int((sign != other).sum())
        found.append(convert_to_db(2 * kept + wrong, wrong))
    return min(found)


def find_units_before(
    index: GraphIndex, units: Mapping[str, Sequence[str]], tensors: Collection[str]
) -> tuple[str, ...]:
    """Return the units (nodes by name) that make tensors, nearest first.

    The search goes on through views and nodes in no unit, which round nothing, to what makes their
    operands.
    """
    owners = {node: name for name, nodes in units.items() for node in nodes}
    found: dict[str, None] = {}
    seen: set[int] = set()
    waiting = list(tensors)
    while waiting:
        number = index.producers.get(waiting.pop(0))
        if number is None or number in seen:
            continue
        seen.add(number)
        unit = owners.get(get_node_name(index.nodes[number]))
        if unit is not None:
            found[unit] = None
        if unit is None or _is_view(index, number):
            waiting += index.reads[number]
    return tuple(found)


def list_read_tensors(
    index: GraphIndex, units: Mapping[str, Sequence[str]], names: Collection[str]
) -> tuple[str, ...]:
    """Return the tensors that some of the units read, and none of them makes."""
    nodes = {node for name in names for node in units[name]}
    numbers = [number for number, node in enumerate(index.nodes) if get_node_name(node) in nodes]
    made = {name for number in numbers for name in index.nodes[number].output}
    return tuple(name for number in numbers for name in index.reads[number] if name not in made)


def _is_view(index: GraphIndex, number: int) -> bool:
    node = index.nodes[number]
    return is_onnx(node) and node.op_type in VIEW_OPERATORS


def _split_channels(outputs: Outputs, name: str) -> NDArray[np.float64]:
    """Return the values of an output in all samples, `[channels, values]`."""
    values = [np.asarray(each[name], np.float64) for each in outputs]
    counts = {each.shape[CHANNELS] if each.ndim > CHANNELS else 1 for each in values}
    if len(counts) > 1 or counts == {1}:
        return _join(outputs, name).reshape(1, -1)
    rows = [np.moveaxis(each, CHANNELS, 0).reshape(each.shape[CHANNELS], -1) for each in values]
    return np.concatenate(rows, axis=1)


def _join(outputs: Outputs, name: str) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(each[name], np.float64).ravel() for each in outputs])
