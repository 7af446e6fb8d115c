"""`byoc place`: solve an instance of a public placement benchmark."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.console import print_line
from byoc.planning import place as run
from byoc.support import write_text


def place(
    instance: Annotated[
        Path, typer.Argument(help="JSON of the benchmark of Tarnawski et al. (NeurIPS 2020).")
    ],
    strategy: Annotated[
        str, typer.Option(help="How to place the nodes: see byoc strategies.")
    ] = "launch-aware",
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
        document = run(instance, strategy)
    if output:
        _write_placement(output, document)
    if form is OutputFormat.json:
        print_json(document)
        return
    bound = document["bound_seconds"]
    gap = "" if document["gap"] is None else f", gap {document['gap']:.3%}"
    print_line(f"{instance}: {strategy}")
    print_line(f"  {document['objective']:<9} {_format_seconds(document['objective_seconds'])}")
    print_line(f"  {'bound':<9} {'none' if bound is None else _format_seconds(bound) + gap}")
    print_line(f"  {'regions':<9} {document['regions']}")
    print_rows(
        [
            {
                "device": "host" if row["device"] == 0 else f"accelerator {row['device']}",
                "nodes": len(row["nodes"]),
                "regions": row["regions"],
                "execution": _format_seconds(row["execution_seconds"]),
                "transfer": _format_seconds(row["transfer_seconds"]),
                "memory": f"{row['bytes']:.4g} B" if row["device"] else "",
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
        split["fpgas" if device["device"] else "cpus"].append(
            {"load": seconds * 1e3, "nodes": device["nodes"]}
        )
    write_text(path, json.dumps(split, indent=1) + "\n")


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.6g} s"
