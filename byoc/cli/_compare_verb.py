"""`byoc compare`: strategies side by side, over models and links."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

import byoc
import byoc.bundle
import byoc.model
import byoc.pipeline
import byoc.reporting.page
from byoc import comparison, costs, reporting
from byoc._dataclasses import asdict, dataclass
from byoc.cli._common import (
    DIFFERENT,
    FormatOption,
    OutputFormat,
    TableFormat,
    check_outside,
    print_json,
    print_rows,
    read_links,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import JUnitFile, JUnitOption, flag_field, take_options
from byoc.console import (
    FoldedText,
    format_count,
    format_decibels,
    format_quantity,
    format_share,
    print_errors,
    print_line,
    print_lines,
)
from byoc.errors import InputError
from byoc.support import Flag, Panel, Syntax, check_output, keywords_of, write_text

# `byoc diff`: what changed from one placement to another, why, and what it costs.

_NO_TOLERANCES = byoc.Tolerances()
_SHOWN = 12  # rows without `--verbose`: what fits on a screen with the totals
_NARROW = 54  # columns of a table on a screen of 480 pixels
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
    """The flags of `byoc diff`: how rule files are compared, what is told, and what is tolerated."""

    model: str | None = flag_field(Flag("What rule files are compared by: an ONNX file, or zoo:NAME."))
    strategy: str | None = flag_field(
        Flag(
            "How the model is placed by rule files, see byoc strategies; "
            f"{byoc.pipeline.DEFAULT_STRATEGY} unless given."
        )
    )
    variant: str | None = flag_field(
        Flag("The variant to compare, of bundles with several.", metavar="NAME")
    )
    exit_code: bool = flag_field(Flag("Leave with 6 if anything differs.", Syntax.SWITCH), False)
    only_worse: bool = flag_field(
        Flag(
            "Leave with 6 only if NEW is slower or less exact, or has lost operators.",
            Syntax.SWITCH,
            panel=Panel.REQUIREMENTS,
        ),
        False,
    )
    html: Path | None = flag_field(
        Flag("Draw two bundles beside one another, for a browser.", Syntax.PATH, metavar="FILE")
    )
    tolerances: byoc.Tolerances = _NO_TOLERANCES
    verbose: bool = flag_field(Flag("Show every row, and the names of all nodes.", Syntax.SWITCH), False)

    @property
    def is_gate(self) -> bool:
        """Whether the new side is judged."""
        return self.only_worse or self.tolerances != _NO_TOLERANCES


@take_options(DiffFlags, first=("model", "strategy", "exit_code", "verbose"))
def diff(
    old: Annotated[
        str, typer.Argument(help="A bundle, JSON report, saved placement, or rule file; before.")
    ],
    new: Annotated[str, typer.Argument(help="What to compare with it; after.")],
    options: DiffFlags,
    form: FormatOption = OutputFormat.text,
    *,
    junit: JUnitOption = None,
) -> None:
    """Compare two placements: moved nodes, reasons, and costs.

    With --only-worse, or with a tolerance, it is a check: the exit code is 6 only if NEW is worse than
    tolerated, and standard error says in what.
    """
    if options.exit_code and options.is_gate:
        raise typer.BadParameter(
            "it leaves with 6 for any difference, better ones too: give it alone",
            param_hint="--exit-code",
        )
    if junit is not None and not options.is_gate:
        raise typer.BadParameter("it holds what is judged: give --only-worse, too", param_hint="--junit")
    tests = JUnitFile.prepare(junit, "diff", old, new, options.model)
    if options.html is not None:
        _check_page(options.html, old, new)
    given = {"strategy": options.strategy, "dims": options.dims, "shapes": options.shapes}
    planning = {name: value for name, value in given.items() if value}
    with tests.record_errors(new):
        with show_status(), reserve_stdout():
            found = byoc.diff(old, new, options.model, variant=options.variant, **planning)
        checks = found.list_checks(options.tolerances) if options.is_gate else ()
    if form is OutputFormat.json:
        judged = {"checks": [asdict(each) for each in checks]} if options.is_gate else {}
        print_json({**found.to_json(), **judged})
    else:
        print_diff(found, options.verbose)
    if options.html is not None:
        _write_page(options.html, old, new, found, options.variant)
    cases = [reporting.JUnitCase(each.name, each.outcome, each.sentence) for each in checks]
    tests.write([reporting.JUnitSuite(f"{old} -> {new}", tuple(cases))])
    if worse := [each.sentence for each in checks if each.outcome == "failure"]:
        print_errors(worse)
    if worse or (options.exit_code and not found.equal):
        raise typer.Exit(DIFFERENT)


def _check_page(path: Path, old: str, new: str) -> None:
    """Raise InputError for a page that cannot be written, or of what is no bundle."""
    check_output(path)
    for name in (old, new):
        if not byoc.bundle.is_bundle(Path(name)):
            raise InputError(f"{name}: --html draws bundles, and this is none: partition with -o first")
        whole, _ = byoc.bundle.split_path(Path(name))
        check_outside(path, whole, "it would change the bundle that is shown")


def _write_page(path: Path, old: str, new: str, found: byoc.PlacementDiff, variant: str | None) -> None:
    bundles = [byoc.open_bundle(name, variant=variant) for name in (old, new)]
    moved = {name for move in found.moves if move.is_move for name in move.nodes}
    with redirect_stdout(FoldedText()) as wide:
        print_diff(found)
    with redirect_stdout(FoldedText(_NARROW)) as narrow:
        print_diff(found)
    texts = (wide.getvalue(), narrow.getvalue())
    page = byoc.reporting.page.make_diff_page(bundles[0], bundles[1], texts, moved)
    write_text(path, page)
    print_errors([f"Written to {path}"])


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
    sections["Errors of outputs"] = [*_describe_error_changes(found.errors)]
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


def _describe_error_changes(errors: Sequence[comparison.ErrorChange]) -> Iterator[dict[str, object]]:
    """Yield a row for each output whose error changed."""
    for each in errors:
        if each.before != each.after:
            ratio = each.measure == "accuracy"
            values = (each.before, each.after)
            before, after = (format_decibels(value) if ratio else f"{value:.1e}" for value in values)
            yield {
                "output": each.output,
                "": "against the float model" if ratio else "of its range",
                "before": before,
                "after": after,
                "growth": f"{each.growth:+.2f} dB" if isfinite(each.growth) else "",
            }


def _format_cost(value: float | None, unit: str) -> str:
    if value is None:
        return "not known"
    return format_share(value) if unit == "%" else format_quantity(value, unit)


_MAX_NOTES = 10  # footnotes under a table; the rest is in the JSON


@take_options(byoc.pipeline.PlanOptions)
def compare(  # noqa: PLR0913 - the options of the verb
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, or zoo:NAME.")],
    options: byoc.pipeline.PlanOptions,
    *,
    strategies: Annotated[
        list[str] | None,
        typer.Option(
            help="Names, with commas between: see byoc strategies.",
            show_default=",".join(comparison.FAST_STRATEGIES),
        ),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(help="Bandwidths of the link in GB/s, with commas between, or repeated."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time; as many as processors unless given.")
    ] = None,
    form: Annotated[
        TableFormat, typer.Option("--format", help="text, csv, or json: a list of rows.")
    ] = TableFormat.text,
    junit: JUnitOption = None,
) -> None:
    """Place models by several strategies, and compare the results.

    A model that fails is an error of its own, and the rest goes on; the exit code is then 1. After an
    interrupt the cases that are done are printed. Where --rules is given more than once,
    provider-order takes the place of min-cut unless strategies are given.
    """
    tests = JUnitFile.prepare(junit, "compare", models, options.rules)
    names = _read_names(strategies) if strategies else ()
    links = read_links(link) or (None,)
    with tests.record_errors("compare"), show_status(), reserve_stdout():
        plain = keywords_of(options, byoc.pipeline.PlanOptions)
        rows, cause = _run(
            lambda: byoc.compare(models, **plain, strategies=names, links=links, jobs=jobs)
        )
    _print(rows, form, costs.objective_unit(options.objective))
    tests.write(_make_suites(rows))
    if cause is not None:
        print_errors([f"stopped: {format_count(len(rows), 'case')} done, above"])
        raise cause
    if any(row["error"] for row in rows):
        raise typer.Exit(1)


def _make_suites(rows: Sequence[comparison.StrategyRow]) -> list[reporting.JUnitSuite]:
    """Return a suite for each model, with a case for each strategy and link."""
    suites: dict[str, list[reporting.JUnitCase]] = {}
    for row in rows:
        at = "" if row["link"] is None else f" at {row['link']:g} GB/s"
        name = f"{row['strategy']}{at}"
        case = reporting.JUnitCase(name, "error" if row["error"] else "passed", row["error"] or "")
        suites.setdefault(row["model"], []).append(case)
    return [reporting.JUnitSuite(model, tuple(cases)) for model, cases in suites.items()]


def _run(
    compare: Callable[[], list[comparison.StrategyRow]],
) -> tuple[list[comparison.StrategyRow], BaseException | None]:
    """Return the rows, and what stopped the comparison before it had all of them."""
    try:
        return compare(), None
    except (KeyboardInterrupt, SystemExit) as error:
        if not isinstance(error.__cause__, comparison.StoppedStudyError):
            raise
        return comparison.make_strategy_rows(error.__cause__.result.rows), error


def _read_names(texts: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in ",".join(texts).split(",") if name.strip()))
    if not names:
        raise typer.BadParameter("give at least one name", param_hint="--strategies")
    return names


def _print(rows: list[comparison.StrategyRow], form: TableFormat, unit: str) -> None:
    if form is TableFormat.json:
        print_json(rows)
    elif form is TableFormat.csv:
        plain = [row | {"notes": "; ".join(row["notes"])} for row in rows]
        sys.stdout.write(comparison.format_csv(plain, comparison.ROW_KEYS))
    else:
        _print_text(rows, unit)


def _print_text(rows: Sequence[comparison.StrategyRow], unit: str) -> None:
    solved = [row for row in rows if row["objective"] is not None]
    if solved:
        notes = Counter(note for row in solved for note in row["notes"])
        numbers = {note: number for number, (note, _) in enumerate(notes.most_common(_MAX_NOTES), 1)}
        print_rows([_format_row(row, unit, numbers) for row in solved], OutputFormat.text)
        for note, number in numbers.items():
            print_line(f"{number:>3}  {note}")
        if len(notes) > len(numbers):
            print_line(
                f"     and {format_count(len(notes) - len(numbers), 'other note')} (--format json)"
            )
    for model in dict.fromkeys(row["model"] for row in rows if row["error"]):
        print_line(f"error: {_describe_errors(model, [row for row in rows if row['model'] == model])}")
    cases = len({(row["model"], row["link"]) for row in solved})
    alike = " by the same measure" if len({row["measure"] for row in solved}) > 1 else ""
    over = f"Over {format_count(cases, 'case')}, each a model at a link"
    print_lines(["", f"{over}, as ratios to the best that was found for it{alike}:"])
    print_rows([_format_mean(row) for row in comparison.summarize_strategies(rows)], OutputFormat.text)


def _describe_errors(model: str, rows: Sequence[comparison.StrategyRow]) -> str:
    """Return a line for a model: each error once, with its strategies where not all failed."""
    found: dict[str, list[comparison.StrategyRow]] = {}
    for row in rows:
        if row["error"]:
            found.setdefault(row["error"].removeprefix(f"{model}: "), []).append(row)
    lines = []
    for error, failed in found.items():
        names = ", ".join(dict.fromkeys(row["strategy"] for row in failed))
        lines.append(error if len(failed) == len(rows) or names in error else f"{names}: {error}")
    return f"{model}: {'; '.join(lines)}"


def _format_row(row: comparison.StrategyRow, unit: str, notes: Mapping[str, int]) -> dict[str, Any]:
    return {
        "model": row["model"],
        "link": f"{row['link']:g} GB/s" if row["link"] is not None else "",
        "strategy": row["strategy"],
        "measure": _name_measure(row),
        "objective": format_quantity(row["objective"], unit),
        "gap": _format_percent(row["gap"]),
        "regions": row["regions"],
        "offloaded": f"{row['offloaded']:.1%}",
        "moved": format_quantity(row["bytes_moved"], "B"),
        "regret": _format_ratio(row["regret_mean"]),
        "worst": _format_ratio(row["regret_worst"]),
        "took": format_quantity(row["seconds"], "s"),
        "notes": ", ".join(str(n) for n in sorted(notes[n] for n in row["notes"] if n in notes)),
    }


def _format_mean(row: dict[str, Any]) -> dict[str, Any]:
    known = row["mean_ratio"] is not None
    return {
        "strategy": row["strategy"],
        "measure": _name_measure(row),
        "cases": row["cases"],
        "errors": row["errors"] or "",
        "common": row["common"],
        "mean": f"{row['mean_ratio']:.4f}" if known else "",
        "worst": f"{row['worst_ratio']:.4f}" if known else "",
        "largest_gap": _format_percent(row["largest_gap"]),
        "took": format_quantity(row["seconds"], "s"),
    }


def _name_measure(row: Mapping[str, Any]) -> str:
    """Return the measure that was minimised, empty where it is the usual one."""
    return "" if row["measure"] == comparison.TOTAL else row["measure"] or ""


def _format_ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


def _format_percent(gap: float | None) -> str:
    return "" if gap is None else f"{gap:.4%}"
