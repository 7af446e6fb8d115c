"""Texts in the folder `source`: C files that go into programs as they are, and templates of others."""

import re
from importlib.resources import files
from pathlib import Path

_PLACE = re.compile(r"@(\w+)@")


def read_source(name: str) -> bytes:
    """Return a file of the folder `source`."""
    return (Path(str(files("byoc.standalone"))) / "source" / name).read_bytes()


def fill_template(name: str, values: dict[str, object]) -> str:
    """Return a template with a value in each place `@NAME@`. Raises KeyError for one without a value."""
    return _PLACE.sub(lambda match: str(values[match[1]]), read_source(name).decode())
