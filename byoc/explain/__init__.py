"""Explanations: why nodes are refused, near misses of composites, and the gain of relaxing a rule."""

from byoc.explain.collect import explain_model
from byoc.explain.data import Explanation, RefusedNode
from byoc.explain.gains import Gain, compute_gains

__all__ = ["Explanation", "Gain", "RefusedNode", "explain_model", "compute_gains"]
