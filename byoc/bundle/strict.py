"""Strict JSON (RFC 8259): no duplicate keys in an object, no NaN or infinity."""

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any, NoReturn

from byoc.bundle.names import one_line, quoted


def read_json(content: bytes) -> Any:
    """Parse JSON in UTF-8. Raises ValueError with a sentence on one line."""
    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_no_number,
            parse_float=_float,
            parse_int=_int,
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in result if keys.count(key) > 1)
        raise ValueError(f"the key {quoted(twice)} stands twice")
    return result


def _float(text: str) -> float:
    return float(text) if isfinite(float(text)) else _no_number(text)


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # Python refuses integers of thousands of digits
        _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{one_line(text)} is not a number that is read")
