"""Tensors that eight bits are too coarse for: outputs, and operands of a Concat, that get few steps.

A map of scores before their Sigmoid may reach from -40,000 to 20,000 where nine tenths of it lie within
700; an answer is where it is above zero. An operand of a Concat shares one scale with larger ones.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from byoc.model import (
    VIEW_OPERATORS,
    GraphIndex,
    get_node_name,
    get_stated_attributes,
    is_dequantize,
    is_onnx,
)
from byoc.quantization._accuracy_measures import SampleValues
from byoc.quantization._ranges import EIGHT_BIT_STEPS, EIGHT_BITS, GivenQuantization, Range, Ranges

# Ranges that follow from operators: a Sigmoid lies from 0 to 1, and a HardSwish is 0 below -3.
#
# Data that ranges are measured on seldom has the surest answer of a detector, which would be
# clipped. An input needs no steps where the output no longer changes by as much as a tenth of a
# step of its own.

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
        if known is not None and isinstance(fixed.get(node.output[0]), Range):
            fixed[node.output[0]] = known
    for name, entry in ranges.tensors.items():
        if isinstance(entry, Range):
            fixed[name] = _limit_range(index, name, fixed, useful)
    return replace(ranges, tensors=fixed)


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
