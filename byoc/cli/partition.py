"""`byoc partition`: cut a model, and write the bundle."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from byoc.cli.common import (
    DimOption,
    Format,
    FormatOption,
    HostCostsOption,
    ObjectiveOption,
    RulesOption,
    TripsOption,
    UnknownCostsOption,
    by_target,
    console,
    own_stdout,
    pairs,
    print_json,
    progress,
    sizes,
)
from byoc.costs.model import Policy
from byoc.loading import DEFAULT_STRATEGY
from byoc.pipeline import Result, save_placement
from byoc.pipeline import partition as run
from byoc.precision.budget import read_budget
from byoc.precision.conclude import Precision
from byoc.report.text import print_report
from byoc.textfile import check_output
from byoc.trials import fastest
from byoc.verify.thresholds import read_thresholds


class Dtype(StrEnum):
    """What regions may compute in instead of what the model says."""

    int8 = "int8"
    uint8 = "uint8"
    int16 = "int16"
    uint16 = "uint16"
    float16 = "float16"
    bfloat16 = "bfloat16"


class Emitted(StrEnum):
    """What is written besides the bundle."""

    epcontext = "epcontext"


def partition(  # noqa: PLR0913, PLR0917 - the options of the verb
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    rules: RulesOption,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the bundle here (.zip: packed); else only plan."),
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="How to place the units: see byoc strategies.")
    ] = DEFAULT_STRATEGY,
    objective: ObjectiveOption = "latency",
    cost_model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TARGET=]NAME",
            help="The accelerator's costs, see byoc cost-models; by default the rule file's.",
        ),
    ] = None,
    host_cost_model: HostCostsOption = "host",
    unknown_costs: UnknownCostsOption = Policy.estimate,
    codegen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TARGET=]NAME",
            help="What compiles the regions, see byoc codegens; by default the rule file's.",
        ),
    ] = None,
    codegen_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TARGET:]NAME=VALUE",
            help="An option of the codegen, see byoc codegens CODEGEN; it wins over the rule file's.",
        ),
    ] = None,
    dim: DimOption = None,
    trips: TripsOption = None,
    placement: Annotated[
        Path | None, typer.Option(help="A file that says where some nodes are to be.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option("--save-placement", help="Write where each node is to this file."),
    ] = None,
    quantize: Annotated[
        Dtype | None,
        typer.Option(help="Compute in this on accelerators; by default in what suits the model."),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="The ranges to conclude scales from: see byoc calibrate.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="FOLDER|random", help="Samples to measure ranges on, without that file."),
    ] = None,
    accuracy_budget: Annotated[
        str | None,
        typer.Option(
            metavar="30dB|top1=0.99",
            help="Leave the most sensitive units in floating point, until so much is kept on --data.",
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Cut it as host-only and all-supported do, too, run all here, and keep the fastest.",
        ),
    ] = False,
    reasons: Annotated[
        bool, typer.Option("--reasons", help="Print every reason for staying on the host.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Run the result and the original, and compare.")] = True,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="A region that is not compiled or run is an error, and stays so."),
    ] = False,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Compile each region in a process of its own.")
    ] = False,
    compile_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Stop compiling a region after this; implies --isolate."),
    ] = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="Regions that are off, each alone, go back to the host.")
    ] = False,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DTYPE=ERROR", help="What --gate lets pass, as a share of the range: float32=0.001."
        ),
    ] = None,
    emit: Annotated[
        Emitted | None,
        typer.Option(help="Put a model with EPContext nodes into the bundle, for ONNX Runtime."),
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Cut a model between the host and one or several accelerators."""
    options = pairs(codegen_option or [], "--codegen-option")
    dims = sizes(dim, "--dim")
    counts = sizes(trips, "--trips")
    if save is not None:
        check_output(save)
        save = save.absolute()  # a codegen's code may change the working directory
    if threshold and not gate:
        raise typer.BadParameter("it says what --gate lets pass", param_hint="--threshold")
    if measure and output is None:
        raise typer.BadParameter("it runs the bundles that it writes (-o)", param_hint="--measure")
    cut: Callable[..., Result] = fastest if measure else run
    allowed = read_thresholds(pairs(threshold or [], "--threshold")) if gate else False
    budget = None if accuracy_budget is None else read_budget(accuracy_budget)
    asked = Precision(quantize and quantize.value, calibration, data, budget=budget)
    with progress() as show, own_stdout():
        result = cut(
            model,
            rules,
            output=output,
            strategy=strategy,
            objective=objective,
            cost_model=by_target(cost_model, "--cost-model"),
            host_cost_model=host_cost_model,
            unknown_costs=unknown_costs,
            codegen=by_target(codegen, "--codegen"),
            codegen_options=options,
            dims=dims,
            trips=counts,
            placement=placement,
            precision=asked,
            verify=verify,
            strict=strict,
            isolate=isolate,
            compile_timeout=compile_timeout,
            gate=allowed,
            emit=emit and emit.value,
            progress=show,
        )
    if save is not None:
        save_placement(result.plan, save)
    if form is Format.json:
        print_json(result.report)
    else:
        print_report(result.report, console(), every_reason=reasons)
