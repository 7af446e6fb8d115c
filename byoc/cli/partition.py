"""`byoc partition`: cut a model, and write the bundle."""

from pathlib import Path
from typing import Annotated

import typer

from byoc.cli.common import Format, FormatOption, console, own_stdout, pairs, print_json, progress, sizes
from byoc.pipeline import partition as run
from byoc.report.text import print_report


def partition(  # noqa: PLR0913, PLR0917 - the options of the verb
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    rules: Annotated[str, typer.Option(help="A rule file, or one of byoc rules.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the bundle here; without it, only plan."),
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="How to place the units: see byoc strategies.")
    ] = "min-cut",
    cost_model: Annotated[
        str | None,
        typer.Option(help="The accelerator's costs, see byoc cost-models; by default the rule file's."),
    ] = None,
    host_cost_model: Annotated[str, typer.Option(help="The host's costs.")] = "host",
    codegen: Annotated[
        str | None,
        typer.Option(help="What compiles the regions, see byoc codegens; by default the rule file's."),
    ] = None,
    codegen_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Passed to the codegen.")
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZE", help="Fix a symbolic dimension, such as batch=1."),
    ] = None,
    trips: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="How often a node's bodies run, by its name or output.",
        ),
    ] = None,
    reasons: Annotated[
        bool, typer.Option("--reasons", help="Print every reason for staying on the host.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Run the result and the original, and compare.")] = True,
    form: FormatOption = Format.text,
) -> None:
    """Cut a model between the host and an accelerator."""
    options = pairs(codegen_option or [], "--codegen-option")
    dims = sizes(dim, "--dim")
    counts = sizes(trips, "--trips")
    with progress() as show, own_stdout():
        result = run(
            model,
            rules,
            output=output,
            strategy=strategy,
            cost_model=cost_model,
            host_cost_model=host_cost_model,
            codegen=codegen,
            codegen_options=options,
            dims=dims,
            trips=counts,
            verify=verify,
            progress=show,
        )
    if form is Format.json:
        print_json(result.report)
    else:
        print_report(result.report, console(), every_reason=reasons)
