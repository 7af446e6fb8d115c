"""Finding what is installed, by entry point and by name: codegens, strategies, rule and cost files.

Built-in plug-ins register as an outsider's do. Only the one asked for is loaded; a name that is not
there gives what is, and one that fails to load names the distribution it came in.
"""

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from byoc.errors import InputError, nearest

CODEGENS = "byoc.codegens"
STRATEGIES = "byoc.strategies"
ANNOTATIONS = "byoc.annotations"
COST_MODELS = "byoc.cost_models"

_CALLED = {
    CODEGENS: "codegen",
    STRATEGIES: "strategy",
    ANNOTATIONS: "rule file",
    COST_MODELS: "cost model",
}


def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, sorted; nothing is imported."""
    return {point.name: point for point in sorted(entry_points(group=group), key=lambda p: p.name)}


def distribution(point: EntryPoint) -> str:
    """Return the name and version of the distribution that an entry point came in."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"


def load(group: str, name: str) -> Any:
    """Return an instance of the plug-in of that name.

    Raises InputError when there is none, or when it cannot be imported or made.
    """
    points = installed(group)
    if name not in points:
        raise _unknown(group, name, points)
    try:
        return points[name].load()()
    except Exception as error:  # a plug-in can fail in any way; the others must not go down with it
        raise InputError(
            f"{_CALLED[group]} '{name}' of {distribution(points[name])} cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error


def files(group: str) -> dict[str, Path]:
    """Return the YAML files that the packages of a group hold, by name without the suffix, sorted.

    A package that cannot be imported is passed over.
    """
    found: dict[str, Path] = {}
    for point in installed(group).values():
        try:
            folders = list(import_module(point.module).__path__)
        except Exception:  # a package that is broken in any way must not take the others down
            continue
        for folder in folders:
            found.update((path.stem, path) for path in Path(folder).glob("*.yaml"))
    return dict(sorted(found.items()))


def find_file(group: str, name: str) -> Path:
    """Return the path for what a user gave: a path if it exists, else a built-in name.

    `dla` and `dla.yaml` name the same built-in file. Raises InputError when there is neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    known = files(group)
    stem = name.removesuffix(".yaml").removesuffix(".yml")
    if stem not in known:
        raise _unknown(group, name, known)
    return known[stem]


def _unknown(group: str, name: str, known: Any) -> InputError:
    called = _CALLED[group]
    file = " file and no built-in" if group in (ANNOTATIONS, COST_MODELS) else ""
    return InputError(
        f"{name}: no such{file} {called}{nearest(name, known)}; installed: {', '.join(known) or 'none'}"
    )
