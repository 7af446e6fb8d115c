"""`byoc diff`: what changed from one placement to another, why, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import byoc
import byoc.model
import byoc.options
from byoc import bundle, comparison
from byoc.cli._common import (
    DIFFERENT,
    FormatOption,
    OutputFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import flag_field, take_options
from byoc.console import print_line, print_lines
from byoc.reporting import format_count, format_quantity, format_share
from byoc.support import Flag, Syntax

_SHOWN = 12  # rows without `--verbose`: what fits on a screen with the totals
_NAMES = 3  # of nodes in a row without `--verbose`
_COSTS = {
    "seconds": ("predicted", "s"),
    "execution": ("execution", "s"),
    "transfer": ("transfer", "s"),
    "launch": ("launch", "s"),
    "launches": ("launches", ""),
    "joules": ("energy", "J"),
    "host_only": ("host alone", "s"),
    "offloaded_nodes": ("nodes offloaded", ""),
    "offloaded_share": ("of the compute", "%"),
}


@dataclass(frozen=True, kw_only=True)
class DiffFlags(byoc.model.DimensionOptions):
    """The flags of `byoc diff`: how rule files are compared, and what is told."""

    model: str | None = flag_field(Flag("What rule files are compared by: an ONNX file, or zoo:NAME."))
    strategy: str = flag_field(
        Flag("How the model is placed by rule files, see byoc strategies."),
        byoc.options.DEFAULT_STRATEGY,
    )
    variant: str | None = flag_field(
        Flag("The variant to compare, of bundles with several.", metavar="NAME")
    )
    exit_code: bool = flag_field(Flag("Leave with 6 if anything differs.", Syntax.SWITCH), False)
    verbose: bool = flag_field(Flag("Show every row, and the names of all nodes.", Syntax.SWITCH), False)


@take_options(DiffFlags, first=("model", "strategy", "exit_code", "verbose"))
def diff(
    old: Annotated[
        str, typer.Argument(help="A bundle, JSON report, saved placement, or rule file; before.")
    ],
    new: Annotated[str, typer.Argument(help="What to compare with it; after.")],
    options: DiffFlags,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Compare two placements: moved nodes, reasons, and costs."""
    planning = {"strategy": options.strategy, "dims": options.dims, "shapes": options.shapes}
    with show_status(), reserve_stdout():
        before, after = (_find(name, options.variant) for name in (old, new))
        found = byoc.diff(before, after, options.model, **planning)
    if form is OutputFormat.json:
        print_json(found.to_json())
    else:
        print_diff(found, options.verbose)
    if options.exit_code and not found.equal:
        raise typer.Exit(DIFFERENT)


def _find(name: str, variant: str | None) -> str | Path | byoc.Bundle:
    """Return a path, a variant of the bundle there, or the name of an installed rule file."""
    path = Path(name)
    if variant is not None and bundle.is_bundle(path):
        return bundle.open_own_files(path).choose(variant)
    return path if path.exists() else name


def print_diff(found: byoc.PlacementDiff, verbose: bool = False) -> None:
    """Print the differences between two placements; all of them with `verbose`."""
    print_line(f"{found.old} -> {found.new}: {_summarize(found)}")
    limit = None if verbose else _SHOWN
    sections = {
        "Moved": [_describe_move(move, verbose) for move in found.moves if move.is_move],
        "On the host for another reason": [
            {
                "nodes": len(move.nodes),
                "operator": move.operator,
                "before": move.reason_before,
                "after": move.reason_after,
            }
            for move in found.moves
            if not move.is_move
        ],
        "New nodes": [*_describe_counts(found.added)],
        "Nodes that are gone": [*_describe_counts(found.removed)],
        "Regions": [_describe_region(change) for change in found.regions],
    }
    if found.matched is None:
        sections["Nodes on the host, by reason"] = [
            {"before": before, "after": after, "reason": reason}
            for reason, (before, after) in found.reasons.items()
        ]
    sections["Costs of one run"] = [*_describe_costs(found.costs)]
    for title, rows in sections.items():
        if rows:
            print_lines(["", f"{title}:"])
            print_rows(rows[:limit], OutputFormat.text)
            if len(rows) > len(rows[:limit]):
                print_line(f"... and {len(rows) - _SHOWN} more (--verbose)")
    if found.notes:
        print_lines(["", *found.notes])


def _summarize(found: byoc.PlacementDiff) -> str:
    """Return the differences in one line."""
    if found.equal:
        said = "placed alike"
    elif found.matched is None:
        number = len(found.regions)
        said = f"{format_count(number, 'region')} {'differs' if number == 1 else 'differ'}"
    else:
        said = f"{found.moved} of {format_count(found.matched, 'node')} moved"
    for name, counts in (("new", found.added), ("gone", found.removed)):
        if counts:
            said += f", {sum(sum(devices.values()) for devices in counts.values())} {name}"
    seconds = found.costs.get("seconds")
    if seconds is not None and seconds.before is not None and seconds.after is not None:
        before, after = (format_quantity(value, "s") for value in (seconds.before, seconds.after))
        same = seconds.is_equal
        said += f"; predicted {after}" if same else f"; predicted {before} -> {after}{_change(seconds)}"
    return said


def _change(cost: comparison.CostChange) -> str:
    """Return by how much a cost changed, empty where that is no number."""
    if not cost.before or cost.after is None:
        return ""
    return f" ({cost.after / cost.before - 1:+.1%})".replace("%", " %")


def _describe_move(move: comparison.NodeMove, verbose: bool) -> dict[str, object]:
    """Return a row: what moved from where to where, and why."""
    if move.reason_after:
        why = move.reason_after
        if move.rules_before:
            why += f" (before: {', '.join(move.rules_before)})"
    elif move.reason_before:
        why = f"before: {move.reason_before}"
        if move.rules_after:
            why += f" (now: {', '.join(move.rules_after)})"
    else:
        rules = (", ".join(each) for each in (move.rules_before, move.rules_after))
        why = " -> ".join(filter(None, rules))
    names = move.nodes if verbose else move.nodes[:_NAMES]
    more = f" and {len(move.nodes) - len(names)} more" if len(move.nodes) > len(names) else ""
    return {
        "nodes": len(move.nodes),
        "operator": move.operator,
        "compute": "" if move.share is None else format_share(move.share),
        "from": _join_place(move.device_before, move.regions_before),
        "to": _join_place(move.device_after, move.regions_after),
        "why": why,
        "names": ", ".join(names) + more,
    }


def _join_place(device: str, regions: tuple[str, ...]) -> str:
    """Return a device, or the region there if it is one."""
    return regions[0] if len(regions) == 1 else device


def _describe_counts(counts: Mapping[str, Mapping[str, int]]) -> Iterator[dict[str, object]]:
    for operator, devices in counts.items():
        for device, number in devices.items():
            yield {"nodes": number, "operator": operator, "device": device}


def _describe_region(change: comparison.RegionChange) -> dict[str, object]:
    seconds = (change.seconds_before, change.seconds_after)
    before, after = ("" if each is None else format_quantity(each, "s") for each in seconds)
    return {
        "region": change.kind,
        "before": change.before or "",
        "after": change.after or "",
        "nodes before": "" if change.nodes_before is None else change.nodes_before,
        "nodes after": "" if change.nodes_after is None else change.nodes_after,
        "predicted before": before,
        "predicted after": after,
    }


def _describe_costs(costs: Mapping[str, comparison.CostChange]) -> Iterator[dict[str, object]]:
    """Yield a row for each cost that changed."""
    for name, cost in costs.items():
        if not cost.is_equal:
            title, unit = _COSTS[name]
            yield {
                "": title,
                "before": _format_cost(cost.before, unit),
                "after": _format_cost(cost.after, unit),
                "change": _change(cost).strip(" ()"),
            }


def _format_cost(value: float | None, unit: str) -> str:
    if value is None:
        return "not known"
    return format_share(value) if unit == "%" else format_quantity(value, unit)
