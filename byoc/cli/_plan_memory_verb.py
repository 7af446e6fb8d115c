"""`byoc plan-memory`: plan the memory of activations in several ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

import byoc
import byoc.memory.report
from byoc import reporting
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import take_options
from byoc.console import format_count, format_quantity, print_line
from byoc.support import keywords_of

if TYPE_CHECKING:
    from byoc.memory.scratchpad import ScratchpadPlan


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
    print_rows([_make_row(row, size) for row in report.rows], OutputFormat.text)
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


def _make_row(row: byoc.memory.report.ReportRow, size: int | None) -> dict[str, Any]:
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
