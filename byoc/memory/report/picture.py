"""Pictures of memory plans as data: boxes of bytes over steps, and lines."""

from dataclasses import dataclass
from itertools import chain
from typing import Literal

from byoc.memory.live import live
from byoc.memory.problem import Plan

Kind = Literal["input", "output", "between", "scratch"]


@dataclass(frozen=True)
class Box:
    """Bytes `[offset, offset + bytes)` from step `first` to step `last`, both included.

    Steps are positions in the order of execution. `detail` is a line of the tooltip.
    """

    name: str
    first: int
    last: int
    offset: int
    bytes: int
    kind: Kind
    detail: str


@dataclass(frozen=True)
class Line:
    """A horizontal line at a number of bytes."""

    bytes: int
    name: str
    dashed: bool


@dataclass(frozen=True)
class Span:
    """Steps `first` to `last`, both included, with one name on the axis."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class Picture:
    """A title, the number of steps and the name of one, spans, boxes and lines."""

    title: str
    steps: int
    unit: str
    spans: tuple[Span, ...]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


def lives(plan: Plan) -> list[tuple[int, int]]:
    """Return for each buffer the first and last position in the order at which it is live.

    A buffer that is overwritten ends before the next begins; a graph input begins at the first step.
    """
    found = live(plan.problem, plan.order)
    starts = {under: found.first[b] for b, under in enumerate(plan.over) if under is not None}
    return [
        (max(0, first), max(0, first, min(last, starts.get(buffer, last + 1) - 1)))
        for buffer, (first, last) in enumerate(zip(found.first, found.last, strict=True))
    ]


def picture(plan: Plan, title: str) -> Picture:
    """Return the picture of a plan."""
    problem = plan.problem
    boxes = []
    for buffer, (first, last) in enumerate(lives(plan)):
        if not problem.sizes[buffer]:
            continue
        kind: Kind = "between"
        if buffer in problem.outputs:
            kind = "output"
        elif buffer in problem.inputs:
            kind = "input"
        under = plan.over[buffer]
        said = "" if under is None else f", over {problem.names[under]}"
        boxes.append(
            Box(
                name=problem.names[buffer],
                first=first,
                last=last,
                offset=plan.offsets[buffer],
                bytes=problem.sizes[buffer],
                kind=kind,
                detail=f"{kind}{said}",
            )
        )
    scratch = (
        Box("scratch", place, place, plan.scratch[step], need.scratch, "scratch", f"of {need.name}")
        for place, step in enumerate(plan.order)
        if (need := problem.steps[step]).scratch
    )
    if plan.is_minimal:
        lines = [Line(plan.size, "arena = bound", dashed=False)]
    else:
        lines = [Line(plan.size, "arena", dashed=False), Line(plan.bound, "bound", dashed=True)]
    spans = (Span(problem.steps[step].name, place, place) for place, step in enumerate(plan.order))
    return Picture(
        title=title,
        steps=len(plan.order),
        unit="step",
        spans=tuple(spans),
        boxes=tuple(chain(boxes, scratch)),
        lines=tuple(lines),
    )
