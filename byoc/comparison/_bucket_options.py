"""The options of `choose_buckets`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from byoc.errors import InputError
from byoc.options import PlanOptions
from byoc.support import Flag, Syntax, declare_field


def _read_sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"'{text}': sizes are whole numbers with commas between")
    return tuple(map(int, parts))


@dataclass(frozen=True, kw_only=True)
class BucketOptions(PlanOptions):
    """The choices of `choose_buckets`. Raises InputError for one that is none."""

    along: str = declare_field(
        "",
        "the open dimension that gets buckets.",
        Flag("The open dimension that gets buckets.", metavar="DIM", required=True),
    )
    lengths: str | Path | Sequence[int] | Mapping[int, float] = declare_field(
        "log-normal",
        "the lengths that inputs have: a file with one on each line, or one and how often it occurs; "
        "`log-normal:MEDIAN,SIGMA,MAX`; or lengths, or their weights by length.",
        Flag(
            "The lengths of inputs: a file, or log-normal:MEDIAN,SIGMA,MAX (128, 1 and 2048).",
            metavar="FILE|log-normal",
        ),
    )
    max_buckets: int = declare_field(
        8, "the most buckets.", Flag("The most buckets.", Syntax.INTEGER, minimum=1)
    )
    candidates: Sequence[int] | None = declare_field(
        None,
        "the sizes that buckets may have, at each of which the model is planned; by default those of "
        "the lengths, or 32 at equal steps of their distribution.",
        Flag(
            "The sizes that buckets may have; by default 32 of the lengths.",
            metavar="SIZE,...",
            read=_read_sizes,
        ),
    )
    interpolate: bool = declare_field(
        False,
        "let buckets have any of the lengths; seconds between two candidates are interpolated.",
        Flag("Let buckets have any length; seconds are interpolated.", Syntax.SWITCH),
    )
    bucket_seconds: float = declare_field(
        0.0,
        "what a bucket costs by itself, as seconds of each call: for compiling it, and its memory.",
        Flag("What each bucket costs besides, in seconds of a call.", Syntax.NUMBER, metavar="SECONDS"),
    )

    def __post_init__(self) -> None:
        """Raise InputError for candidates that are no sizes, and for seconds below 0."""
        if not self.along:
            raise InputError("along: name the open dimension that gets buckets")
        if self.max_buckets < 1 or not self.bucket_seconds >= 0:
            raise InputError("max_buckets is at least 1, bucket_seconds at least 0")
        if self.candidates is not None and (not self.candidates or min(self.candidates) < 1):
            raise InputError("candidates: a size is at least 1")
