"""`byoc.check_rules`: every mistake in rule files."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from byoc.bundle import find_rule_file_problems
from byoc.codegen import UNLESS_TRUSTED, Codegens
from byoc.errors import InputError
from byoc.passes import load_region_pass
from byoc.rules import Target, find_missing_plugins, load_rules
from byoc.trust import list_codegens


@dataclass(frozen=True)
class RuleCheck:
    """The mistakes in a rule file, a sentence with its location for each.

    `operators` and `composites` are their numbers, None for a file that cannot be loaded.
    """

    file: str
    operators: int | None
    composites: int | None
    problems: list[str]


def check_rules(files: str | Path | Sequence[str | Path]) -> list[RuleCheck]:
    """Check `files` of rules, each given by path or by name: `byoc rules check`.

    The result has an entry for each file, in order. Besides the mistakes for which `load_rules` refuses
    a file it has plug-ins that are not installed, and options that the codegen does not have. Nothing is
    raised for a mistake.
    """
    with closing(Codegens(UNLESS_TRUSTED)) as codegens:
        several = [files] if isinstance(files, str | Path) else files
        return [_check_file(str(file), codegens) for file in several]


def _check_file(file: str, codegens: Codegens) -> RuleCheck:
    try:
        target = load_rules(file)
    except InputError as error:
        return RuleCheck(file, None, None, list(error.lines))
    operators = len({op for rule in target.rules.ops for op in rule.op})
    problems = [
        *find_missing_plugins(target),
        *_find_option_problems(target, codegens),
        *_find_pass_problems(target),
    ]
    return RuleCheck(file, operators, len(target.rules.composites), problems)


def _find_pass_problems(target: Target) -> Iterator[str]:
    """Yield the mistakes in the passes of a file: those that are not there, and their options."""
    for name, given in target.rules.passes.items():
        try:
            load_region_pass(name, given)
        except InputError as error:
            yield f"{target.source}: {target.locate(f'passes.{name}')}: {error}"


def _find_option_problems(target: Target, codegens: Codegens) -> list[str]:
    """Return the mistakes in the options of a file's codegen, which is asked in a worker process."""
    name = target.rules.codegen
    if not target.rules.codegen_options or name not in list_codegens():
        return []
    try:
        return find_rule_file_problems(target, codegens.find(name))
    except InputError as error:
        return [f"{target.source}: {line}" for line in error.lines]
