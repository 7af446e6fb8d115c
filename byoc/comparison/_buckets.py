"""The sizes of buckets that are best for a distribution of lengths: `byoc.choose_buckets`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from byoc.comparison._bucket_choice import BucketRow, choose_row, choose_sizes
from byoc.comparison._bucket_options import BucketOptions
from byoc.comparison._length_distributions import pick_candidates, read_lengths
from byoc.errors import InputError
from byoc.options import PlanOptions
from byoc.pipeline import partition
from byoc.support import report_step, take_keywords
from byoc.zoo import Source


@dataclass(frozen=True)
class BucketChoice:
    """The best buckets of each number, and the best of all.

    `seconds` has the predicted seconds of a run by size, as plans give them, `rows` the best buckets of
    1, 2, ... and `best` the row with the least expected seconds, each bucket's own among them.
    """

    along: str
    seconds: Mapping[int, float]
    rows: tuple[BucketRow, ...]
    best: BucketRow

    @property
    def buckets(self) -> dict[str, list[int]]:
        """The best sizes as `partition` takes them."""
        return {self.along: list(self.best.sizes)}

    def to_json(self) -> dict[str, Any]:
        """Return the choice as plain data."""
        rows = [
            {"sizes": list(r.sizes), "seconds": r.seconds, "padded": r.padded, "saved": r.saved}
            for r in self.rows
        ]
        return {
            "along": self.along,
            "best": list(self.best.sizes),
            "rows": rows,
            "predicted": {str(size): seconds for size, seconds in self.seconds.items()},
        }


@take_keywords(BucketOptions)
def choose_buckets(model: Source, options: BucketOptions) -> BucketChoice:
    """Choose the sizes of buckets for which a call takes least on average, for lengths that inputs have.

    `model` is as `partition` takes it. It is planned at each candidate size; an input counts with the
    smallest bucket that holds it. The choice is exact: no other sizes among the candidates are
    expected to take less.

    Raises InputError as `partition` does, for a file of lengths that is none, and where the longest
    length is beyond all candidates.
    """
    lengths = _gather_lengths(options.lengths)
    candidates = sorted({*(options.candidates or pick_candidates(lengths, 32))})
    seconds = {size: _predict(model, options, size) for size in candidates}
    priced = seconds
    if options.interpolate:
        between = [n for n in sorted(lengths) if candidates[0] <= n <= candidates[-1]]
        found = np.interp(between, candidates, [seconds[size] for size in candidates])
        priced = {**dict(zip(between, found.tolist(), strict=True)), **seconds}
    rows = choose_sizes(priced, lengths, options.max_buckets)
    return BucketChoice(options.along, seconds, tuple(rows), choose_row(rows, options.bucket_seconds))


def _gather_lengths(given: str | Path | Sequence[int] | Mapping[int, float]) -> dict[int, float]:
    """Return the weights of lengths. Raises InputError for a length below 1 and a weight below 0."""
    if isinstance(given, str | Path):
        return read_lengths(given)
    found: dict[int, float] = {}
    pairs = given.items() if isinstance(given, Mapping) else ((length, 1.0) for length in given)
    for length, weight in pairs:
        if length < 1 or not weight >= 0:
            raise InputError(f"lengths: {length} with the weight {weight:g}")
        found[int(length)] = found.get(int(length), 0.0) + weight
    return found


def _predict(model: Source, options: BucketOptions, size: int) -> float:
    """Return the seconds that the plan of the model at a size is predicted to take."""
    report_step(f"plan {options.along}={size}")
    given = {each.name: getattr(options, each.name) for each in fields(PlanOptions) if each.init}
    given["dims"] = {**(options.dims or {}), options.along: size}
    return float(partition(model, **given, what_if=False).report.predicted.seconds)
