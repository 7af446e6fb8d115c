"""The composites of a rule file: its own, and those of the library in the `composites` folders.

A file there holds `composites`, each with name, description, pattern and where. The packages are those
of the entry-point group byoc.annotations.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError, suggest_nearest
from byoc.patterns import Pattern, parse_pattern
from byoc.rules._rule_schema import CompositeName, CompositeRule, Conditions, PatternTexts
from byoc.support import (
    ANNOTATIONS,
    CHECKS,
    PluginFile,
    StrictModel,
    find_files,
    get_distribution,
    load_function,
    read_yaml,
)

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
            problems.append(error.lines[0] if isinstance(error, InputError) else str(error))
            continue
        for composite in content.composites:
            found.setdefault(composite.name, []).append(LibraryEntry(composite, file))
    return Library({name: tuple(found[name]) for name in sorted(found)}, tuple(problems))


def describe_library_state() -> Sequence[tuple[Path, int]]:
    """Return the library's files with the times of their last change; 0 where a file is gone."""
    return tuple(
        (path, path.stat().st_mtime_ns if path.exists() else 0)
        for same in find_files(ANNOTATIONS, LIBRARY_FOLDER)[0].values()
        for path in same
    )


@lru_cache(maxsize=128)
def _read_file(path: Path, _changed: int) -> LibraryFile:
    return read_yaml(path, LibraryFile)


def make_patterns(rules: Sequence[CompositeRule]) -> tuple[Pattern, ...]:
    """Return the patterns of composites, in their order.

    Raises InputError when a check function or a composite of the library does not exist, ValueError when
    a pattern is wrong.
    """
    shelf = open_library(rules)
    return tuple(make_pattern(rule, shelf) for rule in rules)


def open_library(rules: Iterable[CompositeRule]) -> Library:
    """Return the library, or an empty one if no composite is taken from it."""
    return read_library() if any(rule.library is not None for rule in rules) else Library({}, ())


def make_pattern(rule: CompositeRule, shelf: Library) -> Pattern:
    """Return the pattern of a composite; its own conditions follow those of the library.

    Raises as `patterns`; errors in a `where` have a location as the linter's (`where[1]: ...`).
    """
    texts, where, description = rule.pattern, rule.where, rule.description
    if rule.library is not None:
        found = shelf.get(rule.library)
        texts, where = found.pattern, found.where + rule.where
        description = description or found.description
    pattern = parse_pattern(
        rule.display_name,
        texts[0] if len(texts) == 1 else texts,
        where=[(condition.expr, condition.reason) for condition in where],
        check=load_function(CHECKS, rule.check) if rule.check is not None else None,
        description=description,
    )
    return replace(pattern, finer=rule.finer)
