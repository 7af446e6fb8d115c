"""`byoc partition`: partition a model, and write the bundle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

import byoc
import byoc.pipeline
from byoc import reporting, verification
from byoc.cli._common import (
    AllowUnverifiedOption,
    FormatOption,
    OutputFormat,
    VerboseOption,
    check_not_read,
    check_outside,
    leave_by_reports,
    print_json,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import (
    REQUIREMENT_MISSED,
    JUnitFile,
    JUnitOption,
    leave_if_missed,
    read_pairs,
    take_options,
)
from byoc.console import format_quantity, make_console, print_errors, print_line, print_lines
from byoc.errors import suggest_nearest
from byoc.support import Panel, check_output, keywords_of, write_text

if TYPE_CHECKING:
    from byoc.pipeline import Stage


class MeasureClock(StrEnum):
    """The clock that `--measure` counts seconds by."""

    wall = "wall"
    processor = "processor"


_CLOCKS = {MeasureClock.wall: time.perf_counter, MeasureClock.processor: time.process_time}


@take_options(byoc.pipeline.RoundOptions, name="of_round")
@take_options(byoc.Requirements, name="requirements")
@take_options(byoc.Options, first=("rules", "output", "strategy"), optional=("rules",))
def partition(  # noqa: PLR0913 - the options of the verb
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="An ONNX file, a folder of onnxruntime-genai, or zoo:NAME; several with --together.",
        ),
    ],
    options: byoc.Options,
    *,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="Place several models as one problem, and write a package of them.",
            rich_help_panel=Panel.PLACEMENT,
        ),
    ] = False,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DTYPE=ERROR",
            help="The largest error that --gate accepts, as a share of the range: float32=0.001.",
            rich_help_panel=Panel.BUNDLE,
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save-placement",
            help="Write the device of each node to this file.",
            rich_help_panel=Panel.PLACEMENT,
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--html", help="Write the report with the graph, for a browser, to this file."),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Place in other ways, too, run all here, and keep the fastest.",
            rich_help_panel=Panel.PLACEMENT,
        ),
    ] = False,
    measure_clock: Annotated[
        MeasureClock | None,
        typer.Option(
            "--measure-clock",
            help="What --measure counts: time on the wall, or of all processors together.",
            rich_help_panel=Panel.PLACEMENT,
        ),
    ] = None,
    print_after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE",
            help="Print on standard error what this stage of the pipeline made, such as Place.",
            rich_help_panel=Panel.PLACEMENT,
        ),
    ] = None,
    verbose: VerboseOption = False,
    form: FormatOption = OutputFormat.text,
    requirements: byoc.Requirements,
    of_round: byoc.pipeline.RoundOptions,
    junit: JUnitOption = None,
    allow_unverified: AllowUnverifiedOption = False,
) -> None:
    """Cut a model between the host and accelerators.

    Leaves with 4 when the bundle was written, and it or a region could not be verified; with 5 when it
    was written without regions at which a codegen failed; with 6 when it misses a requirement, and is
    written all the same.
    """
    if together:
        _refuse_flags_of_one(save, page, measure, junit, print_after, threshold, measure_clock)
        size = reporting.WHOLE if verbose else reporting.BRIEF
        reports, missed = _partition_together(models, options, of_round, form, size)
        if missed:
            print_errors([f"with the regions that form in each model alone, {missed}"])
        leave_if_missed(reports, requirements)
        if missed:
            raise typer.Exit(REQUIREMENT_MISSED)
        leave_by_reports(reports, allow_unverified)
        return
    model = _require_one(models, of_round)
    # Absolute: a codegen's code may change the working directory.
    read = [model, options.inputs, options.rules, *(each.rules for each in options.list_variants())]
    save = _check_file(save, options, read)
    page, junit = (_check_file(path, options, [*read, options.placement]) for path in (page, junit))
    tests = JUnitFile(junit, "partition")
    _check_companions(options, threshold, measure, measure_clock)
    options = _keep_one_placement(options, save, page, measure)
    if threshold:
        options = replace(
            options, gate=verification.read_thresholds(read_pairs(threshold, "--threshold"))
        )
    make_result: Callable[..., byoc.Result] = byoc.partition
    if measure:
        from byoc.comparison import fastest  # noqa: PLC0415 - a room that nothing else here needs

        make_result = partial(fastest, clock=_CLOCKS[measure_clock or MeasureClock.wall])
    watched = _print_stages(print_after or [], options)
    with tests.record_errors(model), show_status(), reserve_stdout(), watched:
        result = make_result(model, **keywords_of(options, byoc.Options))
    if result.not_signed:
        print_errors([result.not_signed])
    if save is not None:
        byoc.save_placement(result.plan, save)
    if page is not None:
        write_text(page, result.make_page())
    reports = [each.report for each in result.variants]
    if form is OutputFormat.json:
        print_json(result.to_json())
    else:
        reporting.print_reports(
            reports, make_console(), reporting.WHOLE if verbose else reporting.SCREEN
        )
        if page is not None:
            print_line(f"Report written to {page.name}")
    compiled = result.bundle is not None
    tests.write(
        reporting.make_report_suite(report, requirements, compiled=compiled)
        for report in reporting.select_required(reports)
    )
    leave_if_missed(reports, requirements)
    leave_by_reports(reports, allow_unverified)


def _require_one(models: Sequence[str], of_round: byoc.pipeline.RoundOptions) -> str:
    """Return the only model. Raises typer.BadParameter for what is of several."""
    if len(models) > 1:
        raise typer.BadParameter(
            "several models are placed as one problem with --together, or one by one by byoc package",
            param_hint="MODEL",
        )
    for flag, given in (
        ("--rate", of_round.rates),
        ("--deadline", of_round.deadlines),
        ("--model-weight", of_round.model_weights),
    ):
        if given:
            raise typer.BadParameter("it is of models that are placed --together", param_hint=flag)
    return models[0]


def _refuse_flags_of_one(*given: object) -> None:
    """Raise typer.BadParameter for a flag of a single model, in the order of the names here."""
    names = (
        *("--save-placement", "--html", "--measure", "--junit", "--print-after", "--threshold"),
        "--measure-clock",
    )
    for flag, value in zip(names, given, strict=True):
        if value:
            raise typer.BadParameter("it is of a single model, not of several", param_hint=flag)


def _partition_together(
    models: Sequence[str],
    options: byoc.Options,
    of_round: byoc.pipeline.RoundOptions,
    form: OutputFormat,
    size: reporting.ReportSize,
) -> tuple[list[byoc.Report], str]:
    """Place models together, and print each of them and the round.

    Returns the reports, and the rate or deadline that is missed, if any.
    """
    with show_status(), reserve_stdout():
        made = byoc.partition_together(
            models,
            **keywords_of(options, byoc.Options),
            **keywords_of(of_round, byoc.pipeline.RoundOptions),
        )
    reports = [each.report for result in made.results.values() for each in result.variants]
    print_errors([each.not_signed for each in made.results.values() if each.not_signed])
    if form is OutputFormat.json:
        print_json(made.to_json())
    else:
        apart = [report.model_copy(update={"bundle": None}) for report in reports]
        reporting.print_reports(apart, make_console(), size)
        print_lines(_format_round(made), make_console())
    return reports, made.missed


def _format_round(made: byoc.PlacedTogether) -> Iterator[str]:
    """Yield lines on the round of models that are placed together."""
    bound = "" if made.bound is None else f", at least {format_quantity(made.bound, 's')}"
    yield f"Together: a round takes {format_quantity(made.makespan, 's')}{bound}"
    apart, in_turn = (format_quantity(each, "s") for each in (made.apart, made.in_turn))
    yield f"  each placed as if alone: {apart} side by side, {in_turn} one after the other"
    for name, end in made.ends.items():
        slowest = made.responses.get(name)
        rest = "" if slowest is None else f"; slowest response {format_quantity(slowest, 's')}"
        yield f"  {name} ends after {format_quantity(end, 's')}{rest}"
    for name, share in made.utilization.items():
        yield f"  {name} computes for {share:.1%} of the time"
    for note in made.notes:
        yield f"note: {note}"
    folders = [each.bundle for each in made.results.values() if each.bundle is not None]
    if folders:
        yield f"Written to {folders[0].parent}"


def _keep_one_placement(
    options: byoc.Options, save: Path | None, page: Path | None, measure: bool
) -> byoc.Options:
    """Return the options of a run whose placement is saved, shown or measured.

    Raises typer.BadParameter where there are several variants.
    """
    for flag, given in (("--save-placement", save), ("--html", page), ("--measure", measure or None)):
        if given is not None and len(options.list_variants()) > 1:
            raise typer.BadParameter("it is of one placement, and each variant has one", param_hint=flag)
    # A page shows the variant with sizes; what is saved is to be read for the model as it is.
    return options if save is None else replace(options, keep_open=True)


def _print_stages(names: list[str], options: byoc.Options) -> AbstractContextManager[None]:
    """Print what stages make while the context lasts; a name may be given by its beginning.

    Raises typer.BadParameter for a stage that is not there, or runs only where a bundle is written.
    """
    if not names:
        return nullcontext()
    from byoc.pipeline import list_emission, list_stages, summarize_stage, watch_stages  # noqa: PLC0415 - the help does without  # noqa: PLC0415

    known = list_stages()
    wanted = {_find_stage(name, known) for name in names}
    emitting = {type(stage).__name__ for stage in list_emission()} - {"EstimateGains"}
    if options.output is None and (missed := sorted(wanted & emitting)):
        raise typer.BadParameter(
            f"{missed[0]} runs where a bundle is written: give -o, too", param_hint="--print-after"
        )
    console = Console(stderr=True)

    def show(stage: Stage[Any, Any], made: object) -> None:
        if type(stage).__name__ in wanted:
            print_lines(summarize_stage(stage, made), console)

    return watch_stages(show)


def _find_stage(name: str, known: Sequence[str]) -> str:
    """Return the stage that has a name, or else the only one whose name begins so, in either case."""
    begin = [stage for stage in known if stage.lower().startswith(name.lower())]
    same = [stage for stage in begin if len(stage) == len(name)] or begin
    if len(same) != 1:
        what = f"no stage is called {name}{suggest_nearest(name, known)}"
        if begin:
            what = f"several stages begin with {name}"
        raise typer.BadParameter(
            f"{what}; there are {', '.join(begin or known)}", param_hint="--print-after"
        )
    return same[0]


def _check_file(path: Path | None, options: byoc.Options, read: Sequence[object]) -> Path | None:
    """Return the absolute path of a file to write.

    Raises InputError when it cannot be written, or would replace one of the files that are read.
    """
    if path is None:
        return None
    check_output(path)
    check_not_read(path, read)
    if options.output is not None:
        check_outside(path, Path(options.output), "it would change the bundle that is written")
    return path.absolute()


def _check_companions(
    options: byoc.Options,
    threshold: list[str] | None,
    measure: bool,
    measure_clock: MeasureClock | None,
) -> None:
    """Raise typer.BadParameter for a flag without the one that it belongs to."""
    if not options.rules and not all(variant.rules for variant in options.list_variants()):
        raise typer.BadParameter(
            "it is missing: give a rule file, or one for each variant (--variant board:rules=FILE)",
            param_hint="--rules",
        )
    if threshold and not options.gate:
        raise typer.BadParameter(
            "it is the largest error that --gate accepts: give --gate, too", param_hint="--threshold"
        )
    if options.cache_dir is not None and not options.cache:
        raise typer.BadParameter(
            "it is where the cache is, which --no-cache does without", param_hint="--cache-dir"
        )
    if measure and options.output is None:
        raise typer.BadParameter(
            "it runs the bundles that it writes: give -o, too", param_hint="--measure"
        )
    if measure_clock is not None and not measure:
        raise typer.BadParameter(
            "it is the clock of --measure: give that, too", param_hint="--measure-clock"
        )
