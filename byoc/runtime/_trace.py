"""Traces of runs in Chrome's trace event format, which Perfetto opens, with what stages have inside.

The fields are those of "Trace Event Format" (Google, 2016), sections "Complete Events" and "Metadata
Events": `ts` and `dur` are microseconds and may be fractions.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import get_native_id
from typing import Any

from byoc._dataclasses import dataclass, field, replace
from byoc.codegen import Cycles, OperatorTime, to_seconds
from byoc.errors import InputError

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


@dataclass(frozen=True)
class StageProfile:
    """The inside of a stage: the times of its operators, and the memory of a run.

    `problem` says why there are no operators, empty where there is nothing to say. `held_bytes` are
    those of the tensors that are alive as the stage ends, its inputs and outputs among them, and
    `peak_bytes` the most that the process had in memory meanwhile, 0 where the system does not tell
    (Linux does).
    """

    operators: tuple[OperatorTime, ...] = ()
    problem: str = ""
    held_bytes: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True, eq=False)
class Trace:
    """A collection of the events of one or more runs, filled by several threads.

    `variant` is the variant of a bundle that new events are of, `padded` what inputs are padded by. With
    `profiles` a run finds out what its stages have inside, each the first time that it runs, which takes
    longer and is counted in their times: `profiled` has it by variant and name of a stage. So profile
    one run, and take `with_profiles` of the trace of another.
    """

    events: list[TraceEvent] = field(default_factory=list)
    variant: str = ""
    padded: str = ""
    profiles: bool = False
    profiled: dict[tuple[str, str], StageProfile] = field(default_factory=dict)

    def for_variant(self, variant: str) -> "Trace":
        """Return this trace for events of a variant: they are added to the same ones."""
        return replace(self, variant=variant)

    def for_padding(self, padded: str) -> "Trace":
        """Return this trace for events of padded inputs: they are added to the same ones."""
        return replace(self, padded=padded)

    def with_profiles(self, other: "Trace") -> "Trace":
        """Return this trace with what a profiling run found inside of the stages."""
        return replace(self, profiled=other.profiled)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that the process had in memory in a profiled run, 0 where that is not known."""
        return max((each.peak_bytes for each in self.profiled.values()), default=0)

    def profile_stage(self, stage: Any, values: Mapping[str, Any]) -> Callable[[Any], Any]:
        """Return a function that runs a stage and profiles it; `values` are all that are alive."""

        def run(inputs: Any) -> Any:
            with _watch_peak() as peak:
                outputs = stage.run(inputs)
            key = (self.variant, stage.name)
            if key not in self.profiled:
                held = _count_bytes(values) + _count_bytes(outputs)
                found = StageProfile(held_bytes=held, peak_bytes=peak[0])
                self.profiled[key] = _find_operators(stage, inputs, found)
            return outputs

        return run

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
        complete: list[dict[str, Any]] = []
        for event in ordered:
            inside = self.profiled.get((event.variant, event.name), StageProfile())
            made = {
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
                    **({"bytes held": inside.held_bytes} if inside.held_bytes else {}),
                    **({"peak bytes": inside.peak_bytes} if inside.peak_bytes else {}),
                    **({"variant": event.variant} if event.variant else {}),
                    **({"padded": event.padded} if event.padded else {}),
                },
            }
            complete += [made, *_write_operators(made, inside.operators)]
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


OPERATOR_CATEGORY = "operator"
"""The category of events that are operators inside of a stage."""


def _write_operators(
    stage: Mapping[str, Any], operators: Sequence[OperatorTime]
) -> Iterator[dict[str, Any]]:
    """Yield the events of operators inside of a stage's: one after another, each by its share.

    Their own seconds, or cycles, are arguments: they are of another run, by another clock.
    """
    seconds = [to_seconds(each.time) for each in operators]
    total, start = sum(seconds), 0.0
    for each, own in zip(operators, seconds, strict=True):
        if not own:
            continue
        cycles = {"cycles": each.time.count} if isinstance(each.time, Cycles) else {}
        yield {
            "name": each.name or ", ".join(each.nodes) or "operator",
            "cat": OPERATOR_CATEGORY,
            "ph": "X",
            "ts": stage["ts"] + stage["dur"] * start / total,
            "dur": stage["dur"] * own / total,
            "pid": _PROCESS,
            "tid": stage["tid"],
            "args": {
                "device": stage["args"]["device"],
                "stage": stage["name"],
                "nodes": list(each.nodes),
                "seconds": own,
                **cycles,
            },
        }
        start += own


def _find_operators(stage: Any, inputs: Any, found: StageProfile) -> StageProfile:
    """Return the inside of a stage: the times of its operators, or why there are none."""
    if stage.profile is None:
        return found
    try:
        return replace(found, operators=tuple(stage.profile(inputs)))
    except InputError as error:  # of a run beside the one that counts
        return replace(found, problem=str(error))


_open_peaks: list[list[int]] = []  # of the stages that are running, those around others first


@contextmanager
def _watch_peak() -> Iterator[list[int]]:
    """Find the most bytes that this process has in memory inside; the list has them behind the block.

    Blocks may nest, as stages in the bodies of a Loop do, and are in one thread.
    """
    _note_peak()
    own = [0]
    _open_peaks.append(own)
    try:
        yield own
    finally:
        _note_peak()
        _open_peaks.remove(own)


def _note_peak() -> None:
    """Note the largest memory so far in all blocks that are open, and begin anew."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # proc(5): resets VmHWM
    except OSError:  # another system, or not allowed
        return
    lines = [line.split() for line in status.splitlines() if line.startswith("VmHWM:")]
    now = int(lines[0][1]) * 1024 if lines else 0
    for each in _open_peaks:
        each[0] = max(each[0], now)
