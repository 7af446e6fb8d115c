"""Generations of a target's hardware: what a rule file says of each, and the choice of one.

A generation is a part of a rule file that says what a file extending it would say: rules, limits, the
cost model and its parameters, options of the codegen. `FILE:GENERATION` names one.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from byoc.errors import suggest_nearest
from byoc.rules._rule_lint import lint_rule_file
from byoc.rules._rule_schema import RuleFile
from byoc.rules._schema_values import GENERATION_NAME, NOT_IN_GENERATIONS
from byoc.support import ANNOTATIONS, is_file, is_installed_name, validate_content

_NAME = re.compile(GENERATION_NAME)


def split_generation(name: str) -> tuple[str, str]:
    """Return the rule file and the generation that `FILE:GENERATION` names; "" for its default.

    What is a file's path as a whole names no generation.
    """
    head, _, tail = name.rpartition(":")
    if not head or not _NAME.search(tail):
        return name, ""
    if is_file(Path(name)) and not is_installed_name(ANNOTATIONS, head):
        return name, ""
    return head, tail


def describe_unknown_generation(name: str, rules: RuleFile) -> str:
    """Return a sentence that names the generations that there are; "" where `name` is one of them."""
    if name in rules.generations:
        return ""
    if not rules.generations:
        return f"{rules.target} has no generations, and so no '{name}'"
    there = ", ".join(rules.generations)
    hint = suggest_nearest(name, rules.generations)
    return f"{rules.target} has no generation '{name}'{hint}; it has: {there}"


def find_generation_problems(content: Mapping[Any, Any], rules: RuleFile) -> Iterator[str]:
    """Yield the mistakes in the generations of a file, each with its location.

    `content` is the file as it was read, `rules` what it says with all that it extends, but for the
    generations.
    """
    if rules.generations and not rules.generation:
        yield "generation: must be given, the one of `generations` that holds where none is named"
    elif problem := describe_unknown_generation(rules.generation, rules) if rules.generation else "":
        yield f"generation: {problem}"
    for name, changes in (content.get("generations") or {}).items():
        for problem in _find_problems_of_one(changes, rules):
            yield f"generations.{name}.{problem}"


def _find_problems_of_one(changes: Mapping[Any, Any], rules: RuleFile) -> Iterator[str]:
    """Yield the mistakes in one generation that do not depend on what it is joined with."""
    kept = {key: value for key, value in changes.items() if key not in NOT_IN_GENERATIONS}
    for key in changes.keys() - kept.keys():
        yield f"{key}: a generation cannot change it"
    inherited = {f"{key}: must be given" for key in RuleFile.model_fields}
    yield from (problem for problem in validate_content(kept, RuleFile)[1] if problem not in inherited)
    yield from lint_rule_file(kept, rules)


def list_locations(changes: Any, before: str = "") -> Iterator[str]:
    """Yield the locations of all parts of a generation: `limits`, `limits.batch`, `ops[0]`."""
    parts: list[tuple[str, Any]] = []
    if isinstance(changes, Mapping):
        parts = [(f"{before}.{key}" if before else str(key), value) for key, value in changes.items()]
    elif isinstance(changes, list):
        parts = [(f"{before}[{number}]", value) for number, value in enumerate(changes)]
    for location, value in parts:
        yield location
        yield from list_locations(value, location)
