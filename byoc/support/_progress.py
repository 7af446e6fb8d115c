"""Progress of long work: every step is a record of the logger `byoc`, shown while someone watches."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from byoc.errors import escape_unprintable

_LOGGER = logging.getLogger("byoc")


def report_step(step: str) -> None:
    """Report the name of a step that begins, at level INFO of the logger `byoc`.

    Names in it are printable then, as loggers write to terminals.
    """
    _LOGGER.info("%s", escape_unprintable(step))


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
