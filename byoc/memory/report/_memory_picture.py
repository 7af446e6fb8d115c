"""Pictures of memory plans as data: boxes of bytes over steps, and lines."""

from collections.abc import Container
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeVar

from byoc.memory.arena import ArenaPlan, find_live_ranges

Kind = Literal["input", "output", "between", "scratch"]
T = TypeVar("T")


@dataclass(frozen=True)
class PictureBox:
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
class PictureLine:
    """A horizontal line at a number of bytes."""

    bytes: int
    name: str
    dashed: bool


@dataclass(frozen=True)
class PictureSpan:
    """Steps `first` to `last`, both included, with one name on the axis."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class MemoryPicture:
    """A title, the number of steps and the name of one, spans, boxes and lines."""

    title: str
    steps: int
    unit: str
    spans: tuple[PictureSpan, ...]
    boxes: tuple[PictureBox, ...]
    lines: tuple[PictureLine, ...]


def find_shown_ranges(plan: ArenaPlan) -> list[tuple[int, int]]:
    """Return for each buffer the first and last position in the order at which it is live.

    A buffer that is overwritten ends before the next begins; a graph input begins at the first step.
    """
    found = find_live_ranges(plan.problem, plan.order)
    starts = {under: found.first[b] for b, under in enumerate(plan.overwrites) if under is not None}
    return [
        (max(0, first), max(0, first, min(last, starts.get(buffer, last + 1) - 1)))
        for buffer, (first, last) in enumerate(zip(found.first, found.last, strict=True))
    ]


def choose_kind(one: T, inputs: Container[T], outputs: Container[T]) -> Kind:
    """Return the kind of the box of a buffer or tensor; what is both is an output."""
    return "output" if one in outputs else "input" if one in inputs else "between"


def draw_plan(plan: ArenaPlan, title: str) -> MemoryPicture:
    """Return the picture of a plan."""
    problem = plan.problem
    boxes = []
    for buffer, (first, last) in enumerate(find_shown_ranges(plan)):
        if not problem.sizes[buffer]:
            continue
        kind = choose_kind(buffer, problem.inputs, problem.outputs)
        under = plan.overwrites[buffer]
        said = "" if under is None else f", over {problem.names[under]}"
        boxes.append(
            PictureBox(
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
        PictureBox(
            "scratch", place, place, plan.scratch[step], need.scratch, "scratch", f"of {need.name}"
        )
        for place, step in enumerate(plan.order)
        if (need := problem.steps[step]).scratch
    )
    if plan.is_minimal:
        lines = [PictureLine(plan.size, "arena = bound", dashed=False)]
    else:
        lines = [
            PictureLine(plan.size, "arena", dashed=False),
            PictureLine(plan.bound, "bound", dashed=True),
        ]
    spans = (
        PictureSpan(problem.steps[step].name, place, place) for place, step in enumerate(plan.order)
    )
    return MemoryPicture(
        title=title,
        steps=len(plan.order),
        unit="step",
        spans=tuple(spans),
        boxes=tuple(chain(boxes, scratch)),
        lines=tuple(lines),
    )
