"""Lint of operator rules: attributes, tensors and kinds of values that an operator does not have."""

from collections.abc import Iterator

from byoc.errors import suggest_nearest
from byoc.model import DTYPE_NUMBERS
from byoc.patterns import ANY_OPERATOR
from byoc.rules._condition_lint import lint_condition
from byoc.rules._rule_schema import OpRule, TensorRule
from byoc.rules._schema_values import EACH_DIM, AttributeRule, ElementRule
from byoc.rules._tensor_constraints import parse_reference
from byoc.schemas import OperatorVersions, describe_unknown_operator, find_operator, has_runtime_schemas
from byoc.support import CHECKS, format_short, list_installed

_NUMBER_KINDS = {"INT", "FLOAT"}
_LIST_KINDS = {"INTS", "FLOATS", "STRINGS"}


def lint_operator_rule(place: str, rule: OpRule) -> Iterator[str]:
    """Yield a sentence for each mistake in a rule, according to the schemas of its operators."""
    known = [found for found in map(find_operator, rule.op) if found is not None]
    for foreign in rule.op:
        if rule.tensors and _lacks_names(foreign):
            yield f"{place}.tensors: '{foreign}' has no schema, so its tensors have no names"
    for name, allowed in rule.attributes.items():
        for op in known:
            yield from _lint_attribute(f"{place}.attributes.{name}", op, name, allowed)
    for name, wanted in rule.tensors.items():
        yield from _lint_tensor_rule(f"{place}.tensors.{name}", wanted, rule.quantized)
        for op in known:
            yield from _lint_tensor(f"{place}.tensors.{name}", op, name, wanted, rule.quantized)
    judged = [op for op in rule.op if find_operator(op) or op == ANY_OPERATOR or has_runtime_schemas()]
    for i, condition in enumerate(rule.where):
        for problem in lint_condition(condition, judged, known):
            yield f"{place}.where[{i}]: {problem}"
    yield from lint_check_name(f"{place}.check", rule.check)


def _lacks_names(op: str) -> bool:
    """Return whether an operator may exist, but the names of its tensors are not known.

    Where onnxruntime is missed nobody knows, and the file is taken on trust.
    """
    unknown = op != ANY_OPERATOR and find_operator(op) is None and not describe_unknown_operator(op)
    return unknown and has_runtime_schemas()


def lint_check_name(place: str, name: str | None) -> Iterator[str]:
    """Yield a sentence if a check function is not installed."""
    if name is None:
        return
    there = list_installed(CHECKS)
    if name not in there:
        listed = ", ".join(there) or "none"
        yield f"{place}: no such check '{name}'{suggest_nearest(name, there)}; installed: {listed}"


def _lint_attribute(place: str, op: OperatorVersions, name: str, rule: AttributeRule) -> Iterator[str]:
    kinds = op.attributes.get(name)
    if kinds is None:
        there = f"; it has {', '.join(op.attributes) or 'none'}"
        yield f"{place}: {op.name} has no such attribute{suggest_nearest(name, op.attributes) or there}"
        return
    for key in _list_given_keys(rule, "each", "length"):
        if not kinds & _LIST_KINDS:
            yield f"{place}.{key}: {name} of {op.name} is not a list"
    for key in _list_given_keys(rule, "one_of", "min", "max"):
        if kinds <= _LIST_KINDS:
            yield f"{place}.{key}: {name} of {op.name} is a list; 'each' is for its elements"
        elif key != "one_of" and not kinds & _NUMBER_KINDS:
            yield f"{place}.{key}: {name} of {op.name} is not a number"
    for value in rule.one_of or ():
        if not kinds & (_list_kinds(value) | _LIST_KINDS):
            yield f"{place}.one_of: {_format_literal(value)} is never a value of {name} of {op.name}"
    for value in (rule.each.one_of if rule.each else None) or ():
        if kinds & _LIST_KINDS and not kinds & {f"{kind}S" for kind in _list_kinds(value)}:
            yield f"{place}.each.one_of: {_format_literal(value)} is never in {name} of {op.name}"
    for key in _list_given_keys(rule.each, "min", "max") if rule.each else ():
        if kinds == {"STRINGS"}:
            yield f"{place}.each.{key}: the elements of {name} of {op.name} are not numbers"


def _list_kinds(value: bool | float | str) -> set[str]:
    """Return the kinds of attribute that can have a value, none for true and false."""
    if isinstance(value, bool):
        return set()
    return {"STRING"} if isinstance(value, str) else _NUMBER_KINDS


def _format_literal(value: bool | float | str) -> str:
    """Format a value as in a rule file."""
    text = format_short(value)
    return f"'{text}'" if isinstance(value, str) else text.lower()


def _list_given_keys(rule: AttributeRule | ElementRule, *names: str) -> list[str]:
    return [name for name in names if getattr(rule, name) is not None]


def _lint_tensor_rule(place: str, rule: TensorRule, quantized: bool) -> Iterator[str]:
    """Yield the mistakes in constraints on a tensor that do not depend on the operator."""
    if rule.quantized is not None and not quantized:
        yield f"{place}.quantized: only a rule with `quantized: true` speaks of quantization"
    if rule.value is not None and rule.constant is False:
        yield f"{place}.value: only a constant has a value, and `constant` is false"
    for axis in rule.dims:
        if axis != EACH_DIM and rule.rank and not any(-r <= int(axis) < r for r in rule.rank):
            most = max(rule.rank)
            yield f"{place}.dims[{axis}]: there is no dimension {axis} when the rank is at most {most}"


def _lint_tensor(
    place: str, op: OperatorVersions, name: str, rule: TensorRule, quantized: bool
) -> Iterator[str]:
    if name not in op.formals:
        nearest = suggest_nearest(name, op.formals)
        if rule.absent and not nearest and op.name.startswith("com.microsoft."):
            return  # it is absent: an earlier onnxruntime is installed, whose operator has no such input
        there = f"{nearest}; it has {', '.join(op.formals)}"
        yield f"{place}: {op.name} has no such input or output{there}"
        return
    possible = op.dtypes[name]
    for dtype in rule.dtype or ():
        if possible and not quantized and dtype in DTYPE_NUMBERS and dtype not in possible:
            few = f"; possible: {', '.join(sorted(possible))}" if len(possible) <= 6 else ""
            yield f"{place}.dtype: {name} of {op.name} is never {dtype}{few}"
    same_as = rule.quantized.same_as if rule.quantized else None
    if same_as is not None and same_as not in op.formals:
        hint = suggest_nearest(same_as, op.formals)
        yield f"{place}.quantized.same_as: {op.name} has no input or output '{same_as}'{hint}"
    if rule.broadcast is not None and name not in op.inputs:
        yield f"{place}.broadcast: {name} of {op.name} is no input"
    for axis, dim in rule.dims.items():
        if dim.equals is None:
            continue
        other, _ = parse_reference(dim.equals)
        if other not in op.formals:
            hint = suggest_nearest(other, op.formals)
            at = f".{axis}" if axis == EACH_DIM else f"[{axis}]"
            yield f"{place}.dims{at}.equals: {op.name} has no input or output '{other}'{hint}"
