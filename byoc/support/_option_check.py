"""Values of options checked against their declarations: the type, and the least number allowed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from byoc.errors import InputError, shorten_text

_MAX_CHARACTERS = 80
# Numbers of numpy are numbers, and its bool_ is not a bool but stands for one.
_CLASSES: Mapping[Any, Any] = {int: Integral, float: Real, Path: PathLike}
_NAMES = {
    str: "text",
    Path: "a path",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    NoneType: "None",
}


def check_types(kind: Any, values: Mapping[str, Any]) -> None:
    """Check values for the fields of a dataclass `kind`, by name, against the fields' annotations.

    Raises InputError for the first value of another type, which is named. A default is what the field
    declares; where there are only defaults, nothing is imported that annotations name.
    """
    defaults = {each.name: each.default for each in fields(kind)}
    given = {name: value for name, value in values.items() if value is not defaults[name]}
    hints = _read_hints(kind) if given else {}
    for name, value in given.items():
        check_type(name, value, hints[name])


def check_type(name: str, value: object, hint: Any) -> None:
    """Raise InputError, with the name, for a value that is not of an annotated type."""
    if not fits_type(value, hint):
        raise InputError(f"{name}: {_format_value(value)} is not {_describe_type(hint)}")


def check_minimum(name: str, value: object, minimum: float | None) -> None:
    """Raise InputError for a number below the least one allowed, or NaN; None is no number."""
    if minimum is not None and isinstance(value, Real) and not float(value) >= minimum:
        raise InputError(f"{name}: {_format_value(value)} is not a number of at least {minimum:g}")


@lru_cache
def _read_hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind) if each.init}


def fits_type(value: object, hint: Any) -> bool:
    """Return whether a value is of an annotated type. The items of an iterator are not looked at."""
    hint = _follow_alias(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits_type(value, each) for each in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            fits_type(key, inner[0]) and fits_type(item, inner[1]) for key, item in value.items()
        )
    if origin in (Sequence, Iterable):
        return _is_list(value, inner[0])
    if origin is Callable:
        return callable(value)
    return (
        hint is Any
        or isinstance(value, _CLASSES.get(hint, origin or hint))
        or _is_numpy_bool(value, hint)
    )


def _follow_alias(hint: Any) -> Any:
    """Return the type behind an alias of a `type` statement, such as numpy's NDArray since 2.5."""
    return getattr(get_origin(hint) or hint, "__value__", hint)


def _is_list(value: object, item_hint: Any) -> bool:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return False
    return not isinstance(value, Sequence) or all(fits_type(item, item_hint) for item in value)


def _is_numpy_bool(value: object, hint: Any) -> bool:
    return hint is bool and type(value).__name__ in ("bool", "bool_")


def _describe_type(hint: Any) -> str:
    hint = _follow_alias(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        names = list(dict.fromkeys(map(_describe_type, inner)))
        return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is Mapping:
        return f"a mapping of {_describe_type(inner[0])} to {_describe_type(inner[1])}"
    if origin in (Sequence, Iterable):
        return f"a list, each {_describe_type(inner[0])}"
    if origin is Callable:
        return "a function"
    return _NAMES.get(hint) or f"a {hint.__name__}"


def _format_value(value: object) -> str:
    try:
        return shorten_text(repr(value), _MAX_CHARACTERS)
    except Exception:  # the value is anything, and its __repr__ can fail
        return f"an object of type {type(value).__name__}"
