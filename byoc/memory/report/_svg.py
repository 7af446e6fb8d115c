"""Pictures as SVG: a single file for any browser, without scripts, fonts or links."""

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from byoc.errors import escape_unprintable
from byoc.memory.report._memory_picture import MemoryPicture, PictureBox, PictureLine, PictureSpan

# Quiet fills, and one stroke for all. What is between has two in turn, so that neighbours differ.
_FILLS = {"input": "#c9d7e8", "output": "#cfe3cf", "scratch": "#e3e3e3"}
_BETWEEN = ("#efe3cd", "#e6d9e6", "#d7e4e2", "#f0dcd4")
_STROKE, _INK, _FAINT, _MARK = "#8a8a8a", "#333333", "#dddddd", "#a33c3c"
_LEFT, _TOP, _RIGHT, _BOTTOM = 76, 44, 96, 56
_HEIGHT = 480
_NARROWEST, _WIDEST, _STEP = 640, 1600, 26
_LETTER, _LINE = 6.2, 13  # pixels of a letter's width and of a line's height at the size of labels
_CELL = 4
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
