"""Turns on devices, for several inputs that are in flight at once."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from threading import Condition


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
