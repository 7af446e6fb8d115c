"""Checks of rule files without a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import byoc.costs
import byoc.rules
from byoc import bundle, codegen, passes, planning
from byoc._dataclasses import dataclass, replace
from byoc.errors import InputError
from byoc.rules import Target, find_impossible_rules, find_missing_plugins, load_rules, split_generation
from byoc.support import COST_MODELS, check_type, find_files, trust

# `byoc.check_rules`: every mistake in rule files.


@dataclass(frozen=True)
class RuleCheck:
    """The mistakes in a rule file, a sentence with its location for each.

    `operators` and `composites` are counts (of the default generation where the file has several), None
    for a file that cannot be loaded. `generations` are their names.
    """

    file: str
    operators: int | None
    composites: int | None
    problems: list[str]
    generations: tuple[str, ...] = ()


def check_rules(files: str | Path | Sequence[str | Path]) -> list[RuleCheck]:
    """Check `files` of rules, each given by path or by name: `byoc rules check`.

    The result has an entry for each file, in order. Besides the mistakes for which `load_rules` refuses
    a file it has plug-ins that are not installed, options that the codegen does not have, and the
    mistakes in a cost file that it names, unless that is an installed one. Nothing is raised for a
    mistake in a file.
    """
    check_type("files", files, str | Path | Sequence[str | Path])
    with closing(codegen.Codegens(codegen.UNLESS_TRUSTED)) as codegens:
        several = [files] if isinstance(files, str | Path) else files
        return [_check_file(str(file), codegens) for file in several]


def _check_file(file: str, codegens: codegen.Codegens) -> RuleCheck:
    try:
        target = load_rules(file)
        others = _load_other_generations(file, target)
    except InputError as error:
        return RuleCheck(file, None, None, list(error.lines))
    operators = len({op for rule in target.rules.ops for op in rule.op})
    problems = dict.fromkeys(
        problem
        for each in (target, *others)
        for problem in (
            *find_missing_plugins(each),
            *(f"{each.source}: {problem}" for problem in find_impossible_rules(each)),
            *_find_cost_problems(each),
            *_find_option_problems(each, codegens),
            *_find_pass_problems(each),
        )
    )
    names = tuple(target.rules.generations)
    return RuleCheck(file, operators, len(target.rules.composites), list(problems), names)


def _load_other_generations(file: str, target: Target) -> list[Target]:
    """Return the generations of a file that `file` does not name; none where it names one itself."""
    if split_generation(file)[1]:
        return []
    names = [name for name in target.rules.generations if name != target.generation]
    return [replace(load_rules(f"{file}:{name}"), source=file) for name in names]


def _find_cost_problems(target: Target) -> Iterator[str]:
    """Yield the mistakes in the cost model that a file names, and in the parameters that it gives it.

    Installed cost files are those of packages, which are right: none is read without need.
    """
    try:
        name = target.cost_model
    except InputError:  # a model that is not there is a mistake of its own
        return
    installed = {str(path) for paths in find_files(COST_MODELS)[0].values() for path in paths}
    if name in installed and not target.rules.cost_parameters:
        return
    try:
        costs = byoc.costs.load_device_costs(name)
        if target.rules.cost_parameters:
            planning.apply_rule_parameters(costs, target)
    except InputError as error:
        yield from error.lines


def _find_pass_problems(target: Target) -> Iterator[str]:
    """Yield the mistakes in the passes of a file: those that are not there, and their options."""
    for name, given in target.rules.passes.items():
        try:
            passes.load_region_pass(name, given)
        except InputError as error:
            yield f"{target.source}: {target.locate(f'passes.{name}')}: {error}"


def _find_option_problems(target: Target, codegens: codegen.Codegens) -> list[str]:
    """Return the mistakes in the options of a file's codegen, which is asked in a worker process."""
    name = target.rules.codegen
    if not target.rules.codegen_options or name not in trust.list_codegens():
        return []
    try:
        return bundle.find_rule_file_problems(target, codegens.find(name))
    except InputError as error:
        return [f"{target.source}: {line}" for line in error.lines]
