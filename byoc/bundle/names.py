"""Names of a bundle's files: relative paths that mean the same file on every system and in a zip."""

import re

from byoc.errors import printable

# A name in every file system that people unpack bundles on: no separator, no drive, no control
# character or lone surrogate, nothing that Windows drops at the end.
_PLAIN = re.compile(r'[^\x00-\x1f\x7f\ud800-\udfff/\\:*?"<>|]*[^\x00-\x1f\x7f\ud800-\udfff/\\:*?"<>|. ]')
# Windows opens a device by these, whatever follows the first dot (docs: "Naming Files, Paths, and
# Namespaces").
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
_ROOTS = re.compile(r"[/\\]|[A-Za-z]:")
_MOST_CHARACTERS = 200


def is_plain(name: str) -> bool:
    """Return whether a name is that of a file alone, in no folder, on every system."""
    return bool(_PLAIN.fullmatch(name)) and name.partition(".")[0].rstrip().lower() not in _DEVICES


def wrong_path(path: str) -> str:
    """Return what is wrong with the path of a bundle's file, to follow its name; empty if nothing is."""
    parts = path.split("/")
    if _ROOTS.match(path) or ".." in re.split(r"[/\\]", path):
        return "is not inside the bundle"
    return "" if all(map(is_plain, parts)) else "does not have a plain name"


def quoted(name: str) -> str:
    """Return a name as sentences quote it: on one line, and its beginning where it is long."""
    return f"'{one_line(name)}'"


def one_line(text: str) -> str:
    """Return a text with what is not printable escaped, cut where it is long."""
    shown = printable(text[:_MOST_CHARACTERS])
    return shown if len(text) <= _MOST_CHARACTERS else f"{shown}..."
