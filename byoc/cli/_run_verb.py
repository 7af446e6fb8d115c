"""`byoc run`: run a bundle on inputs from files, and show the time of each segment."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from byoc.bundle import Bundle
from byoc.cli._common import (
    FormatOption,
    OutputFormat,
    check_outside,
    print_json,
    print_rows,
    read_pairs,
    reserve_stdout,
    show_status,
)
from byoc.cli._option_flags import LoadOptions, take_options
from byoc.console import print_line
from byoc.model import prepare_model
from byoc.reporting import format_count, format_quantity
from byoc.runtime import (
    Session,
    Trace,
    collect_contradictions,
    load_bundle,
    read_npy,
    read_npz,
    restore_dtype,
    write_npz,
)
from byoc.samples import model_samples
from byoc.support import check_output, write_text

_RANDOM = "random"


class _MissingOptionError(typer.BadParameter):
    """Usage error for a missing option; Typer's own would call its value invalid."""

    def format_message(self) -> str:
        """Return the message alone."""
        return self.message


@take_options(LoadOptions)
def run(  # noqa: PLR0913 - the options of the verb
    bundle: Annotated[Path, typer.Argument(help="What `byoc partition -o` or `byoc pack` wrote.")],
    options: LoadOptions,
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
        typer.Option(min=1, help="Run so often; with more than 1, after a first run that is not timed."),
    ] = 1,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write the timeline of the last run here, in Chrome's trace format."),
    ] = None,
    form: FormatOption = OutputFormat.text,
) -> None:
    """Run a bundle, and show how long each part of it took."""
    files = read_pairs(single or [], "--input")
    if inputs is None and not files:
        raise _MissingOptionError("--inputs is missing: give a file of inputs (FILE.npz), or random")
    for path in (output, trace):
        if path is not None:
            check_output(path)
            check_outside(path, bundle, "it would change the bundle that is run")
    if output is not None and trace is not None:
        check_outside(trace, output, "it would replace the file of the outputs")
    # A codegen's code may change the working directory.
    places = [None if path is None else path.absolute() for path in (output, trace)]
    with show_status() as show, reserve_stdout():
        show("load")
        opened = options.open_bundle(bundle)
        session, given = _prepare_session(opened, inputs, files)
        show("run")
        outputs, traces, notes = _run_repeatedly(session, given, repeat)
    if places[0] is not None:
        write_npz(places[0], outputs)
    if places[1] is not None:
        write_text(places[1], traces[-1].to_text())
    rows = _make_rows(session, traces)
    whole = median(each.seconds for each in traces)
    made = [_describe_output(name, value) for name, value in outputs.items()]
    if form is OutputFormat.json:
        found = {"segments": rows, "outputs": made, "notes": notes}
        print_json({"seconds": whole, "repeats": repeat, **found})
        return
    print_rows([_format_row(row) for row in rows], form)
    times = f", the median of {format_count(repeat, 'run')}" if repeat > 1 else ""
    print_line(f"{format_quantity(whole, 's')} in all{times}")
    for entry in made:
        print_line(f"{entry['name']}: {entry['type']}")
    for note in notes:
        print_line(f"note: {note}")
    for path in (output, trace):
        if path is not None:
            print_line(f"Written to {path}")


def _prepare_session(
    bundle: Bundle, inputs: str | None, files: Mapping[str, str]
) -> tuple[Session, dict[str, Any]]:
    """Return a session of a bundle, and the inputs from files, also those of unknown names."""
    given: dict[str, Any] = {}
    if inputs is not None and inputs != _RANDOM:
        given = dict(read_npz(Path(inputs)))
    given |= {name: read_npy(Path(file)) for name, file in files.items()}
    session = load_bundle(bundle)
    if inputs == _RANDOM:
        model = prepare_model(bundle.model(), bundle.manifest.model, bundle.folder)
        given = {**model_samples(model), **given}
    return session, {
        name: restore_dtype(value, session.types.get(name)) for name, value in given.items()
    }


def _run_repeatedly(
    session: Session, given: Mapping[str, Any], repeat: int
) -> tuple[Mapping[str, Any], list[Trace], list[str]]:
    """Return the outputs, a trace of each run that counts, and contradictions to stated shapes."""
    traces = [Trace() for _ in range(repeat)]
    outputs: Mapping[str, Any] = {}
    with collect_contradictions() as notes:
        if repeat > 1:
            session.run(given)
        for each in traces:
            outputs = session.run(given, each)
    return outputs, traces, list(notes)


def _make_rows(session: Session, traces: Sequence[Trace]) -> list[dict[str, Any]]:
    """Return a row for each segment in order of execution, with the median of its times."""
    rows = []
    for stage in session.stages:
        of_it = [[e for e in trace.events if e.name == stage.name] for trace in traces]
        rows.append(
            {
                "segment": stage.name,
                "on": stage.device,
                "seconds": median(sum(event.seconds for event in events) for events in of_it),
                "bytes_in": sum(event.bytes_read for event in of_it[-1]),
                "bytes_out": sum(event.bytes_made for event in of_it[-1]),
            }
        )
    return rows


def _format_row(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        "segment": row["segment"],
        "on": row["on"],
        "time": format_quantity(row["seconds"], "s"),
        "in": format_quantity(row["bytes_in"], "B"),
        "out": format_quantity(row["bytes_out"], "B"),
    }


def _describe_output(name: str, value: Any) -> dict[str, str]:
    if value is None:
        return {"name": name, "type": "empty"}
    if isinstance(value, list | tuple):
        return {"name": name, "type": f"a sequence of {len(value)}"}
    array = np.asarray(value)
    return {"name": name, "type": f"{array.dtype}{list(array.shape)}"}
