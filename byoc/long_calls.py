"""Calls of other people's code that take long: who waits for what, and how a run is stopped.

The command line turns both on: it says what it waits for, and stops what runs when it is told to leave.
In a program of a caller's they cost nothing and do nothing.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import monotonic

_FIRST_SECONDS = 10.0  # until it is said for the first time what is waited for
_FURTHER_SECONDS = 60.0  # between two lines about the same call
_LOOK_SECONDS = 0.5  # between looks at the calls


class _Call:
    """A call that others make; `what` continues `waiting for`, and `hint` ends the line."""

    def __init__(self, watch: "_Watch", what: str, hint: str) -> None:
        self.watch, self.what, self.hint = watch, what, hint
        self.began = self.said = 0.0

    def __enter__(self) -> None:
        self.began = monotonic()
        self.said = self.began + _FIRST_SECONDS - _FURTHER_SECONDS
        self.watch.add(self)

    def __exit__(self, *_: object) -> None:
        self.watch.calls.pop(id(self), None)


class _Watch:
    """The calls that are being made, and the thread that says which of them takes long."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show = show
        self.calls: dict[int, _Call] = {}
        self.ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, call: _Call) -> None:
        self.calls[id(call)] = call
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="byoc-watch", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        while not self.ended.wait(_LOOK_SECONDS):
            now = monotonic()
            for call in list(self.calls.values()):
                if now - call.said >= _FURTHER_SECONDS:
                    call.said = now
                    self.show(f"waiting for {call.what}, {now - call.began:.0f} s so far{call.hint}")


_watch: _Watch | None = None
_runs: dict[int, Callable[[], None]] | None = None
_is_stopped = False


@contextmanager
def watch_calls(show: Callable[[str], None]) -> Iterator[None]:
    """Call `show`, in a thread, with a line for each call inside that takes longer than 10 seconds."""
    global _watch  # noqa: PLW0603 - of the process, as signals are
    before, _watch = _watch, _Watch(show)
    watch = _watch
    try:
        yield
    finally:
        _watch = before
        watch.ended.set()


def is_watching() -> bool:
    """Return whether it is said what takes long, so that a call has to be announced."""
    return _watch is not None


def waiting_for(what: str, hint: str = "") -> AbstractContextManager[None]:
    """Return a block in which it is said after some seconds what is waited for: `codegen acme: run`.

    `hint` says behind that what ends the wait.
    """
    return nullcontext() if _watch is None else _Call(_watch, what, hint)


@contextmanager
def allow_stopping() -> Iterator[None]:
    """Let `stop_runs` end what is run inside, also in other threads."""
    global _runs, _is_stopped
    before, _runs = _runs, {}
    try:
        yield
    finally:
        _runs, _is_stopped = before, False


def can_stop() -> bool:
    """Return whether somebody may call `stop_runs`, so that a run has to be announced."""
    return _runs is not None


@contextmanager
def stopping_by(stop: Callable[[], None]) -> Iterator[None]:
    """Have `stop_runs` call `stop`, in a thread of its own, while the block runs."""
    runs = _runs
    if runs is None:
        yield
        return
    runs[id(stop)] = stop
    try:
        if _is_stopped and threading.current_thread() is not threading.main_thread():
            stop()  # what other threads begin before the main thread has told them to end
        yield
    finally:
        runs.pop(id(stop), None)


def stop_runs() -> None:
    """Stop what is run: each run ends with an error of its library's."""
    global _is_stopped  # noqa: PLW0603 - as above
    _is_stopped = True
    for stop in list((_runs or {}).values()):
        stop()
