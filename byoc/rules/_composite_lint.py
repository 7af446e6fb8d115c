"""Lint of composites: wrong patterns, clashing names, and patterns that can never match."""

import re
from collections.abc import Collection, Iterator, Sequence

from byoc.errors import InputError
from byoc.patterns import ANY_OPERATOR, Pattern, PatternForm
from byoc.rules._composite_library import Library, make_pattern, open_library
from byoc.rules._condition_lint import lint_pattern_condition
from byoc.rules._operator_lint import lint_check_name
from byoc.rules._rule_schema import CompositeRule

NumberedComposites = Sequence[tuple[int, CompositeRule]]


def lint_composites(rules: NumberedComposites, taken: Collection[str], target: str) -> list[str]:
    """Return a sentence for each mistake in composites.

    `taken` are the operators that have rules, `target` is the name of the accelerator.
    """
    problems = list(_find_same_names(rules))
    patterns: dict[int, Pattern] = {}
    shelf = open_library(rule for _, rule in rules)
    for i, rule in rules:
        problems.extend(lint_check_name(f"composites[{i}].check", rule.check))
        try:
            patterns[i] = make_pattern(rule.model_copy(update={"check": None}), shelf)
        except InputError as error:
            problems.append(f"composites[{i}].library: {error}")
        except ValueError as error:
            lines = str(error).splitlines()
            problems.extend(f"composites[{i}].{_locate_problem(rule, line, shelf)}" for line in lines)
    for i, found in patterns.items():
        problems.extend(
            f"composites[{i}].{problem}" for problem in _lint_conditions(found, dict(rules)[i])
        )
        problems.extend(
            f"composites[{i}].{problem}" for problem in _find_idle_lines(found, rules, i, taken)
        )
    problems.extend(_find_taken_names(rules, patterns, target))
    return problems


def _lint_conditions(found: Pattern, rule: CompositeRule) -> Iterator[str]:
    """Yield a sentence for each mistake in a composite's own conditions, the last of its pattern."""
    inherited = len(found.where) - len(rule.where)
    for i in range(len(rule.where)):
        for problem in lint_pattern_condition(found, inherited + i):
            yield f"where[{i}]: {problem}"


def _locate_problem(rule: CompositeRule, problem: str, shelf: Library) -> str:
    """Return a problem of the pattern parser with its location in the rule file."""
    key = "library" if rule.library is not None else "pattern"
    place, _, text = problem.partition(": ")
    number = re.fullmatch(r"where\[(\d+)\]", place)
    if number is not None:
        inherited = len(shelf.get(rule.library).where) if rule.library is not None else 0
        return f"where[{int(number[1]) - inherited}]: {text}"
    return problem if place.startswith("pattern[") else f"{key}: {problem}"


def _find_same_names(rules: NumberedComposites) -> Iterator[str]:
    first: dict[str, int] = {}
    for i, rule in rules:
        other = first.setdefault(rule.display_name, i)
        if other != i:
            yield f"composites[{i}].name: '{rule.display_name}' is the name of composites[{other}] too"


def _find_idle_lines(
    found: Pattern, rules: NumberedComposites, number: int, taken: Collection[str]
) -> Iterator[str]:
    """Yield a sentence for each line that keeps a pattern from ever matching, for lack of a rule.

    One variant that can match is enough, and so is a form without an optional line.
    """
    if (
        not taken
        or ANY_OPERATOR in taken
        or any(not _list_unsupported_lines(form, taken) for form in found.forms)
    ):
        return
    rule = dict(rules)[number]
    for form in found.forms[:1]:
        key = "library" if rule.library is not None else "pattern"
        for line, ops in _list_unsupported_lines(form, taken):
            at = f"{key}[0]" if len(rule.pattern) > 1 else key
            yield f"{at}: line {line}: no rule in ops takes {' or '.join(ops)}"


def _list_unsupported_lines(
    form: PatternForm, taken: Collection[str]
) -> list[tuple[int, Sequence[str]]]:
    """Return the required lines of a form whose operators have no rule."""
    return [
        (node.line_number, node.ops)
        for node in form.nodes
        if ANY_OPERATOR not in node.ops and not node.optional and not any(op in taken for op in node.ops)
    ]


def _find_taken_names(
    rules: NumberedComposites, patterns: dict[int, Pattern], target: str
) -> Iterator[str]:
    """Yield a sentence for each composite whose name another function will have."""
    names = {rule.display_name for _, rule in rules}
    for i, rule in rules:
        if re.fullmatch(rf"{re.escape(target)}_[0-9]+", rule.display_name):
            yield f"composites[{i}].name: '{rule.display_name}' is what a region is called"
        found = patterns.get(i)
        if found is None:
            continue
        choices = {op.replace(".", "_").lower() for node in found.lines for op in node.ops}
        choices |= {name for node in found.lines for name in node.outputs}
        several = len(found.forms) > 1 or any(
            len(node.ops) > 1 or ANY_OPERATOR in node.ops for node in found.lines
        )
        for name in sorted(names):
            rest = name.removeprefix(f"{rule.display_name}_")
            if rest != name and several and _is_variant_suffix(rest, choices):
                yield (
                    f"composites[{i}].name: '{name}' is what a variant of "
                    f"'{rule.display_name}' is called"
                )


def _is_variant_suffix(rest: str, choices: Collection[str]) -> bool:
    return all(part in choices or re.fullmatch(r"no|v?\d+", part) for part in rest.split("_"))
