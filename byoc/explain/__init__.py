"""Explanations: why nodes are refused, near misses of composites, and the gain of relaxing a rule."""

from byoc.explain.collect import explain
from byoc.explain.data import Explanation, Refusal
from byoc.explain.gains import Gain, gains

__all__ = ["Explanation", "Gain", "Refusal", "explain", "gains"]
