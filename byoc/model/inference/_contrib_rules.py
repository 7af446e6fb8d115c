"""Rules that type operators that ONNX does not define, such as those of onnxruntime."""

from collections.abc import Mapping

from byoc.model.inference._known_node import Rule

CONTRIB_RULES: Mapping[str, Rule] = {}
"""Operator, as `get_operator_name` spells it (`com.microsoft.Gelu`), to its rule."""
