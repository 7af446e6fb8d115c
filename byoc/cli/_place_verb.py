"""`byoc place`: solve an instance of a public placement benchmark."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.errors import InputError
from byoc.placement import (
    Placement,
    PlacementInstance,
    Problem,
    Strategy,
    describe_ignored,
    evaluate,
    find_violation,
    normalize_placement,
    read_instance,
    run_strategy,
    strategy_display_name,
)
from byoc.placement.strategies import ScheduledPlacement
from byoc.support import STRATEGIES, load_plugin, write_text

Document = dict[str, Any]


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
        show("read")
        given = read_instance(instance)
        show("place")
        document = solve_instance(given, load_plugin(STRATEGIES, strategy), str(instance))
    if output:
        _write_placement(output, document)
    if form is OutputFormat.json:
        print_json(document)
        return
    bound = document["bound_seconds"]
    gap = "" if document["gap"] is None else f", gap {document['gap']:.3%}"
    typer.echo(f"{instance}: {strategy}")
    typer.echo(f"  {document['objective']:<9} {_format_seconds(document['objective_seconds'])}")
    typer.echo(f"  {'bound':<9} {'none' if bound is None else _format_seconds(bound) + gap}")
    typer.echo(f"  {'regions':<9} {document['regions']}")
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
        typer.echo(f"note: {note}")


def solve_instance(instance: PlacementInstance, strategy: Strategy, source: str) -> Document:
    """Solve an instance, and return the document that `byoc place --format json` prints.

    Raises InputError where the strategy fails, or its placement is not valid.
    """
    problem = instance.problem
    name, ignored = strategy_display_name(strategy), describe_ignored(strategy, problem)
    placement = run_strategy(strategy, problem)
    wrong = find_violation(problem, placement)
    if wrong or not isinstance(placement, Placement):
        raise InputError(f"strategy {name}: {wrong}")
    placement = normalize_placement(problem, placement)
    schedule = placement.schedule if isinstance(placement, ScheduledPlacement) else None
    objective = schedule.makespan if schedule else placement.cost.total
    notes = dict.fromkeys((*instance.notes, *placement.notes, *ignored))
    return {
        "instance": source,
        "strategy": name,
        "objective": "makespan" if schedule else "latency",
        "objective_seconds": objective,
        "bound_seconds": placement.bound,
        "gap": _compute_gap(objective, placement.bound),
        "regions": int(placement.regions.max(initial=-1)) + 1,
        "devices": [
            _describe_load(instance, placement, device) for device in range(problem.devices + 1)
        ],
        "notes": list(notes),
    }


def _compute_gap(objective: float, bound: float | None) -> float | None:
    """Return the largest possible distance from the optimum, as a share of the objective."""
    if bound is None:
        return None
    return max(0.0, 1 - bound / objective) if objective else 0.0


def _describe_load(instance: PlacementInstance, placement: Placement, device: int) -> Document:
    """Return the load of one device; a transfer counts for the accelerator at its end."""
    problem, here = instance.problem, placement.labels == device
    regions = np.unique(placement.regions[here & (placement.regions >= 0)])
    return {
        "device": device,
        "nodes": sorted(node for unit in np.flatnonzero(here) for node in instance.nodes[unit]),
        "regions": len(regions),
        "execution_seconds": math.fsum(problem.seconds[here, device]),
        "transfer_seconds": _sum_transfers(problem, placement, device) if device else 0.0,
        "bytes": math.fsum(problem.memory[here, device - 1]) if device else 0.0,
    }


def _sum_transfers(problem: Problem, placement: Placement, device: int) -> float:
    """Return the seconds of the transfers to and from one accelerator."""
    only = np.arange(problem.devices) == device - 1
    alone = replace(
        problem,
        to_device=np.where(only, problem.to_device, 0.0),
        to_host=np.where(only, problem.to_host, 0.0),
    )
    return evaluate(alone, placement.labels, placement.regions).transfer


def _write_placement(path: Path, document: Document) -> None:
    """Write a placement as the benchmark's programs do: nodes and load (ms) of each device."""
    split: dict[str, list[Document]] = {"cpus": [], "fpgas": []}
    for device in document["devices"]:
        seconds = device["execution_seconds"] + device["transfer_seconds"]
        split["fpgas" if device["device"] else "cpus"].append(
            {"load": seconds * 1e3, "nodes": device["nodes"]}
        )
    write_text(path, json.dumps(split, indent=1) + "\n")


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.6g} s"
