"""The user's numbers of nodes, which colour the graph of the page."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from pathlib import Path

from byoc.bundle import DecisionDocument
from byoc.errors import InputError, suggest_nearest
from byoc.support import read_limited

_MOST_BYTES = 1 << 26  # a million rows


@dataclass(frozen=True)
class Overlay:
    """Numbers of nodes by name, and what they are."""

    title: str
    values: Mapping[str, float]


def read_overlay(path: Path, decisions: DecisionDocument) -> Overlay:
    """Read a CSV file: a row `node,TITLE`, then a name and a number for each node.

    A name is a node's own or that of its first output, behind the path of its body. Raises InputError,
    with the line, for a file that is no such table, and for a name that no node has.
    """
    rows = list(_read_rows(path))
    (line, head), *rest = rows or [(1, [])]
    if len(head) != 2 or head[0].strip() != "node" or not head[1].strip():
        raise InputError(f"{path}: line {line}: the first row must be `node,TITLE`")
    known = {name for each in decisions.list_placed_nodes() for name in (each.name, each.output) if name}
    values: dict[str, float] = {}
    for line, row in rest:
        where = f"{path}: line {line}"
        if len(row) != 2:
            raise InputError(f"{where}: has {len(row)} columns, not a name and a number")
        name = row[0].strip()
        if name not in known:
            raise InputError(f"{where}: no node {name!r}{suggest_nearest(name, known)}")
        if name in values:
            raise InputError(f"{where}: node {name!r} has a number already")
        try:
            number = float(row[1])
        except ValueError:
            number = float("nan")
        if not isfinite(number):
            raise InputError(f"{where}: {row[1].strip()!r} is not a finite number")
        values[name] = number
    if not values:
        raise InputError(f"{path}: has no row for a node")
    return Overlay(head[1].strip(), values)


def _read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file that are not empty, each with its line."""
    try:
        with path.open("rb") as file:
            content = read_limited(file, _MOST_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > _MOST_BYTES:
        raise InputError(f"{path}: has more than {_MOST_BYTES} bytes")
    try:
        reader = csv.reader(StringIO(content.decode("utf-8-sig"), newline=""))
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, row
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file in UTF-8: {error}") from None
