"""`byoc profile`: measure operators on this machine, and write a cost model."""

import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated

import typer

from byoc.bundle import rule_file_options
from byoc.cli._common import read_pairs, reserve_stdout, show_status
from byoc.codegen import find_codegen
from byoc.costs import CostTable, check_fallback
from byoc.costs import fit_linear_model as fit_lines
from byoc.errors import InputError
from byoc.profiling import (
    MeasuredCodegen,
    MeasurementRecords,
    Patience,
    describe_machine,
    measure_copies,
    measure_launch,
    time_nodes,
    time_units,
    write_costs,
)
from byoc.reporting import format_count
from byoc.rules import load_rules
from byoc.support import check_output
from byoc.zoo import load_model

_HOST = "host"
_SHOWN = 3


def profile(  # noqa: PLR0913, PLR0917 - the options of the verb
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, or zoo:NAME.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the cost model here.")],
    device: Annotated[str, typer.Option(metavar="host|CODEGEN", help="What to measure.")] = _HOST,
    rules: Annotated[
        str | None,
        typer.Option(help="Measure the units of a rule file, composites too; else every operator."),
    ] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Write lines fitted to the measurements.")] = False,
    otherwise: Annotated[
        str | None, typer.Option("--else", help="The model to be asked for what was not measured.")
    ] = None,
    codegen_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Passed to the codegen.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="Measure each model, or each unit, no longer than this.")
    ] = 5.0,
    repeats: Annotated[int, typer.Option(min=1, help="Measure no more often than this.")] = 100,
) -> None:
    """Measure operators on this machine, and write a cost model."""
    options = read_pairs(codegen_option or [], "--codegen-option")
    check_output(output)
    if otherwise is not None:
        check_fallback(output, otherwise)
    if device == _HOST and (rules is not None or options):
        raise typer.BadParameter("--rules and --codegen-option are for a codegen", param_hint="--device")
    patience = Patience(seconds=seconds, most=repeats, least=min(repeats, 5))
    with reserve_stdout():
        if device == _HOST:
            table = _measure_host(models, patience, otherwise)
        else:
            made = _make_device(device, rules, options, patience)
            table = _measure_codegen(models, made, rules, otherwise)
    write_costs(output, fit_lines(table) if fit else table)
    what = "lines fitted to measurements" if fit else "measurements"
    typer.echo(f"{output}: {what} of {len(table.entries)} operators, each on tensors of its types")


def _make_device(
    name: str, rules: str | None, given: dict[str, str], patience: Patience
) -> MeasuredCodegen:
    codegen = find_codegen(name)
    own = {} if rules is None else rule_file_options(load_rules(rules), codegen)
    device = MeasuredCodegen(codegen, {**own, **given}, patience)
    _ = device.compile_options
    return device


def _measure_host(models: list[str], patience: Patience, otherwise: str | None) -> CostTable:
    records = MeasurementRecords()
    names = []
    together = []
    with show_status() as show:
        for name in models:
            show(f"{name}: load")
            model = load_model(name)
            names.append(model.name)
            show(f"{name}: measure")
            times = time_nodes(model, patience)
            lost = times.add_to(records)
            together.append(times.together)
            if lost:
                _print_warning(
                    f"{name}: the cost of {format_count(lost, 'node')} cannot be looked "
                    "up: open shapes, bodies"
                )
    _require_entries(records)
    return records.make_table(
        _HOST,
        _describe_units(names),
        describe_machine(),
        together=geometric_mean(together),
        otherwise=otherwise,
    )


def _measure_codegen(
    models: list[str], device: MeasuredCodegen, rules: str | None, otherwise: str | None
) -> CostTable:
    records = MeasurementRecords()
    names = []
    target = load_rules(rules) if rules is not None else None
    with show_status() as show:
        for name in models:
            show(f"{name}: load")
            model = load_model(name)
            names.append(model.name)
            problems = time_units(model, target, device, records, show)
            for problem in problems[:_SHOWN]:
                _print_warning(f"{name}: not measured: {' '.join(problem.split())}")
            if len(problems) > _SHOWN:
                _print_warning(f"{name}: not measured: {len(problems) - _SHOWN} more")
        _require_entries(records)
        show("launch and copies")
        start = measure_launch(device, records)
        link = measure_copies(device.patience)
    return records.make_table(
        device.name,
        _describe_units(names),
        describe_machine(),
        link=link,
        launch=start,
        otherwise=otherwise,
    )


def _describe_units(names: list[str]) -> str:
    return f"measured on {', '.join(names)}"


def _require_entries(records: MeasurementRecords) -> None:
    if not len(records):
        raise InputError("nothing was measured, so there is nothing to write")


def _print_warning(message: str) -> None:
    sys.stderr.write(f"byoc: {message}\n")
