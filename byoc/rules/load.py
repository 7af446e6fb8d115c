"""Reading a rule file, and those that it extends: a path or an installed name to a checked `Target`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from byoc.errors import InputError
from byoc.patterns.pattern import Pattern
from byoc.plugins import ANNOTATIONS, find_file, find_installed
from byoc.rules.composites import patterns
from byoc.rules.lint import lint
from byoc.rules.merge import defaults, merged
from byoc.rules.schema import RuleFile
from byoc.yamlfile import check, read_mapping, wrong

_MOST_FILES = 8


@dataclass(frozen=True, eq=False)
class Target:
    """An accelerator as a rule file describes it; `source` is what the user called the file.

    `rules` hold what the file extends, too; `places` gives for what was inherited (`ops[3]`, `dtype`,
    `limits.batch`) where it is written (`dla.yaml: ops[1]`).
    """

    source: str
    rules: RuleFile
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The target's name, which is also the last part of its functions' domain."""
        return self.rules.target

    @property
    def domain(self) -> str:
        """The ONNX domain of the functions made for this target."""
        return f"byoc.{self.name}"

    @cached_property
    def quantized(self) -> bool:
        """Whether some rule speaks of operators between DequantizeLinear and QuantizeLinear."""
        return any(rule.quantized for rule in self.rules.ops)

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """The composites, in the order of the file; those of the library are looked up.

        Raises InputError when the library does not have one.
        """
        return patterns(self.rules.composites)

    def place(self, merged_place: str) -> str:
        """Return where a part of `rules` is written: `ops[3]`, or `dla.yaml: ops[3]` if inherited."""
        return self.places.get(merged_place, merged_place)


def load_rules(name: str) -> Target:
    """Return the target that a rule file describes; `name` is a path, or an installed file's name.

    Raises InputError with a line for every mistake in the file.
    """
    return replace(_read(find_file(ANNOTATIONS, name), ()).target, source=name)


@dataclass(frozen=True, eq=False)
class _Read:
    """A target, and the keys of its file and of those that it extends, as they were read."""

    target: Target
    content: Mapping[Any, Any]


def _read(path: Path, chain: tuple[Path, ...]) -> _Read:
    content = read_mapping(path)
    extends = content.get("extends")
    base = _base(path, extends, (*chain, path)) if isinstance(extends, str) else None
    whole = defaults(content, base.content) if base else content
    rules, problems = check(whole, RuleFile)
    problems += lint(content, base.target.rules if base else None)
    if rules is None or problems:
        raise wrong(path, problems)
    if base is None:
        return _Read(Target(str(path), rules), content)
    joined, places = merged(rules, content, base.target.rules)
    name = base.target.source
    written = {place: base.target.places.get(old, f"{name}: {old}") for place, old in places.items()}
    return _Read(Target(path.name, joined, written), whole)


def _base(path: Path, name: str, chain: tuple[Path, ...]) -> _Read:
    beside = path.parent / name
    try:
        found = beside if beside.is_file() else find_installed(ANNOTATIONS, name)
    except InputError as error:
        raise InputError(f"{path}: extends: {error}") from None
    if any(found.samefile(other) for other in chain):
        raise InputError(f"{path}: extends: '{name}' itself builds on this file")
    if len(chain) >= _MOST_FILES:
        raise InputError(f"{path}: extends: at most {_MOST_FILES} files may build on one another")
    read = _read(found, chain)
    return replace(read, target=replace(read.target, source=found.name))
