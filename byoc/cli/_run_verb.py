"""`byoc run`: run a bundle on inputs from files, and show the time of each segment."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

import byoc
import byoc.bundle
import byoc.codegen
import byoc.model
import byoc.runtime
from byoc import samples
from byoc._dataclasses import dataclass, replace
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    check_not_read,
    check_outside,
    print_json,
    print_rows,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import (
    DEFAULT_LOAD_OPTIONS,
    DRIVER_FLAG,
    RUNTIME_FLAG,
    LoadOptions,
    check_drivers,
    flag_field,
    read_pairs,
    take_options,
)
from byoc.console import format_count, format_quantity, print_line, print_lines
from byoc.support import Flag, Syntax, check_output, write_text

_RANDOM = "random"
_SHOWN_OPERATORS = 3  # of a stage, in a line; the trace has all


class _MissingOptionError(typer.BadParameter):
    """Usage error for a missing option; Typer's own would call its value invalid."""

    def format_message(self) -> str:
        """Return the message alone."""
        return self.message


@dataclass(frozen=True)
class RunOptions:
    """The flags of `byoc run` that say what runs the bundle."""

    runtime: str = flag_field(RUNTIME_FLAG, byoc.runtime.RUNTIMES[0])
    drivers: Mapping[str, str] = flag_field(DRIVER_FLAG)
    pad: bool = flag_field(
        Flag("Pad inputs that fit no variant as they are, where one allows it.", Syntax.ON_OFF), True
    )
    fallback: str | None = flag_field(
        Flag("Where regions run that cannot run here; by default they are an error.", choices=("host",))
    )
    prefer: Sequence[str] = flag_field(
        Flag(
            "Of variants for several accelerators take this variant, target or codegen if it runs here; "
            "repeated, the best first. By default the fastest by prediction.",
            Syntax.LIST,
            metavar="NAME",
        ),
        (),
    )
    load_options: Mapping[str, str] = flag_field(
        Flag(
            "An option that a codegen takes when a bundle is loaded, such as threads=4; host:threads=4.",
            Syntax.PAIRS,
            names=("--load-option",),
            metavar="[OWNER:]NAME=VALUE",
        )
    )
    load: LoadOptions = DEFAULT_LOAD_OPTIONS


@take_options(RunOptions)
def run(  # noqa: PLR0913 - the options of the verb
    bundle: Annotated[Path, typer.Argument(help="What `byoc partition -o` or `byoc pack` wrote.")],
    options: RunOptions,
    *,
    inputs: Annotated[
        str | None,
        typer.Option(metavar="FILE.npz|random", help="The inputs by name, or seeded random ones."),
    ] = None,
    single: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE.npy", help="One input; it wins over --inputs."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the outputs to this .npz file.")
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(
            min=1, help="Run so often; if more than once, after a first run that is not timed."
        ),
    ] = 1,
    pipeline: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="NUMBER",
            help="Keep so many of the --repeat runs in flight at once, each device at work on another.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write the timeline of the last run, with --pipeline of all, in Chrome's trace format."
        ),
    ] = None,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Run a bundle, and show how long each part of it took."""
    _check_runtime(options)
    files = read_pairs(single or [], "--input")
    if inputs is None and not files:
        raise _MissingOptionError("--inputs is missing: give a file of inputs (FILE.npz), or random")
    if pipeline is not None and repeat == 1:
        raise _MissingOptionError("--repeat is missing: --pipeline needs more than one run")
    whole, _ = byoc.bundle.split_path(bundle)
    for path in (output, trace):
        if path is not None:
            check_output(path)
            check_outside(path, whole, "it would change the bundle that is run")
            check_not_read(path, (inputs, *files.values()))
    if output is not None and trace is not None:
        check_outside(trace, output, "it would replace the file of the outputs")
    # A codegen's code may change the working directory.
    places = [None if path is None else path.absolute() for path in (output, trace)]
    with show_status() as show, reserve_stdout():
        show("load")
        opened = options.load.open_bundle(bundle)
        fitted = _fit_inputs(opened, options, inputs, files)
        session = fitted.session
        show("run")
        measured = _measure_runs(fitted, repeat, pipeline)
        measured = measured if trace is None else _profile_run(fitted, measured)
        notes = [byoc.runtime.describe_other_kernels(opened), *measured.notes]
        notes += [*session.choice.describe(), *session.describe_fallbacks()]
        measured = replace(measured, notes=[*filter(None, notes)])
    if places[0] is not None:
        samples.write_npz(places[0], measured.outputs)
    if places[1] is not None:
        write_text(places[1], measured.traces[-1].to_text())
    if form is OutputFormat.json:
        document = _write_document(session, measured)
        own = {"padded": fitted.padded} if fitted.padded else {}
        print_json({**document, **own, **({"calls": fitted.calls} if fitted.split else {})})
        return
    how = f", padded: {fitted.padded}" if fitted.padded else ""
    how += f", in {fitted.calls} calls" if fitted.split else ""
    print_lines([f"variant {session.variant}{how}"] if session.variant else [])
    print_rows([_format_row(row) for row in _make_rows(session, measured)], form)
    print_line(_describe_time(session, measured))
    for name, value in measured.outputs.items():
        entry = _describe_output(name, value)
        print_line(f"{entry['name']}: {entry['type']}")
    print_lines(_describe_slowest(measured))
    for note in measured.notes:
        print_line(f"note: {note}")
    for path in (output, trace):
        if path is not None:
            print_line(f"Written to {path}")


def _check_runtime(options: RunOptions) -> None:
    """Raise InputError for options that the runtime does not have."""
    check_drivers(options.drivers, options.runtime)
    if options.load.variant is not None and options.prefer:
        raise byoc.InputError(
            "--prefer: --variant names the variant, so that there is nothing to prefer"
        )
    given = {
        "--fallback": options.fallback,
        "--prefer": options.prefer,
        "--load-option": options.load_options,
    }
    flag = next((name for name, value in given.items() if value), None)
    if flag is not None and options.runtime != byoc.runtime.RUNTIMES[0]:
        raise byoc.InputError(f"{flag}: regions of --runtime {options.runtime} run in drivers alone")


@dataclass(frozen=True)
class _MeasuredRuns:
    """The runs of a bundle on one input: the outputs of the last, and when each stage ran.

    There is a trace for each run, or one for all that were in a pipeline. `in_flight` is the number of
    runs of a pipeline that were in flight at once, None where they came one after another. `calls` is
    the number of calls of a run, of a batch that is split.
    """

    repeats: int
    in_flight: int | None
    outputs: Mapping[str, Any]
    traces: Sequence[byoc.Trace]
    notes: Sequence[str]
    calls: int = 1

    @property
    def seconds(self) -> float:
        """The median of the runs, or what all runs of a pipeline took together."""
        return median(trace.seconds for trace in self.traces)


def _fit_inputs(
    bundle: byoc.Bundle, options: RunOptions, inputs: str | None, files: Mapping[str, str]
) -> byoc.runtime.FittedInputs:
    """Return the inputs from files, also those of unknown names, for the variant that takes them."""
    given: dict[str, Any] = {}
    if inputs is not None and inputs != _RANDOM:
        given = dict(samples.read_npz(Path(inputs)))
    origins = {**dict.fromkeys(given, str(inputs)), **files}
    given |= {name: samples.read_npy(Path(file)) for name, file in files.items()}
    loaded: byoc.Session | byoc.VariantSession
    if options.runtime == byoc.runtime.DRIVER_RUNTIME:
        with byoc.runtime.use_drivers(options.drivers):
            loaded = byoc.runtime.load_with_provider(bundle)
    else:
        by_drivers = options.runtime != byoc.runtime.RUNTIMES[0]
        by_codegens = partial(byoc.runtime.load_bundle, options=options.load_options or {})
        load_one = byoc.runtime.load_with_drivers if by_drivers else by_codegens
        groups = byoc.runtime.list_alternatives(bundle.manifest)
        has_alternatives = len(groups) < len(bundle.manifest.variants)
        if bundle.chosen is None and (has_alternatives if by_drivers else not given and len(groups) > 1):
            bundle = bundle.choose(bundle.variant.name)  # the one with the sizes that byoc chose, if any
        with byoc.runtime.use_drivers(options.drivers), _advise_fallback():
            loaded = byoc.runtime.load_variants(
                bundle,
                pad=options.pad and bool(given),
                load_one=load_one,
                prefer=options.prefer,
                fall_back=options.fallback is not None,
            )
    if inputs == _RANDOM:
        if isinstance(loaded, byoc.Session) and bundle.chosen is None:
            bundle = bundle.choose(loaded.variant)
        model = byoc.model.prepare_model(bundle.model(), bundle.variant.model, bundle.folder)
        given = {**samples.model_samples(model), **given}
    known = loaded if isinstance(loaded, byoc.Session) else next(iter(loaded.sessions.values()))
    read = {name: samples.restore_dtype(value, known.types.get(name)) for name, value in given.items()}
    with _name_file(origins):
        if not isinstance(loaded, byoc.Session):
            return loaded.fit(read)
        loaded.require_inputs(read)
    return byoc.runtime.FittedInputs(loaded, read)


@contextmanager
def _name_file(origins: Mapping[str, str]) -> Iterator[None]:
    """Put in front of what is wrong with inputs the file that they are from, by the input's name."""
    try:
        yield
    except byoc.InputError as error:
        files = dict.fromkeys(origins.values())
        lines = []
        for line in error.lines:
            found = [origins[name] for name in origins if f"'{name}'" in line] or [*files]
            lines.append(f"{found[0]}: {line}" if len(set(found)) == 1 else line)
        raise byoc.InputError(*lines) from None


@contextmanager
def _advise_fallback() -> Iterator[None]:
    """Name the flag that helps where this machine cannot run a region."""
    try:
        yield
    except (byoc.runtime.RegionNotHereError, byoc.runtime.NoneFitsError) as error:
        if getattr(error, "may_fall_back", True):
            raise byoc.InputError(f"{error}; --fallback host runs it on the host") from error
        raise


def _measure_runs(
    fitted: byoc.runtime.FittedInputs, repeats: int, in_flight: int | None
) -> _MeasuredRuns:
    """Run a bundle, with more than one run after a first one that does not count."""
    traces: list[byoc.Trace] = []
    outputs: Mapping[str, Any] = {}
    with byoc.runtime.collect_contradictions() as notes:
        if repeats > 1:
            fitted.run()
        if in_flight:
            traces.append(byoc.Trace())
            runs = fitted.run_pipeline(repeats, in_flight, traces[0])
            outputs = deque(runs, maxlen=1).pop()
        else:
            for _ in range(repeats):
                traces.append(byoc.Trace())
                outputs = fitted.run(traces[-1])
    return _MeasuredRuns(repeats, in_flight, outputs, traces, list(notes), fitted.calls)


def _profile_run(fitted: byoc.runtime.FittedInputs, measured: _MeasuredRuns) -> _MeasuredRuns:
    """Run a bundle once more, to find out what its stages have inside; return the runs with that."""
    profiling = byoc.Trace(profiles=True)
    fitted.run(profiling)
    notes = [
        f"the operators of {name} are not known: {each.problem}"
        for (_, name), each in profiling.profiled.items()
        if each.problem
    ]
    traces = [*measured.traces[:-1], measured.traces[-1].with_profiles(profiling)]
    return replace(measured, traces=traces, notes=[*measured.notes, *notes])


def _make_rows(session: byoc.Session, measured: _MeasuredRuns) -> list[dict[str, Any]]:
    """Return a row for each segment in order of execution, with the median of its times.

    Where a batch is split, a segment's time is that of a median call, times the calls.
    """
    rows = []
    for stage in session.stages:
        events = _find_events(stage.name, measured)
        inside = measured.traces[-1].profiled.get((session.variant, stage.name))
        memory = {} if inside is None else _describe_inside(inside)
        rows.append(
            {
                "segment": stage.name,
                "on": stage.device,
                "seconds": measured.calls * median(event.seconds for event in events),
                "bytes_in": measured.calls * events[-1].bytes_read,
                "bytes_out": measured.calls * events[-1].bytes_made,
                **memory,
            }
        )
    return rows


def _describe_inside(inside: byoc.runtime.StageProfile) -> dict[str, Any]:
    """Return the memory of a stage, and what each of its operators took, by nodes of the model."""
    return {
        "bytes_held": inside.held_bytes,
        "peak_bytes": inside.peak_bytes,
        "operators": [
            {
                "name": each.name,
                "nodes": list(each.nodes),
                "seconds": byoc.codegen.to_seconds(each.time),
                "cycles": each.time.count if isinstance(each.time, byoc.codegen.Cycles) else None,
            }
            for each in inside.operators
        ],
    }


def _find_events(stage: str, measured: _MeasuredRuns) -> list[byoc.runtime.TraceEvent]:
    """Return the runs of a stage of the main graph: one for each run of the bundle."""
    return [event for trace in measured.traces for event in trace.events if event.name == stage]


def _find_busy_shares(session: byoc.Session, measured: _MeasuredRuns) -> dict[str, float]:
    """Return, by device, the share of a pipeline's time that it ran stages."""
    busy: dict[str, float] = {}
    for stage in session.stages:
        seconds = sum(event.seconds for event in _find_events(stage.name, measured))
        busy[stage.device] = busy.get(stage.device, 0.0) + seconds
    return {device: seconds / measured.seconds for device, seconds in busy.items()}


def _write_document(session: byoc.Session, measured: _MeasuredRuns) -> dict[str, Any]:
    """Return the data that `--format json` prints."""
    document = {
        "seconds": measured.seconds,
        "repeats": measured.repeats,
        "segments": _make_rows(session, measured),
        "outputs": [_describe_output(name, value) for name, value in measured.outputs.items()],
        "notes": measured.notes,
    }
    if session.variant:
        document["variant"] = session.variant
    if session.choice.reasons:
        document["choice"] = {
            "chosen": list(session.choice.chosen),
            "reasons": dict(session.choice.reasons),
        }
    if measured.in_flight is not None:
        document["pipeline"] = {
            "in_flight": measured.in_flight,
            "runs_per_second": measured.repeats / measured.seconds,
            "busy": _find_busy_shares(session, measured),
        }
    return document


def _describe_time(session: byoc.Session, measured: _MeasuredRuns) -> str:
    """Describe the time of the runs; with a pipeline, runs a second and how busy each device was."""
    whole = format_quantity(measured.seconds, "s")
    runs = format_count(measured.repeats, "run")
    if measured.in_flight is None:
        return f"{whole} in all" + (f", the median of {runs}" if measured.repeats > 1 else "")
    shares = _find_busy_shares(session, measured)
    busy = ", ".join(f"{device} {share:.0%}" for device, share in shares.items())
    speed = f"{measured.repeats / measured.seconds:.4g} a second"
    return f"{whole} for {runs}, {measured.in_flight} in flight: {speed}; busy: {busy}"


def _format_row(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "segment": row["segment"],
        "on": row["on"],
        "time": format_quantity(row["seconds"], "s"),
        "in": format_quantity(row["bytes_in"], "B"),
        "out": format_quantity(row["bytes_out"], "B"),
        **({"peak": format_quantity(row["peak_bytes"], "B")} if row.get("peak_bytes") else {}),
    }


def _describe_slowest(measured: _MeasuredRuns) -> list[str]:
    """Describe the operators that take most of a profiled run, and the largest memory."""
    trace = measured.traces[-1]
    lines = [f"at most {format_quantity(trace.peak_bytes, 'B')} in memory"] if trace.peak_bytes else []
    for (_, name), inside in trace.profiled.items():
        timed = [(byoc.codegen.to_seconds(each.time), each) for each in inside.operators]
        total = sum(seconds for seconds, _ in timed)
        slowest = sorted(timed, key=lambda pair: -pair[0])[:_SHOWN_OPERATORS]
        shown = (
            f"{', '.join(each.nodes) or each.name} {seconds / total:.0%}"
            for seconds, each in slowest
            if total
        )
        if total:
            whole = format_quantity(total, "s")
            lines.append(f"inside of {name}, {whole} in all: {'; '.join(shown)}")
    return lines


def _describe_output(name: str, value: Any) -> dict[str, str]:
    if value is None:
        return {"name": name, "type": "empty"}
    if isinstance(value, list | tuple):
        return {"name": name, "type": f"a sequence of {len(value)}"}
    if isinstance(value, Mapping):
        return {"name": name, "type": f"a map of {len(value)}"}
    array = np.asarray(value)
    return {"name": name, "type": f"{array.dtype}{list(array.shape)}"}
