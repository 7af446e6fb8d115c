"""What a solver prints, kept away from what a program reads."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stdout_kept_clean() -> Iterator[None]:
    """Send what HiGHS prints, now and then and whatever its options, to stderr.

    It writes to the file descriptor, where a program may be reading JSON.
    """
    try:
        flush = ctypes.CDLL(None).fflush
        kept = os.dup(1)
    except (OSError, AttributeError, TypeError):  # no such library or descriptor here
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
