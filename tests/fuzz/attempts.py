"""Trying inputs one after the other in a process with limits, and printing findings as JSON."""

import base64
import json
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from kinds import KINDS, FuzzTarget
from targets import look_up_once, peak_bytes, signature

MAX_SECONDS = 10
"""The most processor seconds that an input may take; a busy machine does not count."""
GRACE = 10
"""Seconds more for what runs outside Python, where no signal is seen until it returns."""
MAX_BYTES = 2 << 30
AT = "at"
"""The file that says which input is tried: its number in 12 characters, a line break, and itself."""


class TooLongError(BaseException):
    """An input took longer than it may; no handler of Exception swallows it."""


@dataclass(frozen=True)
class Finding:
    """An input, and what it did; `died` where that ended the process."""

    number: int
    what: str
    trace: str
    data: bytes
    died: bool = False

    def to_json(self) -> str:
        """Return it as a line."""
        return json.dumps({**vars(self), "data": base64.b64encode(self.data).decode()})

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Finding":
        """Return what a line says."""
        return cls(**{**content, "data": base64.b64decode(content["data"])})


def attempt(target: FuzzTarget, data: bytes) -> tuple[str, str, str]:
    """Return what became of an input: the outcome, or else the finding's signature and trace."""
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    try:
        return target(data), "", ""
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "", signature(error), traceback.format_exc(limit=-6)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def make_ready(kind: str, folder: Path) -> FuzzTarget:
    """Return a target made ready in this process, with the limit on time set."""
    signal.signal(signal.SIGPROF, _stop_input)
    warnings.simplefilter("error")
    look_up_once()
    target = KINDS[kind].target(folder)
    target.prepare()
    return target


def _stop_input(_: int, __: FrameType | None) -> None:
    raise TooLongError


class Recorder:
    """Tries inputs in this process and prints what they did: each finding, and at the end a summary."""

    def __init__(self, kind: str, folder: Path, number: int) -> None:
        """Make the target ready, and limit the memory of this process."""
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
        self._target = make_ready(kind, folder)
        self._number = number
        self._outcomes: Counter[str] = Counter()
        self._slowest = (0.0, -1)
        self._at = (folder / AT).open("wb", buffering=0)

    def __enter__(self) -> "Recorder":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Print the summary."""
        summary = {"outcomes": self._outcomes, "slowest": self._slowest, "peak": peak_bytes()}
        print(json.dumps(summary), flush=True)
        self._at.close()

    def try_input(self, data: bytes) -> None:
        """Try an input, and print what it did if that is a finding."""
        self._at.seek(0)
        self._at.truncate()
        self._at.write(b"%-12d\n" % self._number + data)
        begun = time.process_time()
        # The kernel ends a process that is still outside Python then (SIGVTALRM). A limit on the whole
        # process would not do: the kernel counts its time in ticks, which drift from what it took.
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS + GRACE)
        outcome, what, trace = attempt(self._target, data)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self._slowest = max(self._slowest, (time.process_time() - begun, self._number))
        self._outcomes[outcome or "found"] += 1
        if what:
            print(Finding(self._number, what, trace, data).to_json(), flush=True)
        self._number += 1
