"""Execution traces in Chrome's trace event format, which Perfetto opens.

The fields are those of "Trace Event Format" (Google, 2016), sections "Complete Events" and "Metadata
Events": `ts` and `dur` are microseconds and may be fractions.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import get_native_id
from typing import Any

_PROCESS = 1  # a trace shows one process, whatever its number was


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One execution of a stage: its thread, and its start and duration in seconds.

    `bytes_read` and `bytes_made` are the bytes of its input and output arrays. `variant` is the variant
    of the bundle that ran, empty where there are none, `padded` what its inputs were padded by.
    """

    name: str
    device: str
    thread: int
    start: float
    seconds: float
    bytes_read: int
    bytes_made: int
    variant: str = ""
    padded: str = ""


@dataclass(frozen=True, eq=False)
class Trace:
    """A collection of the events of one or more runs, filled by several threads.

    `variant` is the variant of a bundle that new events are of, `padded` what inputs are padded by.
    """

    events: list[TraceEvent] = field(default_factory=list)
    variant: str = ""
    padded: str = ""

    def for_variant(self, variant: str) -> "Trace":
        """Return this trace for events of a variant: they are added to the same ones."""
        return Trace(self.events, variant, self.padded)

    def for_padding(self, padded: str) -> "Trace":
        """Return this trace for events of padded inputs: they are added to the same ones."""
        return Trace(self.events, self.variant, padded)

    def add_event(self, stage: Any, start: float, end: float, given: Any, made: Any) -> None:
        """Record one execution of a stage; `start` and `end` are seconds of one clock."""
        size = (_count_bytes(given), _count_bytes(made))
        self.events.append(
            TraceEvent(
                *(stage.name, stage.device, get_native_id(), start, end - start, *size),
                self.variant,
                self.padded,
            )
        )

    @property
    def seconds(self) -> float:
        """The time from the start of the first event to the end of the last, in seconds."""
        ends = [event.start + event.seconds for event in self.events]
        return max(ends, default=0.0) - min((event.start for event in self.events), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the trace in the JSON object format: times from the first event, a track per thread."""
        ordered = sorted(self.events, key=lambda event: (event.start, -event.seconds))
        origin = ordered[0].start if ordered else 0.0
        tracks = {thread: i for i, thread in enumerate(dict.fromkeys(e.thread for e in ordered))}
        names = [_metadata_event("process_name", 0, "byoc")]
        names += [_metadata_event("thread_name", i, f"thread {i}") for i in tracks.values()]
        complete = [
            {
                "name": event.name,
                "cat": event.device,
                "ph": "X",
                "ts": (event.start - origin) * 1e6,
                "dur": event.seconds * 1e6,
                "pid": _PROCESS,
                "tid": tracks[event.thread],
                "args": {
                    "device": event.device,
                    "bytes in": event.bytes_read,
                    "bytes out": event.bytes_made,
                    **({"variant": event.variant} if event.variant else {}),
                    **({"padded": event.padded} if event.padded else {}),
                },
            }
            for event in ordered
        ]
        return {"traceEvents": [*names, *complete], "displayTimeUnit": "ms"}

    def to_text(self) -> str:
        """Return the document as JSON text."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"


_current: ContextVar[Trace | None] = ContextVar("trace", default=None)


def current_trace() -> Trace | None:
    """Return the trace that is active in this context, if any."""
    return _current.get()


@contextmanager
def record_into(trace: Trace | None) -> Iterator[None]:
    """Record all stages that run inside in a trace, those of control flow bodies included."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


def _metadata_event(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": track, "args": {"name": name}}


def _count_bytes(value: Any) -> int:
    """Return the bytes of an array, and of all arrays in a mapping or a sequence."""
    if isinstance(value, Mapping):
        return sum(map(_count_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_count_bytes, value))
    return int(getattr(value, "nbytes", 0))
