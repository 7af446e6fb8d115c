"""Options of plug-ins: the fields of a frozen dataclass, parsed from the text that users write.

A codegen has a dataclass of its own, `Options`; a strategy or a cost model is the dataclass itself. A
field is a str, int, `Bytes` (an int that users may write with a unit, such as 128KiB), float, bool,
Path, an Enum or a Literal, each optionally None; `field(default=..., metadata={"help": "..."})`
documents it. With `"at_load": True` it may be given when a bundle is loaded, too: `load` reads it from
the artifact's metadata, under its name. With `"executes": True` its value is, or may name, something
that is executed: it is then taken from the user alone, never from a rule file or a bundle.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from math import isnan
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from byoc._dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from byoc.errors import InputError, describe_error, shorten_text, suggest_nearest
from byoc.support._plugins import UnsuitablePluginError

SIZE_UNITS: Mapping[str, int] = MappingProxyType(
    {
        **{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40},
        **{"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    }
)
"""The units of a size, in bytes; a size without a unit is in bytes."""

_SIZE = re.compile(rf"([0-9]{{1,18}})\s*({'|'.join(SIZE_UNITS)})?")


def parse_size(text: str) -> int:
    """Parse a size in bytes. Raises ValueError unless it is a whole number, optionally with a unit."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"'{text}' is not a size")
    return int(found[1]) * SIZE_UNITS[found[2] or "B"]


T = TypeVar("T")

Bytes = Annotated[int, "bytes"]

NONE = "none"
_MAX_CHARACTERS_SHOWN = 80  # of a name or value in a sentence
_BOOL_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


@dataclass(frozen=True)
class OptionDescription:
    """An option of a plug-in, as documented to users.

    `kind` describes its values in words. `default` is its default as text, None when it is required. The
    value of one that `executes` is a command, or may make one run something, so it comes from the user
    alone. One that is `at_load` may be given when a bundle is loaded, too.
    """

    name: str
    kind: str
    default: str | None
    help: str
    executes: bool = False
    at_load: bool = False


@dataclass(frozen=True)
class Option(OptionDescription):
    """An option of a plug-in; `read` parses a value, and raises ValueError with the kind in words."""

    read: Callable[[str], Any] = field(kw_only=True)


@dataclass(frozen=True)
class NoOptions:
    """The `Options` of a codegen without options, so that any is refused."""


def list_options(cls: Any) -> tuple[Option, ...]:
    """Return the options of a dataclass, in the order of its fields.

    Raises TypeError with a sentence when it is not a dataclass, or a field cannot be given as text.
    """
    if not (isinstance(cls, type) and is_dataclass(cls)):
        raise TypeError("its `Options` is not a dataclass")
    try:
        kinds = get_type_hints(cls, include_extras=True)
    except Exception as error:  # evaluating annotations may fail in any way
        raise TypeError(f"its `Options` cannot be read: {describe_error(error)}") from None
    return tuple(_describe_option(entry, kinds[entry.name]) for entry in fields(cls) if entry.init)


def find_option_problems(cls: Any, given: Mapping[str, str]) -> dict[str, str]:
    """Return the problem of each wrong option, as the end of a sentence, by option name.

    Missing options are not reported. Raises TypeError as `list_options`.
    """
    return _find_problems({option.name: option for option in list_options(cls)}, given)


def _find_problems(known: Mapping[str, Option], given: Mapping[str, str]) -> dict[str, str]:
    problems = {}
    for name, text in given.items():
        if name not in known:
            there = ", ".join(known) or "none"
            shown = shorten_text(str(name), _MAX_CHARACTERS_SHOWN)
            problems[name] = f"has no option '{shown}'{suggest_nearest(shown, known)}; it has: {there}"
            continue
        try:
            known[name].read(str(text))
        except ValueError as error:
            shown = shorten_text(str(text), _MAX_CHARACTERS_SHOWN)
            problems[name] = f"takes as option '{name}' {error}, not '{shown}'"
    return problems


def find_executing_options(cls: Any, given: Iterable[str]) -> dict[str, str]:
    """Return why options that execute are not taken from a file: the end of a sentence, by name."""
    names = [option.name for option in list_options(cls) if option.executes and option.name in given]
    return {
        name: f"takes '{name}' from the user alone, since it may run any command: "
        f"--codegen-option {name}=..., or codegen_options in Python"
        for name in names
    }


def read_options(cls: type[T], given: Mapping[str, str]) -> T:
    """Parse options given as text; return an instance of the dataclass.

    Options not given have their field's default. Raises InputError with all problems: unknown names,
    values of a wrong type, missing options without a default, and a ValueError of the class itself.
    """
    return _make(cls, list_options(cls), given)


def _make(cls: type[T], known: Iterable[Option], given: Mapping[str, str]) -> T:
    problems = list(_find_problems({option.name: option for option in known}, given).values())
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
    except Exception as error:  # the class's own checks
        text = str(error) if isinstance(error, (ValueError, InputError)) else describe_error(error)
        raise InputError(f"refuses its options: {text}") from None


# What the protocols of strategies, cost models and passes ask for is no option, field or not.
_PROTOCOL_FIELDS = frozenset({"name", "honours", "description", "scope"})
OPTION_SEPARATOR = ":"


def list_plugin_options(cls: Any) -> tuple[Option, ...]:
    """Return the options of a strategy, cost model or pass: its fields, where it is a dataclass.

    Fields that cannot be given as text are none, nor are those that every plug-in has.
    """
    if not (isinstance(cls, type) and is_dataclass(cls)):
        return ()
    found = []
    try:
        kinds = get_type_hints(cls, include_extras=True)
    except Exception:  # evaluating annotations may fail in any way
        return ()
    for entry in fields(cls):
        if entry.init and entry.name not in _PROTOCOL_FIELDS:
            with suppress(TypeError):
                found.append(_describe_option(entry, kinds[entry.name]))
    return tuple(found)


def make_with_options(cls: Any, given: Mapping[str, str]) -> Any:
    """Make a strategy or cost model of its class, with options given as text.

    Raises UnsuitablePluginError with all that is wrong with the options, as the end of a sentence.
    """
    known = list_plugin_options(cls)
    if not given and all(option.default is not None for option in known):
        return cls()
    try:
        return _make(cls, known, given)
    except InputError as error:
        raise UnsuitablePluginError(str(error)) from None


def select_options(  # noqa: PLR0913 - what messages say
    given: Mapping[str, T],
    owner: str,
    owners: Iterable[str],
    what: str,
    kind: str,
    *,
    unused: Iterable[str] = (),
) -> dict[str, T]:
    """Return the options of one owner: those given by `name`, to all, and by `owner:name`, which win.

    `owners` are all that may be named; those of `unused` exist, but take no part. In messages the
    options are called `what`, and an owner `kind`. Raises InputError for any other than `owners`.
    """
    known = tuple(owners)
    existing = frozenset(unused)
    for key in given:
        named, mark, _ = key.partition(OPTION_SEPARATOR)
        if mark and named not in known and named in existing:
            used = ", ".join(known)
            raise InputError(f"{what} {key}: the {kind} {named} is not used, but {used}")
        if mark and named not in known:
            raise InputError(f"{what} {key}: no such {kind}{suggest_nearest(named, known)}")
    own = f"{owner}{OPTION_SEPARATOR}"
    common = {key: value for key, value in given.items() if OPTION_SEPARATOR not in key}
    return common | {key.removeprefix(own): value for key, value in given.items() if key.startswith(own)}


def read_stored_options(cls: type[T], metadata: Mapping[str, str]) -> T:
    """Return the options that an artifact was compiled with, from its metadata.

    Those that execute are not read from there: they have their defaults, and so have those that the
    artifact's codegen did not have yet.
    """
    stored = [option.name for option in list_options(cls) if not option.executes]
    return read_options(cls, {name: metadata[name] for name in stored if name in metadata})


def format_options(options: Any) -> dict[str, str]:
    """Return a dataclass of options as text, which `read_options` parses back."""
    return {
        entry.name: _format_value(getattr(options, entry.name))
        for entry in fields(options)
        if entry.init
    }


def _describe_option(entry: Field[Any], annotation: Any) -> Option:
    read, kind = _value_parser(annotation, entry.name)
    default = None
    if entry.default is not MISSING:
        default = _format_value(entry.default)
    elif entry.default_factory is not MISSING:
        default = _format_value(entry.default_factory())
    described = str(entry.metadata.get("help", ""))
    executes = bool(entry.metadata.get("executes"))
    at_load = bool(entry.metadata.get("at_load"))
    return Option(entry.name, kind, default, described, executes, at_load, read=read)


def _format_value(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value_parser(annotation: Any, name: str) -> tuple[Callable[[str], Any], str]:
    """Return a parser for a field's type, and the description of its values."""
    if get_origin(annotation) is Annotated and annotation != Bytes:
        return _value_parser(get_args(annotation)[0], name)
    if get_origin(annotation) in (Union, UnionType):
        parts = [part for part in get_args(annotation) if part is not NoneType]
        if len(parts) == 1:
            read, inner = _value_parser(parts[0], name)
            kind = f"{inner}, or {NONE}"
            return (
                lambda text: None if text.strip().lower() == NONE else _convert(read, text, kind),
                kind,
            )
    elif get_origin(annotation) is Literal:
        return _choice_parser({_format_value(value): value for value in get_args(annotation)})
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        return _choice_parser({_format_value(member): member for member in annotation})
    elif annotation in _PARSERS:
        convert, kind = _PARSERS[annotation]
        return lambda text: _convert(convert, text, kind), kind
    raise TypeError(f"its option '{name}' is a {annotation}, which cannot be given as text")


def _convert(convert: Callable[[str], Any], text: str, kind: str) -> Any:
    try:
        return convert(text)
    except (KeyError, ValueError):
        raise ValueError(kind) from None


def _choice_parser(values: Mapping[str, Any]) -> tuple[Callable[[str], Any], str]:
    def read(text: str) -> Any:
        if text not in values:
            raise ValueError(f"{kind}{suggest_nearest(text, values)}")
        return values[text]

    kind = ("one of " if len(values) > 1 else "") + ", ".join(values)
    return read, kind


def _parse_float(text: str) -> float:
    value = float(text)
    if isnan(value):
        raise ValueError
    return value


_PARSERS: Mapping[Any, tuple[Callable[[str], Any], str]] = MappingProxyType(
    {
        str: (str, "text"),
        Path: (Path, "a path"),
        int: (int, "a whole number"),
        Bytes: (parse_size, "bytes, such as 131072 or 128KiB"),
        float: (_parse_float, "a number"),
        bool: (lambda text: _BOOL_WORDS[text.strip().lower()], "true or false"),
    }
)
