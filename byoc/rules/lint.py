"""Holding a rule file against ONNX's own operator schemas: every mistake at once, each with its path."""

from collections.abc import Iterator
from functools import cache

import onnx

from byoc.errors import nearest
from byoc.graph.types import DTYPES
from byoc.rules.schema import OpRule, RuleFile


def lint(rules: RuleFile) -> list[str]:
    """Return a sentence for each name in the file that ONNX does not have: `ops[3].op: ...`."""
    problems = list(_dtypes("dtype", rules.dtype))
    for i, rule in enumerate(rules.ops):
        problems.extend(_op(f"ops[{i}]", rule))
    return problems


def _op(place: str, rule: OpRule) -> Iterator[str]:
    yield from _dtypes(f"{place}.dtype", rule.dtype or ())
    known_everywhere: list[tuple[str, frozenset[str], frozenset[str]]] = []
    for op in rule.op:
        schemas = _schemas().get(op)
        if schemas is None:
            yield f"{place}.op: ONNX has no operator '{op}'{nearest(op, _schemas())}"
            continue
        attributes = frozenset(name for schema in schemas for name in schema.attributes)
        tensors = frozenset(p.name for s in schemas for p in (*s.inputs, *s.outputs))
        known_everywhere.append((op, attributes, tensors))
    for op, attributes, tensors in known_everywhere:
        for name in rule.attributes:
            if name not in attributes:
                yield f"{place}.attributes.{name}: {op} has no such attribute{nearest(name, attributes)}"
        for name, wanted in rule.tensors.items():
            if name not in tensors:
                yield f"{place}.tensors.{name}: {op} has no such input or output{nearest(name, tensors)}"
            yield from _dtypes(f"{place}.tensors.{name}.dtype", wanted.dtype or ())


def _dtypes(place: str, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if name not in DTYPES.values():
            yield f"{place}: no such data type '{name}'{nearest(name, DTYPES.values())}"


@cache
def _schemas() -> dict[str, list[onnx.defs.OpSchema]]:
    """Return every version of every operator, by the name that rule files use."""
    found: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        name = schema.name if not schema.domain else f"{schema.domain}.{schema.name}"
        found.setdefault(name, []).append(schema)
    return found
