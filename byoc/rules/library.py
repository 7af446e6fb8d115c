"""The library of composites: patterns in the `composites` folders of packages, for all rule files.

A file there holds `composites`, each with name, description, pattern and where. The packages are those
of the entry-point group byoc.annotations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from byoc.errors import InputError, nearest
from byoc.plugins import ANNOTATIONS, File, distribution, files
from byoc.rules.schema import CompositeName, Conditions, PatternTexts
from byoc.yamlfile import Strict, read_yaml

FOLDER = "composites"
"""The folder of a package of rule files that holds its part of the library."""


class LibraryComposite(Strict):
    """A composite that rule files use by its name."""

    name: CompositeName
    description: str
    pattern: PatternTexts
    where: Conditions = ()


class LibraryFile(Strict):
    """A file of the library."""

    composites: Annotated[tuple[LibraryComposite, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Entry:
    """A composite of the library with its file."""

    composite: LibraryComposite
    file: File


@dataclass(frozen=True, eq=False)
class Library:
    """The installed composites by name, sorted, and the problems of broken files.

    Several composites with one name are an error when that name is used.
    """

    entries: Mapping[str, tuple[Entry, ...]]
    problems: tuple[str, ...]

    def get(self, name: str) -> LibraryComposite:
        """Return a composite. Raises InputError when there is none of the name, or several."""
        found = self.entries.get(name, ())
        if not found:
            broken = "".join(f"; {problem}" for problem in self.problems)
            hint = nearest(name, self.entries) or "; see byoc rules composites"
            raise InputError(f"the library has no composite '{name}'{hint}{broken}")
        if len(found) > 1:
            raise InputError(clash(name, found))
        return found[0].composite


def clash(name: str, entries: tuple[Entry, ...]) -> str:
    """Format the error for several composites with one name."""
    there = ", ".join(f"{e.file.path.name} of {distribution(e.file.point)}" for e in entries)
    return f"several composites of the library are called '{name}': {there}"


def library() -> Library:
    """Read all installed composites."""
    found: dict[str, list[Entry]] = {}
    by_name, broken = files(ANNOTATIONS, FOLDER)
    problems = [f"could not look in {problem}" for problem in broken]
    for file in (file for same in by_name.values() for file in same.values()):
        try:
            content = _read(file.path, file.path.stat().st_mtime_ns)
        except (InputError, OSError) as error:
            problems.append(str(error).splitlines()[0])
            continue
        for composite in content.composites:
            found.setdefault(composite.name, []).append(Entry(composite, file))
    return Library({name: tuple(found[name]) for name in sorted(found)}, tuple(problems))


@lru_cache(maxsize=128)
def _read(path: Path, _changed: int) -> LibraryFile:
    return read_yaml(path, LibraryFile)
