"""Building one rule file on another: the nearer file wins, and what is inherited is known as such.

What a file says of an operator replaces what the one below says of it; a composite of the same name
replaces; `host` lists add up; `layout`, `quantization` and `limits` go key by key. The nearer file's
rules and composites stand first.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from byoc.rules.schema import CompositeRule, Host, Nodes, OpRule, RuleFile

_BY_KEY = ("layout", "quantization", "limits")
N = TypeVar("N", bound=Nodes)
_BY_PART = ("ops", "composites", "host")


def defaults(content: Mapping[Any, Any], base: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return what was read with the keys that it leaves to the file below, as that was read."""
    result = {**{key: value for key, value in base.items() if key != "extends"}, **content}
    for key in _BY_KEY:
        own, below = content.get(key), base.get(key)
        if isinstance(own, dict) and isinstance(below, dict):
            result[key] = {**below, **own}
    return result


def merged(
    rules: RuleFile, content: Mapping[Any, Any], base: RuleFile
) -> tuple[RuleFile, dict[str, str]]:
    """Return the rules of a file on top of those below, and what was inherited: place to old place.

    `rules` are what `defaults` gives of `content`, checked.
    """
    keys = [key for key in RuleFile.model_fields if key not in (*content, *_BY_PART)]
    for key in _BY_KEY:
        keys += [
            f"{key}.{name}" for name in getattr(base, key).model_fields_set - {*(content.get(key) or ())}
        ]
    places = {key: key for key in keys}
    ops = _ops(rules.ops if "ops" in content else (), base.ops, places)
    composites = _composites(
        rules.composites if "composites" in content else (), base.composites, places
    )
    host = rules.host if "host" in content else Host()
    after = _nodes("host.after", host.after, base.host.after, places)
    whole = _nodes("host", host, base.host, places).model_copy(update={"after": after})
    update = {"ops": ops, "composites": composites, "host": whole, "extends": None}
    return rules.model_copy(update=update), places


def _ops(own: Sequence[OpRule], base: Sequence[OpRule], places: dict[str, str]) -> tuple[OpRule, ...]:
    said = {op for rule in own for op in rule.op}
    result = list(own)
    for position, rule in enumerate(base):
        rest = tuple(op for op in rule.op if op not in said)
        if rest:
            places[f"ops[{len(result)}]"] = f"ops[{position}]"
            result.append(rule.model_copy(update={"op": rest}))
    return tuple(result)


def _composites(
    own: Sequence[CompositeRule], base: Sequence[CompositeRule], places: dict[str, str]
) -> tuple[CompositeRule, ...]:
    names = {composite.called for composite in own}
    result = list(own)
    for position, composite in enumerate(base):
        if composite.called not in names:
            places[f"composites[{len(result)}]"] = f"composites[{position}]"
            result.append(composite)
    return tuple(result)


def _nodes(place: str, own: N, base: N, places: dict[str, str]) -> N:
    """Return both together: operators and names add up."""
    for key in ("ops", "names"):
        start = len(getattr(own, key))
        for position in range(len(getattr(base, key))):
            places[f"{place}.{key}[{start + position}]"] = f"{place}.{key}[{position}]"
    return own.model_copy(update={"ops": own.ops + base.ops, "names": own.names + base.names})
