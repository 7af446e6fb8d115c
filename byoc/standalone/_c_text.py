"""Text of C: files and templates of the folder `source`, strings, numbers and comments."""

import re
from importlib.resources import files
from pathlib import Path

_UNSAFE = re.compile(r"[^A-Za-z0-9_.:;,<>()\[\]=+' -]")
_PLACE = re.compile(r"@(\w+)@")


def read_source(name: str) -> bytes:
    """Return a file of the folder `source`."""
    return (Path(str(files("byoc.standalone"))) / "source" / name).read_bytes()


def fill_template(name: str, values: dict[str, object]) -> str:
    """Return a template with a value in each place `@NAME@`. Raises KeyError for one without a value."""
    return _PLACE.sub(lambda match: str(values[match[1]]), read_source(name).decode())


def format_float(value: float) -> str:
    """Return a 32-bit float as a constant of C; nine digits tell all of them apart."""
    if value != value:  # noqa: PLR0124 - NaN
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    digits = f"{value:.9g}"
    return f"{digits}f" if "." in digits or "e" in digits else f"{digits}.0f"


def quote(text: str) -> str:
    """Return a text as a string of C; other characters than printable ones of ASCII as escapes."""
    made = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "replace")
    )
    return f'"{made}"'


def describe_in_comment(text: str) -> str:
    """Return a text without what could end a comment or a line."""
    return _UNSAFE.sub("_", text)
