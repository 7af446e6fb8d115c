"""`byoc place`: solve an instance of a public placement benchmark."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import byoc
import byoc.pipeline
from byoc import comparison
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    TableFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import read_pairs, take_options
from byoc.console import format_count, format_quantity, print_line
from byoc.errors import escape_unprintable
from byoc.support import keywords_of, write_text

# `byoc tasks`: the distinct units of a model, for tools that price them.

_MAX_SHOWN = 40  # rows on a terminal; the file has all


@take_options(byoc.pipeline.UnitOptions)
def tasks(
    model: Annotated[str, typer.Argument(help="An ONNX file, or zoo:NAME.")],
    options: byoc.pipeline.UnitOptions,
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
            for row in byoc.list_tasks(model, **keywords_of(options, byoc.pipeline.UnitOptions))
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


def place(  # noqa: PLR0913, PLR0917 - the options of the verb
    instance: Annotated[
        Path,
        typer.Argument(
            help="JSON of the benchmark of Tarnawski et al. (NeurIPS 2020), or of a model's problem."
        ),
    ],
    objective: Annotated[
        str | None,
        typer.Option(
            help="latency or throughput as the benchmark defines them, or total: the sum of all costs.",
            show_default="throughput for training",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="How to place the nodes: see byoc strategies.", show_default="the objective's own"
        ),
    ] = None,
    strategy_option: Annotated[
        list[str] | None,
        typer.Option(
            help="An option of the strategy, see byoc strategies.", metavar="[STRATEGY:]NAME=VALUE"
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="The most that a strategy may take on an ordinary computer, counted by its steps.",
            metavar="SECONDS",
            show_default="10",
        ),
    ] = None,
    max_regions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most regions of an accelerator; 1: contiguous.",
            show_default="1 for the latency",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the placement here, as the benchmark's programs do."),
    ] = None,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Solve an instance of a public placement benchmark.

    The result gives the placement, its cost and a proven bound."""
    with show_status() as show, reserve_stdout():
        show(f"place the nodes of {instance} by {strategy or 'the strategy of the objective'}")
        document = byoc.place(
            instance,
            strategy,
            objective=objective,
            time_limit=time_limit,
            max_regions=max_regions,
            strategy_options=read_pairs(strategy_option or [], "--strategy-option"),
        )
    if output:
        _write_placement(output, document)
    if form is OutputFormat.json:
        print_json(document)
        return
    bound = document["bound_seconds"]
    gap = "" if document["gap"] is None else f", gap {document['gap']:.3%}"
    print_line(f"{instance}: {document['strategy']}")
    print_line(f"  {document['objective']:<10} {_format_seconds(document['objective_seconds'])}")
    print_line(f"  {'bound':<10} {'none' if bound is None else _format_seconds(bound) + gap}")
    print_line(f"  {'regions':<10} {document['regions']}")
    print_rows(
        [
            {
                "device": _name_device(row),
                "nodes": len(row["nodes"]),
                "regions": row["regions"],
                "execution": _format_seconds(row["execution_seconds"]),
                "transfer": _format_seconds(row["transfer_seconds"]),
                "memory": "" if row["kind"] == "core" else f"{row['bytes']:.4g} B",
            }
            for row in document["devices"]
        ],
        form,
    )
    for note in document["notes"]:
        print_line(f"note: {note}")


def _write_placement(path: Path, document: dict[str, Any]) -> None:
    """Write a placement as the benchmark's programs do: nodes and load (ms) of each device."""
    split: dict[str, list[dict[str, Any]]] = {"cpus": [], "fpgas": []}
    for device in document["devices"]:
        seconds = device["execution_seconds"] + device["transfer_seconds"]
        split["cpus" if device["kind"] == "core" else "fpgas"].append(
            {"load": seconds * 1e3, "nodes": device["nodes"]}
        )
    write_text(path, json.dumps(split, indent=1) + "\n")


def _name_device(row: dict[str, Any]) -> str:
    if row["device"] == 0:
        return "host"
    return f"{'core' if row['kind'] == 'core' else 'accelerator'} {row['device']}"


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.6g} s"
