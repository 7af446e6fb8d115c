"""This process: its garbage collection, its life's end, its exit codes."""

import ctypes
import gc
import os
import select
import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from byoc.errors import InputError, MissingRuntimeError

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
