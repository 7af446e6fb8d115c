"""Runs of onnxruntime that can be stopped: the command line does so when it is told to leave."""

from collections.abc import Callable
from typing import Any, TypeVar

from byoc.long_calls import can_stop, stopping_by

T = TypeVar("T")


def run_stoppable(run: Callable[[Any], T]) -> T:
    """Call `run` with the options of a run of onnxruntime, None for the usual ones; return its result.

    Where nobody may stop it, it costs nothing; else 2 microseconds. A run that is stopped ends after the
    node that is being computed, with onnxruntime's error.
    """
    if not can_stop():
        return run(None)
    import onnxruntime  # noqa: PLC0415 - optional, and there

    options = onnxruntime.RunOptions()

    def stop() -> None:
        options.terminate = True

    with stopping_by(stop):
        return run(options)
