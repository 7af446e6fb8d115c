"""Tensors that eight bits are too coarse for: outputs, and operands of a Concat, that get few steps.

A map of scores before their Sigmoid may reach from -40,000 to 20,000 where nine tenths of it lie within
700; an answer is where it is above zero. An operand of a Concat shares one scale with larger ones.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byoc.model import GraphIndex, get_node_name, is_dequantize, is_onnx
from byoc.quantization._accuracy_measures import SampleValues
from byoc.quantization._fixed_ranges import has_fixed_range
from byoc.quantization._ranges import EIGHT_BIT_STEPS, EIGHT_BITS, Range, Ranges

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
