"""A codegen's options: a frozen dataclass of its own, made from what the user wrote as text.

A field is a str, int, `Bytes` (an int that users may write with a unit, such as 128KiB), float, bool, an
Enum or a Literal, each of them or None; `field(default=...,
metadata={"help": "..."})` says what it is for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from math import isnan
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from byoc.codegen.sizes import read_size
from byoc.errors import InputError, described, nearest, shortened

T = TypeVar("T")

Bytes = Annotated[int, "bytes"]

NONE = "none"
_MOST_SHOWN = 80
_TRUTH = {"true": True, "yes": True, "on": True, "1": True} | {
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


@dataclass(frozen=True)
class Option:
    """An option of a codegen, as users are told of it.

    `kind` says in words what it takes. `default` is its default as text, None when it must be given;
    `read` makes its value of a text, and raises ValueError with the kind in words.
    """

    name: str
    kind: str
    default: str | None
    help: str
    read: Callable[[str], Any]


@dataclass(frozen=True)
class NoOptions:
    """The `Options` of a codegen that has none, so that any is refused."""


def options_of(cls: Any) -> tuple[Option, ...]:
    """Return the options that a dataclass has, in the order of its fields.

    Raises TypeError with a sentence when it is no dataclass, or a field cannot be given as text.
    """
    if not (isinstance(cls, type) and is_dataclass(cls)):
        raise TypeError("its `Options` is not a dataclass")
    try:
        kinds = get_type_hints(cls, include_extras=True)
    except Exception as error:  # whatever names the annotations use
        raise TypeError(f"its `Options` cannot be read: {described(error)}") from None
    return tuple(_option(field, kinds[field.name]) for field in fields(cls) if field.init)


def option_problems(cls: Any, given: Mapping[str, str]) -> dict[str, str]:
    """Return what is wrong with each option that was given and is not right, as the end of a sentence.

    What is missing is not said here. Raises TypeError as `options_of`.
    """
    known = {option.name: option for option in options_of(cls)}
    problems = {}
    for name, text in given.items():
        if name not in known:
            there = ", ".join(known) or "none"
            told = shortened(str(name), _MOST_SHOWN)
            problems[name] = f"has no option '{told}'{nearest(told, known)}; it has: {there}"
            continue
        try:
            known[name].read(str(text))
        except ValueError as error:
            told = shortened(str(text), _MOST_SHOWN)
            problems[name] = f"takes as option '{name}' {error}, not '{told}'"
    return problems


def read_options(cls: type[T], given: Mapping[str, str]) -> T:
    """Return an instance of a dataclass of options for what the user gave as text.

    What is not given has the field's default. Raises InputError with everything that is wrong: a name
    that no field has, a value that is not of its field's type, one that is missing and has no default,
    and what the class itself refuses with a ValueError.
    """
    known = options_of(cls)
    problems = list(option_problems(cls, given).values())
    problems += [
        f"needs the option '{option.name}'"
        for option in known
        if option.default is None and option.name not in given
    ]
    if problems:
        raise InputError("; ".join(problems))
    try:
        return cls(
            **{option.name: option.read(given[option.name]) for option in known if option.name in given}
        )
    except Exception as error:  # what the class checks by itself
        text = str(error) if isinstance(error, ValueError) else described(error)
        raise InputError(f"refuses its options: {text}") from None


def written_options(options: Any) -> dict[str, str]:
    """Return a dataclass of options as text, from which `read_options` makes it again."""
    return {field.name: _text(getattr(options, field.name)) for field in fields(options) if field.init}


def _option(field: Field[Any], annotation: Any) -> Option:
    read, kind = _reader(annotation, field.name)
    default = None
    if field.default is not MISSING:
        default = _text(field.default)
    elif field.default_factory is not MISSING:
        default = _text(field.default_factory())
    return Option(field.name, kind, default, str(field.metadata.get("help", "")), read)


def _text(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _reader(annotation: Any, name: str) -> tuple[Callable[[str], Any], str]:
    """Return what reads a field's value from text, and what it takes, in words."""
    if get_origin(annotation) is Annotated and annotation != Bytes:
        return _reader(get_args(annotation)[0], name)
    if get_origin(annotation) in (Union, UnionType):
        parts = [part for part in get_args(annotation) if part is not NoneType]
        if len(parts) == 1:
            read, kind = _reader(parts[0], name)
            called = f"{kind}, or {NONE}"
            return lambda text: None if text.strip().lower() == NONE else _as(read, text, called), called
    elif get_origin(annotation) is Literal:
        return _choice({_text(value): value for value in get_args(annotation)})
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        return _choice({_text(member): member for member in annotation})
    elif annotation in _CONVERSIONS:
        convert, called = _CONVERSIONS[annotation]
        return lambda text: _as(convert, text, called), called
    raise TypeError(f"its option '{name}' is a {annotation}, which cannot be given as text")


def _as(convert: Callable[[str], Any], text: str, called: str) -> Any:
    try:
        return convert(text)
    except (KeyError, ValueError):
        raise ValueError(called) from None


def _choice(values: Mapping[str, Any]) -> tuple[Callable[[str], Any], str]:
    def read(text: str) -> Any:
        if text not in values:
            raise ValueError(f"{called}{nearest(text, values)}")
        return values[text]

    called = _one_of(list(values))
    return read, called


def _one_of(names: Sequence[str]) -> str:
    return f"one of {', '.join(names)}" if len(names) > 1 else str(names[0])


def _number(text: str) -> float:
    value = float(text)
    if isnan(value):
        raise ValueError
    return value


_CONVERSIONS: Mapping[Any, tuple[Callable[[str], Any], str]] = MappingProxyType(
    {
        str: (str, "text"),
        int: (int, "a whole number"),
        Bytes: (read_size, "bytes, such as 131072 or 128KiB"),
        float: (_number, "a number"),
        bool: (lambda text: _TRUTH[text.strip().lower()], "true or false"),
    }
)
