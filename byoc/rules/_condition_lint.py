"""Lint of conditions: unknown facts, and conditions that can never hold.

A condition is evaluated on sample facts of the kinds in the schemas. A condition that gives a number
there, or combines values of different kinds, never holds.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from byoc.errors import suggest_nearest
from byoc.expressions import (
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
from byoc.model import QUANTIZED_FACTS, TENSOR_FACTS
from byoc.patterns import ANY_OPERATOR, Pattern
from byoc.rules._node_view import NODE_FACTS
from byoc.rules._rule_schema import Condition
from byoc.schemas import OperatorVersions, find_operator

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
