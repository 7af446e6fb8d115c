"""Cost files that build on another one, and figures that several operators share.

A file with `extends` has what it does not state from the file that it names. Mappings are merged key by
key, at any depth; everything else replaces what is inherited. `name`, `description`, `machine` and
`threads` are not inherited. `groups` of a roofline name lists of operators: figures under the name of a
group are those of each of its operators, which may have further figures of its own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from byoc.errors import InputError
from byoc.support import (
    COST_MODELS,
    find_beside,
    find_extended_file,
    make_file_error,
    read_mapping,
)

# What names a cost model and is inherited.
_NAMING = ("else", "beside")
_OWN = ("name", "description", "machine", "threads", "extends")

Content = dict[Any, Any]


def read_inherited(path: Path, chain: tuple[Path, ...] = ()) -> Content:
    """Return the content of a cost file with what it inherits, groups not yet expanded.

    `chain` are the files that led to this one. Raises InputError for a file that is not there, that
    builds on itself, or that is one of too many.
    """
    content = read_mapping(path)
    if "extends" not in content:
        return content
    found = _find_base(path, content["extends"], (*chain, path))
    base = read_inherited(found, (*chain, path))
    for key in _NAMING:
        if isinstance(base.get(key), str) and (file := find_named_file(found, key, base[key])):
            base = {**base, key: str(file)}  # a path is relative to its own file
    own = {key: value for key, value in content.items() if key != "extends"}
    return _merge({key: value for key, value in base.items() if key not in _OWN}, own)


def find_named_file(path: Path, key: str, name: str) -> Path | None:
    """Return the file beside or below a cost file that it names under a key, None if there is none.

    Raises InputError for a path that leads elsewhere.
    """
    try:
        return find_beside(COST_MODELS, path, name)
    except InputError as error:
        raise InputError(f"{path}: {key}: {error}") from None


def expand_groups(content: Content) -> tuple[Content, list[str]]:
    """Return content in which each operator has the figures of its group, and mistakes in groups."""
    groups = content.get("groups")
    if groups is None:
        return content, []
    if not isinstance(groups, dict):
        return content, ["groups: expected names, each with a list of operators"]
    operators = content.get("operators")
    own = dict(operators) if isinstance(operators, dict) else {}
    problems: list[str] = []
    shared: Content = {}
    owners: dict[str, str] = {}
    for key, members in groups.items():
        name = str(key)
        if not isinstance(members, list) or not all(isinstance(each, str) for each in members):
            problems.append(f"groups.{name}: expected a list of operators")
            continue
        if name in members or onnx.defs.has(name):
            problems.append(f"groups.{name}: this is the name of an operator; give the group another")
        for each in members:
            if each in owners:
                where = "there twice" if owners[each] == name else f"in the group {owners[each]}, too"
                problems.append(f"groups.{name}: '{each}' is {where}")
            owners[each] = name
        if key in own:
            shared |= dict.fromkeys(members, own.pop(key))
        else:
            problems.append(f"groups.{name}: there are no figures under this name in `operators`")
    rest = {key: value for key, value in content.items() if key != "groups"}
    return {**rest, "operators": _merge(shared, own)}, problems


def _merge(base: Mapping[Any, Any], own: Mapping[Any, Any]) -> Content:
    result = {**base, **own}
    for key, value in own.items():
        below = base.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            result[key] = _merge(below, value)
    return result


def _find_base(path: Path, name: object, chain: tuple[Path, ...]) -> Path:
    if not isinstance(name, str):
        raise make_file_error(path, ["extends: expected the path or the name of a cost model"])
    return find_extended_file(COST_MODELS, path, name, chain)
