"""Lint of operator rules: attributes, tensors and kinds of values that an operator does not have."""

from collections.abc import Iterator

from byoc.errors import nearest
from byoc.graph.attributes import onnx_domains
from byoc.graph.types import NUMBERS
from byoc.plugins import CHECKS, installed
from byoc.rules.dims import reference
from byoc.rules.lint_where import condition_problems
from byoc.rules.operators import Operator, operator
from byoc.rules.schema import AttributeRule, ElementRule, OpRule, TensorRule
from byoc.rules.values import ANY, EACH
from byoc.yamlfile import shortened

_NUMBERS = {"INT", "FLOAT"}
_LISTS = {"INTS", "FLOATS", "STRINGS"}


def op_problems(place: str, rule: OpRule) -> Iterator[str]:
    """Yield a sentence for each mistake in a rule, according to the schemas of its operators."""
    known = [found for found in map(operator, rule.op) if found is not None]
    for foreign in rule.op:
        domain = foreign.rpartition(".")[0]
        if rule.tensors and foreign != ANY and domain not in onnx_domains():
            yield f"{place}.tensors: '{foreign}' has no schema in ONNX, so its tensors have no names"
    for name, allowed in rule.attributes.items():
        for op in known:
            yield from _attribute(f"{place}.attributes.{name}", op, name, allowed)
    for name, wanted in rule.tensors.items():
        yield from _alone(f"{place}.tensors.{name}", wanted, rule.quantized)
        for op in known:
            yield from _tensor(f"{place}.tensors.{name}", op, name, wanted, rule.quantized)
    for i, condition in enumerate(rule.where):
        for problem in condition_problems(condition, rule.op, known):
            yield f"{place}.where[{i}]: {problem}"
    yield from check_problems(f"{place}.check", rule.check)


def check_problems(place: str, name: str | None) -> Iterator[str]:
    """Yield a sentence if a check function is not installed."""
    if name is None:
        return
    there = installed(CHECKS)
    if name not in there:
        listed = ", ".join(there) or "none"
        yield f"{place}: no such check '{name}'{nearest(name, there)}; installed: {listed}"


def _attribute(place: str, op: Operator, name: str, rule: AttributeRule) -> Iterator[str]:
    kinds = op.attributes.get(name)
    if kinds is None:
        there = f"; it has {', '.join(op.attributes) or 'none'}"
        yield f"{place}: {op.name} has no such attribute{nearest(name, op.attributes) or there}"
        return
    for key in _keys(rule, "each", "length"):
        if not kinds & _LISTS:
            yield f"{place}.{key}: {name} of {op.name} is not a list"
    for key in _keys(rule, "one_of", "min", "max"):
        if kinds <= _LISTS:
            yield f"{place}.{key}: {name} of {op.name} is a list; 'each' is for its elements"
        elif key != "one_of" and not kinds & _NUMBERS:
            yield f"{place}.{key}: {name} of {op.name} is not a number"
    for value in rule.one_of or ():
        if not kinds & (_fitting(value) | _LISTS):
            yield f"{place}.one_of: {_written(value)} is never a value of {name} of {op.name}"
    for value in (rule.each.one_of if rule.each else None) or ():
        if kinds & _LISTS and not kinds & {f"{kind}S" for kind in _fitting(value)}:
            yield f"{place}.each.one_of: {_written(value)} is never in {name} of {op.name}"
    for key in _keys(rule.each, "min", "max") if rule.each else ():
        if kinds == {"STRINGS"}:
            yield f"{place}.each.{key}: the elements of {name} of {op.name} are not numbers"


def _fitting(value: bool | float | str) -> set[str]:
    """Return the kinds of attribute that can have a value, none for true and false."""
    if isinstance(value, bool):
        return set()
    return {"STRING"} if isinstance(value, str) else _NUMBERS


def _written(value: bool | float | str) -> str:
    """Format a value as in a rule file."""
    text = shortened(value)
    return f"'{text}'" if isinstance(value, str) else text.lower()


def _keys(rule: AttributeRule | ElementRule, *names: str) -> list[str]:
    return [name for name in names if getattr(rule, name) is not None]


def _alone(place: str, rule: TensorRule, quantized: bool) -> Iterator[str]:
    """Yield the mistakes in constraints on a tensor that do not depend on the operator."""
    if rule.quantized is not None and not quantized:
        yield f"{place}.quantized: only a rule with `quantized: true` speaks of quantization"
    if rule.value is not None and rule.constant is False:
        yield f"{place}.value: only a constant has a value, and `constant` is false"
    for axis in rule.dims:
        if axis != EACH and rule.rank and not any(-r <= int(axis) < r for r in rule.rank):
            most = max(rule.rank)
            yield f"{place}.dims[{axis}]: there is no dimension {axis} when the rank is at most {most}"


def _tensor(place: str, op: Operator, name: str, rule: TensorRule, quantized: bool) -> Iterator[str]:
    if name not in op.formals:
        there = f"{nearest(name, op.formals)}; it has {', '.join(op.formals)}"
        yield f"{place}: {op.name} has no such input or output{there}"
        return
    possible = op.dtypes[name]
    for dtype in rule.dtype or ():
        if possible and not quantized and dtype in NUMBERS and dtype not in possible:
            few = f"; possible: {', '.join(sorted(possible))}" if len(possible) <= 6 else ""
            yield f"{place}.dtype: {name} of {op.name} is never {dtype}{few}"
    if rule.broadcast is not None and name not in op.inputs:
        yield f"{place}.broadcast: {name} of {op.name} is no input"
    for axis, dim in rule.dims.items():
        if dim.equals is None:
            continue
        other, _ = reference(dim.equals)
        if other not in op.formals:
            hint = nearest(other, op.formals)
            at = f".{axis}" if axis == EACH else f"[{axis}]"
            yield f"{place}.dims{at}.equals: {op.name} has no input or output '{other}'{hint}"
