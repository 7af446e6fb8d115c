"""`byoc study`: solve every case of a study; plot its results, and make tables of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import byoc
from byoc import comparison, reporting
from byoc.cli._common import (
    DefaultGroup,
    OutputFormat,
    PanelCommand,
    print_json,
    print_rows,
    read_links,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import JUnitFile, JUnitOption
from byoc.console import format_count, print_errors, print_lines
from byoc.support import show_progress

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
