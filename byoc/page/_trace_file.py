"""Traces that `byoc run --trace` wrote, read for the page's timeline."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from byoc.codegen import escape_line, parse_strict_json
from byoc.errors import InputError
from byoc.support import StrictModel, read_limited

_MAX_TRACE_BYTES = 1 << 26
_MOST_EVENTS = 20_000

_Microseconds = Annotated[float, Field(ge=0, le=1e18)]  # sums of more could be infinite
_Count = Annotated[int, Field(ge=0)]


class _Arguments(StrictModel):
    device: str = "host"
    bytes_in: _Count = Field(0, alias="bytes in")
    bytes_out: _Count = Field(0, alias="bytes out")


class _Event(StrictModel):
    """A complete event of Chrome's trace event format; times are in microseconds."""

    name: str
    cat: str
    ph: str
    ts: _Microseconds
    dur: _Microseconds
    pid: int
    tid: int
    args: _Arguments


@dataclass(frozen=True, slots=True)
class PictureEvent:
    """A stage of a run in the timeline: its number in `rows`, and its start and length in seconds."""

    name: str
    device: str
    row: int
    start: float
    seconds: float
    bytes_read: int
    bytes_made: int


@dataclass(frozen=True, eq=False)
class TracePicture:
    """A timeline of `seconds`, with a row for each device and thread; `why` says what is left out."""

    events: tuple[PictureEvent, ...]
    rows: tuple[str, ...]
    seconds: float
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the data that JSON can represent."""
        return asdict(self)


def read_trace(path: Path) -> TracePicture:
    """Read a trace of `byoc run --trace`. Raises InputError with one sentence for any other file."""
    try:
        with path.open("rb") as file:
            content = read_limited(file, _MAX_TRACE_BYTES)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > _MAX_TRACE_BYTES:
        raise InputError(f"{path}: not a trace: it has more than {_MAX_TRACE_BYTES} bytes")
    try:
        read = parse_strict_json(content)
        events = read.get("traceEvents") if isinstance(read, dict) else None
        if not isinstance(events, list):
            raise ValueError("it has no list traceEvents")
        complete = [each for each in events if not isinstance(each, dict) or each.get("ph") != "M"]
        return _make_picture([_Event.model_validate(each) for each in complete])
    except ValidationError as error:
        first = error.errors()[0]
        where = escape_line(".".join(map(str, first["loc"])))
        raise InputError(f"{path}: not a trace of byoc: {where}: {escape_line(first['msg'])}") from None
    except (ValueError, LookupError) as error:
        raise InputError(f"{path}: not a trace of byoc: {escape_line(str(error))}") from None


def _make_picture(events: list[_Event]) -> TracePicture:
    """Return the timeline of the events, or of the longest 20,000 where there are more."""
    kept = sorted(events, key=lambda event: -event.dur)[:_MOST_EVENTS]
    devices = dict.fromkeys(sorted(((e.args.device != "host"), e.args.device, e.tid) for e in kept))
    threads = [name for _, name, _ in devices]
    rows = tuple(
        f"{name}, thread {thread}" if threads.count(name) > 1 else name for _, name, thread in devices
    )
    number = {key: row for row, key in enumerate(devices)}
    ordered = sorted(kept, key=lambda event: (event.ts, event.tid))
    ends = [event.ts + event.dur for event in events]
    left = len(events) - len(kept)
    return TracePicture(
        events=tuple(
            PictureEvent(
                name=event.name,
                device=event.args.device,
                row=number[(event.args.device != "host", event.args.device, event.tid)],
                start=event.ts / 1e6,
                seconds=event.dur / 1e6,
                bytes_read=event.args.bytes_in,
                bytes_made=event.args.bytes_out,
            )
            for event in ordered
        ),
        rows=rows,
        seconds=max(ends, default=0.0) / 1e6,
        why=f"{left} short events are left out." if left else "",
    )
