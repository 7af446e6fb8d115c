"""`byoc plan-memory`: plan the memory of activations in several ways."""

from typing import Annotated

import typer

from byoc.cli._common import FormatOption, OutputFormat, print_json, reserve_stdout, show_status
from byoc.cli._option_flags import take_options
from byoc.cli._plan_memory_text import explain_conventions, print_report
from byoc.console import print_line
from byoc.memory.report import STRIPED, build_memory_document, describe_conventions
from byoc.reporting import MemoryPlanOptions
from byoc.reporting import plan_memory as run
from byoc.support import keywords_of


@take_options(MemoryPlanOptions)
def plan_memory(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|BUNDLE", help="An ONNX file, zoo:NAME, or a bundle.")
    ],
    options: MemoryPlanOptions,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Plan the memory of a model's activations.

    The rows compare plans with and without reuse with the proven lower bound. A bundle gets a plan for
    its model as a whole, in which each region is one step, and one for each region.
    """
    if options.method == STRIPED and not options.striped:
        raise typer.BadParameter("--method striped asks for it", param_hint="--no-striped")
    size = options.make_settings().size
    with show_status(), reserve_stdout():
        reports = run(model, **keywords_of(options, MemoryPlanOptions))
    if form is OutputFormat.json:
        print_json(
            {
                "model": model,
                "size": size,
                "conventions": describe_conventions(),
                "plans": [build_memory_document(report, size) for report in reports.values()],
            }
        )
        return
    for report in reports.values():
        print_report(report, size)
    for line in explain_conventions(any(report.striped for report in reports.values())):
        print_line(line)
