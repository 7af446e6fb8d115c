"""Explaining: why nodes were refused, what came nearest, and what a rule relaxed would gain."""

from byoc.explain.collect import explain
from byoc.explain.data import Explanation, Refusal
from byoc.explain.gains import Gain, gains

__all__ = ["Explanation", "Gain", "Refusal", "explain", "gains"]
