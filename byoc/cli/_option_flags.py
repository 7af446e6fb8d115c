"""Flags of the command line that are made of the declared fields of a dataclass of options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

import byoc
import byoc.bundle
import byoc.pipeline
import byoc.runtime
from byoc import codegen, reporting
from byoc._dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from byoc.cli._common import check_not_read, check_outside
from byoc.console import print_errors
from byoc.errors import InputError, MissingRuntimeError
from byoc.support import Flag, Panel, Syntax, check_output, declaration_of, declare_field

# The end of verbs that check requirements: sentences, exit code 6, and the file for CI systems.

REQUIREMENT_MISSED = 6
"""The exit code for a result that misses what was required of it; that of `diff --exit-code`, too."""

JUnitOption = Annotated[
    Path | None,
    typer.Option(
        "--junit",
        metavar="FILE",
        help="Write what was checked to this file as JUnit XML, which CI systems show.",
        rich_help_panel=Panel.REQUIREMENTS,
    ),
]


@dataclass(frozen=True)
class JUnitFile:
    """The JUnit file that a verb writes, if any. `verb` names the case of an error."""

    path: Path | None
    verb: str

    @classmethod
    def prepare(cls, path: Path | None, verb: str, *read: object) -> JUnitFile:
        """Return the file by its absolute path; `read` are the arguments that may name what is read.

        Raises InputError when it cannot be written, would lie in a bundle that is read, or replace a
        file that is.
        """
        if path is None:
            return cls(None, verb)
        check_output(path)
        check_not_read(path, read)
        for each in read:
            if isinstance(each, str | Path) and byoc.bundle.find_folder_kind(Path(each)):
                check_outside(path, Path(each), "it would change the bundle that is read")
        return cls(path.absolute(), verb)  # a codegen's code may change the working directory

    @contextmanager
    def record_errors(self, suite: str) -> Iterator[None]:
        """Write an error of the block as the one case of a suite, and raise it."""
        try:
            yield
        except (InputError, MissingRuntimeError) as error:
            self.write(
                [
                    reporting.JUnitSuite(
                        suite, (reporting.JUnitCase(self.verb, "error", "; ".join(error.lines)),)
                    )
                ]
            )
            raise

    def write(self, suites: Iterable[reporting.JUnitSuite]) -> None:
        """Write suites, which are made only if there is to be a file."""
        if self.path is not None:
            reporting.write_junit(self.path, list(suites))


def leave_if_missed(reports: Sequence[byoc.Report], requirements: byoc.Requirements) -> None:
    """Print a sentence for each requirement that a report misses, and leave with 6 if there is one."""
    missed = reporting.list_missed(reports, requirements)
    if missed:
        print_errors(missed)
        raise typer.Exit(REQUIREMENT_MISSED)


# Values of flags, as users write them: NAME=VALUE, sizes, shapes, variants.

_MAX_DIGITS = 20  # as many as 2**64 has; Python is slow in converting millions

_BEFORE_NAME = re.compile(r",(?=[^,=]+=)")  # a comma between dimensions, not one of max(a,b)


_EXAMPLES = {
    "--dim": "batch=1",
    "--for": "pc=openvino-cpu, a name of yours for a device and its rule file",
    "--input": "image=image.npy",
    "--threshold": "scores=1e-3",
    "--trips": "Loop_0=16",
}


def read_pairs(values: Sequence[str], option: str) -> dict[str, str]:
    """Return `NAME=VALUE` options as a mapping. A value without `=` is a usage error."""
    result = {}
    for value in values:
        name, equals, content = value.partition("=")
        if not equals or not name:
            shown = f", such as {_EXAMPLES[option]}" if option in _EXAMPLES else ""
            raise typer.BadParameter(
                f"'{value}' is not of the form NAME=VALUE{shown}", param_hint=option
            )
        if name in result:
            raise typer.BadParameter(f"'{name}' is given twice", param_hint=option)
        result[name] = content
    return result


def read_by_target(values: Sequence[str] | None, option: str) -> str | dict[str, str] | None:
    """Return `NAME` options as the name, `TARGET=NAME` options as a mapping, None without any."""
    if not values:
        return None
    if len(values) == 1 and "=" not in values[0]:
        return values[0]
    return read_pairs(values, option)


def read_sizes(values: Sequence[str] | None, option: str) -> dict[str, int]:
    """Return `NAME=SIZE` options as a mapping. What is not a whole number is a usage error."""
    return {
        name: _read_size(name, value, option) for name, value in read_pairs(values or [], option).items()
    }


def read_dims(values: Sequence[str] | None, option: str) -> dict[str, int | str]:
    """Return `NAME=SIZE`, `NAME=RELATION` and `NAME=LOW..HIGH` options as a mapping."""
    return {name: _read_number(said) for name, said in read_pairs(values or [], option).items()}


def read_variants(
    values: Sequence[str] | None, option: str
) -> dict[str, dict[str, int | str | Sequence[str]]]:
    """Return `NAME:DIM=SIZE,rules=FILE` options as a mapping of mappings; `rules` may be repeated."""
    found: dict[str, dict[str, int | str | Sequence[str]]] = {}
    for value in values or ():
        name, colon, sizes = value.partition(":")
        if not colon or not name or not sizes:
            raise typer.BadParameter(
                f"'{value}' is not of the form NAME:DIM=SIZE or NAME:rules=FILE", param_hint=option
            )
        if name in found:
            raise typer.BadParameter(f"'{name}' is given twice", param_hint=option)
        parts = _BEFORE_NAME.split(sizes)
        start = f"{byoc.pipeline.VARIANT_RULES}="
        rules = [part.removeprefix(start) for part in parts if part.startswith(start)]
        dims = read_dims([part for part in parts if not part.startswith(start)], option)
        found[name] = {**dims, **({byoc.pipeline.VARIANT_RULES: rules} if rules else {})}
    return found


def read_buckets(values: Sequence[str] | None, option: str) -> dict[str, tuple[int, ...]]:
    """Return `DIM=SIZE,SIZE` options as a mapping. What is not a whole number is a usage error."""
    return {
        name: tuple(_read_size(name, size.strip(), option) for size in sizes.split(","))
        for name, sizes in read_pairs(values or [], option).items()
    }


def read_shapes(values: Sequence[str] | None, option: str) -> dict[str, tuple[int | str | None, ...]]:
    """Return `INPUT=EXTENT,...` options as a mapping; `?` is None. No extents are a scalar's shape."""
    return {
        name: tuple(_read_extent(part, name, option) for part in text.split(",")) if text else ()
        for name, text in read_pairs(values or [], option).items()
    }


def _read_extent(text: str, name: str, option: str) -> int | str | None:
    if not text.strip():
        raise typer.BadParameter(f"'{name}': an extent is missing at a comma", param_hint=option)
    return None if text.strip() == "?" else _read_number(text.strip())


def _read_number(text: str) -> int | str:
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else text


def _read_size(name: str, value: str, option: str) -> int:
    if not (value.isascii() and value.isdecimal()) or len(value) > _MAX_DIGITS:
        raise typer.BadParameter(f"'{name}={value}': a whole number is expected", param_hint=option)
    return int(value)


_TYPES: dict[Syntax, Any] = {
    Syntax.TEXT: str,
    Syntax.PATH: Path,
    Syntax.NUMBER: float,
    Syntax.INTEGER: int,
    Syntax.SWITCH: bool,
    Syntax.ON_OFF: bool,
}
"""The type that Typer reads; everything else is a list of texts."""

# Typer shows the members of an enumeration in the help, and takes nothing else.
_make_choices: Callable[..., Any] = StrEnum

_READERS: dict[Syntax, Callable[[Any, str], Any]] = {
    Syntax.LIST: lambda values, name: tuple(values or ()),
    Syntax.BY_TARGET: read_by_target,
    Syntax.PAIRS: lambda values, name: read_pairs(values or [], name),
    Syntax.DIMS: read_dims,
    Syntax.SHAPES: read_shapes,
    Syntax.SIZES: read_sizes,
    Syntax.VARIANTS: read_variants,
    Syntax.BUCKETS: read_buckets,
}


@dataclass(frozen=True)
class _FieldFlag:
    """A field of options and the flag that sets it."""

    field: Field[Any]
    flag: Flag

    @property
    def names(self) -> tuple[str, ...]:
        """The flag as it is written, the long form first."""
        return self.flag.names or (f"--{self.field.name.replace('_', '-')}",)

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        has_none = self.field.default is MISSING and self.field.default_factory is MISSING
        return self.flag.required or has_none

    def declare_parameter(self) -> inspect.Parameter:
        """Return the flag as a parameter for Typer."""
        # Without a name of ours, Typer makes `--flag / --no-flag` of a bool.
        names = () if self.flag.syntax is Syntax.ON_OFF else self.names
        option = typer.Option(
            *names,
            help=self.flag.help,
            metavar=self.flag.metavar,
            min=self.flag.minimum,
            rich_help_panel=self.flag.panel,
        )
        kind, default = self._type_and_default()
        if self.is_required:
            default = inspect.Parameter.empty
        elif default is None:
            kind = kind | None
        return inspect.Parameter(
            self.field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, option],
        )

    def _type_and_default(self) -> tuple[Any, Any]:
        default: Any = self.flag.default or self.field.default
        if self.flag.choices:
            choices: Any = _make_choices("Choice", {name: name for name in self.flag.choices})
            return choices, default and choices(default)
        if self.flag.syntax in _TYPES:
            return _TYPES[self.flag.syntax], default
        return list[str], None

    def read(self, value: Any) -> Any:
        """Return the field's value for what Typer read. Raises typer.BadParameter."""
        if isinstance(value, StrEnum):
            return value.value
        if self.flag.read is not None:
            try:
                return None if value is None else self.flag.read(value)
            except ValueError as error:
                raise typer.BadParameter(str(error), param_hint=self.names[0]) from None
        reader = _READERS.get(self.flag.syntax)
        return value if reader is None else reader(value, self.names[0])


def flag_field(flag: Flag, default: Any = None) -> Any:
    """Return a field of a dataclass of options that only the command line has."""
    return declare_field(default, flag.help, flag)


@dataclass(frozen=True)
class LoadOptions:
    """The flags of verbs that load the regions of a bundle."""

    trust: bool = flag_field(
        Flag("Run native code in the bundle, whoever made it.", Syntax.SWITCH), False
    )
    isolate: bool | None = flag_field(
        Flag(
            "Run codegens in processes of their own; the default where the maker is not trusted.",
            Syntax.ON_OFF,
        )
    )
    call_timeout: float | None = flag_field(
        Flag(
            "Stop any call of a codegen after this; implies --isolate.",
            Syntax.NUMBER,
            metavar="SECONDS",
        )
    )
    codegens: str | None = flag_field(
        Flag("Load regions with no other codegens than these.", metavar="NAME,NAME")
    )

    variant: str | None = flag_field(
        Flag("Take this variant of the bundle, whatever the shapes of the inputs.", metavar="NAME")
    )

    def open_bundle(self, path: Path) -> byoc.Bundle:
        """Open a bundle as `byoc.open_bundle` does."""
        return byoc.open_bundle(
            path,
            self.isolation,
            trust=self.trust,
            codegens=self.codegens,
            variant=self.variant,
        )

    @property
    def isolation(self) -> codegen.Isolation | None:
        """The processes that codegens run in, None for this one. Raises InputError for a timeout."""
        return codegen.choose_isolation(self.isolate, self.call_timeout)


DEFAULT_LOAD_OPTIONS = LoadOptions()
RUNTIME_FLAG = Flag(
    "What runs it: byoc; onnxruntime with byoc's provider, and drivers in C for the regions; or byoc "
    "with such drivers.",
    choices=byoc.runtime.RUNTIMES,
)
DRIVER_FLAG = Flag(
    "The library of a codegen's driver, with --runtime ort-plugin or drivers; by default one is built.",
    Syntax.PAIRS,
    metavar="CODEGEN=FILE",
    names=("--driver",),
)


def check_drivers(drivers: Mapping[str, str], runtime: str) -> None:
    """Raise a usage error for drivers that the runtime does not use."""
    own, *others = byoc.runtime.RUNTIMES
    if drivers and runtime == own:
        raise typer.BadParameter(f"it needs --runtime {' or '.join(others)}", param_hint="--driver")


def take_options(
    kind: Any, first: Sequence[str] = (), name: str = "options", optional: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Any]:
    """Give a verb, which has a parameter of this `name`, the flags of a dataclass of options instead.

    The flags stand where it stands among the parameters: the fields named `first`, then the others in
    their order. A field that is a dataclass with flags itself is read from those. Those that are
    `optional` may be left out even if they are required elsewhere.
    """
    flags = [
        replace(each, flag=replace(each.flag, required=each.flag.required and not is_optional))
        for each in sorted(_find_flags(kind), key=lambda each: _position(each.field.name, first))
        for is_optional in [each.field.name in optional]
    ]

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @wraps(verb)
        def run_verb(**given: Any) -> None:
            values = {each.field.name: each.read(given.pop(each.field.name)) for each in flags}
            verb(**{name: _make_options(kind, values)}, **given)

        parameters: list[inspect.Parameter] = []
        for own in inspect.signature(verb, eval_str=True).parameters.values():
            if own.name == name:
                parameters += [each.declare_parameter() for each in flags]
            else:
                parameters.append(own.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        run_verb.__dict__["__signature__"] = inspect.Signature(parameters)
        run_verb.__annotations__ = {each.name: each.annotation for each in parameters}
        return run_verb

    return decorate


def _position(name: str, first: Sequence[str]) -> int:
    return first.index(name) if name in first else len(first)


def _find_flags(kind: Any) -> Iterator[_FieldFlag]:
    for each in fields(kind):
        declaration = declaration_of(each)
        if declaration is not None and declaration.flag is not None:
            yield _FieldFlag(each, declaration.flag)
        elif is_dataclass(each.default):
            yield from _find_flags(each.default)


def _make_options(kind: Any, values: dict[str, Any]) -> Any:
    """Return options with the values of some fields; the others have their defaults."""
    own = {}
    for each in fields(kind):
        if each.name in values:
            own[each.name] = values[each.name]
        elif is_dataclass(each.default):
            own[each.name] = _make_options(type(each.default), values)
    return kind(**own)
