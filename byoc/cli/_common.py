"""Parts shared by the verbs: output formats, exit codes, progress, JSON, rows, files of plug-ins."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import sys
import threading
from _thread import interrupt_main
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from enum import StrEnum
from math import isfinite
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from typer.core import TyperCommand, TyperGroup

from byoc.console import print_table
from byoc.errors import InputError, must_propagate
from byoc.long_calls import allow_stopping, stop_runs
from byoc.support import (
    Panel,
    find_files,
    get_distribution,
    report_step,
    show_progress,
)

if TYPE_CHECKING:
    from byoc.bundle import Report


# The end of the command line's process: by signals at once and clean, and not by a plug-in's call.
#
# Python runs the handler of a signal between two of its own steps, and so not while a library
# computes. A thread hears of signals at once (`signal.set_wakeup_fd`). It stops the runs of
# onnxruntime, so that the handler's turn comes and everything is cleaned up; where a library goes
# on computing, it leaves instead.

_HANDLED = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_UNHEARD_SECONDS = 1.0  # until the process leaves although a library computes
_CLEANING_SECONDS = 10.0  # for cleaning up, and for threads to end
_TOGETHER_SECONDS = 0.5  # before a signal: who handled one so lately hears this one
_LOOK_SECONDS = 0.05  # between looks whether what was stopped has ended
_leave = os._exit
_is_watching = False


class _Ending:
    """The state that handlers and the thread share."""

    def __init__(self) -> None:
        self.handled_at = float("-inf")
        self.dropped: signal.Signals | None = None
        self.hook = sys.unraisablehook
        self.finished = threading.Event()

    def handle(self, number: int, _: FrameType | None) -> None:
        """Leave by the way that cleans up, with the code that shells have for a signal."""
        self.handled_at = monotonic()
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    def note_dropped(self, dropped: Any) -> None:
        """Have a signal handled again whose exception Python drops: in `__del__`, or as it imports."""
        error = dropped.exc_value
        if isinstance(error, KeyboardInterrupt):
            self.dropped = signal.SIGINT
        elif isinstance(error, SystemExit) and must_propagate(error):
            self.dropped = signal.Signals(int(str(error.code)) - 128)
        else:
            self.hook(dropped)

    def watch(self, link: socket.socket) -> None:
        """Stop what runs at each signal, and leave where that does not suffice."""
        with suppress(OSError):  # closed before this thread began
            while content := link.recv(16):
                if numbers := [number for number in content if number in _HANDLED]:
                    self._end(numbers[-1])

    def _end(self, number: int) -> None:
        began = monotonic()
        stop_runs()
        while not self.finished.wait(_LOOK_SECONDS):
            if self.dropped is not None:
                again, self.dropped = self.dropped, None
                interrupt_main(again)
            is_heard = self.handled_at >= began - _TOGETHER_SECONDS
            if monotonic() - began > (_CLEANING_SECONDS if is_heard else _UNHEARD_SECONDS):
                _leave_at_once(number)


def _leave_at_once(number: int) -> None:
    with suppress(Exception):
        if workspaces := sys.modules.get("byoc.support._workspace"):  # without it there are none
            workspaces.abandon_workspaces()
        _remove_temporary_folders()
        if sys.stderr.isatty():
            os.write(2, b"\x1b[?25h")  # a bar of progress hides the cursor
    _leave(128 + number)


def _remove_temporary_folders() -> None:
    """Remove the folders of all `TemporaryDirectory` objects, whose blocks are never left.

    Nothing is imported, which could wait for the main thread.
    """
    tempfile, shutil = sys.modules.get("tempfile"), sys.modules.get("shutil")
    if tempfile is None or shutil is None:
        return
    for each in gc.get_objects():
        if type(each) is tempfile.TemporaryDirectory:
            shutil.rmtree(each.name, ignore_errors=True)


@contextmanager
def ending_by_signals() -> Iterator[None]:
    """Leave in order at SIGINT, SIGTERM and SIGHUP, within about a second; afterwards all is as before.

    What is ignored stays so, as SIGHUP under nohup. In a thread other than the main one, which signals
    do not reach, nothing is done.
    """
    global _is_watching  # noqa: PLW0603 - of the process, as signals are
    if _is_watching or threading.current_thread() is not threading.main_thread():
        yield
        return
    _is_watching = True
    ending, (ours, theirs) = _Ending(), socket.socketpair()
    theirs.setblocking(False)
    process, handlers = os.getpid(), dict[int, Any]()
    wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    sys.unraisablehook = ending.note_dropped
    watcher = threading.Thread(target=ending.watch, args=(ours,), name="byoc-signals", daemon=True)
    try:
        for number in _HANDLED:
            if signal.getsignal(number) != signal.SIG_IGN:
                handlers[number] = signal.signal(number, ending.handle)
        with suppress(RuntimeError):  # no memory for a thread: signals are heard, though less soon
            watcher.start()
        with allow_stopping():
            yield
    finally:
        ending.finished.set()
        _is_watching, sys.unraisablehook = False, ending.hook
        if os.getpid() == process:
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        theirs.close()  # the thread reads the end of the stream
        if watcher.ident is not None:
            watcher.join(_UNHEARD_SECONDS)
        ours.close()


def _forget_signals() -> None:
    """Keep the signals of a forked process to itself: the other end of its link is its parent's."""
    if _is_watching:
        with suppress(ValueError, OSError):
            signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_signals)


@contextmanager
def without_silent_end() -> Iterator[None]:
    """Let a plug-in's `os._exit` be an error of the plug-in's, not the end of the process.

    It would end byoc with the exit code that the plug-in gives, such as 0, with nothing written or said.
    In a forked process it ends that. Code that is not Python is not kept from it.
    """
    process, is_over, before = os.getpid(), False, os._exit

    def refuse(status: int) -> NoReturn:
        if is_over or os.getpid() != process:
            before(status)
        raise RuntimeError(f"it called os._exit({status}), which would end byoc with nothing said")

    os._exit = refuse
    try:
        yield
    finally:
        is_over = True
        os._exit = before


NOT_VERIFIED = 4
"""The exit code for a bundle that was written, was to be verified, and could not be."""

CODEGEN_FAILED = 5
"""The exit code for a bundle that was written without regions at which a codegen failed."""

DIFFERENT = 6
"""The exit code for placements that differ, where the user asked for one (`diff --exit-code`)."""

_PART = re.compile(r"\b(\d{1,9}) of (\d{1,9})\b")


class TableFormat(StrEnum):
    """A format of rows."""

    text = "text"
    csv = "csv"
    json = "json"


class OutputFormat(StrEnum):
    """A format of results."""

    text = "text"
    json = "json"


FormatOption = Annotated[
    OutputFormat, typer.Option("--format", help="text for people, json for programs.")
]

VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print all rows, however many, and each in full.")
]


TrustOption = Annotated[
    bool,
    typer.Option("--trust", help="Look at files outside that the bundle refers to, whoever made it."),
]
AllowUnverifiedOption = Annotated[
    bool,
    typer.Option(
        "--allow-unverified",
        help="Leave with 0 although regions, or all, could not be verified on this machine.",
        rich_help_panel=Panel.REQUIREMENTS,
    ),
]


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Keep standard output for results; output of plug-ins goes to standard error."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed
        yield
        return
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def show_status() -> Iterator[Callable[[str], None]]:
    """Show each step that is reported inside; give a function that reports one.

    A bar is as long as the part that is done, where a step tells it (`3 of 12`), else it moves. Nothing
    is shown where there is no terminal.
    """
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield report_step
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=errors, transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def show(step: str) -> None:
            done, total = read_part(step)
            bars.update(task, description=step, completed=done, total=total)

        with show_progress(show):
            yield report_step


def read_part(step: str) -> tuple[int, int | None]:
    """Return the things that are done before a step that counts (`3 of 12`), and their total."""
    found = list(_PART.finditer(step))
    if not found:
        return 0, None
    number, total = int(found[-1][1]), int(found[-1][2])
    return (max(number - 1, 0), total) if number <= total else (0, None)


def _fold_choices(names: str, width: int) -> str:
    """Return an option and its choices, `<a|b|c>`, in lines of no more than the width of a help."""
    lines = [""]
    for part in re.split(r"(?<=\|)", names):
        if lines[-1] and len(lines[-1]) + len(part) + 2 > width:
            lines.append("    ")
        lines[-1] += part
    return "\n".join(lines)


class PanelCommand(TyperCommand):
    """A verb whose help has the options that most users need first, and the others in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options in no group, and those of each group."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                group = getattr(parameter, "rich_help_panel", None) or "Options"
                names = _fold_choices(record[0], formatter.width)
                panels.setdefault("Arguments" if argument else str(group), []).append((names, record[1]))
        for title, records in panels.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class DefaultGroup(TyperGroup):
    """The commands of a verb; without the name of one it is the first."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the first command before arguments that begin with none."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def leave_by_reports(reports: Iterable[Report], allow_unverified: bool) -> None:
    """Leave with 5 or 4 where a codegen failed, or what was written could not be verified."""
    if any(report.failures for report in reports):
        raise typer.Exit(CODEGEN_FAILED)
    if any(report.verification_missing for report in reports) and not allow_unverified:
        raise typer.Exit(NOT_VERIFIED)


def check_outside(path: Path, other: Path, reason: str) -> None:
    """Raise InputError, with a reason, when an output is another file or folder, or lies in it."""
    place, whole = path.resolve(), other.resolve()
    if whole in (place, *place.parents):
        raise InputError(f"{path}: cannot be written: {reason}, {other}")


def check_not_read(path: Path, read: Iterable[object]) -> None:
    """Raise InputError when an output would replace what is read.

    `read` are arguments of a verb, or lists of them; those that name no file are passed over.
    """
    for given in read:
        for each in given if isinstance(given, list | tuple) else [given]:
            if isinstance(each, str | Path) and Path(each).is_file():
                check_outside(path, Path(each), "it would replace what is read")


def read_links(texts: Sequence[str] | None) -> tuple[float, ...]:
    """Return the bandwidths in texts with commas between, each once; none where there is no text."""
    links = []
    for part in ",".join(texts).split(",") if texts else ():
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        if not (isfinite(value) and value > 0):
            raise typer.BadParameter(
                f"'{part}' is no number of GB/s above 0, such as 10 or 0.5", param_hint="--link"
            )
        links.append(value)
    return tuple(dict.fromkeys(links))


def print_json(document: Any) -> None:
    """Print one JSON document on standard output: in ASCII, names escaped as JSON does it."""
    sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")


def print_rows(rows: Sequence[Mapping[str, Any]], form: OutputFormat) -> None:
    """Print rows that share their keys as a table, or as a JSON list of objects."""
    if form is OutputFormat.json:
        print_json([dict(row) for row in rows])
        return
    print_table(_without_empty_columns(rows))


def _without_empty_columns(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    used = [key for key in (rows[0] if rows else ()) if any(row[key] not in ("", None) for row in rows)]
    return [{key: row[key] for key in used} for row in rows]


TableRow = dict[str, Any]


def make_file_rows(group: str, describe: Callable[[Path], TableRow]) -> Iterable[TableRow]:
    """Return a row for each file of a group, and one for each package that failed to list its files."""
    found, broken = find_files(group)
    rows = []
    for name, same in found.items():
        for file in same.values():
            row: TableRow = {"name": name, "from": get_distribution(file.point)}
            try:
                rows.append(row | describe(file.path) | {"problem": _describe_clash(len(same))})
            except InputError as error:
                rows.append(row | {"problem": error.lines[0]})
    rows.extend({"problem": f"could not look in {problem}"} for problem in broken)
    keys = dict.fromkeys(key for row in rows for key in row if key != "problem")
    return ({**dict.fromkeys(keys), **row, "problem": row["problem"]} for row in rows)


def _describe_clash(number: int) -> str:
    return f"{number} packages bring one of this name: give a path" if number > 1 else ""
