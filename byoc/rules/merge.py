"""Building one rule file on another: the nearer file wins, and what is inherited is known as such.

What a file says of an operator replaces what the one below says of it; a composite of the same name
replaces; `host` lists add up; `layout`, `quantization`, `limits` and `codegen_options` go key by key,
but the last are not inherited by a file that names another codegen. The nearer file's rules and
composites stand first. What it drops is not inherited.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from byoc.errors import nearest
from byoc.rules.schema import CompositeRule, Drop, Host, Nodes, OpRule, RuleFile

_BY_KEY = ("layout", "quantization", "limits")
_OPTIONS = "codegen_options"
N = TypeVar("N", bound=Nodes)
_BY_PART = ("ops", "composites", "host")
_OF_THE_FILE = ("extends", "drop")


def defaults(content: Mapping[Any, Any], base: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return what was read with the keys that it leaves to the file below, as that was read."""
    base = {key: value for key, value in base.items() if key not in _OF_THE_FILE}
    codegen = base.get("codegen", RuleFile.model_fields["codegen"].default)
    if content.get("codegen", codegen) != codegen:
        base.pop(_OPTIONS, None)
    result = {**base, **content}
    for key in (*_BY_KEY, _OPTIONS):
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
    keys = [key for key in RuleFile.model_fields if key not in (*content, *_BY_PART, *_OF_THE_FILE)]
    for key in _BY_KEY:
        keys += [
            f"{key}.{name}" for name in getattr(base, key).model_fields_set - {*(content.get(key) or ())}
        ]
    keys += [
        f"{_OPTIONS}.{name}"
        for name in rules.codegen_options
        if name not in (content.get(_OPTIONS) or ())
    ]
    places = {key: key for key in keys}
    drop = rules.drop
    ops = _ops(rules.ops if "ops" in content else (), base.ops, drop.ops, places)
    own = rules.composites if "composites" in content else ()
    composites = _composites(own, base.composites, drop.composites, places)
    host = rules.host if "host" in content else Host()
    after = _nodes("host.after", host.after, base.host.after, drop.host.after, places)
    whole = _nodes("host", host, base.host, drop.host, places).model_copy(update={"after": after})
    update = {"ops": ops, "composites": composites, "host": whole, "extends": None, "drop": Drop()}
    return rules.model_copy(update=update), places


def drop_problems(drop: Drop, base: RuleFile) -> Iterator[str]:
    """Yield a sentence for each thing to drop that the file below does not have."""
    asked = {
        "ops": (drop.ops, {op for rule in base.ops for op in rule.op}),
        "composites": (drop.composites, {rule.called for rule in base.composites}),
        "host.ops": (drop.host.ops, {*base.host.ops}),
        "host.names": (drop.host.names, {*base.host.names}),
        "host.after.ops": (drop.host.after.ops, {*base.host.after.ops}),
        "host.after.names": (drop.host.after.names, {*base.host.after.names}),
    }
    for key, (names, there) in asked.items():
        for i, name in enumerate(names):
            if name not in there:
                yield f"drop.{key}[{i}]: there is no '{name}' to drop{nearest(name, there)}"


def _ops(
    own: Sequence[OpRule], base: Sequence[OpRule], drop: Sequence[str], places: dict[str, str]
) -> tuple[OpRule, ...]:
    said = {*drop, *(op for rule in own for op in rule.op)}
    result = list(own)
    for position, rule in enumerate(base):
        rest = tuple(op for op in rule.op if op not in said)
        if rest:
            places[f"ops[{len(result)}]"] = f"ops[{position}]"
            result.append(rule.model_copy(update={"op": rest}))
    return tuple(result)


def _composites(
    own: Sequence[CompositeRule],
    base: Sequence[CompositeRule],
    drop: Sequence[str],
    places: dict[str, str],
) -> tuple[CompositeRule, ...]:
    names = {*drop, *(composite.called for composite in own)}
    result = list(own)
    for position, composite in enumerate(base):
        if composite.called not in names:
            places[f"composites[{len(result)}]"] = f"composites[{position}]"
            result.append(composite)
    return tuple(result)


def _nodes(place: str, own: N, base: N, drop: Nodes, places: dict[str, str]) -> N:
    """Return both together: operators and names add up."""
    update = {}
    for key in ("ops", "names"):
        whole = list(getattr(own, key))
        for position, name in enumerate(getattr(base, key)):
            if name not in getattr(drop, key):
                places[f"{place}.{key}[{len(whole)}]"] = f"{place}.{key}[{position}]"
                whole.append(name)
        update[key] = tuple(whole)
    return own.model_copy(update=update)
