"""The lines of rooms that inputs reach, and the corpus, which keeps a few inputs that reach them all."""

import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import bundle_inputs
from attempts import attempt, make_ready
from kinds import CORPUS, KINDS

REACHING = CORPUS / "reaching"
_ROOT = Path(__file__).parents[2]
_MAX_BYTES = 100_000
"""The most bytes of a kind's inputs that are kept, so that the corpus stays below a megabyte."""

Line = tuple[str, int]


def find_lines(rooms: Sequence[str]) -> set[Line]:
    """Return the lines inside functions of rooms: paths of packages and modules from the repository."""
    found: set[Line] = set()
    for room in rooms:
        path = _ROOT / room
        for file in sorted(path.rglob("*.py")) if path.is_dir() else (path,):
            code = compile(file.read_text(encoding="utf-8"), str(file), "exec")
            found.update((str(file), line) for line in _list_lines(code))
    return found


def _list_lines(code: CodeType) -> Iterator[int]:
    if code.co_flags & CO_OPTIMIZED:  # a function, not a module or class
        yield from (line for *_, line in code.co_lines() if line and line != code.co_firstlineno)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _list_lines(constant)


def choose_inputs(kind: str, inputs: Collection[bytes]) -> tuple[list[bytes], int, int]:
    """Return a few inputs that reach what all do, the number of these lines, and of all lines."""
    lines = find_lines(KINDS[kind].rooms)
    files = {file for file, _ in lines}
    reached: set[Line] = set()
    unreached: dict[CodeType, set[int]] = {}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code.co_filename not in files:
            return None
        if code not in unreached:
            unreached[code] = {line for *_, line in code.co_lines() if line} - {code.co_firstlineno}
        if event == "line":
            reached.add((code.co_filename, frame.f_lineno))
            unreached[code].discard(frame.f_lineno)
        return trace if unreached[code] else None  # tracing takes most of the time

    chosen: list[bytes] = []
    with tempfile.TemporaryDirectory(prefix="byoc-fuzz-") as name:
        target = make_ready(kind, Path(name))
        for data in sorted(inputs, key=len):
            before = len(reached & lines)
            sys.settrace(trace)
            try:
                attempt(target, data)
            finally:
                sys.settrace(None)
            if len(reached & lines) > before:
                chosen.append(data)
    return chosen, len(reached & lines), len(lines)


def read_corpus(kind: str) -> list[bytes]:
    """Return the inputs of a kind that were kept: findings, and those that reached new lines."""
    findings = [path.read_bytes() for path in sorted((CORPUS / kind).glob("*"))]
    return [*findings, *read_reaching(kind)]


def read_reaching(kind: str) -> list[bytes]:
    """Return the inputs that together reach all lines that fuzzing by coverage reached."""
    path = _reaching_file(kind)
    return list((bundle_inputs.split(path.read_bytes()) or {}).values()) if path.exists() else []


def write_corpus(kind: str, inputs: Sequence[bytes]) -> None:
    """Write inputs, smallest first, as far as they are small together."""
    kept: dict[str, bytes] = {}
    for data in inputs:
        if sum(map(len, kept.values())) + len(data) <= _MAX_BYTES:
            kept[f"{len(kept):04}"] = data
    path = _reaching_file(kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bundle_inputs.join(kept, bundle_inputs.DEFLATED))


def _reaching_file(kind: str) -> Path:
    return REACHING / f"{kind}.zip"
