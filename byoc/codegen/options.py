"""A codegen's options: a frozen dataclass of its own, made from what the user wrote as text."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from byoc.codegen.api import CompileError
from byoc.errors import nearest

T = TypeVar("T")

_TRUTH = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def read_options(cls: type[T], given: Mapping[str, str]) -> T:
    """Return an instance of a dataclass whose fields are str, int, float, bool, or a Literal of texts.

    What is not given has the field's default. Raises CompileError with everything that is wrong: a name
    that no field has, a value that is not of its field's type, one that is missing and has no default,
    and what the class itself refuses with a ValueError.
    """
    kinds = get_type_hints(cls)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    problems = [
        f"there is no option '{name}'{nearest(name, names)}; there are {', '.join(names) or 'none'}"
        for name in given
        if name not in names
    ]
    values = {}
    for name in names:
        if name in given:
            try:
                values[name] = _value(str(given[name]), kinds[name])
            except ValueError as error:
                problems.append(f"the option {name} is '{given[name]}', not {error}")
    if problems:
        raise CompileError("; ".join(problems))
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise CompileError(f"options: {error}") from None


def written_options(options: Any) -> dict[str, str]:
    """Return a dataclass of options as text, from which `read_options` makes it again."""
    return {field.name: str(getattr(options, field.name)) for field in fields(options)}


def _value(text: str, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError(f"one of {', '.join(get_args(kind))}")
        return text
    convert, called = _CONVERSIONS[kind]
    try:
        return convert(text)
    except (KeyError, ValueError):
        raise ValueError(called) from None


_CONVERSIONS: Mapping[Any, tuple[Callable[[str], Any], str]] = MappingProxyType(
    {
        str: (str, "text"),
        int: (int, "a whole number"),
        float: (float, "a number"),
        bool: (lambda text: _TRUTH[text.strip().lower()], "true or false"),
    }
)
