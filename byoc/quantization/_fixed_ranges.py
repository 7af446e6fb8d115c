"""Ranges that operators have by their definition: a Sigmoid lies from 0 to 1, whatever was measured.

Data that ranges are measured on seldom has the surest answer of a detector, which would be clipped.
"""

from dataclasses import replace

from byoc.model import GraphIndex, is_onnx
from byoc.quantization._ranges import GivenQuantization, Range, Ranges

_FIXED = {
    "Sigmoid": Range(0.0, 1.0),
    "HardSigmoid": Range(0.0, 1.0),
    "Softmax": Range(0.0, 1.0),
    "Tanh": Range(-1.0, 1.0),
}


def fix_ranges(index: GraphIndex, ranges: Ranges) -> Ranges:
    """Return measured ranges with those that operators of the main graph fix in their place."""
    fixed: dict[str, Range | GivenQuantization] = dict(ranges.tensors)
    for node in index.nodes:
        known = _FIXED.get(node.op_type) if is_onnx(node) else None
        if known is not None and isinstance(fixed.get(node.output[0]), Range):
            fixed[node.output[0]] = known
    return replace(ranges, tensors=fixed)
