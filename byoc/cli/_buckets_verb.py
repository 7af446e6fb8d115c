"""`byoc buckets`: the sizes of buckets that are best for a distribution of lengths."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import byoc
from byoc import comparison
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import take_options
from byoc.console import print_line
from byoc.reporting import format_quantity, format_share
from byoc.support import keywords_of


@take_options(comparison.BucketOptions, first=("rules", "along", "lengths", "max_buckets"))
def buckets(
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    options: comparison.BucketOptions,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Choose the sizes of buckets for a distribution of lengths.

    A row has the best buckets of a number, what a call takes on average, and what the last one buys.
    """
    with show_status(), reserve_stdout():
        choice = byoc.choose_buckets(model, **keywords_of(options, comparison.BucketOptions))
    if form is OutputFormat.json:
        print_json(choice.to_json())
        return
    print_rows([_format_row(row, choice) for row in choice.rows], form)
    sizes = ",".join(map(str, choice.best.sizes))
    print_line(f"--bucket {choice.along}={sizes}")


def _format_row(row: comparison.BucketRow, choice: byoc.BucketChoice) -> dict[str, Any]:
    best = choice.rows[-1].seconds
    return {
        "buckets": len(row.sizes),
        "a call": format_quantity(row.seconds, "s"),
        "saves": "" if row.saved is None else format_quantity(row.saved, "s"),
        "of the best": f"{row.seconds / best:.3f}" if best else "",
        "padding": format_share(row.padded),
        "sizes": ", ".join(map(str, row.sizes)),
    }
