"""`byoc cache`: what is kept of earlier compiles; clear it, limit it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

import byoc.cache
from byoc.cli._common import FormatOption, OutputFormat, print_json
from byoc.codegen import parse_size
from byoc.console import print_line, print_table
from byoc.reporting import format_count, format_quantity

app = typer.Typer(add_completion=False, rich_markup_mode=None)

FolderOption = Annotated[
    Path | None,
    typer.Option("--cache-dir", metavar="FOLDER", help="This cache; by default the user's own."),
]


@app.callback(invoke_without_command=True)
def cache(
    context: typer.Context, folder: FolderOption = None, form: FormatOption = OutputFormat.text
) -> None:
    """Show what is kept of earlier compiles, clear it, or limit it."""
    if context.invoked_subcommand:
        if form is not OutputFormat.text:
            raise typer.BadParameter(f"{context.invoked_subcommand} prints text", param_hint="--format")
        context.obj = folder
        return
    opened = byoc.cache.open_cache(folder)
    usage, rows = opened.measure(), _list_codegens(opened)
    if form is OutputFormat.json:
        counts = {"entries": usage.entries, "bytes": usage.size, "limit": usage.limit}
        print_json({"folder": str(usage.folder), **counts, "codegens": rows})
        return
    size, most = format_quantity(usage.size, "B"), format_quantity(usage.limit, "B")
    print_line(f"{usage.folder}: {format_count(usage.entries, 'result')}, {size} of at most {most}")
    if rows:
        print_line()
        print_table(
            [{**row, "bytes": format_quantity(row["bytes"], "B")} for row in rows],
            right=("entries", "bytes"),
        )


@app.command("clear")
def clear(
    context: typer.Context,
    folder: FolderOption = None,
    codegen: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only what this codegen compiled.")
    ] = None,
) -> None:
    """Remove what is kept; the next run compiles it again."""
    opened = byoc.cache.open_cache(_choose_folder(context, folder))
    removed = opened.clear(None if codegen is None else lambda facts: facts.get("codegen") == codegen)
    print_line(f"{opened.folder}: {format_count(removed, 'result')} removed")


@app.command("limit")
def limit(
    size: Annotated[str, typer.Argument(metavar="SIZE", help="The most bytes, such as 500MiB or 8GiB.")],
    context: typer.Context,
    folder: FolderOption = None,
) -> None:
    """Set how much is kept; what was used longest ago goes first."""
    try:
        most = parse_size(size)
    except ValueError as error:
        raise typer.BadParameter(f"{error}, such as 500MiB", param_hint="SIZE") from None
    opened = byoc.cache.open_cache(_choose_folder(context, folder))
    opened.set_limit(most)
    print_line(f"{opened.folder}: at most {format_quantity(most, 'B')} from now on")


def _choose_folder(context: typer.Context, folder: Path | None) -> Path | None:
    """Return the folder that was given after `clear` or `limit`, else the one before."""
    before: Path | None = context.obj
    return before if folder is None else folder


def _list_codegens(opened: byoc.cache.Cache) -> list[dict[str, Any]]:
    """Return a row for each codegen: its entries, their bytes, and when one was last used."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in opened.list_entries():
        facts = opened.read_facts(entry)
        name = "(not of this machine)" if facts is None else str(facts.get("codegen", ""))
        row = rows.setdefault(name, {"codegen": name, "entries": 0, "bytes": 0, "last used": ""})
        row["entries"] += 1
        row["bytes"] += entry.size
        row["last used"] = _format_time(entry.used)
    return sorted(rows.values(), key=lambda row: str(row["codegen"]))


def _format_time(seconds: float) -> str:
    """Return a local time, of POSIX seconds; "" for a year that no calendar of Python has."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):
        return ""
