"""Pictures of memory plans: boxes of bytes over steps as data, and as one SVG file."""

from collections.abc import Container, Iterator
from itertools import chain
from typing import Literal, TypeVar
from xml.sax.saxutils import escape

from byoc._dataclasses import dataclass
from byoc.errors import escape_unprintable
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


# Pictures as SVG: a single file for any browser, without scripts, fonts or links.

# Quiet fills, and one stroke for all. What is between has two in turn, so that neighbours differ.
_FILLS = {"input": "#c9d7e8", "output": "#cfe3cf", "scratch": "#e3e3e3"}
_BETWEEN = ("#efe3cd", "#e6d9e6", "#d7e4e2", "#f0dcd4")
_STROKE, _INK, _FAINT, _MARK = "#8a8a8a", "#333333", "#dddddd", "#a33c3c"
_LEFT, _TOP, _RIGHT, _BOTTOM = 76, 44, 96, 56
_HEIGHT = 480  # pixels, for all bytes
_NARROWEST, _WIDEST, _STEP = 640, 1600, 26
_LETTER, _LINE = 6.2, 13  # pixels of a letter's width and of a line's height at the size of labels
_CELL = 4  # pixels of the grid that labels are kept apart by
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
# What XML 1.0 has no way to write.


@dataclass(frozen=True)
class _PixelScale:
    """Conversion of steps and bytes to pixels."""

    steps: int
    bytes: int

    @property
    def width(self) -> float:
        return float(min(max(self.steps * _STEP, _NARROWEST), _WIDEST))

    def x(self, step: float) -> float:
        return _LEFT + self.width * step / self.steps

    def y(self, offset: float) -> float:
        return _TOP + _HEIGHT * (1 - offset / self.bytes)


def render_svg(picture: MemoryPicture) -> str:
    """Render a picture as SVG.

    Steps go from left to right, bytes upwards. Boxes and steps have tooltips; a box that is large enough
    shows its name.
    """
    top = max([1, *(box.offset + box.bytes for box in picture.boxes), *(e.bytes for e in picture.lines)])
    scale = _PixelScale(max(1, picture.steps), top)
    width, height = _LEFT + scale.width + _RIGHT, _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="sans-serif" font-size="10" fill="{_INK}">',
        f"<title>{_escape_text(picture.title)}</title>",
        f'<rect width="{width:.0f}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="14">{_escape_text(picture.title)}</text>',
        *_render_bytes_axis(scale),
        *_render_steps_axis(scale, picture),
    ]
    for number, box in enumerate(picture.boxes):
        fill = _FILLS.get(box.kind) or _BETWEEN[number % len(_BETWEEN)]
        parts.append(_render_box(scale, box, fill, picture.unit))
    parts.append('<g text-anchor="middle" pointer-events="none">')  # tooltips are those of the boxes
    taken: set[tuple[int, int]] = set()
    for box in picture.boxes:
        parts += _render_label(scale, box, taken)
    parts.append("</g>")
    for line in picture.lines:
        parts += _render_line(scale, line)
    return "\n".join([*parts, "</svg>\n"])


def _render_bytes_axis(scale: _PixelScale) -> Iterator[str]:
    """Yield grid lines at round numbers of bytes, with labels."""
    unit, name = next(found for found in _UNITS if scale.bytes >= found[0])
    step = _round_step(scale.bytes / unit) * unit
    offset = 0.0
    while offset <= scale.bytes:
        y = scale.y(offset)
        yield _render_level(scale, y, f'stroke="{_FAINT}"')
        label = f"{offset / unit:g} {name}" if offset else "0"
        yield f'<text x="{_LEFT - 8}" y="{y + 3:.1f}" text-anchor="end">{label}</text>'
        offset += step


def _round_step(most: float) -> float:
    """Return a step of 1, 2 or 5 times a power of ten that makes at most eight steps of a range."""
    power = 1.0
    while power * 8 < most:
        power *= 10
    while power > 1 and power / 10 * 8 >= most:
        power /= 10
    return next((power * part for part in (0.1, 0.2, 0.5) if power * part * 8 >= most), power)


def _render_steps_axis(scale: _PixelScale, picture: MemoryPicture) -> Iterator[str]:
    """Yield the cells below the plane, one for each span of steps, with the names as tooltips."""
    y = scale.y(0) + 4
    for number, span in enumerate(picture.spans):
        x, width = scale.x(span.first), scale.x(span.last + 1) - scale.x(span.first)
        fill = "#f2f2f2" if number % 2 else "#e2e2e2"
        yield (
            f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="12" fill="{fill}">'
            f"<title>{_format_steps(span, picture.unit)}: {_escape_text(span.name)}</title></rect>"
        )
    every = max(1, int(_round_step(picture.steps)))
    for number in (0, *range(every - 1, picture.steps, every)):
        x = scale.x(number + 0.5)
        yield f'<text x="{x:.1f}" y="{y + 25:.1f}" text-anchor="middle">{number + 1}</text>'
    yield f'<text x="{_LEFT}" y="{y + 42:.1f}">{picture.unit}s, in order of execution</text>'


def _render_box(scale: _PixelScale, box: PictureBox, fill: str, unit: str) -> str:
    x, y, width, height = _box_rectangle(scale, box)
    where = f"bytes {box.offset} to {box.offset + box.bytes} ({box.bytes})"
    lines = (box.name, box.detail, where, _format_steps(box, unit))
    tip = "\n".join(map(_escape_text, lines))
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}" '
        f'fill-opacity="0.85" stroke="{_STROKE}" stroke-width="0.6">'
        f"<title>{tip}</title></rect>"
    )


def _render_label(scale: _PixelScale, box: PictureBox, taken: set[tuple[int, int]]) -> Iterator[str]:
    """Yield a box's name along the side that is long enough for it, if one is.

    `taken` are cells of the plane with text: boxes may overlap, names may not.
    """
    x, y, width, height = _box_rectangle(scale, box)
    needed = len(box.name) * _LETTER + 4
    middle = x + width / 2, y + height / 2
    lies = needed <= width and height >= _LINE
    if not lies and not (needed <= height and width >= _LINE):
        return
    across, down = (needed / 2, _LINE / 2) if lies else (_LINE / 2, needed / 2)
    cells = {
        (column, row)
        for column in range(int(middle[0] - across) // _CELL, int(middle[0] + across) // _CELL + 1)
        for row in range(int(middle[1] - down) // _CELL, int(middle[1] + down) // _CELL + 1)
    }
    if cells & taken:
        return
    taken |= cells
    if lies:
        yield f'<text x="{middle[0]:.1f}" y="{middle[1] + 3.5:.1f}">{_escape_text(box.name)}</text>'
    else:
        at = f"{middle[0] + 3.5:.1f} {middle[1]:.1f}"
        yield f'<text transform="translate({at}) rotate(-90)">{_escape_text(box.name)}</text>'


def _box_rectangle(scale: _PixelScale, box: PictureBox) -> tuple[float, float, float, float]:
    """Return a box's left and upper edge, width and height in pixels."""
    x, y = scale.x(box.first), scale.y(box.offset + box.bytes)
    return x, y, scale.x(box.last + 1) - x, scale.y(box.offset) - y


def _format_steps(span: PictureBox | PictureSpan, unit: str) -> str:
    if span.first == span.last:
        return f"{unit} {span.first + 1}"
    return f"{unit}s {span.first + 1} to {span.last + 1}"


def _render_line(scale: _PixelScale, line: PictureLine) -> Iterator[str]:
    y, end = scale.y(line.bytes), scale.x(scale.steps)
    dash = ' stroke-dasharray="5 3"' if line.dashed else ""
    yield _render_level(scale, y, f'stroke="{_MARK}" stroke-width="1.2"{dash}')
    below = 12 if line.dashed else -4
    yield f'<text x="{end + 4:.1f}" y="{y + below:.1f}" fill="{_MARK}">{_escape_text(line.name)}</text>'
    yield f'<text x="{end + 4:.1f}" y="{y + below + 11:.1f}" fill="{_MARK}">{line.bytes} B</text>'


def _render_level(scale: _PixelScale, y: float, style: str) -> str:
    left, right = scale.x(0), scale.x(scale.steps)
    return f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" {style}/>'


def _escape_text(name: str) -> str:
    return escape(escape_unprintable(name))
