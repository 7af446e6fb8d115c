"""YAML files that describe themselves wrongly get every error at once, each with its path.

One way in for all of byoc's YAML: safe loading, no duplicate keys, then validation by a pydantic type.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from byoc.errors import InputError, nearest


class Strict(BaseModel):
    """Base of the types that describe YAML: immutable, and a key that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


T = TypeVar("T", bound=BaseModel)


# Enough for sharing parts of a file; what refers to what refers ... grows without bound.
_MOST_ALIASES = 50
_MOST_KEYS = 10_000
_MOST_PROBLEMS = 50
_MOST_CHARACTERS = 1_000


class _Loader(yaml.SafeLoader):
    """The safe loader, but a key that stands twice is an error rather than the last one winning."""

    aliases = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Count the aliases while composing, since a few bytes of them can stand for gigabytes."""
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > _MOST_ALIASES:
                raise yaml.constructor.ConstructorError(
                    None, None, f"more than {_MOST_ALIASES} aliases", self.get_mark()
                )
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge in what `<<` names, since merges of merges stand for as much as aliases do."""
        written = len(node.value)
        super().flatten_mapping(node)
        if len(node.value) > max(written, _MOST_KEYS):
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {_MOST_KEYS} keys in one mapping", node.start_mark
            )


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be a single word", key.start_mark
            )
        if key.value in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key '{shortened(key.value)}' stands twice", key.start_mark
            )
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
# PyYAML follows YAML 1.1, in which 1e-5 is text; YAML 1.2 and everyone who writes it mean the number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(path: Path, kind: type[T]) -> T:
    """Return the file's content as a `kind`.

    Raises InputError, a line for each thing wrong with the file (`dla.yaml: ops[3].opp: ...`).
    """
    result, problems = check(read_mapping(path), kind)
    if result is None:
        raise wrong(path, problems)
    return result


def wrong(path: Path, problems: Sequence[str]) -> InputError:
    """Return the error for a file with some problems: a line for each, up to a limit."""
    # A key may hold line breaks, and problems quote keys.
    told = (_line("\\n".join(problem.splitlines())) for problem in problems[:_MOST_PROBLEMS])
    lines = [f"{path}: {problem}" for problem in told]
    if len(problems) > _MOST_PROBLEMS:
        lines.append(f"{path}: and {len(problems) - _MOST_PROBLEMS} more")
    return InputError("\n".join(lines))


def _line(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def shortened(value: object) -> str:
    """Return a value as sentences quote it: its beginning, where it is long."""
    try:
        text = str(value)
    except ValueError:  # Python writes no whole number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def read_mapping(path: Path) -> dict[Any, Any]:
    """Return the mapping that a file holds, whatever its keys.

    Raises InputError when it cannot be read or is not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: cannot be read: {reason}") from None
    try:
        content = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise InputError(f"{path}{place}: not valid YAML: {error.problem}") from None
    except Exception as error:  # values such as `!!int ''` fail in the constructors, each in its way
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a mapping of keys at the top")
    return content


def check(content: object, kind: type[T]) -> tuple[T | None, list[str]]:
    """Return what was read as a `kind`, or None and a sentence for each thing that is wrong with it."""
    try:
        return kind.model_validate(content), []
    except ValidationError as error:
        details = error.errors()
    # A list all of whose items are wrong is also reported as too short, which it is not.
    return None, [_explain(detail, kind) for detail in details if not _follows(detail, details)]


def _follows(detail: ErrorDetails, others: Sequence[ErrorDetails]) -> bool:
    place = detail["loc"]
    return detail["type"] == "too_short" and any(
        other["loc"][: len(place)] == place for other in others if other is not detail
    )


# In the words of who writes YAML rather than Python.
_SAID = {
    "missing": "must be given",
    "too_short": "must not be empty",
    "string_type": "expected text",
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping of keys",
    "model_type": "expected a mapping of keys",
}


def _explain(detail: ErrorDetails, kind: type[BaseModel]) -> str:
    place = _place(detail["loc"])
    if detail["type"] == "extra_forbidden":
        fields = _fields_at(kind, detail["loc"][:-1])
        name = str(detail["loc"][-1])
        return f"{place}: no such key{nearest(name, fields)}; known: {', '.join(fields)}"
    if detail["type"] == "greater_than_equal":
        return f"{place}: must be at least {detail['ctx']['ge']:g}"
    if detail["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
        hint = nearest(str(detail["input"])[:50], known)
        return f"{place}: expected {detail['ctx']['expected']}{hint}"
    message = _SAID.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    return f"{place}: {message[:1].lower()}{message[1:]}"


def _place(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith(("list[", "function-", "dict[")) and step not in _UNION_TAGS:
            path += f".{shortened(step)}" if path else shortened(step)
    return path or "the file"


# pydantic names the member of a union that it tried, and says so of a key; a user wrote no such thing.
_UNION_TAGS = {"str", "int", "float", "bool", "[key]"}


def _fields_at(kind: Any, location: tuple[int | str, ...]) -> list[str]:
    """Return the keys allowed at a place, by following the annotations down to it."""
    for step in location:
        kind = _member(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(str(step)) or next(
                (f for f in kind.model_fields.values() if f.alias == step), None
            )
            kind = field.annotation if field else None
        elif get_origin(kind) in (dict, tuple, list):
            kind = get_args(kind)[1 if get_origin(kind) is dict else 0]
    kind = _member(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [field.alias or name for name, field in kind.model_fields.items()]
    return []


def _member(kind: Any) -> Any:
    """Return the part of a union that has keys of its own, else the type itself."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, UnionType):
        parts = [part for part in get_args(kind) if part is not type(None)]
        models = [p for p in parts if isinstance(p, type) and issubclass(p, BaseModel)]
        return models[0] if models else parts[0]
    return kind
