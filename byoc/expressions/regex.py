"""Regular expressions in RE2's syntax, matched in linear time by the engine that pydantic brings."""

import re
from functools import lru_cache

from pydantic_core import SchemaValidator, core_schema

_COUNT = re.compile(r"\{(?:\d*,)?(\d*)\}", re.ASCII)


@lru_cache(maxsize=4096)
def compile_regex(pattern: str) -> SchemaValidator:
    """Return a compiled regular expression. Raises ValueError when `pattern` is not one."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except Exception as error:  # the last line of a message says what is wrong
        found = re.search(r"error: ([^\n]+)\Z", str(error))
        reason = f": {found[1]}" if found else ""
        raise ValueError(f"'{pattern}' is not a regular expression{reason}") from None


def matches(pattern: str, text: str) -> bool:
    """Return whether a regular expression is found anywhere in a text. Raises as `compile_regex`."""
    return compile_regex(pattern).isinstance_python(text)


def estimate_match_steps(pattern: str, text: str) -> int:
    """Return the approximate number of evaluation steps for compiling a pattern and searching a text.

    A counted repetition is as long as its operand, repeated; a class such as `\\w` or `\\p{L}` has
    hundreds of ranges.
    """
    length = 10 * len(pattern) + 100 * pattern.count("\\")
    for count in _COUNT.findall(pattern):
        length *= max(int(count[:6] or 1), 1)
    return 200 + length + len(text) * length // 10_000
