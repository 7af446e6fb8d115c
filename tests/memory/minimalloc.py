"""Allocation problems in MiniMalloc's CSV format: https://github.com/google/minimalloc.

A line a buffer: `id,lower,upper,size`, and `offset` once it is solved. It is there from time `lower` up
to, but not including, `upper`; sizes and offsets are bytes.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from byoc.errors import InputError

_COLUMNS = ("id", "lower", "upper", "size")
_UNKNOWN = ("alignment", "gaps")


@dataclass(frozen=True)
class Instance:
    """Buffers with their times `[lower, upper)` and bytes."""

    names: tuple[str, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def pressure(self) -> int:
        """The most bytes that are there at one time, below which no arena can be."""
        changes = [*zip(self.upper, (-size for size in self.sizes), strict=True)]
        changes += zip(self.lower, self.sizes, strict=True)
        most = now = 0
        for _, size in sorted(changes):  # what ends at a time is gone before anything begins there
            now += size
            most = max(most, now)
        return most


def read_instance(path: Path) -> Instance:
    """Read a file.

    Raises:
        InputError: the file cannot be read, lacks a column, has a column that is not for us, or a line
            that makes no sense.
    """
    try:
        rows = csv.DictReader(StringIO(path.read_text(encoding="utf-8")))
        lines = list(rows)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    header = rows.fieldnames or ()
    for column in _COLUMNS:
        if column not in header:
            raise InputError(f"{path}: there is no column {column}")
    for column in _UNKNOWN:
        if column in header:
            raise InputError(f"{path}: the column {column} is not supported")
    numbers = [_numbers(f"{path}:{at}", line) for at, line in enumerate(lines, 2)]
    lower, upper, sizes = zip(*numbers, strict=True) if numbers else ((), (), ())
    return Instance(tuple(str(line["id"]) for line in lines), lower, upper, sizes)


def instance_text(instance: Instance, offsets: Sequence[int] | None = None) -> str:
    """Return the text of a file, with offsets where they are given."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*_COLUMNS, "offset") if offsets is not None else _COLUMNS)
    columns = [instance.names, instance.lower, instance.upper, instance.sizes]
    writer.writerows(zip(*columns, *([offsets] if offsets is not None else []), strict=True))
    return out.getvalue()


def _numbers(place: str, line: Mapping[str, str | None]) -> tuple[int, int, int]:
    found = []
    for column in _COLUMNS[1:]:
        try:
            found.append(int(line[column] or ""))
        except ValueError:
            raise InputError(f"{place}: {column} is {line[column]!r}, not a whole number") from None
    lower, upper, size = found
    if upper <= lower:
        raise InputError(f"{place}: upper is {upper}, but has to be above lower, which is {lower}")
    if size < 0:
        raise InputError(f"{place}: size is {size}, but cannot be negative")
    return lower, upper, size
