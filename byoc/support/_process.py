"""This process: its garbage collection, its life's end, its exit codes."""

import ctypes
import gc
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Thread

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
