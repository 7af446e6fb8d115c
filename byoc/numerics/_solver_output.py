"""Keeping a solver's output off stdout."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def redirect_stdout_to_stderr() -> Iterator[None]:
    """Redirect the file descriptor of stdout to stderr.

    HiGHS prints there at times, whatever its options, and a program may be reading JSON from it.
    """
    try:
        flush = ctypes.CDLL(None).fflush
        kept = os.dup(1)
    except (OSError, AttributeError, TypeError):  # no such library or descriptor on this system
        yield
        return
    try:
        flush(None)
        os.dup2(2, 1)
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)
