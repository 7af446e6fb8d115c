"""The verbs of researchers: `byoc study`, `byoc place` and `byoc tasks`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import byoc
import byoc.pipeline
from byoc import comparison, reporting
from byoc.cli._common import (
    DefaultGroup,
    FormatOption,
    OutputFormat,
    PanelCommand,
    TableFormat,
    print_json,
    print_rows,
    read_links,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import JUnitFile, JUnitOption, read_pairs, take_options
from byoc.console import format_count, format_quantity, print_errors, print_line, print_lines
from byoc.errors import escape_unprintable
from byoc.support import keywords_of, show_progress, write_text

_LINES = 10  # of progress where no terminal shows it, and of reasons
_NAMES = 3  # of models or strategies before a reason


class SummaryFormat(StrEnum):
    """A format of tables."""

    text = "text"
    markdown = "markdown"
    latex = "latex"
    csv = "csv"
    json = "json"


class Grouping(StrEnum):
    """A column by which a table has groups."""

    model = "model"
    link = "link"
    rules = "rules"


class FigureFormat(StrEnum):
    """A format of figures in a folder."""

    svg = "svg"
    png = "png"
    pdf = "pdf"


class Over(StrEnum):
    """The problems over which strategies are compared."""

    common = "common"
    own = "own"


_OVER = typer.Option("--over", help="Problems that every strategy solved, or for each strategy its own.")


app = typer.Typer(cls=DefaultGroup, add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def study() -> None:
    """Solve the cases of a study, or plot their results.

    The name of `run` may be left out: byoc study STUDY.yaml -o results.csv.
    """


@app.command("run", cls=PanelCommand)
def run(  # noqa: PLR0913 - the options of the verb
    file: Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The axes of the study.")],
    *,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Write the results here: .csv or .parquet."),
    ],
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time; as many as processors unless given.")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Solve the cases on the cluster of this Dask scheduler."),
    ] = None,
    retry_failures: Annotated[
        bool, typer.Option("--retry-failures", help="Solve again what failed in an earlier run.")
    ] = False,
    allow_failures: Annotated[
        bool, typer.Option("--allow-failures", help="Exit with 0 even if cases failed.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Save the placement and the problem of each case here."),
    ] = None,
    junit: JUnitOption = None,
) -> None:
    """Solve all cases of a study, and write a row for each.

    A study that was stopped goes on where it was. Cases that fail are rows with a reason; the exit code
    is then 1.
    """
    tests = JUnitFile.prepare(junit, "study", file, output)
    try:
        with tests.record_errors("study"), _show_cases(), reserve_stdout():
            result = byoc.study(
                file,
                output,
                jobs=jobs,
                scheduler=scheduler,
                retry_failures=retry_failures,
                save=save,
            )
    except BaseException as error:
        if isinstance(error.__cause__, comparison.StoppedStudyError):
            done, total = len(error.__cause__.result.rows), error.__cause__.result.total
            print_errors([f"stopped: {done} of {total} cases are done; the same command goes on"])
        raise
    _print_summary(result, output)
    tests.write(_make_suites(result.rows))
    if result.failures and not allow_failures:
        raise typer.Exit(1)


@app.command("replay", cls=PanelCommand)
def replay(  # noqa: PLR0913 - the options of the verb
    saved: Annotated[Path, typer.Argument(metavar="FOLDER", help="What `byoc study --save` wrote.")],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the results here: .csv or .parquet.")
    ],
    link: Annotated[
        list[str] | None,
        typer.Option(help="Bandwidths of the link in GB/s, with commas between, or repeated."),
    ] = None,
    cost_model: Annotated[str | None, typer.Option(help="The accelerator's cost model.")] = None,
    host_cost_model: Annotated[str | None, typer.Option(help="The host's cost model.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes at a time; as many as processors unless given.")
    ] = None,
) -> None:
    """Price the placements that a study saved over other links or by other costs.

    Nothing is placed anew; the exit code is 1 when a placement could not be priced.
    """
    with _show_cases(), reserve_stdout():
        result = comparison.replay_study(
            saved,
            output,
            links=read_links(link),
            cost_model=cost_model,
            host_cost_model=host_cost_model,
            jobs=jobs,
        )
    _print_summary(result, output)
    if result.failures:
        raise typer.Exit(1)


@app.command("plot", cls=PanelCommand)
def plot(  # noqa: PLR0913 - the options of the verb
    results: Annotated[Path, typer.Argument(metavar="results", help="CSV or Parquet of a study.")],
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="A .html page, a .svg, .png or .pdf file, or a folder for one each."
        ),
    ],
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Measured seconds, to be plotted beside predicted ones."),
    ] = None,
    over: Annotated[Over, _OVER] = Over.common,
    width: Annotated[
        str, typer.Option(metavar="column|page|INCHES", help="A column of a paper, a page, or inches.")
    ] = "page",
    log: Annotated[
        bool, typer.Option("--log", help="Logarithmic axes for objectives and costs.")
    ] = False,
    form: Annotated[
        FigureFormat, typer.Option("--format", help="Of the files in a folder.")
    ] = FigureFormat.svg,
) -> None:
    """Plot objectives, performance profiles, gaps and Pareto fronts as figures.

    Objectives are drawn by the bandwidth of the link, and predicted seconds against measured ones.
    """
    with show_status(), reserve_stdout():
        written = comparison.plot_study(
            results, output, measured, over=over.value, width=width, log=log, form=form.value
        )
    print_lines(written)


@app.command("table", cls=PanelCommand)
def table(
    results: Annotated[Path, typer.Argument(metavar="results", help="CSV or Parquet of a study.")],
    form: Annotated[
        SummaryFormat, typer.Option("--format", help="latex is with booktabs; csv and json in full.")
    ] = SummaryFormat.markdown,
    over: Annotated[Over, _OVER] = Over.common,
    by: Annotated[
        list[Grouping] | None,
        typer.Option("--by", help="Lines for each of these by itself; repeatable."),
    ] = None,
) -> None:
    """Print a table with a line for each strategy.

    It has the ratios to the best value of a problem with their spread, gaps, and seconds of the solver.
    """
    groups = tuple(each.value for each in by or ())
    if form is not SummaryFormat.text:
        sys.stdout.write(comparison.tabulate_study(results, form.value, over.value, groups))
        return
    rows = comparison.read_results(results)
    lines = comparison.summarize_study(rows, over.value, groups)
    print_rows(comparison.make_cells(lines, groups), OutputFormat.text)
    print_lines(["", f"Compared {comparison.describe_over(rows, over.value, groups)}."])


@app.command("schema", cls=PanelCommand)
def schema() -> None:
    """Print the JSON Schema of study files, for editors."""
    print_json(comparison.make_study_schema())


def _make_suites(rows: Sequence[comparison.StudyRow]) -> list[reporting.JUnitSuite]:
    """Return a suite for each model, with a case for each row, named by the axes that it varies in."""
    axes = [name for name in comparison.ASKED_COLUMNS if name not in ("model", "strategy")]
    varied = [name for name in axes if len({row[name] for row in rows}) > 1]
    suites: dict[str, list[reporting.JUnitCase]] = {}
    for row in rows:
        point = (f"{name} {row[name]}" for name in varied if row[name] not in (None, ""))
        failed = row["status"] != "ok"
        message = f"{row['status']}: {row['reason']}" if failed else ""
        case = reporting.JUnitCase(
            ", ".join((row["strategy"], *point)), "failure" if failed else "passed", message
        )
        suites.setdefault(row["model"], []).append(case)
    return [reporting.JUnitSuite(model, tuple(cases)) for model, cases in suites.items()]


def _print_summary(result: comparison.StudyResult, output: Path) -> None:
    failed = sum(result.failures.values())
    parts = [f"{output}: {format_count(result.total, 'case')}"]
    if result.earlier:
        parts.append(f"{result.earlier} of an earlier run")
    if failed:
        each = ", ".join(f"{count} {status}" for status, count in result.failures.items())
        parts.append(f"{failed} not solved ({each})")
    print_errors([", ".join(parts)])
    reasons: dict[str, list[tuple[str, str]]] = {}
    for row in result.rows:
        if row["status"] != "ok":
            reasons.setdefault(row["reason"], []).append((row["model"], row["strategy"]))
    shown = [_describe_failures(reason, cases) for reason, cases in [*reasons.items()][:_LINES]]
    more = [f"and {len(reasons) - len(shown)} more"] if len(reasons) > len(shown) else []
    print_errors([*shown, *more])


def _describe_failures(reason: str, cases: Sequence[tuple[str, str]]) -> str:
    """Return a line for all cases that failed for one reason: their models and strategies, once each."""
    models, strategies = (list(dict.fromkeys(names)) for names in zip(*cases, strict=True))
    parts = [_join_names(names) for names in (models, strategies) if names[0] not in reason]
    return ": ".join(filter(None, (", ".join(parts), reason)))


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{', '.join(names[:_NAMES])}{more}"


@contextmanager
def _show_cases() -> Iterator[None]:
    """Show progress on standard error: a line that changes, or some lines where there is no terminal."""
    if sys.stderr.isatty():
        with show_status():
            yield
        return
    tenths = [-1]

    def show(step: str) -> None:
        done, _, rest = step.partition(" of ")
        total = rest.partition(" ")[0]
        if done.isdecimal() and total.isdecimal() and int(done) * _LINES // int(total) > tenths[0]:
            tenths[0] = int(done) * _LINES // int(total)
            print_errors([step])

    with show_progress(show):
        yield


# `byoc tasks` and `byoc place`.

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
