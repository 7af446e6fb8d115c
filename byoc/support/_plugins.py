"""Plug-ins by name, what their distributions say, and where in their code an error was raised.

Built-in strategies and passes stand in tables of their rooms, so that a new one is found without being
installed; all other plug-ins, ours too, are entry points. Only the one in use is loaded; an unknown name
is an error that lists the installed ones, and a plug-in that fails to load is an error that names its
distribution.
"""

import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import (
    Distribution,
    EntryPoint,
    PackageNotFoundError,
    distribution,
    entry_points,
)
from importlib.util import find_spec
from itertools import chain
from os import sep, stat
from pathlib import Path
from shlex import quote
from time import time_ns
from types import TracebackType
from typing import Any, cast

from byoc._dataclasses import dataclass
from byoc.errors import InputError, describe_error, must_propagate, shorten_text, suggest_nearest
from byoc.support._workspace import find_inside

# Name, version and requirements of installed distributions.
#
# `importlib.metadata` parses for each of them all that a distribution says of itself, with its
# README a millisecond or more; only the fields before the description are read here.

BYOC_DISTRIBUTION = "onnx-byoc"

_FIELD = re.compile(r"^(Name|Version|Requires-Dist): *(.+?) *$", re.MULTILINE)


@lru_cache(maxsize=1)
def read_byoc_version() -> str:
    """Return the version of the installed byoc, which stays the same while a program runs."""
    return read_name_and_version(distribution(BYOC_DISTRIBUTION))[1]


def read_name_and_version(found: Distribution) -> tuple[str, str]:
    """Return the name and version of a distribution, each as it writes them."""
    fields = dict(_read_fields(found))
    return fields.get("Name") or found.name, fields.get("Version") or found.version


def find_library(package: str, *distributions: str) -> str | None:
    """Return the version of an installed Python package, None where it is missing.

    The package is not imported, only those above it. The version is that of the first of the
    `distributions` that is there, empty where none is.
    """
    try:
        if find_spec(package) is None:
            return None
    except (ImportError, ValueError):  # a package above it is missing, or it was marked as missing
        return None
    return _find_version(distributions)


@cache
def _find_version(distributions: tuple[str, ...]) -> str:
    """Return the version of the first distribution that is there, which stays while a program runs."""
    for name in distributions:
        with suppress(PackageNotFoundError):
            return read_name_and_version(distribution(name))[1]
    return ""


def read_requirements(found: Distribution) -> list[str]:
    """Return the requirements of a distribution and its extras, as in its metadata: `numpy>=2`."""
    fields = _read_fields(found)
    if not fields:  # an old kind of distribution has them in a file of their own
        return list(found.requires or ())
    return [text for name, text in fields if name == "Requires-Dist"]


def install_command(extra: str) -> str:
    """Return the command that installs what an extra of byoc stands for, wherever byoc itself is from.

    It has the requirements in pyproject.toml: `pip install 'onnx>=1.23' 'openvino>=2026.4'`. Where
    byoc's metadata lack the extra, it is the command that a checkout takes.
    """
    mark = re.compile(rf"(\S[^;]*?) *; *extra == ['\"]{re.escape(extra)}['\"]")
    with suppress(PackageNotFoundError):
        found = map(mark.fullmatch, read_requirements(distribution(BYOC_DISTRIBUTION)))
        mine = [quote(match[1]) for match in found if match]
        if mine:
            return f"pip install {' '.join(mine)}"
    return f"pip install '.[{extra}]' in a checkout of byoc"


def _read_fields(found: Distribution) -> list[tuple[str, str]]:
    text = found.read_text("METADATA") or ""
    return _FIELD.findall(text.partition("\n\n")[0])


# The file and line of a plug-in's own code that raised an exception, which its author looks for.

_OWN_LIBRARIES = ("google", "ml_dtypes", "numpy", "onnx", "onnxruntime", "pydantic", "scipy")
_MOST_CHARACTERS = 200  # of a file and line in a sentence
_OWN_PACKAGE = str(Path(__file__).parent.parent)
_CODEGENS = f"{_OWN_PACKAGE}{sep}codegens"  # those that come along, where byoc is installed


class LocatedError(Exception):
    """An exception of a plug-in that was raised elsewhere, and where: `acme/lowering.py:42`."""

    location = ""


def describe_failure(error: BaseException) -> str:
    """Format an exception of a plug-in in one line: its type, its text, and where it was raised."""
    location = locate_error(error)
    return f"{describe_error(error)} ({location})" if location else describe_error(error)


def locate_error(error: BaseException) -> str:
    """Return the file and line of the plug-in's code that raised an exception: `acme/lowering.py:42`.

    That is the innermost frame that is neither byoc's nor the standard library's, and, if there is one,
    not that of a library which byoc needs, too. The file is relative to the folder that Python found it
    in. It is empty where no frame is a plug-in's.
    """
    if isinstance(error, LocatedError):
        return error.location
    found = ""
    for file, line in _list_frames(error.__traceback__):
        if not _is_below(file, _list_library_folders()):
            return _format_location(file, line)
        found = found or _format_location(file, line)
    return found


def _list_frames(traceback: TracebackType | None) -> Iterator[tuple[str, int]]:
    """Yield the files and lines of a traceback, the innermost first; those of no file are left out."""
    frames: list[tuple[str, int]] = []
    while traceback is not None:
        frames.append((traceback.tb_frame.f_code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    for file, line in reversed(frames):
        if file.startswith("<"):
            continue
        is_stdlib = _is_below(file, _list_stdlib_folders()) and not _is_below(file, _list_sites())
        is_byoc = _is_below(file, (_OWN_PACKAGE,)) and not _is_below(file, (_CODEGENS,))
        if not is_stdlib and not is_byoc:
            yield file, line


def _is_below(file: str, folders: tuple[str, ...]) -> bool:
    return any(file.startswith(folder + sep) for folder in folders)


@cache
def _list_stdlib_folders() -> tuple[str, ...]:
    return tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


@cache
def _list_sites() -> tuple[str, ...]:
    found = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    return tuple(found | {path for path in sys.path if path.endswith("-packages")})


@cache
def _list_library_folders() -> tuple[str, ...]:
    """The folders of the libraries that byoc needs as well."""
    found = []
    for name in _OWN_LIBRARIES:
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            continue
        found += list(spec.submodule_search_locations or ()) if spec is not None else []
    return tuple(found)


def _format_location(file: str, line: int) -> str:
    """Return a file relative to the folder of `sys.path` that it is in, or its name, and the line."""
    roots = [path.rstrip(sep) for path in sys.path if path and _is_below(file, (path.rstrip(sep),))]
    root = max(roots, key=len, default="")
    shown = file.removeprefix(root + sep) if root else Path(file).name
    return shorten_text(f"{Path(shown).as_posix()}:{line}", _MOST_CHARACTERS)


CODEGENS = "byoc.codegens"
STRATEGIES = "byoc.strategies"
ANNOTATIONS = "byoc.annotations"
COST_MODELS = "byoc.cost_models"
CHECKS = "byoc.checks"
COSTS = "byoc.costs"
PASSES = "byoc.passes"
OPERATORS = "byoc.operators"

# The most characters of an unknown name in a message; few paths are longer.
_MAX_EXTENDED = 8
_MAX_CHARACTERS = 500  # of a plug-in's name
_SAME_TIME_NS = 2_000_000_000  # within which a file system may give two changes the same time
_allowed: ContextVar[frozenset[Path]] = ContextVar("allowed", default=frozenset())

_KIND_NAMES = {
    CODEGENS: "codegen",
    STRATEGIES: "strategy",
    ANNOTATIONS: "rule file",
    COST_MODELS: "cost model",
    CHECKS: "check",
    COSTS: "cost model",
    PASSES: "pass",
    OPERATORS: "operator",
}


_TABLES = {
    STRATEGIES: "byoc.placement.strategies",
    PASSES: "byoc.passes",
}
"""The rooms whose `BUILT_IN` maps names to `module:class`. By name, as they are in rooms above."""


def find_entry_points(group: str) -> Sequence[EntryPoint]:
    """Return the built-in plug-ins of a group, and the entry points that any installed distribution has.

    Entry points are read again when a folder of the import path has changed, as installation changes it.
    """
    found = _read_entry_points(tuple(map(_find_folder_state, sys.path))).get(group, ())
    if group not in _TABLES:
        return found
    table = import_module(_TABLES[group]).BUILT_IN
    built_in = [EntryPoint(name, value, group) for name, value in table.items()]
    # An older byoc that was installed in place may have left its own behind.
    return (*built_in, *(point for point in found if not _is_built_in(point)))


def _is_built_in(point: EntryPoint) -> bool:
    room = _TABLES.get(point.group)
    return room is not None and point.module.startswith(f"{room}.")


@lru_cache(maxsize=4)
def _read_entry_points(folders: tuple[object, ...]) -> Mapping[str, Sequence[EntryPoint]]:
    """Read the entry points of all of byoc's groups: a file of each distribution, in milliseconds.

    Those of the working directory, which an interactive Python looks into, are not installed.
    """
    path = sys.path
    sys.path = [folder for folder in path if folder]
    try:
        found = entry_points()
    finally:
        sys.path = path
    groups = [group for group in found.groups if group.startswith("byoc.")]
    return {group: tuple(found.select(group=group)) for group in groups}


def _find_folder_state(folder: str) -> tuple[str, int, int]:
    """Return the state of a folder, which changes when distributions are added or removed."""
    try:
        found = stat(folder or ".")  # noqa: PTH116 - a path takes as long as all else here
    except (OSError, ValueError):
        return folder, 0, 0
    return folder, found.st_ino, found.st_mtime_ns


def list_installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, sorted; nothing is imported.

    Of several with one name the first is returned; `load` refuses to choose.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted(find_entry_points(group), key=lambda point: point.name):
        found.setdefault(point.name, point)
    return found


def get_distribution(point: EntryPoint) -> str:
    """Return the name and version of the distribution that an entry point belongs to."""
    if _is_built_in(point):
        return f"{BYOC_DISTRIBUTION} {read_byoc_version()}"
    return " ".join(read_name_and_version(point.dist)) if point.dist else "an unknown distribution"


class UnsuitablePluginError(Exception):
    """A plug-in cannot be used; the message continues a sentence that begins with its name."""


def load_plugin(
    group: str,
    name: str,
    make: Callable[[Any], Any] = lambda kind: kind(),
    also: Iterable[str] = (),
) -> Any:
    """Load a plug-in and return `make` of the registered object, by default an instance of it.

    `also` are further names to suggest. Raises InputError when there is no plug-in of that name, there
    are several, it cannot be imported or made, or `make` raises UnsuitablePluginError.
    """
    points = list_installed(group)
    if name not in points:
        raise _make_unknown_error(group, name, sorted({*points, *also}))
    _refuse_to_choose(group, name, {p.value: p for p in find_entry_points(group) if p.name == name})
    try:
        return make(points[name].load())
    except UnsuitablePluginError as error:
        raise InputError(f"{_describe_source(group, points[name])} {error}") from None
    except (Exception, SystemExit) as error:  # it can fail in any way; other plug-ins must go on working
        if isinstance(error, SystemExit) and must_propagate(error):
            raise
        source = _describe_source(group, points[name])
        raise InputError(f"{source} cannot be loaded: {describe_failure(error)}") from error


def _describe_source(group: str, point: EntryPoint) -> str:
    return f"{_KIND_NAMES[group]} '{point.name}' of {get_distribution(point)}"


def get_first_sentence(kind: type) -> str:
    """Return the first sentence of a plug-in's class docstring, without its dot; empty without one."""
    text = inspect.cleandoc(kind.__doc__ or "")
    if text.startswith(f"{kind.__name__}("):  # what a dataclass without one is given
        return ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    return paragraph.split(". ")[0].rstrip(".")


def load_function(group: str, name: str) -> Callable[..., Any]:
    """Load a plug-in that is a function.

    Raises InputError when there is none of that name, there are several, or it is not a function.
    """
    return cast(Callable[..., Any], load_plugin(group, name, _require_function))


def _require_function(found: Any) -> Any:
    if not callable(found):
        raise TypeError(f"{type(found).__name__} cannot be called")
    return found


@dataclass(frozen=True, slots=True)
class PluginFile:
    """A YAML file in a package, with the entry point that names the package."""

    path: Path
    point: EntryPoint


def find_files(group: str, folder: str = "") -> tuple[dict[str, dict[Path, PluginFile]], list[str]]:
    """Find the YAML files in the packages of a group, in their subfolder `folder` if it is given.

    Returns the files by name without suffix, sorted (several under one name are a clash), and a sentence
    for each package that could not be searched.
    """
    found: dict[str, dict[Path, PluginFile]] = {}
    problems = []
    for point in list_installed(group).values():
        try:
            folders = _find_package_folders(point.module)
        except Exception as error:  # finding a module may import its parent packages
            folders = []
            problems.append(
                f"{point.module} of {get_distribution(point)}: {type(error).__name__}: {error}"
            )
        else:
            if not folders:
                problems.append(f"{point.module} of {get_distribution(point)} is not a package")
        for path, real in chain.from_iterable(_list_yaml(str(Path(root, folder))) for root in folders):
            found.setdefault(path.stem, {})[real] = PluginFile(path, point)
    return dict(sorted(found.items())), problems


def _list_yaml(folder: str) -> Sequence[tuple[Path, Path]]:
    """Return the YAML files of a folder, each with its path without links; kept by its state."""
    state = _find_folder_state(folder)
    is_new = time_ns() - state[-1] < _SAME_TIME_NS  # a further file might leave its time as it is
    return _list_yaml_of(state) if is_new else _list_kept_yaml(state)


def _list_yaml_of(state: tuple[str, int, int]) -> Sequence[tuple[Path, Path]]:
    return tuple((path, path.resolve()) for path in Path(state[0]).glob("*.yaml"))


_list_kept_yaml = lru_cache(maxsize=64)(_list_yaml_of)


def _find_package_folders(module: str) -> list[str]:
    """Return the folders of a package, without importing its parents where they are plain folders.

    The parent may be a codegen for another Python, which cannot be imported here.
    """
    first, *rest = module.split(".")
    parent = find_spec(first)
    roots = list(parent.submodule_search_locations or ()) if parent else []
    folders = [path for path in (Path(root, *rest) for root in roots) if path.is_dir()]
    if folders:
        return [str(path) for path in folders]
    spec = find_spec(module)
    return list(spec.submodule_search_locations or ()) if spec else []


def find_file(group: str, name: str, also: Iterable[str] = ()) -> Path:
    """Return the path that a user names: an existing path, or the name of an installed file.

    `dla` and `dla.yaml` name the same file. Raises InputError when there is neither, or several; `also`
    are further names to suggest.
    """
    path = Path(name)
    is_path = is_file(path) and not is_installed_name(group, name)
    return path if is_path else find_installed_file(group, name, also)


def is_installed_name(group: str, name: str) -> bool:
    """Return whether a name without folder and suffix is that of an installed file.

    It then means that one, whatever the working directory holds, which may be a stranger's: a file there
    is `./dla`.
    """
    return name == Path(name).stem and name in find_files(group)[0]


def is_file(path: Path) -> bool:
    """Return whether a file exists; a name that no file can have is no error."""
    sys.audit("byoc.looked_for", path)  # which may be there when the command is run again
    try:
        return path.is_file()
    except (OSError, ValueError):  # as when the name is too long
        return False


def find_installed_file(group: str, name: str, also: Iterable[str] = ()) -> Path:
    """Return the path of an installed file, `dla` or `dla.yaml`. Raises as `find_file`."""
    known, problems = find_files(group)
    stem = name.removesuffix(".yaml").removesuffix(".yml")
    if stem not in known:
        raise _make_unknown_error(group, name, sorted({*known, *also}), problems)
    _refuse_to_choose(group, name, {str(p): file.point for p, file in known[stem].items()})
    return next(iter(known[stem].values())).path


@contextmanager
def allow_named(*paths: Path) -> Iterator[None]:
    """Let files that byoc writes itself name those at `paths`, which the user named."""
    token = _allowed.set(_allowed.get() | {path.resolve() for path in paths})
    try:
        yield
    finally:
        _allowed.reset(token)


def find_beside(group: str, path: Path, name: str) -> Path | None:
    """Return the file that a file at `path` names by a path from its folder, None if there is none.

    A stranger's file must not have others read, whose content messages would show: what it names has to
    be beside or below it, or in an installed package of the group, links followed. Raises InputError for
    a path that leads elsewhere, whether or not there is anything.
    """
    try:
        found = find_inside(path.parent, name)
        for folder in _list_package_folders(group) if found is None else ():
            found = found or find_inside(folder, str(path.parent.absolute() / name))
    except (OSError, ValueError):  # what can be no file's name
        return None
    if found is None and (real := (path.parent / name).resolve()) in _allowed.get():
        found = real
    if found is None:
        raise InputError(
            f"{_cut_name(name)}: a file may name those beside and below it, and installed "
            f"{_KIND_NAMES[group]}s by name: move or copy that one there"
        )
    return path.parent / name if is_file(found) else None


def find_extended_file(group: str, path: Path, name: str, chain: Sequence[Path]) -> Path:
    """Return the file that `extends: NAME` in a file means: one beside it, else an installed one.

    `chain` are the files that led to it, the first the one that was asked for. Raises InputError for a
    file that is not there or lies elsewhere, that is in the chain, or that is one of more than eight.
    """
    try:
        found = find_beside(group, path, name) or find_installed_file(group, name)
    except InputError as error:
        raise InputError(f"{path}: extends: {error}") from None
    if any(found.samefile(other) for other in chain):
        raise InputError(f"{path}: extends: '{name}' itself builds on this file")
    if len(chain) >= _MAX_EXTENDED:
        raise InputError(f"{chain[0]}: extends: at most {_MAX_EXTENDED} files may build on one another")
    return found


def _list_package_folders(group: str) -> list[Path]:
    """Return the folders of the packages of a group that can be found."""
    folders: list[Path] = []
    for point in list_installed(group).values():
        with suppress(Exception):  # finding a module may import its parent packages
            folders += map(Path, _find_package_folders(point.module))
    return folders


def _refuse_to_choose(group: str, name: str, found: Mapping[str, EntryPoint]) -> None:
    if len(found) > 1:
        sources = ", ".join(sorted(get_distribution(point) for point in found.values()))
        hint = "; give a path" if group in (ANNOTATIONS, COST_MODELS) else ""
        raise InputError(
            f"{name}: several packages bring a {_KIND_NAMES[group]} of this name: {sources}{hint}"
        )


def _make_unknown_error(group: str, name: str, known: Any, problems: Sequence[str] = ()) -> InputError:
    called = _KIND_NAMES[group]
    file = " file and no installed" if group in (ANNOTATIONS, COST_MODELS) else ""
    broken = f"; could not look in {'; '.join(problems)}" if problems else ""
    there = ", ".join(known) or "none"
    hint = suggest_nearest(name, known)
    if group == CODEGENS:
        broken += "; one in another Python is named in your settings.yaml (docs/codegen_processes.md)"
    return InputError(f"{_cut_name(name)}: no such{file} {called}{hint}; installed: {there}{broken}")


def _cut_name(name: str) -> str:
    return name if len(name) <= _MAX_CHARACTERS else f"{name[:_MAX_CHARACTERS]}..."
