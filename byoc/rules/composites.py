"""The patterns of a rule file's composites, those from the library included."""

from collections.abc import Iterable, Sequence

from byoc.patterns.pattern import Pattern, parse_pattern
from byoc.plugins import CHECKS, load_function
from byoc.rules.library import Library, read_library
from byoc.rules.schema import CompositeRule


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
    return parse_pattern(
        rule.display_name,
        texts[0] if len(texts) == 1 else texts,
        where=[(condition.expr, condition.reason) for condition in where],
        check=load_function(CHECKS, rule.check) if rule.check is not None else None,
        description=description,
    )
