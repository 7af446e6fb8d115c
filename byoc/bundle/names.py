"""Names of a bundle's files: relative paths that are valid on every system and in a zip."""

import re

from byoc.errors import escape_unprintable

# A valid name in all common file systems: no separator, no drive, no control character or lone
# surrogate, no space or dot at the end, which Windows drops.
_PLAIN_NAME = re.compile(r'[^\x00-\x1f\x7f\ud800-\udfff/\\:*?"<>|]*[^\x00-\x1f\x7f\ud800-\udfff/\\:*?"<>|. ]')
# Windows reserves these for devices, with anything after the first dot (docs: "Naming Files, Paths, and
# Namespaces").
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
_ROOTS = re.compile(r"[/\\]|[A-Za-z]:")
_MOST_CHARACTERS = 200


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
    shown = escape_unprintable(text[:_MOST_CHARACTERS])
    return shown if len(text) <= _MOST_CHARACTERS else f"{shown}..."
