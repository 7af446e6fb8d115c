"""What tests of rules share: a target from a few lines of YAML, and what it says of a small model."""

from collections.abc import Mapping
from typing import Any

import onnx
import yaml
from onnx import helper

from byoc.model import prepare_model
from byoc.patterns import Mark
from byoc.rules import RuleFile, Target, annotate_graph, lint_rule_file
from byoc.support import validate_content
from helpers.support import parse

RULE_KEYS = tuple(RuleFile.model_fields)
"""The keys of a rule file."""


def lint(content: Mapping[str, Any]) -> list[str]:
    """Return the mistakes in the content of a rule file that are no mistakes of type."""
    return lint_rule_file(content)


def check_types(content: Any) -> list[str]:
    """Return the mistakes of type in the content of a rule file."""
    return validate_content(content, RuleFile)[1]


def make_target(content: Mapping[str, Any], source: str = "t") -> Target:
    """Return the target for the content of a rule file, which the linter need not take."""
    return Target(source, RuleFile.model_validate(content))


def target(text: str, **keys: Any) -> Target:
    """Return the target for a rule file's keys in YAML; what is tested must also pass the linter."""
    content = {"target": "dla", "cost_model": "dla", "dtype": "float32", **yaml.safe_load(text), **keys}
    assert lint(content) == []
    return make_target(content, "test")


def rules(ops: str, dtype: str = "float32") -> Target:
    """Return the target for operators in YAML."""
    return target(f"ops: {ops}" if ops.lstrip().startswith("[") else f"ops:\n{ops}", dtype=dtype)


def filled(text: str, **options: int) -> onnx.ModelProto:
    """Return the model with zeros for the weights that the text only declares."""
    model = parse(text, **options)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        size = onnx.numpy_helper.to_array(
            helper.make_tensor(
                value.name, value.type.tensor_type.elem_type, shape, [0] * _product(shape)
            )
        )
        model.graph.initializer.append(onnx.numpy_helper.from_array(size, value.name))
    del model.graph.value_info[:]
    return model


def _product(shape: list[int]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total


def marks(text: str, ops: str, dtype: str = "float32", **options: int) -> list[Mark]:
    return annotate_graph(prepare_model(filled(text, **options), "test").index, rules(ops, dtype))


def verdict(text: str, ops: str, dtype: str = "float32", **options: int) -> str:
    """Return what is said of the last node."""
    return str(marks(text, ops, dtype, **options)[-1].verdict)
