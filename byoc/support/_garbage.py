"""Memory of the process: the search for cyclic garbage put off, and free memory returned."""

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

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
