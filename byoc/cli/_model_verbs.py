"""The verbs about a model alone: its buckets of sizes, and its simplified form."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import byoc
from byoc import comparison, reporting
from byoc.cli._common import (
    NOT_VERIFIED,
    FormatOption,
    OutputFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import take_options
from byoc.console import print_line
from byoc.reporting import format_count, format_quantity, format_share
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


# `byoc simplify`: fold a model's constants and shapes, compare it with the original, write it.


@take_options(comparison.SimplifyOptions, first=("output",))
def simplify(
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    options: comparison.SimplifyOptions,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Fold a model's constants and shapes, and compare it.

    It is compared with the original on samples. Leaves with 4 when the model was written, and could not
    be compared.
    """
    with show_status(), reserve_stdout():
        done = byoc.simplify(model, **keywords_of(options, comparison.SimplifyOptions))
    if form is OutputFormat.json:
        print_json(done.to_json())
    else:
        print_line(reporting.format_effect(done.effect))
        for when, report in (("before", done.before), ("after", done.after)):
            if report is not None:
                print_line(f"{when}: {_describe_plan(report)}")
        if done.output is not None:
            print_line(f"Written to {done.output}")
    if options.verify and not done.effect.compared:
        raise typer.Exit(NOT_VERIFIED)


def _describe_plan(report: byoc.Report) -> str:
    nodes = f"{report.nodes.offloaded:,} of {format_count(report.nodes.total, 'node')}"
    share = format_share(report.compute.offloaded)
    regions = format_count(len(report.regions), "region")
    seconds = format_quantity(report.predicted.seconds, "s")
    names = " and ".join(report.targets)
    return f"{nodes} ({share} of the compute) on {names} in {regions}, predicted {seconds}"
