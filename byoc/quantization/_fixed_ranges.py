"""Ranges that follow from operators: a Sigmoid lies from 0 to 1, and a HardSwish is 0 below -3.

Data that ranges are measured on seldom has the surest answer of a detector, which would be clipped. An
input needs no steps where the output no longer changes by as much as a tenth of a step of its own.
"""

from collections.abc import Mapping
from dataclasses import replace

from onnx import NodeProto

from byoc.model import VIEW_OPERATORS, GraphIndex, get_stated_attributes, is_onnx
from byoc.quantization._ranges import GivenQuantization, Range, Ranges

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
