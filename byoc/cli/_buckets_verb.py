"""`byoc buckets`: the sizes of buckets that are best for a distribution of lengths."""

from typing import Annotated, Any

import typer

from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import take_options
from byoc.comparison import BucketChoice, BucketOptions, BucketRow
from byoc.comparison import choose_buckets as run
from byoc.console import print_line
from byoc.reporting import format_quantity, format_share
from byoc.support import keywords_of


@take_options(BucketOptions, first=("rules", "along", "lengths", "max_buckets"))
def buckets(
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    options: BucketOptions,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Choose the sizes of buckets for a distribution of lengths.

    A row has the best buckets of a number, what a call takes on average, and what the last one buys.
    """
    with show_status(), reserve_stdout():
        choice = run(model, **keywords_of(options, BucketOptions))
    if form is OutputFormat.json:
        print_json(choice.to_json())
        return
    print_rows([_format_row(row, choice) for row in choice.rows], form)
    sizes = ",".join(map(str, choice.best.sizes))
    print_line(f"--bucket {choice.along}={sizes}")


def _format_row(row: BucketRow, choice: BucketChoice) -> dict[str, Any]:
    best = choice.rows[-1].seconds
    return {
        "buckets": len(row.sizes),
        "a call": format_quantity(row.seconds, "s"),
        "saves": "" if row.saved is None else format_quantity(row.saved, "s"),
        "of the best": f"{row.seconds / best:.3f}" if best else "",
        "padding": format_share(row.padded),
        "sizes": ", ".join(map(str, row.sizes)),
    }
