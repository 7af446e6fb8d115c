"""The end of the command line's process: by signals at once and clean, and not by a plug-in's call.

Python runs the handler of a signal between two of its own steps, and so not while a library computes.
A thread hears of signals at once (`signal.set_wakeup_fd`). It stops the runs of onnxruntime, so that the
handler's turn comes and everything is cleaned up; where a library goes on computing, it leaves instead.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from types import FrameType
from typing import Any, NoReturn

from byoc.errors import must_propagate
from byoc.long_calls import allow_stopping, stop_runs

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
