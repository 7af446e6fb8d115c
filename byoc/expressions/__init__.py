"""Expressions in YAML files, in Google's Common Expression Language (CEL): conditions over plain facts.

CEL has no loops, no assignments and no way out into Python, so a file from anywhere may hold some. Its
`all`, `exists` and the like walk lists; the steps of one evaluation are limited, so that a line of text
cannot take long. A value that is not known is null or missing in the facts, and what needs it is said
to be unknown rather than true or false. Regular expressions run in linear time.

The language: https://github.com/google/cel-spec/blob/master/doc/langdef.md
"""

from byoc.expressions.condition import (
    Condition,
    Expression,
    compile_expression,
    compile_regex,
    matches,
)

__all__ = ["Condition", "Expression", "compile_expression", "compile_regex", "matches"]
