"""`byoc compare`: strategies side by side, over models and links."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any

import typer

import byoc
import byoc.options
from byoc import comparison, reporting
from byoc.cli._common import (
    OutputFormat,
    TableFormat,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import take_options
from byoc.cli._requirement_checks import JUnitFile, JUnitOption
from byoc.console import print_errors, print_line, print_lines
from byoc.reporting import format_count, format_quantity
from byoc.support import check_output, keywords_of

_MAX_NOTES = 10  # footnotes under a table; the rest is in the JSON


@take_options(byoc.options.PlanOptions)
def compare(  # noqa: PLR0913 - the options of the verb
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="ONNX files, or zoo:NAME.")],
    options: byoc.options.PlanOptions,
    *,
    strategies: Annotated[
        str | None,
        typer.Option(
            help="Names, with commas between: see byoc strategies.",
            show_default=",".join(comparison.FAST_STRATEGIES),
        ),
    ] = None,
    link: Annotated[
        str | None, typer.Option(help="Bandwidths of the link in GB/s, with commas between.")
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
    interrupt the cases that are done are printed. Where
    --rules is given more than once, min-cut is not among the strategies unless they are given.
    """
    if junit is not None:
        check_output(junit)
    tests = JUnitFile(junit, "compare")
    names = () if strategies is None else _read_names(strategies)
    links = _read_links(link)
    with tests.record_errors("compare"), show_status(), reserve_stdout():
        plain = keywords_of(options, byoc.options.PlanOptions)
        rows, cause = _run(
            lambda: byoc.compare(models, **plain, strategies=names, links=links, jobs=jobs)
        )
    _print(rows, form, reporting.objective_unit(options.objective))
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


def _read_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise typer.BadParameter("give at least one name", param_hint="--strategies")
    return names


def _read_links(text: str | None) -> tuple[float | None, ...]:
    if text is None:
        return (None,)
    links = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        if not (isfinite(value) and value > 0):
            raise typer.BadParameter(f"'{part}': a number of GB/s is expected", param_hint="--link")
        links.append(value)
    return tuple(dict.fromkeys(links))


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
