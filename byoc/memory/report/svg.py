"""A picture as SVG: one file that every browser shows, without scripts, fonts or links of its own."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from byoc.memory.report.picture import Box, Line, Picture

# Quiet fills, and one stroke for all. What is between has two in turn, so that neighbours differ.
_FILLS = {"input": "#c9d7e8", "output": "#cfe3cf", "scratch": "#e3e3e3"}
_BETWEEN = ("#efe3cd", "#e6d9e6", "#d7e4e2", "#f0dcd4")
_STROKE, _INK, _FAINT, _MARK = "#8a8a8a", "#333333", "#dddddd", "#a33c3c"
_LEFT, _TOP, _RIGHT, _BOTTOM = 76, 44, 96, 56
_HEIGHT = 480
_NARROWEST, _WIDEST, _STEP = 640, 1600, 26
_LETTER, _LINE = 6.2, 13  # pixels of a letter's width and of a line's height at the size of labels
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
# What XML 1.0 has no way to write.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class _Scale:
    """Pixels of a picture's plane: steps to the right, bytes upwards."""

    steps: int
    bytes: int

    @property
    def width(self) -> float:
        return float(min(max(self.steps * _STEP, _NARROWEST), _WIDEST))

    def x(self, step: float) -> float:
        return _LEFT + self.width * step / self.steps

    def y(self, offset: float) -> float:
        return _TOP + _HEIGHT * (1 - offset / self.bytes)


def svg(picture: Picture) -> str:
    """Return a picture as the text of an SVG file.

    Steps go from left to right, bytes from below to above. Every box and every step has a tooltip; a
    box that is large enough has its name inside.
    """
    top = max([1, *(box.offset + box.bytes for box in picture.boxes), *(e.bytes for e in picture.lines)])
    scale = _Scale(max(1, len(picture.steps)), top)
    width, height = _LEFT + scale.width + _RIGHT, _TOP + _HEIGHT + _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="sans-serif" font-size="10" fill="{_INK}">',
        f"<title>{_text(picture.title)}</title>",
        f'<rect width="{width:.0f}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="24" font-size="14">{_text(picture.title)}</text>',
        *_bytes_axis(scale),
        *_steps_axis(scale, picture.steps),
    ]
    for number, box in enumerate(picture.boxes):
        parts += _box(scale, box, _FILLS.get(box.kind) or _BETWEEN[number % len(_BETWEEN)])
    for line in picture.lines:
        parts += _line(scale, line)
    return "\n".join([*parts, "</svg>\n"])


def _bytes_axis(scale: _Scale) -> Iterator[str]:
    """Yield grid lines at round numbers of bytes, with labels."""
    unit, name = next(found for found in _UNITS if scale.bytes >= found[0])
    step = _round_step(scale.bytes / unit) * unit
    offset = 0.0
    while offset <= scale.bytes:
        y = scale.y(offset)
        yield _level(scale, y, f'stroke="{_FAINT}"')
        yield f'<text x="{_LEFT - 8}" y="{y + 3:.1f}" text-anchor="end">{offset / unit:g} {name}</text>'
        offset += step


def _round_step(most: float) -> float:
    """Return a step of 1, 2 or 5 times a power of ten that makes at most eight steps of a range."""
    power = 1.0
    while power * 8 < most:
        power *= 10
    while power > 1 and power / 10 * 8 >= most:
        power /= 10
    return next((power * part for part in (0.1, 0.2, 0.5) if power * part * 8 >= most), power)


def _steps_axis(scale: _Scale, steps: tuple[str, ...]) -> Iterator[str]:
    """Yield a band of cells below the plane, one a step, that tell their names."""
    y = scale.y(0) + 4
    for number, name in enumerate(steps):
        x, width = scale.x(number), scale.x(number + 1) - scale.x(number)
        fill = "#f2f2f2" if number % 2 else "#e2e2e2"
        yield (
            f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="12" fill="{fill}">'
            f"<title>{number + 1}: {_text(name)}</title></rect>"
        )
    every = max(1, int(_round_step(len(steps))))
    for number in range(0, len(steps), every):
        x = scale.x(number + 0.5)
        yield f'<text x="{x:.1f}" y="{y + 25:.1f}" text-anchor="middle">{number + 1}</text>'
    yield f'<text x="{_LEFT}" y="{y + 42:.1f}">steps, in order of execution</text>'


def _box(scale: _Scale, box: Box, fill: str) -> Iterator[str]:
    x, y = scale.x(box.first), scale.y(box.offset + box.bytes)
    width, height = scale.x(box.last + 1) - x, scale.y(box.offset) - y
    when = f"steps {box.first + 1} to {box.last + 1}"
    where = f"bytes {box.offset} to {box.offset + box.bytes} ({box.bytes})"
    tip = "\n".join((box.name, box.detail, where, when))
    yield (
        f'<g><title>{_text(tip)}</title><rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" '
        f'height="{height:.2f}" fill="{fill}" fill-opacity="0.85" stroke="{_STROKE}" '
        'stroke-width="0.6"/>'
    )
    if len(box.name) * _LETTER + 4 <= width and height >= _LINE:
        middle = f'x="{x + width / 2:.1f}" y="{y + height / 2 + 3.5:.1f}"'
        yield f'<text {middle} text-anchor="middle">{_text(box.name)}</text>'
    elif len(box.name) * _LETTER + 4 <= height and width >= _LINE:
        at = f"{x + width / 2 + 3.5:.1f} {y + height / 2:.1f}"
        turned = f'transform="translate({at}) rotate(-90)"'
        yield f'<text {turned} text-anchor="middle">{_text(box.name)}</text>'
    yield "</g>"


def _line(scale: _Scale, line: Line) -> Iterator[str]:
    y, end = scale.y(line.bytes), scale.x(scale.steps)
    dash = ' stroke-dasharray="5 3"' if line.dashed else ""
    yield _level(scale, y, f'stroke="{_MARK}" stroke-width="1.2"{dash}')
    below = 12 if line.dashed else -4
    yield f'<text x="{end + 4:.1f}" y="{y + below:.1f}" fill="{_MARK}">{_text(line.name)}</text>'
    yield f'<text x="{end + 4:.1f}" y="{y + below + 11:.1f}" fill="{_MARK}">{line.bytes} B</text>'


def _level(scale: _Scale, y: float, style: str) -> str:
    left, right = scale.x(0), scale.x(scale.steps)
    return f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" {style}/>'


def _text(name: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", name))
