"""Progress and notes: records of the logger `byoc`, shown while someone watches."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeVar

from byoc.errors import escape_unprintable

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
