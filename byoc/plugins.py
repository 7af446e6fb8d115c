"""Finding what is installed, by entry point and by name: codegens, strategies, checks, YAML files.

Built-in plug-ins register as an outsider's do. Only the one asked for is loaded; a name that is not
there gives what is, and one that fails to load names the distribution it came in.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from byoc.errors import InputError, described, goes_on, nearest

CODEGENS = "byoc.codegens"
STRATEGIES = "byoc.strategies"
ANNOTATIONS = "byoc.annotations"
COST_MODELS = "byoc.cost_models"
CHECKS = "byoc.checks"
COSTS = "byoc.costs"

# Characters of a name that is not there; few paths are longer.
_MOST_SHOWN = 500

_CALLED = {
    CODEGENS: "codegen",
    STRATEGIES: "strategy",
    ANNOTATIONS: "rule file",
    COST_MODELS: "cost model",
    CHECKS: "check",
    COSTS: "cost model",
}


def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, sorted; nothing is imported.

    Of several by one name the first counts here; `load` refuses to choose.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        found.setdefault(point.name, point)
    return found


def distribution(point: EntryPoint) -> str:
    """Return the name and version of the distribution that an entry point came in."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"


class UnfitError(Exception):
    """What was found under a name cannot be used; the text goes on where its name and source end."""


def load(group: str, name: str, make: Callable[[Any], Any] = lambda kind: kind()) -> Any:
    """Return an instance of the plug-in of that name; `make` gives it for what was registered.

    Raises InputError when there is none, there are several, it cannot be imported or made, or `make`
    raises UnfitError.
    """
    return _load(group, name, make)


def load_function(group: str, name: str) -> Callable[..., Any]:
    """Return the function of that name, which is not called.

    Raises InputError when there is none, there are several, it cannot be imported or is no function.
    """
    return cast(Callable[..., Any], _load(group, name, _a_function))


def _a_function(found: Any) -> Any:
    if not callable(found):
        raise TypeError(f"{type(found).__name__} cannot be called")
    return found


def _load(group: str, name: str, use: Callable[[Any], Any]) -> Any:
    points = installed(group)
    if name not in points:
        raise _unknown(group, name, points)
    _refuse_to_choose(group, name, {p.value: p for p in entry_points(group=group) if p.name == name})
    try:
        return use(points[name].load())
    except UnfitError as error:
        raise InputError(f"{_CALLED[group]} '{name}' of {distribution(points[name])} {error}") from None
    except (Exception, SystemExit) as error:  # it can fail in any way; the others must not go down too
        if isinstance(error, SystemExit) and goes_on(error):
            raise
        raise InputError(
            f"{_CALLED[group]} '{name}' of {distribution(points[name])} cannot be loaded: "
            f"{described(error)}"
        ) from error


@dataclass(frozen=True, slots=True)
class File:
    """A YAML file that a package brings: its path, and the entry point that named the package."""

    path: Path
    point: EntryPoint


def files(group: str, folder: str = "") -> tuple[dict[str, dict[Path, File]], list[str]]:
    """Return the YAML files that the packages of a group hold, and why others could not be searched.

    The files are by name without the suffix, sorted; more than one under a name is a clash. With
    `folder` those in a folder of that name are meant, which a package need not have.
    """
    found: dict[str, dict[Path, File]] = {}
    problems = []
    for point in installed(group).values():
        try:
            spec = find_spec(point.module)
            folders = list(spec.submodule_search_locations or ()) if spec else []
        except Exception as error:  # as above; finding a module imports the packages that it is in
            folders = []
            problems.append(f"{point.module} of {distribution(point)}: {type(error).__name__}: {error}")
        else:
            if not folders:
                problems.append(f"{point.module} of {distribution(point)} is not a package")
        for path in (path for place in folders for path in Path(place, folder).glob("*.yaml")):
            found.setdefault(path.stem, {})[path.resolve()] = File(path, point)
    return dict(sorted(found.items())), problems


def find_file(group: str, name: str, also: Iterable[str] = ()) -> Path:
    """Return the path for what a user gave: a path if it exists, else an installed file's name.

    `dla` and `dla.yaml` name the same file. Raises InputError when there is neither, or several; `also`
    are other names that a user could have given.
    """
    path = Path(name)
    return path if is_file(path) else find_installed(group, name, also)


def is_file(path: Path) -> bool:
    """Return whether there is such a file; of a name that no file can have, there is not."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # as when the name is too long
        return False


def find_installed(group: str, name: str, also: Iterable[str] = ()) -> Path:
    """Return the path of an installed file, `dla` or `dla.yaml`; raises InputError as `find_file`."""
    known, problems = files(group)
    stem = name.removesuffix(".yaml").removesuffix(".yml")
    if stem not in known:
        raise _unknown(group, name, sorted({*known, *also}), problems)
    _refuse_to_choose(group, name, {str(p): file.point for p, file in known[stem].items()})
    return next(iter(known[stem].values())).path


def _refuse_to_choose(group: str, name: str, found: Mapping[str, EntryPoint]) -> None:
    if len(found) > 1:
        sources = ", ".join(sorted(distribution(point) for point in found.values()))
        hint = "; give a path" if group in (ANNOTATIONS, COST_MODELS) else ""
        raise InputError(
            f"{name}: several packages bring a {_CALLED[group]} of this name: {sources}{hint}"
        )


def _unknown(group: str, name: str, known: Any, problems: Sequence[str] = ()) -> InputError:
    called = _CALLED[group]
    file = " file and no installed" if group in (ANNOTATIONS, COST_MODELS) else ""
    broken = f"; could not look in {'; '.join(problems)}" if problems else ""
    there = ", ".join(known) or "none"
    told = name if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]}..."
    return InputError(
        f"{told}: no such{file} {called}{nearest(name, known)}; installed: {there}{broken}"
    )
