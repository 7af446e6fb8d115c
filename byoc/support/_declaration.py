"""Fields declared once: their help, the flag that sets them, and how the manifest records them."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum, auto
from functools import lru_cache, wraps
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from byoc._dataclasses import Field, dataclass, field, fields
from byoc.errors import InputError, shorten_text

# Values of options checked against their declarations: the type, and the least number allowed.

_MAX_CHARACTERS = 80  # of a value in a sentence
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


P = ParamSpec("P")
S = TypeVar("S")
Chosen = TypeVar("Chosen")
R = TypeVar("R")

_KEY = "byoc.declaration"


class Syntax(Enum):
    """The form of what a user writes behind a flag."""

    TEXT = auto()
    PATH = auto()
    NUMBER = auto()
    INTEGER = auto()
    SWITCH = auto()
    """No value: the flag sets the field to true."""
    ON_OFF = auto()
    """No value: `--flag` or `--no-flag`."""
    LIST = auto()
    """One value; the flag may be repeated."""
    BY_TARGET = auto()
    """`NAME` for all targets, or `TARGET=NAME` once for each."""
    PAIRS = auto()
    """`NAME=VALUE`; the flag may be repeated."""
    DIMS = auto()
    """`NAME=SIZE`, `NAME=RELATION` or `NAME=LOW..HIGH`; the flag may be repeated."""
    SHAPES = auto()
    """`INPUT=EXTENT,EXTENT,...`; the flag may be repeated."""
    SIZES = auto()
    """`NAME=WHOLE NUMBER`; the flag may be repeated."""
    VARIANTS = auto()
    """`NAME:DIM=SIZE,rules=FILE`; the flag may be repeated."""
    BUCKETS = auto()
    """`DIM=SIZE,SIZE`; the flag may be repeated."""


class Panel(StrEnum):
    """A group of flags in the help of a verb; what most users need is in none, and comes first."""

    PLACEMENT = "Placement"
    COSTS = "Costs"
    PRECISION = "Precision"
    CODEGENS = "Codegens"
    BUNDLE = "Bundle and verification"
    REQUIREMENTS = "Requirements, for CI"


@dataclass(frozen=True)
class Flag:
    """A flag of the command line that sets a field.

    `names` are `--field-name` unless given. `metavar` stands for the value in the help. `choices` are
    the only texts allowed, where there are any; `minimum` is the least number allowed. A flag is
    `required` where the field has no default, or by itself. `read` makes the field's value of a text;
    it may raise ValueError with a sentence. `default` is the text of the default that is read so. In the
    help it is in a `panel`, if any.
    """

    help: str
    syntax: Syntax = Syntax.TEXT
    names: tuple[str, ...] = ()
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    required: bool = False
    minimum: float | None = None
    default: str | None = None
    read: Callable[[str], Any] | None = None
    panel: Panel | None = None


@dataclass(frozen=True)
class Declaration:
    """A field's help for Python, its flag if it has one, and how its value is recorded.

    `record` makes plain JSON of the value, None where the field is not recorded. What becomes None is
    left out of the record, unless `record_none`.
    """

    help: str
    flag: Flag | None = None
    record: Callable[[Any], Any] | None = None
    record_none: bool = False


def declare(
    help: str,  # noqa: A002 - as argparse and Typer call it
    flag: Flag | None = None,
    record: Callable[[Any], Any] | None = None,
    *,
    record_none: bool = False,
) -> Mapping[str, Any]:
    """Return the metadata of a dataclass field that is declared so."""
    return {_KEY: Declaration(help, flag, record, record_none)}


def declare_field(
    default: Any,
    help: str,  # noqa: A002 - as argparse and Typer call it
    flag: Flag | None = None,
    record: Callable[[Any], Any] | None = None,
    *,
    record_none: bool = False,
) -> Any:
    """Return a dataclass field with a default that is declared so."""
    return field(default=default, metadata=declare(help, flag, record, record_none=record_none))


def declaration_of(declared: "Field[Any]") -> Declaration | None:
    """Return the declaration of a field, None for a field without one."""
    found: Declaration | None = declared.metadata.get(_KEY)
    return found


def keywords_of(values: Any, kind: Any) -> dict[str, Any]:
    """Return the fields that a dataclass `kind` has, with the values of one of its instances."""
    return {each.name: getattr(values, each.name) for each in fields(kind) if each.init}


def take_keywords(
    options: Callable[P, Chosen],
) -> Callable[[Callable[[S, Chosen], R]], Callable[Concatenate[S, P], R]]:
    """Have a function of something and options take the fields of the options as keyword arguments.

    The signature and a list of the arguments for the docstring come from the fields' declarations.
    The function raises InputError for a value of another type than declared or annotated, or below the
    least one.
    """

    def decorate(function: Callable[[S, Chosen], R]) -> Callable[Concatenate[S, P], R]:
        declared = inspect.signature(function)
        own = next(iter(declared.parameters.values()))
        choices = inspect.signature(options).parameters.values()
        signature = declared.replace(parameters=[own, *choices])

        @wraps(function)
        def take(*args: Any, **kwargs: Any) -> R:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            source = given.pop(own.name)
            check_type(own.name, source, get_type_hints(function)[own.name])
            _check_values(options, given)
            return function(source, cast("Callable[..., Chosen]", options)(**given))

        take.__dict__["__signature__"] = signature
        take.__doc__ = f"{inspect.getdoc(function) or ''}\n\n{_describe_arguments(options)}".lstrip()
        return cast("Callable[Concatenate[S, P], R]", take)

    return decorate


def _check_values(options: Any, values: Mapping[str, Any]) -> None:
    check_types(options, values)
    for each in fields(options):
        declaration = declaration_of(each)
        if each.name in values and declaration is not None and declaration.flag is not None:
            check_minimum(each.name, values[each.name], declaration.flag.minimum)


def _describe_arguments(options: Any) -> str:
    declared = ((each.name, declaration_of(each)) for each in fields(options))
    return "\n".join(["Args:", *(f"    {name}: {d.help}" for name, d in declared if d is not None)])
