"""Pictures of a model's constants for the page: few numbers as they are, of many their distribution."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from byoc.model import read_array, walk_tensors

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
