"""Rules without one constraint: what a target takes if its file were wider at one place."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from byoc.patterns import ANY_OPERATOR
from byoc.rules._rule_loading import Target
from byoc.rules._rule_schema import OpRule
from byoc.rules._schema_values import ANY_DTYPE

MISSING_OPERATOR = "ops"
"""The path that stands for a missing rule for an operator."""

# The path of a whole rule, which is no constraint.
_NO_CONSTRAINT = re.compile(r"ops\[\d+\](\.quantized)?")
_RULE = re.compile(r"ops\[(\d+)\]")


def drop_constraint(
    target: Target, location: str, op: str = "", *, quantized: bool = False
) -> Target | None:
    """Return a target with one constraint less, None if the path is not that of a constraint.

    `location` is the path that objections report. A constraint on data types becomes `any`. For the path
    `ops`, the operator `op` gets a rule without constraints, for quantized operators if asked for.
    """
    rules = target.rules
    if location == MISSING_OPERATOR:
        return replace(
            target,
            rules=_replace_value(rules, "ops", (*rules.ops, OpRule(op=(op,), quantized=quantized))),
        )
    path = _find_merged_path(target, location)
    if not path or _NO_CONSTRAINT.fullmatch(path):
        return None
    without = _drop_at(rules, path)
    return None if without is None else replace(target, rules=without)


def write_quantized(target: Target) -> Target:
    """Return a target all of whose rules are for quantized operators."""
    ops = tuple(rule.model_copy(update={"quantized": True}) for rule in target.rules.ops)
    return replace(target, rules=target.rules.model_copy(update={"ops": ops}))


def operators_concerned(target: Target, location: str, op: str = "") -> Collection[str] | None:
    """Return the operators that a constraint may concern, None if any."""
    if location == MISSING_OPERATOR:
        return {op}
    found = _RULE.match(_find_merged_path(target, location))
    if found is None:
        return None
    ops = target.rules.ops[int(found[1])].op
    return None if ANY_OPERATOR in ops else set(ops)


def _find_merged_path(target: Target, location: str) -> str:
    """Return the path in the merged rules for a path that may be in a file that was built on."""
    for path, written in target.locations.items():
        if _strip_key(location, written) is not None:
            return path + location[len(written) :]
    return "" if ": " in location else location


def _strip_key(path: str, key: str) -> str | None:
    """Return the rest of a path after a key, None if the path does not begin with the key."""
    if not path.startswith(key):
        return None
    rest = path[len(key) :]
    if not rest or rest[0] == "[":
        return rest
    return rest[1:] if rest[0] == "." else None


def _iterate_keys(part: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield the keys of a part of the rules, as written in paths, and the values."""
    if isinstance(part, BaseModel):
        yield from ((name, name, getattr(part, name)) for name in type(part).model_fields)
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield key, f"[{key}]" if isinstance(key, int) else str(key), value
    elif isinstance(part, tuple):
        yield from ((number, f"[{number}]", value) for number, value in enumerate(part))


def _drop_at(part: Any, path: str) -> Any:
    """Return a part of the rules without the value at a path, None if there is none."""
    for key, written, value in _iterate_keys(part):
        rest = _strip_key(path, written)
        if rest is None:
            continue
        if rest:
            inner = _drop_at(value, rest)
            if inner is not None:
                return _replace_value(part, key, inner)
        elif value is not None and key == "dtype":
            return _replace_value(part, key, (ANY_DTYPE,))
        elif value is not None:
            return _drop_key(part, key)
    return None


def _replace_value(part: Any, key: Any, value: Any) -> Any:
    if isinstance(part, BaseModel):
        return part.model_copy(update={key: value})
    if isinstance(part, Mapping):
        return {**part, key: value}
    return (*part[:key], value, *part[key + 1 :])


def _drop_key(part: Any, key: Any) -> Any:
    if isinstance(part, BaseModel):
        return part.model_copy(update={key: type(part).model_fields[key].get_default()})
    if isinstance(part, Mapping):
        return {other: value for other, value in part.items() if other != key}
    return (*part[:key], *part[key + 1 :])
