"""`byoc rules`: what rule files there are; and to write one: check, schema, composites."""

from pathlib import Path
from typing import Annotated

import typer

from byoc.cli.common import Format, FormatOption, own_stdout, print_json, print_rows
from byoc.cli.installed import Row, file_rows
from byoc.errors import InputError
from byoc.plugins import ANNOTATIONS
from byoc.rules.json_schema import json_schema
from byoc.rules.library import clash, library
from byoc.rules.load import load_rules

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def rules(context: typer.Context, form: FormatOption = Format.text) -> None:
    """List the installed rule files, or check one, or help to write one."""
    if context.invoked_subcommand:
        return

    def describe(path: Path) -> Row:
        described = load_rules(str(path)).rules
        return {
            "target": described.target,
            "description": described.description,
            "codegen": described.codegen,
            "cost_model": described.cost_model,
            "operators": len({op for rule in described.ops for op in rule.op}),
            "composites": len(described.composites),
        }

    with own_stdout():
        rows = list(file_rows(ANNOTATIONS, describe))
    print_rows(rows, form)


@app.command("check")
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Rule files, or names of some.")],
    form: FormatOption = Format.text,
) -> None:
    """Say everything that is wrong with rule files, each with its place."""
    with own_stdout():
        rows = [_checked(file) for file in files]
    if form is Format.json:
        print_json(rows)
    else:
        for row in rows:
            typer.echo("\n".join(row["problems"]) or _fine(row))
    if any(row["problems"] for row in rows):
        raise typer.Exit(1)


def _checked(file: str) -> Row:
    try:
        described = load_rules(file).rules
    except InputError as error:
        return {"file": file, "operators": None, "composites": None, "problems": str(error).splitlines()}
    return {
        "file": file,
        "operators": len({op for rule in described.ops for op in rule.op}),
        "composites": len(described.composites),
        "problems": [],
    }


def _fine(row: Row) -> str:
    operators, composites = row["operators"], row["composites"]
    return (
        f"{row['file']}: ok, {operators} operator{'s' * (operators != 1)}, "
        f"{composites} composite{'s' * (composites != 1)}"
    )


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of rule files, which editors complete and check them by."""
    print_json(json_schema())


@app.command("composites")
def composites(form: FormatOption = Format.text) -> None:
    """List the library: the composites that rule files can take by name."""
    with own_stdout():
        found = library()
    rows = [
        {
            "name": name,
            "description": entry.composite.description,
            "file": str(entry.file.path),
            "problem": clash(name, entries) if len(entries) > 1 else "",
        }
        for name, entries in found.entries.items()
        for entry in entries
    ]
    empty = {"name": "", "description": "", "file": ""}
    print_rows([*rows, *({**empty, "problem": problem} for problem in found.problems)], form)
