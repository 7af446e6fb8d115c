"""Several inputs in flight at once, and their turns on devices."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from heapq import heappop, heappush
from threading import Condition
from typing import Any

from byoc.errors import InputError
from byoc.runtime._stage_program import StageValues


class DeviceTurns:
    """Turns on devices: each runs one stage at a time, those of earlier inputs first."""

    def __init__(self) -> None:
        """Start with all devices free."""
        self._changed = Condition()
        self._busy: set[str] = set()
        self._waiting: dict[str, list[int]] = defaultdict(list)

    @contextmanager
    def hold(self, device: str, number: int) -> Iterator[None]:
        """Wait until a device is free and no earlier input waits for it; hold it while inside.

        `number` says when the input came; an input waits for one device at a time.
        """
        waiting = self._waiting[device]
        with self._changed:
            heappush(waiting, number)
            self._changed.wait_for(lambda: device not in self._busy and waiting[0] == number)
            heappop(waiting)
            self._busy.add(device)
        try:
            yield
        finally:
            with self._changed:
                self._busy.discard(device)
                self._changed.notify_all()


RunInTurn = Callable[[StageValues, int, DeviceTurns], dict[str, Any]]
"""Runs inputs, whose number is given, with turns on devices, and returns the outputs."""


def run_in_pipeline(
    run: RunInTurn, inputs: Iterable[StageValues], in_flight: int
) -> Iterator[dict[str, Any]]:
    """Yield the outputs for each of several inputs, in their order, with several in flight.

    Raises InputError when `in_flight` is below 1, and as `run` does in place of an input's outputs.
    """
    if in_flight < 1:
        raise InputError(f"{in_flight} inputs in flight: it takes at least 1")
    return _run_in_flight(run, inputs, in_flight)


def _run_in_flight(
    run: RunInTurn, inputs: Iterable[StageValues], in_flight: int
) -> Iterator[dict[str, Any]]:
    turns = DeviceTurns()
    running: deque[Future[dict[str, Any]]] = deque()
    with ThreadPoolExecutor(in_flight, thread_name_prefix="byoc") as threads:
        try:
            for number, given in enumerate(inputs):
                call = partial(run, given, number, turns)
                running.append(threads.submit(copy_context().run, call))
                if len(running) == in_flight:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for each in running:
                each.cancel()
