"""Lint of conditions: unknown facts, and conditions that can never hold.

A condition is evaluated on sample facts of the kinds in the schemas. A condition that gives a number
there, or combines values of different kinds, never holds.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from byoc.errors import suggest_nearest
from byoc.model import DTYPE_NUMBERS, QUANTIZED_FACTS, TENSOR_FACTS
from byoc.model.schemas import (
    OperatorVersions,
    describe_unknown_operator,
    find_operator,
    has_runtime_schemas,
)
from byoc.patterns import ANY_OPERATOR, Pattern
from byoc.rules._node_view import NODE_FACTS
from byoc.rules._rule_schema import Condition, OpRule, TensorRule
from byoc.rules._schema_values import EACH_DIM, AttributeRule, ElementRule
from byoc.rules._tensor_constraints import parse_reference
from byoc.support import CHECKS, format_short, list_installed
from byoc.support.expressions import (
    Expression,
    Literal,
    MismatchError,
    NoValueError,
    OperatorCall,
    StepLimitError,
    compile_expression,
    describe_kind,
    evaluate,
    find_paths,
    path_of,
    walk_tree,
)

_LINE_FACTS = (*TENSOR_FACTS, "op", "domain", "opset", "attr")
_ATTRIBUTE_SAMPLES: Mapping[str, Any] = {
    **{"INT": 1, "FLOAT": 1.5, "STRING": "NOTSET"},
    **{"INTS": [1] * 8, "FLOATS": [1.5] * 8, "STRINGS": ["NOTSET"] * 8},
}
_TENSOR_SAMPLE: Mapping[str, Any] = {
    **{"given": True, "name": "x", "constant": True, "dtype": "float32", "shape": [2] * 8, "rank": 8},
    **{
        "elements": 256,
        "bytes": 1024,
        "quantized": {"dtype": "int8", "bytes": 256, "scale": [0.5], "zero_point": [0], "axis": 0},
    },
}


def lint_condition(
    condition: Condition, ops: Sequence[str], known: Sequence[OperatorVersions]
) -> Iterator[str]:
    """Yield a sentence for each mistake in a condition of a rule for some operators."""
    try:
        expression = compile_expression(condition.expr)
    except ValueError as error:
        yield str(error)
        return
    found = {op.name: op for op in known}
    problems = dict.fromkeys(
        problem for name in ops for problem in _lint_for_operator(expression, name, found.get(name))
    )
    yield from problems


def _lint_for_operator(expression: Expression, name: str, op: OperatorVersions | None) -> Iterator[str]:
    formals = op.formals if op else ()
    facts = {*NODE_FACTS, *formals}
    unknown = sorted(expression.names - facts)
    for read in unknown:
        hint = suggest_nearest(read, facts)
        whose = name if op else f"an operator without a schema ({name})"
        yield f"{whose} has no '{read}'{hint}; known: {', '.join([*NODE_FACTS, *sorted(formals)])}"
    members = list(_lint_members(expression, op)) if op else []
    yield from members
    if not unknown and not members:
        yield from _lint_value(
            expression, _make_node_sample(op) if op else {"op": "A", "opset": 1, "name": "a"}
        )


def _lint_members(expression: Expression, op: OperatorVersions) -> Iterator[str]:
    """Yield a sentence for each unknown attribute, and each unknown fact of a tensor."""
    for name, member in _list_members(expression):
        if name == "attr" and member not in op.attributes:
            yield f"{op.name} has no attribute '{member}'{suggest_nearest(member, op.attributes)}"
        elif name in op.formals:
            yield from _lint_fact(member, TENSOR_FACTS)
    yield from _lint_quantized_facts(expression, op.formals)


def lint_pattern_condition(pattern: Pattern, number: int) -> Iterator[str]:
    """Yield a sentence for each mistake in a condition of a pattern."""
    expression = pattern.where[number].expression
    lines = {
        name: frozenset(
            op for form in pattern.forms if name in form.makers for op in form.makers[name][0].ops
        )
        for name in pattern.names
        if name not in pattern.inputs
    }
    problems: list[str] = []
    for name, member in _list_members(expression):
        if name in expression.names:
            problems.extend(_lint_fact(member, _LINE_FACTS if name in lines else TENSOR_FACTS))
    for name, member in _list_members(expression, "attr"):
        known = [find_operator(op) for op in sorted(lines.get(name, ()))]
        found = [op for op in known if op is not None]
        if found and len(found) == len(known) and not any(member in op.attributes for op in found):
            there = {attribute for op in found for attribute in op.attributes}
            names = " or ".join(op.name for op in found)
            problems.append(f"{names} has no attribute '{member}'{suggest_nearest(member, there)}")
    problems.extend(_lint_quantized_facts(expression, pattern.names))
    if not problems:
        problems.extend(
            _lint_value(expression, {name: _make_line_sample(lines.get(name)) for name in pattern.names})
        )
    yield from problems


def _list_members(expression: Expression, of: str = "") -> list[tuple[str, str]]:
    """Return the facts that are read, each with its member, or with that of its member `of`."""
    before = 2 if of else 1
    read = (path for path in find_paths(expression.tree) if len(path) > before)
    return list(dict.fromkeys((path[0], path[before]) for path in read if not of or path[1] == of))


def _lint_fact(member: str, there: Sequence[str]) -> Iterator[str]:
    if member not in there:
        hint = suggest_nearest(member, there)
        yield f"nothing called '{member}' is known of a tensor{hint}; known: {', '.join(there)}"


def _lint_quantized_facts(expression: Expression, names: Collection[str]) -> Iterator[str]:
    for name, member in _list_members(expression, "quantized"):
        if name in names and member not in QUANTIZED_FACTS:
            there = ", ".join(QUANTIZED_FACTS)
            yield f"nothing called '{member}' is known of {name}.quantized; known: {there}"


def _make_node_sample(op: OperatorVersions) -> dict[str, Any]:
    """Return sample facts of a node; attributes of several kinds are left out."""
    facts: dict[str, Any] = {"op": op.name, "domain": "", "opset": 1, "name": "a"}
    facts["attr"] = {
        name: _ATTRIBUTE_SAMPLES[min(kinds)]
        for name, kinds in op.attributes.items()
        if len(kinds) == 1 and min(kinds) in _ATTRIBUTE_SAMPLES
    }
    return {
        **facts,
        **{name: [_TENSOR_SAMPLE] * 2 if name in op.variadic else _TENSOR_SAMPLE for name in op.formals},
    }


def _make_line_sample(ops: Collection[str] | None) -> dict[str, Any]:
    """Return sample facts for a name of a pattern, an input if `ops` is None, else a line."""
    if ops is None:
        return {**_TENSOR_SAMPLE}
    found = find_operator(min(ops)) if len(ops) == 1 and ANY_OPERATOR not in ops else None
    of_node = (
        {key: value for key, value in _make_node_sample(found).items() if key in _LINE_FACTS}
        if found
        else {}
    )
    return {"op": "A", "domain": "", "opset": 1, **of_node, **_TENSOR_SAMPLE}


def _lint_value(expression: Expression, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence if a condition is neither true nor false on sample facts."""
    source = expression.source
    if not expression.names:
        yield f"`{source}` reads nothing of the node"
        return
    yield from _find_impossible_equalities(expression, facts)
    try:
        result = evaluate(expression.tree, facts)
    except MismatchError:
        yield f"`{source}` puts together what does not go together, such as 1 and 1.0"
        return
    except (NoValueError, StepLimitError):  # samples: an index or a fact may be missing
        return
    if not isinstance(result, bool):
        yield f"`{source}` is {describe_kind(result)}, neither true nor false"


def _find_impossible_equalities(expression: Expression, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each comparison of a text with a number."""
    for part in walk_tree(expression.tree):
        if not (isinstance(part, OperatorCall) and part.operator in ("==", "!=")):
            continue
        for one, other in (part.operands, part.operands[::-1]):
            path = path_of(one)
            if path is None or not isinstance(other, Literal):
                continue
            try:
                value = evaluate(one, facts)
            except (NoValueError, StepLimitError):  # as a name that a walk gives
                continue
            literal = f"'{other.value}'" if isinstance(other.value, str) else str(other.value)
            kinds = describe_kind(value), describe_kind(other.value)
            if {*kinds} == {"a text", "a number"}:
                name = ".".join(path)
                yield f"`{name}` is {kinds[0]}, and {literal} is {kinds[1]}: they are never equal"


# Lint of operator rules: attributes, tensors and kinds of values that an operator does not have.

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
