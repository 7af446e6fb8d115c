"""The text that `byoc plan-memory` prints for people: a sentence, the table of plans, notes."""

from collections.abc import Iterator
from typing import Any

import typer

from byoc.cli.common import Format, print_rows
from byoc.memory.levels import Levels
from byoc.memory.report import STRIPED, STRIPED_COUNTS, MemoryReport, Row, conventions_document
from byoc.report.units import count, quantity

_PROOFS = {
    "cut": "minimum cut",
    "search": "all orders searched",
    "total": "inputs together",
}


def print_report(report: MemoryReport, size: int | None) -> None:
    """Print the plans of a model; with `size` (bytes) each row says whether its arena fits."""
    problem = report.plan.problem
    made = f"{count(len(problem.steps), 'step')}, {count(len(problem.sizes), 'buffer')}"
    rounded = f", rounded up to {problem.alignment} B" if problem.alignment > 1 else ""
    typer.echo(_summary(report))
    typer.echo(f"{made} in {convention_told(report)}{rounded}")
    print_rows([_row(row, size) for row in report.rows], Format.text)
    if report.levels is not None:
        there = quantity(report.levels.size, "B")
        typer.echo(f"scratchpad of {there} and system memory, bytes moved:")
        print_rows([_moved(report.levels)], Format.text)
    for note in report.notes:
        typer.echo(f"note: {note}")


def legend(has_striped: bool) -> Iterator[str]:
    """Yield lines that explain the conventions of the rows."""
    yield "Weights are not counted."
    for letter, counts in conventions_document().items():
        yield f"{letter}: {counts}"
    if has_striped:
        yield f"{STRIPED}: {STRIPED_COUNTS}"


def convention_told(report: MemoryReport) -> str:
    """Return the convention of the detailed plan, in words."""
    return f"convention {report.model.convention.name} ({report.model.convention})"


def _summary(report: MemoryReport) -> str:
    plan = report.plan
    proven = f"no plan needs less than {quantity(plan.bound, 'B')}"
    told = f"{quantity(plan.size, 'B')} of activations, "
    told += "proven minimal" if plan.is_minimal else proven
    if report.striped is not None and report.striped.plan.size < plan.size:
        told += f"; {quantity(report.striped.plan.size, 'B')} in bands of rows"
    return f"{report.name}: {told}"


def _row(row: Row, size: int | None) -> dict[str, Any]:
    return {
        "plan": row.name,
        "counts": row.convention,
        "arena": quantity(row.size, "B"),
        "bytes": row.size,
        "lower_bound": row.bound,
        "ratio": _ratio(row.ratio),
        "proof": _PROOFS.get(row.proof or "", row.proof),
        "of_C's_bound": _ratio(row.of_c),
        "fits": None if size is None else row.size <= size,
    }


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _moved(levels: Levels) -> dict[str, Any]:
    moved = {
        "moved": levels.moved,
        "bound": levels.bound,
        "loaded": levels.loaded,
        "stored": levels.stored,
        "streamed": levels.streamed,
        "unkept": levels.unkept,
        "arena": levels.arena,
    }
    told = {key: quantity(bytes_, "B") for key, bytes_ in moved.items()}
    return told | {"loads": levels.loads, "stores": levels.stores}
