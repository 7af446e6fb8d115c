"""Names of a bundle's files: relative paths that are valid on every system and in a zip.

Strict JSON (RFC 8259): no duplicate keys in an object, no NaN or infinity.
"""

import json
import re
from collections.abc import Sequence
from math import isfinite
from typing import Any, NoReturn

from byoc.errors import escape_unprintable

# A valid name in all common file systems: no separator, no drive, no control character or lone
# surrogate, no space or dot at the end, which Windows drops.
_PLAIN_NAME = re.compile(
    r'[^\x00-\x1f\x7f\ud800-\udfff/\\:*?"<>|]*[^\x00-\x1f\x7f\ud800-\udfff/\\:*?"<>|. ]'
)
# Windows reserves these for devices, with anything after the first dot (docs: "Naming Files, Paths, and
# Namespaces").
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
_ROOTS = re.compile(r"[/\\]|[A-Za-z]:")
_MAX_CHARACTERS = 200


def is_plain_name(name: str) -> bool:
    """Return whether a name is a valid file name, without a folder, on every system."""
    return bool(_PLAIN_NAME.fullmatch(name)) and name.partition(".")[0].rstrip().lower() not in _DEVICES


def describe_path_problem(path: str) -> str:
    """Describe the problem of a bundle's file path, to follow its name in a sentence; "" if valid."""
    parts = path.split("/")
    if _ROOTS.match(path) or ".." in re.split(r"[/\\]", path):
        return "is not inside the bundle"
    return "" if all(map(is_plain_name, parts)) else "does not have a plain name"


def quote_name(name: str) -> str:
    """Quote a name for an error message: on one line, shortened where it is long."""
    return f"'{escape_line(name)}'"


def escape_line(text: str) -> str:
    """Escape the unprintable characters of a text, and shorten it where it is long."""
    shown = escape_unprintable(text[:_MAX_CHARACTERS])
    return shown if len(text) <= _MAX_CHARACTERS else f"{shown}..."


def parse_strict_json(content: bytes) -> Any:
    """Parse JSON in UTF-8. Raises ValueError with a sentence on one line."""
    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_number,
            parse_float=_parse_finite,
            parse_int=_parse_integer,
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in result if keys.count(key) > 1)
        raise ValueError(f"the key {quote_name(twice)} stands twice")
    return result


def _parse_finite(text: str) -> float:
    return float(text) if isfinite(float(text)) else _refuse_number(text)


def _parse_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # Python refuses integers of thousands of digits
        _refuse_number(text)


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{escape_line(text)} is not a number that is read")
