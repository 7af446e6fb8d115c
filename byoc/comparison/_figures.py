"""Figures by matplotlib, which is optional: made, labelled, and written whole or not at all."""

from io import BytesIO
from pathlib import Path
from typing import Any

from byoc.errors import InputError, escape_unprintable
from byoc.support import write_atomically

SUFFIXES = (".svg", ".png", ".pdf")
"""The formats of figures, as suffixes of files."""

# Ids that are the same in every run.
_PARAMETERS: Any = {"svg.hashsalt": "byoc"}
_DOTS_PER_INCH = 200  # sharp in print, for bitmaps


def make_figure(width: float, height: float) -> Any:
    """Return an empty figure of so many inches. Raises InputError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError:
        raise InputError("matplotlib is not installed: pip install 'onnx-byoc[plots]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure in the format of the suffix, without a date: equal figures are equal files.

    Raises InputError for another suffix (`SUFFIXES`), and when the file cannot be written.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: figures are {', '.join(SUFFIXES)}")
    write_atomically(path, lambda file: _write_figure(figure, path.suffix.removeprefix("."), file))


def render_figure(figure: Any, form: str) -> bytes:
    """Return a figure in a format, `svg`, `png` or `pdf`, as it would be in a file."""
    written = BytesIO()
    _write_figure(figure, form, written)
    return written.getvalue()


def _write_figure(figure: Any, form: str, file: Any) -> None:
    from matplotlib import rc_context  # noqa: PLC0415 - optional, and here once there is a figure

    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    with rc_context(_PARAMETERS):
        figure.savefig(file, format=form, metadata=dates[form], dpi=_DOTS_PER_INCH)


def escape_label(text: str) -> str:
    """Return a name as matplotlib writes it: `$` begins no formula, `_` hides nothing in legends."""
    shown = escape_unprintable(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown
