"""This process: its garbage collection, its life's end, exit codes, and the progress of its work."""

import ctypes
import gc
import logging
import os
import select
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Literal, TypeVar

from byoc._dataclasses import dataclass
from byoc.errors import InputError, MissingRuntimeError, escape_unprintable

# Building of shared libraries from C sources.

COMPILER_VARIABLE = "BYOC_CC"
_FLAGS = ("-fPIC", "-shared")
_OPTIMIZED = ("-O2",)  # unless the command says otherwise
_MOST_CHARACTERS = 2000  # of a compiler's messages


def split_command(command: str) -> list[str]:
    """Return the words of a command, as a shell splits them.

    Raises InputError where quotes do not end, and for an empty one.
    """
    try:
        found = shlex.split(command)
    except ValueError as error:
        raise InputError(f"the command {command!r} cannot be read: {error}") from None
    if not found:
        raise InputError("the command of the compiler is empty")
    return found


def build_shared_library(  # noqa: PLR0913, PLR0917 - most have a default
    name: str,
    files: Sequence[Path],
    library: Path,
    flags: Sequence[str] = (),
    linked: Sequence[str] = (),
    compiler: str | None = None,
) -> Path:
    """Build the shared library `library` from C sources, and return that path.

    `name` begins the messages. `compiler` is a command, by default that in the environment variable
    BYOC_CC, or `cc`; `linked` are names of libraries for the linker. The library is put in place whole
    or not at all. Raises MissingRuntimeError without a compiler, InputError for an unreadable command,
    with the compiler's messages where it fails, and where it writes nothing.
    """
    given = os.environ.get(COMPILER_VARIABLE) or "cc" if compiler is None else compiler
    command = split_command(given)
    library.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        level = () if any(part.startswith("-O") for part in command) else _OPTIMIZED
        arguments = [*command, *level, *_FLAGS, *flags, *map(str, files), "-o", str(made)]
        arguments += [f"-l{each}" for each in linked]
        try:
            ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
        except OSError as error:
            reason = error.strerror or str(error)
            raise MissingRuntimeError(
                f"{name}: no C compiler: {command[0]}: {reason} (set {COMPILER_VARIABLE})"
            ) from None
        if ran.returncode:
            messages = ran.stderr.strip()[:_MOST_CHARACTERS] or f"it says nothing ({ran.returncode})"
            raise InputError(f"{name}: {command[0]} failed: {messages}")
        if not made.is_file():
            raise InputError(f"{name}: {command[0]} ended well and wrote no library: is it a compiler?")
        made.replace(library)
    return library


# Objects that are made between two searches. Python's own number is 700 to 2,000: in a graph of 100,000
# nodes a fifth of the time is spent on looking through objects that are all in use.
_OBJECTS = 200_000
_lock = threading.Lock()
_before: list[tuple[int, int, int]] = []


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Let Python search for cyclic garbage rarely; several threads may do so at the same time.

    Where the search is turned off, or rarer still, it stays so.
    """
    with _lock:
        _before.append(gc.get_threshold())
        first, *others = gc.get_threshold()
        gc.set_threshold(max(first, _OBJECTS) if first else 0, *others)
    try:
        yield
    finally:
        with _lock:
            if len(_before) == 1:
                gc.set_threshold(*_before[0])
            _before.pop()


def return_free_memory() -> None:
    """Return the free memory of the heap to the system, in a few milliseconds.

    Nothing is done where the C library is not glibc.
    """
    trim = _find_trim()
    if trim is not None:
        trim(0)


@cache
def _find_trim() -> Callable[[int], int] | None:
    """Return glibc's function for it (`malloc_trim`), None where there is none."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found


# Processes that end with the one that started them.


def end_with_parent(life: int) -> None:
    """Have this process group killed as soon as the other end of a pipe, a descriptor, is closed.

    Linux does so even while code keeps the interpreter busy (fcntl(2), F_SETSIG). The workers of
    codegens have the same function of their own, since they import nothing of byoc.
    """
    import fcntl  # noqa: PLC0415 - not on Windows

    if not hasattr(fcntl, "F_SETSIG"):
        Thread(target=_await_end, args=(life,), daemon=True).start()
        return
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgid(0))
    fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # it was closed meanwhile
        os.killpg(0, signal.SIGKILL)


def _await_end(life: int) -> None:
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


# Exit codes of processes, described for people.


def name_signal(code: int) -> str:
    """Return the name of the signal that ended a process with a negative exit code: `SIGSEGV`."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def describe_exit(code: int) -> str:
    """Describe how a process ended, as the end of a sentence that begins with it."""
    return f"ended with exit code {code}" if code >= 0 else f"was killed by {name_signal(code)}"


# Progress and notes: records of the logger `byoc`, shown while someone watches.


# Messages for the user.


@dataclass(frozen=True)
class Note:
    """A message for the user. As a text, a warning begins with `warning: `, and a note is itself."""

    severity: Literal["note", "warning"]
    text: str

    def __str__(self) -> str:
        """Return the message as reports have it in JSON."""
        return self.text if self.severity == "note" else f"warning: {self.text}"

    @classmethod
    def parse(cls, message: "str | Note") -> "Note":
        """Return the note that a text is made from; the inverse of `str`."""
        text = str(message)
        warning = text.removeprefix("warning: ")
        return cls("note" if warning == text else "warning", warning)


T = TypeVar("T")

_LOGGER = logging.getLogger("byoc")


def report_step(step: str) -> None:
    """Report the name of a step that begins, at level INFO of the logger `byoc`.

    Names in it are printable then, as loggers write to terminals.
    """
    if not _HIDDEN.get():
        _LOGGER.info("%s", escape_unprintable(step))


_HIDDEN: ContextVar[bool] = ContextVar("hidden steps", default=False)


@contextmanager
def hide_steps() -> Iterator[None]:
    """Report no steps inside the block: of what a step tries, and throws away."""
    token = _HIDDEN.set(True)
    try:
        yield
    finally:
        _HIDDEN.reset(token)


def report_each(items: Sequence[T], describe: Callable[[T], str]) -> Iterator[T]:
    """Yield items; report a step before each: what it is, and `(3 of 12)` where there are several."""
    for number, item in enumerate(items, 1):
        report_step(f"{describe(item)}{format_part(number, len(items))}")
        yield item


def format_part(number: int, total: int) -> str:
    """Return ` (3 of 12)` for the end of a step, from which bars are drawn; empty for one of one."""
    return f" ({number} of {total})" if total > 1 else ""


@contextmanager
def show_progress(show: Callable[[str], None] | None) -> Iterator[None]:
    """Call `show` with the name of each step that is reported inside the block; None shows nothing."""
    if show is None:
        yield
        return
    handler, level = _Steps(show), _LOGGER.level
    _LOGGER.addHandler(handler)
    if not _LOGGER.isEnabledFor(logging.INFO):
        _LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOGGER.setLevel(level)
        _LOGGER.removeHandler(handler)


class _Steps(logging.Handler):
    """Hands the message of each record to a function, whose errors are not swallowed."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())
