"""Holding a rule file against ONNX's own operator schemas: every mistake at once, each with its path."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import onnx
from pydantic import BaseModel, TypeAdapter, ValidationError

from byoc.errors import nearest
from byoc.graph.attributes import onnx_domains
from byoc.graph.types import DTYPES
from byoc.patterns.pattern import PatternNode, parse
from byoc.rules.schema import ANY, ANY_DTYPE, AttributeRule, CompositeRule, ElementRule, Names, OpRule
from byoc.yamlfile import check

_NAMES: TypeAdapter[tuple[str, ...]] = TypeAdapter(Names)
_NUMBERS = {"INT", "FLOAT"}
_LISTS = {"INTS", "FLOATS", "STRINGS"}

T = TypeVar("T", bound=BaseModel)


def lint(content: Mapping[Any, Any]) -> list[str]:
    """Return a sentence for each thing in a rule file that ONNX does not have: `ops[3].op: ...`.

    `content` is what was read. An operator's rule or a composite that is not even of the right form is
    passed over: `byoc.yamlfile.check` has said so.
    """
    problems = list(_target_dtypes(content.get("dtype")))
    for i, rule in _parts(content.get("ops"), OpRule):
        problems.extend(_op(f"ops[{i}]", rule))
    composites = _parts(content.get("composites"), CompositeRule)
    problems.extend(_composites(composites))
    taken = {op for _, rule in _parts(content.get("ops"), OpRule) for op in rule.op}
    problems.extend(_idle(composites, taken))
    target = content.get("target")
    problems.extend(_taken_names(composites, target if isinstance(target, str) else "?"))
    return problems


def _parts(entries: object, kind: type[T]) -> list[tuple[int, T]]:
    checked = [check(entry, kind)[0] for entry in entries] if isinstance(entries, list) else []
    return [(i, part) for i, part in enumerate(checked) if part is not None]


def _target_dtypes(value: object) -> Iterator[str]:
    try:
        names = _NAMES.validate_python(value)
    except ValidationError:
        return
    yield from _dtypes("dtype", names)


def _op(place: str, rule: OpRule) -> Iterator[str]:
    yield from _dtypes(f"{place}.dtype", rule.dtype or ())
    known = [op for op in rule.op if op in _schemas()]
    for op in rule.op:
        if op in known or op == ANY:
            continue
        if op.rpartition(".")[0] in onnx_domains():
            yield f"{place}.op: ONNX has no operator '{op}'{nearest(op, _schemas())}"
        elif rule.tensors:  # an operator of somebody else's domain is taken on trust
            yield f"{place}.tensors: '{op}' has no schema in ONNX, so its tensors have no names"
    for name, allowed in rule.attributes.items():
        for op in known:
            yield from _attribute(f"{place}.attributes.{name}", op, name, allowed)
    for name, wanted in rule.tensors.items():
        yield from _dtypes(f"{place}.tensors.{name}.dtype", wanted.dtype or ())
        for op in known:
            tensors = {formal.name for s in _schemas()[op] for formal in (*s.inputs, *s.outputs)}
            if name not in tensors:
                yield f"{place}.tensors.{name}: {op} has no such input or output{nearest(name, tensors)}"


def _attribute(place: str, op: str, name: str, rule: AttributeRule) -> Iterator[str]:
    kinds: dict[str, set[str]] = {}
    for schema in _schemas()[op]:
        for known, attribute in schema.attributes.items():
            kinds.setdefault(known, set()).add(str(attribute.type).rpartition(".")[2])  # AttrType.INTS
    if name not in kinds:
        yield f"{place}: {op} has no such attribute{nearest(name, kinds)}"
        return
    for key in _keys(rule, "each", "length"):
        if not kinds[name] & _LISTS:
            yield f"{place}.{key}: {name} of {op} is not a list"
    for key in _keys(rule, "one_of", "min", "max"):
        if kinds[name] <= _LISTS:
            yield f"{place}.{key}: {name} of {op} is a list; 'each' is for its elements"
        elif key != "one_of" and not kinds[name] & _NUMBERS:
            yield f"{place}.{key}: {name} of {op} is not a number"
    for value in rule.one_of or ():
        fitting = {"STRING"} if isinstance(value, str) else _NUMBERS
        if not kinds[name] & (fitting | _LISTS):
            yield f"{place}.one_of: {value!r} is never a value of {name} of {op}"
    for key in _keys(rule.each, "min", "max") if rule.each else ():
        if kinds[name] == {"STRINGS"}:
            yield f"{place}.each.{key}: the elements of {name} of {op} are not numbers"


def _keys(rule: AttributeRule | ElementRule, *names: str) -> list[str]:
    return [name for name in names if getattr(rule, name) is not None]


def _composites(rules: Sequence[tuple[int, CompositeRule]]) -> Iterator[str]:
    first: dict[str, int] = {}
    for i, rule in rules:
        other = first.setdefault(rule.name, i)
        if other != i:
            yield f"composites[{i}].name: '{rule.name}' is the name of composites[{other}] too"
        place = f"composites[{i}].pattern"
        try:
            nodes = parse(rule.name, rule.pattern).nodes
        except ValueError as error:
            yield from (f"{place}: {problem}" for problem in str(error).splitlines())
            continue
        for node in nodes:
            yield from (f"{place}: line {node.line}: {problem}" for problem in _line(node))


def _taken_names(rules: Sequence[tuple[int, CompositeRule]], target: str) -> Iterator[str]:
    """Yield a sentence for each composite whose name some other function will have."""
    names = {rule.name for _, rule in rules}
    for i, rule in rules:
        if re.fullmatch(rf"{re.escape(target)}_[0-9]+", rule.name):
            yield f"composites[{i}].name: '{rule.name}' is what a region is called"
        operators = {op.lower() for op in re.findall(r"\w+(?=\s*[|(])", rule.pattern)}
        for name in sorted(names):
            rest = name.removeprefix(f"{rule.name}_")
            if rest != name and operators.issuperset(rest.split("_")) and "|" in rule.pattern:
                yield f"composites[{i}].name: '{name}' is what a variant of '{rule.name}' is called"


def _idle(rules: Sequence[tuple[int, CompositeRule]], taken: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each line of a pattern that can match nothing, since no rule takes it."""
    for i, rule in rules:
        try:
            nodes = parse(rule.name, rule.pattern).nodes
        except ValueError:  # said already
            continue
        for node in nodes:
            if taken and ANY not in taken and not any(op in taken for op in node.ops):
                names = " or ".join(node.ops)
                yield f"composites[{i}].pattern: line {node.line}: no rule in ops takes {names}"


def _line(node: PatternNode) -> Iterator[str]:
    standard = {name for name, schemas in _schemas().items() if not schemas[0].domain}
    count = len(node.operands)
    for op in node.ops:
        if op not in standard:
            yield f"ONNX has no operator '{op}'{nearest(op, standard)}"
            continue
        most = max(schema.max_input for schema in _schemas()[op])
        least = min(schema.min_input for schema in _schemas()[op])
        if count > most:
            yield f"the number of operands of {op} is {count}, at most {most} is possible"
        if count < least:
            yield f"the number of operands of {op} is {count}, at least {least} is possible"


def _dtypes(place: str, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if name not in DTYPES.values() and name != ANY_DTYPE:
            yield f"{place}: no such data type '{name}'{nearest(name, DTYPES.values())}"


@cache
def _schemas() -> Mapping[str, Sequence[onnx.defs.OpSchema]]:
    """Return every version of every operator, by the name that rule files use."""
    found: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        name = schema.name if not schema.domain else f"{schema.domain}.{schema.name}"
        found.setdefault(name, []).append(schema)
    return found
