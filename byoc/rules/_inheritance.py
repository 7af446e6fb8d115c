"""Inheritance of rule files: merging a file with the one that it extends.

The rules for an operator replace the inherited ones; a composite or a generation replaces one of the
same name; `host` lists are joined; `layout`, `quantization`, `limits`, `codegen_options` and
`cost_parameters` are merged key by key, but options are not inherited if the file names another codegen,
nor parameters if it names another cost model. Own rules and composites precede inherited ones, and own
clauses of `arithmetic`, which override earlier ones, follow them. Parts under `drop` are not inherited.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from byoc.errors import suggest_nearest
from byoc.rules._rule_schema import CompositeRule, Drop, Host, Nodes, OpRule, RuleFile

_MERGED_BY_KEY = ("layout", "quantization", "limits")
# What is given to a plug-in or a file, by the key that names that.
_GIVEN_TO = {"codegen_options": "codegen", "cost_parameters": "cost_model"}
NodesT = TypeVar("NodesT", bound=Nodes)
_MERGED_BY_PART = ("ops", "composites", "host", "arithmetic")
_NOT_INHERITED = ("extends", "drop")


def apply_defaults(content: Mapping[Any, Any], base: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the keys of a file, with those that it lacks from the file that it extends, as read."""
    base = {key: value for key, value in base.items() if key not in _NOT_INHERITED}
    for key, owner in _GIVEN_TO.items():
        name = base.get(owner, RuleFile.model_fields[owner].default)
        if content.get(owner, name) != name:
            base.pop(key, None)
    result = {**base, **content}
    for key in (*_MERGED_BY_KEY, *_GIVEN_TO, "generations"):
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
    for key in _GIVEN_TO:
        own = content.get(key) or ()
        keys += [f"{key}.{name}" for name in getattr(rules, key) if name not in own]
    places = {key: key for key in keys}
    clauses = base.arithmetic + (rules.arithmetic if "arithmetic" in content else ())
    places |= {f"arithmetic[{i}]": f"arithmetic[{i}]" for i in range(len(base.arithmetic))}
    drop = rules.drop
    ops = _merge_ops(rules.ops if "ops" in content else (), base.ops, drop.ops, places)
    written = rules.composites if "composites" in content else ()
    composites = _merge_composites(written, base.composites, drop.composites, places)
    host = rules.host if "host" in content else Host()
    after = _merge_nodes("host.after", host.after, base.host.after, drop.host.after, places)
    whole = _merge_nodes("host", host, base.host, drop.host, places).model_copy(update={"after": after})
    update = {
        **{"ops": ops, "composites": composites, "host": whole, "arithmetic": clauses},
        **{"extends": None, "drop": Drop()},
    }
    return rules.model_copy(update=update), places


def locate_own_clauses(rules: RuleFile, base: RuleFile) -> dict[str, str]:
    """Return the locations of a file's own clauses of `arithmetic` in merged rules, to those in it."""
    before = len(base.arithmetic)
    return {
        f"arithmetic[{i}]": f"arithmetic[{i - before}]" for i in range(before, len(rules.arithmetic))
    }


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
