"""Names of a bundle's files: relative paths that are valid on every system and in a zip.

Strict JSON (RFC 8259): no duplicate keys in an object, no NaN or infinity.
"""

import json
import re
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, NoReturn
from unicodedata import normalize

from byoc.errors import escape_unprintable

# A valid name in all common file systems: no separator, no drive, no control character, lone surrogate,
# invisible mark or one that turns the direction of writing, no space or dot at the end, which Windows
# drops. The schema of manifests has the same.
_NEVER = (
    r"\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\uffff"
    r'/\\:*?"<>|'
)
_PLAIN_NAME = re.compile(f"[^{_NEVER}]*[^{_NEVER}. ]")
MAX_PATH = 1_000
"""The most characters of a path in a bundle."""
# Windows reserves these for devices, with anything after the first dot (docs: "Naming Files, Paths, and
# Namespaces"); it takes the superscripts 1, 2 and 3 for digits.
_PORTS = (f"{port}{digit}" for port in ("com", "lpt") for digit in "0123456789\xb9\xb2\xb3")
_DEVICES = {"con", "prn", "aux", "nul", "conin$", "conout$", "clock$", *_PORTS}
_ROOTS = re.compile(r"[/\\]|[A-Za-z]:")
_MAX_CHARACTERS = 200  # of a vendor's text in a sentence of ours
MAX_JSON_VALUES = 1 << 22
"""The most values that JSON from elsewhere may have; a bundle of 10,000 regions has half as many."""
# There is one before or in each value but the first, and texts may hold more.
_VALUE_MARKS = (b",", b":", b"[", b"{")


def is_plain_name(name: str) -> bool:
    """Return whether a name is a valid file name, without a folder, on every system."""
    device = name.partition(".")[0].rstrip(" ").lower()
    return bool(_PLAIN_NAME.fullmatch(name)) and device not in _DEVICES


def describe_path_problem(path: str) -> str:
    """Describe the problem of a bundle's file path, to follow its name in a sentence; "" if valid."""
    parts = path.split("/")
    if _ROOTS.match(path) or ".." in re.split(r"[/\\]", path):
        return "is not inside the bundle"
    is_plain = len(path) <= MAX_PATH and all(map(is_plain_name, parts))
    return "" if is_plain else "does not have a plain name"


def find_same_paths(paths: Iterable[str]) -> tuple[str, str] | None:
    """Return two paths that cannot both be files on every system, None if there are none.

    They differ in case or in the form of Unicode only, as a whole or in a folder (`A/x` and `a/y`), or
    one is a folder of the other. Systems differ: what one of them may take for the same is the same.
    """
    # By the number of the folder and the folded name: number, spelling, and the path seen first.
    seen: dict[tuple[int, str], tuple[int, str, str]] = {}
    for path in paths:
        *folders, file = path.split("/")
        above = 0
        for name in folders:
            above, spelt, first = seen.setdefault((above, _fold(name)), (len(seen) + 1, name, path))
            if spelt != name or above < 0:
                return first, path
        _, _, first = seen.setdefault((above, _fold(file)), (-1, file, path))
        if first != path:
            return first, path
    return None


def _fold(name: str) -> str:
    """Fold a name, so that names that differ in case or form only become equal (Unicode, D145)."""
    return normalize("NFD", normalize("NFD", name).casefold())


def quote_name(name: str) -> str:
    """Quote a name for an error message: on one line, shortened where it is long."""
    return f"'{escape_line(name)}'"


def escape_line(text: str) -> str:
    """Escape the unprintable characters of a text, and shorten it where it is long."""
    shown = escape_unprintable(text[:_MAX_CHARACTERS])
    return shown if len(text) <= _MAX_CHARACTERS else f"{shown}..."


def parse_strict_json(content: bytes) -> Any:
    """Parse JSON in UTF-8. Raises ValueError with a sentence on one line.

    JSON of more than `MAX_JSON_VALUES` values is refused before it is parsed: a value of a few bytes
    takes a hundred in memory.
    """
    if sum(map(content.count, _VALUE_MARKS)) > MAX_JSON_VALUES:
        raise ValueError(f"it has more than {MAX_JSON_VALUES} values")
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
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {quote_name(key)} stands twice")
        result[key] = value
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
