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

from byoc.errors import InputError, suggest_nearest
from byoc.plugins import ANNOTATIONS, PluginFile, get_distribution, find_files
from byoc.rules.schema import CompositeName, Conditions, PatternTexts
from byoc.yamlfile import StrictModel, read_yaml

LIBRARY_FOLDER = "composites"
"""The folder of a package of rule files that holds its part of the library."""


class LibraryComposite(StrictModel):
    """A composite that rule files use by its name."""

    name: CompositeName
    description: str
    pattern: PatternTexts
    where: Conditions = ()


class LibraryFile(StrictModel):
    """A file of the library."""

    composites: Annotated[tuple[LibraryComposite, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """A composite of the library with its file."""

    composite: LibraryComposite
    file: PluginFile


@dataclass(frozen=True, eq=False)
class Library:
    """The installed composites by name, sorted, and the problems of broken files.

    Several composites with one name are an error when that name is used.
    """

    entries: Mapping[str, tuple[LibraryEntry, ...]]
    problems: tuple[str, ...]

    def get(self, name: str) -> LibraryComposite:
        """Return a composite. Raises InputError when there is none of the name, or several."""
        found = self.entries.get(name, ())
        if not found:
            broken = "".join(f"; {problem}" for problem in self.problems)
            hint = suggest_nearest(name, self.entries) or "; see byoc rules composites"
            raise InputError(f"the library has no composite '{name}'{hint}{broken}")
        if len(found) > 1:
            raise InputError(format_clash(name, found))
        return found[0].composite


def format_clash(name: str, entries: tuple[LibraryEntry, ...]) -> str:
    """Format the error for several composites with one name."""
    there = ", ".join(f"{e.file.path.name} of {get_distribution(e.file.point)}" for e in entries)
    return f"several composites of the library are called '{name}': {there}"


def read_library() -> Library:
    """Read all installed composites."""
    found: dict[str, list[LibraryEntry]] = {}
    by_name, broken = find_files(ANNOTATIONS, LIBRARY_FOLDER)
    problems = [f"could not look in {problem}" for problem in broken]
    for file in (file for same in by_name.values() for file in same.values()):
        try:
            content = _read_file(file.path, file.path.stat().st_mtime_ns)
        except (InputError, OSError) as error:
            problems.append(str(error).splitlines()[0])
            continue
        for composite in content.composites:
            found.setdefault(composite.name, []).append(LibraryEntry(composite, file))
    return Library({name: tuple(found[name]) for name in sorted(found)}, tuple(problems))


@lru_cache(maxsize=128)
def _read_file(path: Path, _changed: int) -> LibraryFile:
    return read_yaml(path, LibraryFile)
