"""`byoc place`: solve an instance of a public placement benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import byoc
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._flag_values import read_pairs
from byoc.console import print_line
from byoc.support import write_text


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
        show("place")
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
