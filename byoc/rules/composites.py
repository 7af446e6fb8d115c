"""The composites of a rule file as patterns, those taken from the library included."""

from collections.abc import Iterable, Sequence

from byoc.patterns.pattern import Pattern, parse
from byoc.plugins import CHECKS, load_function
from byoc.rules.library import Library, library
from byoc.rules.schema import CompositeRule


def patterns(rules: Sequence[CompositeRule]) -> tuple[Pattern, ...]:
    """Return the patterns of some composites, in their order.

    Raises InputError when a check or a composite of the library is not there, ValueError when a pattern
    is wrong.
    """
    shelf = shelf_for(rules)
    return tuple(pattern(rule, shelf) for rule in rules)


def shelf_for(rules: Iterable[CompositeRule]) -> Library:
    """Return the library, empty when none of the composites is taken from it."""
    return library() if any(rule.library is not None for rule in rules) else Library({}, ())


def pattern(rule: CompositeRule, shelf: Library) -> Pattern:
    """Return the pattern of a composite; what it says itself comes after what the library says.

    Raises as `patterns` does; a mistake in a `where` is told as the linter's (`where[1]: ...`).
    """
    texts, where, description = rule.pattern, rule.where, rule.description
    if rule.library is not None:
        found = shelf.get(rule.library)
        texts, where = found.pattern, found.where + rule.where
        description = description or found.description
    return parse(
        rule.called,
        texts[0] if len(texts) == 1 else texts,
        where=[(condition.expr, condition.reason) for condition in where],
        check=load_function(CHECKS, rule.check) if rule.check is not None else None,
        description=description,
    )
