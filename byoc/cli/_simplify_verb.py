"""`byoc simplify`: fold a model's constants and shapes, compare it with the original, write it."""

from __future__ import annotations

from typing import Annotated

import typer

import byoc
from byoc import comparison, reporting
from byoc.cli._common import (
    NOT_VERIFIED,
    FormatOption,
    OutputFormat,
    print_json,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import take_options
from byoc.console import print_line
from byoc.reporting import format_count, format_quantity, format_share
from byoc.support import keywords_of


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
