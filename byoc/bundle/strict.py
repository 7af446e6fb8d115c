"""Strict JSON (RFC 8259): no duplicate keys in an object, no NaN or infinity."""

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any, NoReturn

from byoc.bundle.names import escape_line, quote_name


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
