"""Values of flags, as users write them: NAME=VALUE, sizes, shapes, variants."""

from __future__ import annotations

import re
from collections.abc import Sequence

import typer

_MAX_DIGITS = 20

_BEFORE_NAME = re.compile(r",(?=[^,=]+=)")  # a comma between dimensions, not one of max(a,b)


def read_pairs(values: Sequence[str], option: str) -> dict[str, str]:
    """Return `NAME=VALUE` options as a mapping. A value without `=` is a usage error."""
    result = {}
    for value in values:
        name, equals, content = value.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"'{value}' is not of the form NAME=VALUE", param_hint=option)
        if name in result:
            raise typer.BadParameter(f"'{name}' is given twice", param_hint=option)
        result[name] = content
    return result


def read_by_target(values: Sequence[str] | None, option: str) -> str | dict[str, str] | None:
    """Return `NAME` options as the name, `TARGET=NAME` options as a mapping, None without any."""
    if not values:
        return None
    if len(values) == 1 and "=" not in values[0]:
        return values[0]
    return read_pairs(values, option)


def read_sizes(values: Sequence[str] | None, option: str) -> dict[str, int]:
    """Return `NAME=SIZE` options as a mapping. What is not a whole number is a usage error."""
    return {
        name: _read_size(name, value, option) for name, value in read_pairs(values or [], option).items()
    }


def read_dims(values: Sequence[str] | None, option: str) -> dict[str, int | str]:
    """Return `NAME=SIZE`, `NAME=RELATION` and `NAME=LOW..HIGH` options as a mapping."""
    return {name: _read_number(said) for name, said in read_pairs(values or [], option).items()}


def read_variants(values: Sequence[str] | None, option: str) -> dict[str, dict[str, int | str]]:
    """Return `NAME:DIM=SIZE,DIM=SIZE` options as a mapping of mappings."""
    found: dict[str, dict[str, int | str]] = {}
    for value in values or ():
        name, colon, sizes = value.partition(":")
        if not colon or not name:
            raise typer.BadParameter(f"'{value}' is not of the form NAME:DIM=SIZE", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"'{name}' is given twice", param_hint=option)
        found[name] = read_dims(_BEFORE_NAME.split(sizes), option)
    return found


def read_buckets(values: Sequence[str] | None, option: str) -> dict[str, tuple[int, ...]]:
    """Return `DIM=SIZE,SIZE` options as a mapping. What is not a whole number is a usage error."""
    return {
        name: tuple(_read_size(name, size.strip(), option) for size in sizes.split(","))
        for name, sizes in read_pairs(values or [], option).items()
    }


def read_shapes(values: Sequence[str] | None, option: str) -> dict[str, tuple[int | str | None, ...]]:
    """Return `INPUT=EXTENT,...` options as a mapping; `?` is None. No extents are a scalar's shape."""
    return {
        name: tuple(_read_extent(part, name, option) for part in text.split(",")) if text else ()
        for name, text in read_pairs(values or [], option).items()
    }


def _read_extent(text: str, name: str, option: str) -> int | str | None:
    if not text.strip():
        raise typer.BadParameter(f"'{name}': an extent is missing at a comma", param_hint=option)
    return None if text.strip() == "?" else _read_number(text.strip())


def _read_number(text: str) -> int | str:
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return int(text) if is_number else text


def _read_size(name: str, value: str, option: str) -> int:
    if not (value.isascii() and value.isdecimal()) or len(value) > _MAX_DIGITS:
        raise typer.BadParameter(f"'{name}={value}': a whole number is expected", param_hint=option)
    return int(value)
