"""Inheritance of rule files: merging a file with the one that it extends.

The rules for an operator replace the inherited ones; a composite replaces one of the same name; `host`
lists are joined; `layout`, `quantization`, `limits` and `codegen_options` are merged key by key, but
options are not inherited if the file names another codegen. Own rules and composites precede inherited
ones. Parts under `drop` are not inherited.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from byoc.errors import suggest_nearest
from byoc.rules._rule_schema import CompositeRule, Drop, Host, Nodes, OpRule, RuleFile

_MERGED_BY_KEY = ("layout", "quantization", "limits")
_OPTIONS_KEY = "codegen_options"
NodesT = TypeVar("NodesT", bound=Nodes)
_MERGED_BY_PART = ("ops", "composites", "host")
_NOT_INHERITED = ("extends", "drop")


def apply_defaults(content: Mapping[Any, Any], base: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the keys of a file, with those that it lacks from the file that it extends, as read."""
    base = {key: value for key, value in base.items() if key not in _NOT_INHERITED}
    codegen = base.get("codegen", RuleFile.model_fields["codegen"].default)
    if content.get("codegen", codegen) != codegen:
        base.pop(_OPTIONS_KEY, None)
    result = {**base, **content}
    for key in (*_MERGED_BY_KEY, _OPTIONS_KEY):
        own, below = content.get(key), base.get(key)
        if isinstance(own, dict) and isinstance(below, dict):
            result[key] = {**below, **own}
    return result


def merge_rules(
    rules: RuleFile, content: Mapping[Any, Any], base: RuleFile
) -> tuple[RuleFile, dict[str, str]]:
    """Merge the rules of a file with those that it extends.

    Returns the rules, and for inherited parts the location in the merged rules to that in `base`.
    `rules` are the result of `defaults`, checked.
    """
    keys = [
        key for key in RuleFile.model_fields if key not in (*content, *_MERGED_BY_PART, *_NOT_INHERITED)
    ]
    for key in _MERGED_BY_KEY:
        keys += [
            f"{key}.{name}" for name in getattr(base, key).model_fields_set - {*(content.get(key) or ())}
        ]
    keys += [
        f"{_OPTIONS_KEY}.{name}"
        for name in rules.codegen_options
        if name not in (content.get(_OPTIONS_KEY) or ())
    ]
    places = {key: key for key in keys}
    drop = rules.drop
    ops = _merge_ops(rules.ops if "ops" in content else (), base.ops, drop.ops, places)
    own = rules.composites if "composites" in content else ()
    composites = _merge_composites(own, base.composites, drop.composites, places)
    host = rules.host if "host" in content else Host()
    after = _merge_nodes("host.after", host.after, base.host.after, drop.host.after, places)
    whole = _merge_nodes("host", host, base.host, drop.host, places).model_copy(update={"after": after})
    update = {"ops": ops, "composites": composites, "host": whole, "extends": None, "drop": Drop()}
    return rules.model_copy(update=update), places


def lint_drop(drop: Drop, base: RuleFile) -> Iterator[str]:
    """Yield a sentence for each name under `drop` that the extended file does not have."""
    asked = {
        "ops": (drop.ops, {op for rule in base.ops for op in rule.op}),
        "composites": (drop.composites, {rule.display_name for rule in base.composites}),
        "host.ops": (drop.host.ops, {*base.host.ops}),
        "host.names": (drop.host.names, {*base.host.names}),
        "host.after.ops": (drop.host.after.ops, {*base.host.after.ops}),
        "host.after.names": (drop.host.after.names, {*base.host.after.names}),
    }
    for key, (names, there) in asked.items():
        for i, name in enumerate(names):
            if name not in there:
                yield f"drop.{key}[{i}]: there is no '{name}' to drop{suggest_nearest(name, there)}"


def _merge_ops(
    own: Sequence[OpRule], base: Sequence[OpRule], drop: Sequence[str], places: dict[str, str]
) -> tuple[OpRule, ...]:
    hidden = {*drop, *(op for rule in own for op in rule.op)}
    result = list(own)
    for position, rule in enumerate(base):
        rest = tuple(op for op in rule.op if op not in hidden)
        if rest:
            places[f"ops[{len(result)}]"] = f"ops[{position}]"
            result.append(rule.model_copy(update={"op": rest}))
    return tuple(result)


def _merge_composites(
    own: Sequence[CompositeRule],
    base: Sequence[CompositeRule],
    drop: Sequence[str],
    places: dict[str, str],
) -> tuple[CompositeRule, ...]:
    names = {*drop, *(composite.display_name for composite in own)}
    result = list(own)
    for position, composite in enumerate(base):
        if composite.display_name not in names:
            places[f"composites[{len(result)}]"] = f"composites[{position}]"
            result.append(composite)
    return tuple(result)


def _merge_nodes(place: str, own: NodesT, base: NodesT, drop: Nodes, places: dict[str, str]) -> NodesT:
    """Return the joined lists of operators and names."""
    update = {}
    for key in ("ops", "names"):
        whole = list(getattr(own, key))
        for position, name in enumerate(getattr(base, key)):
            if name not in getattr(drop, key):
                places[f"{place}.{key}[{len(whole)}]"] = f"{place}.{key}[{position}]"
                whole.append(name)
        update[key] = tuple(whole)
    return own.model_copy(update=update)
