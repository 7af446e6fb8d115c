"""`byoc tasks`: the distinct units of a model, for tools that price them."""

from __future__ import annotations

import csv
import json
import sys
from typing import Annotated, Any

import typer

import byoc
import byoc.options
from byoc import comparison
from byoc.cli._common import (
    OutputFormat,
    TableFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import take_options
from byoc.console import print_line
from byoc.errors import escape_unprintable
from byoc.reporting import format_count, format_quantity
from byoc.support import keywords_of

_MAX_SHOWN = 40


@take_options(byoc.options.UnitOptions)
def tasks(
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    options: byoc.options.UnitOptions,
    *,
    form: Annotated[
        TableFormat, typer.Option("--format", help="text, csv, or json: a list of rows.")
    ] = TableFormat.text,
) -> None:
    """List the distinct units of a model, for tools to price.

    These are what cost models are asked for; a cost file of the kind table brings the prices back.
    No cost model is loaded, so the one that the rule file names need not be there yet.
    """
    with show_status(), reserve_stdout():
        rows = [
            row.to_json()
            for row in byoc.list_tasks(model, **keywords_of(options, byoc.options.UnitOptions))
        ]
    if form is TableFormat.json:
        print_json(rows)
    elif form is TableFormat.csv:
        writer = csv.DictWriter(sys.stdout, comparison.TASK_KEYS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_make_cells(row) for row in rows)
    else:
        print_rows([_format_row(row) for row in rows[:_MAX_SHOWN]], OutputFormat.text)
        if len(rows) > _MAX_SHOWN:
            more = format_count(len(rows) - _MAX_SHOWN, "other task")
            print_line(f"and {more} (--format csv or json)")


def _make_cells(row: dict[str, Any]) -> dict[str, Any]:
    """Return the cells of a row of CSV: lists and attributes as JSON, names printable."""
    texts = {key: json.dumps(row[key]) for key in ("attributes", "nodes")}
    cells = {**row, **texts}
    return {
        key: escape_unprintable(cell) if isinstance(cell, str) else cell for key, cell in cells.items()
    }


def _format_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "device": row["device"],
        "op": row["op"],
        "types": row["types"],
        "operations": format_quantity(row["operations"], ""),
        "bytes": format_quantity(row["bytes"], "B"),
        "count": row["count"],
        "runs": f"{row['runs']:g}" if row["runs"] != row["count"] else "",
    }
