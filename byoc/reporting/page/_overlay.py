"""Data beside the graph of the page: the user's numbers of nodes, which colour it, and constants."""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from byoc._dataclasses import asdict, dataclass
from byoc.bundle import DecisionDocument
from byoc.errors import InputError, suggest_nearest
from byoc.model import read_array, walk_tensors
from byoc.support import read_limited

_MOST_BYTES = 1 << 26  # a million rows


@dataclass(frozen=True)
class Overlay:
    """Numbers of nodes by name, and what they are; `marks` says that they only tell which nodes."""

    title: str
    values: Mapping[str, float]
    marks: bool = False


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


_BINS = 24  # bars of 11 pixels in a pane of 264
_FEW = 16  # elements that are shown one by one
_MOST_TENSORS = 2_000  # each adds about 200 bytes to the page
_MOST_BYTES = 1 << 29  # of all that are read; a page is made in seconds
_TEXTS = (TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128)


@dataclass(frozen=True)
class ConstantPicture:
    """The values of a constant: where they lie, and how many in each of 24 equal bins of that range.

    `values` are all of them where there are at most 16, and `bins` are empty then. `zeros` is the share
    of elements that are 0. What is not finite counts in `odd` alone.
    """

    least: float
    greatest: float
    mean: float
    zeros: float
    odd: int
    bins: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


def draw_constants(model: ModelProto, folder: Path) -> dict[str, dict[str, Any]]:
    """Return pictures of a model's constants by name, the largest first, as JSON can hold them.

    External data lies in `folder`. Left out are texts, complex numbers and empty tensors, and what is
    beyond 2,000 tensors or 512 MiB.
    """
    found: dict[str, dict[str, Any]] = {}
    for tensor in _choose(model):
        picture = _draw(read_array(tensor, folder).astype(np.float64).ravel())
        if picture is not None:
            found[tensor.name] = asdict(picture)
    return found


def _choose(model: ModelProto) -> Iterator[TensorProto]:
    """Yield the tensors to draw, the largest first, as long as there is room."""
    drawn = [each for each in walk_tensors(model) if each.name and each.data_type not in _TEXTS]
    counts = Counter(each.name for each in drawn)  # of a name in two bodies none is meant
    named = {each.name: each for each in drawn if counts[each.name] == 1}
    sizes = {name: int(np.prod(each.dims, dtype=np.int64)) for name, each in named.items()}
    room = _MOST_BYTES
    for name in sorted(sizes, key=lambda name: -sizes[name])[:_MOST_TENSORS]:
        taken = sizes[name] * 8  # as float64
        if sizes[name] and taken <= room:
            room -= taken
            yield named[name]


def _draw(values: "np.ndarray[Any, np.dtype[np.float64]]") -> ConstantPicture | None:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    least, greatest = float(finite.min()), float(finite.max())
    few = values.size <= _FEW and finite.size == values.size
    bins: tuple[int, ...] = ()
    if not few and least < greatest:
        # Halves, since the width of a range of float64 may be beyond its largest number.
        counts, _ = np.histogram(finite / 2, _BINS, (least / 2, greatest / 2))
        bins = tuple(counts.tolist())
    return ConstantPicture(
        least,
        greatest,
        float((finite / finite.size).sum()),  # sums of large numbers would be infinite
        float(np.mean(values == 0)),
        int(values.size - finite.size),
        bins,
        tuple(values.tolist()) if few else (),
    )
