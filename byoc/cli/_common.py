"""Parts shared by the verbs: output formats, exit codes, progress, JSON, rows."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from byoc.console import print_table
from byoc.errors import InputError
from byoc.support import Panel, report_step, show_progress

NOT_VERIFIED = 4
"""The exit code for a bundle that was written, was to be verified, and could not be."""

CODEGEN_FAILED = 5
"""The exit code for a bundle that was written without regions at which a codegen failed."""

DIFFERENT = 6
"""The exit code for placements that differ, where the user asked for one (`diff --exit-code`)."""

_PART = re.compile(r"\b(\d{1,9}) of (\d{1,9})\b")


class TableFormat(StrEnum):
    """A format of rows."""

    text = "text"
    csv = "csv"
    json = "json"


class OutputFormat(StrEnum):
    """A format of results."""

    text = "text"
    json = "json"


FormatOption = Annotated[
    OutputFormat, typer.Option("--format", help="text for people, json for programs.")
]

VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print all rows, however many, and each in full.")
]


TrustOption = Annotated[
    bool,
    typer.Option("--trust", help="Look at files outside that the bundle refers to, whoever made it."),
]
AllowUnverifiedOption = Annotated[
    bool,
    typer.Option(
        "--allow-unverified",
        help="Leave with 0 although regions, or all, could not be verified on this machine.",
        rich_help_panel=Panel.REQUIREMENTS,
    ),
]


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Keep standard output for results; output of plug-ins goes to standard error."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed
        yield
        return
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def show_status() -> Iterator[Callable[[str], None]]:
    """Show each step that is reported inside; give a function that reports one.

    A bar is as long as the part that is done, where a step tells it (`3 of 12`), else it moves. Nothing
    is shown where there is no terminal.
    """
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield report_step
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def show(step: str) -> None:
            done, total = read_part(step)
            bars.update(task, description=step, completed=done, total=total)

        with show_progress(show):
            yield report_step


def read_part(step: str) -> tuple[int, int | None]:
    """Return the things that are done before a step that counts (`3 of 12`), and their total."""
    found = list(_PART.finditer(step))
    if not found:
        return 0, None
    number, total = int(found[-1][1]), int(found[-1][2])
    return (max(number - 1, 0), total) if number <= total else (0, None)


def check_outside(path: Path, other: Path, reason: str) -> None:
    """Raise InputError, with a reason, when an output is another file or folder, or lies in it."""
    place, whole = path.resolve(), other.resolve()
    if whole in (place, *place.parents):
        raise InputError(f"{path}: cannot be written: {reason}, {other}")


def print_json(document: Any) -> None:
    """Print one JSON document on standard output: in ASCII, names escaped as JSON does it."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def print_rows(rows: Sequence[Mapping[str, Any]], form: OutputFormat) -> None:
    """Print rows that share their keys as a table, or as a JSON list of objects."""
    if form is OutputFormat.json:
        print_json([dict(row) for row in rows])
        return
    print_table(_without_empty_columns(rows))


def _without_empty_columns(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    used = [key for key in (rows[0] if rows else ()) if any(row[key] not in ("", None) for row in rows)]
    return [{key: row[key] for key in used} for row in rows]
