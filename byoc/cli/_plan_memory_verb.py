"""`byoc plan-memory`: plan the memory of activations in several ways."""

from __future__ import annotations

from typing import Annotated

import typer

import byoc
import byoc.memory.report
from byoc import reporting
from byoc.cli._common import FormatOption, OutputFormat, print_json, reserve_stdout, show_status
from byoc.cli._option_flags import take_options
from byoc.cli._plan_memory_text import explain_conventions, print_report
from byoc.console import print_line
from byoc.support import keywords_of


@take_options(reporting.MemoryPlanOptions)
def plan_memory(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|BUNDLE", help="An ONNX file, zoo:NAME, or a bundle.")
    ],
    options: reporting.MemoryPlanOptions,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Plan the memory of a model's activations.

    The rows compare plans with and without reuse with the proven lower bound. A bundle gets a plan for
    its model as a whole, in which each region is one step, and one for each region.
    """
    if options.method == byoc.memory.report.STRIPED and not options.striped:
        raise typer.BadParameter("--method striped asks for it", param_hint="--no-striped")
    size = options.make_settings().size
    with show_status(), reserve_stdout():
        reports = byoc.plan_memory(model, **keywords_of(options, reporting.MemoryPlanOptions))
    if form is OutputFormat.json:
        print_json(
            {
                "model": model,
                "size": size,
                "conventions": byoc.memory.report.describe_conventions(),
                "plans": [
                    byoc.memory.report.build_memory_document(report, size) for report in reports.values()
                ],
            }
        )
        return
    for report in reports.values():
        print_report(report, size)
    for line in explain_conventions(any(report.striped for report in reports.values())):
        print_line(line)
