"""Padding: inputs smaller than a variant, filled up to its sizes where the graph proves that harmless."""

from byoc.padding._array_padding import cut_outputs, find_unpadded_sizes, pad_inputs
from byoc.padding._padding_rule import (
    EDGE,
    FirstValue,
    PaddedInput,
    PaddingDecision,
    PaddingRule,
)
from byoc.padding._padding_search import LoadModel, decide_padding

__all__ = [
    "EDGE",
    "FirstValue",
    "LoadModel",
    "PaddedInput",
    "PaddingDecision",
    "PaddingRule",
    "cut_outputs",
    "decide_padding",
    "find_unpadded_sizes",
    "pad_inputs",
]
