"""The one place where lines and tables are printed; what is foreign in them becomes printable here.

Names of models, tensors, devices and files come from elsewhere, and a terminal obeys what stands in
them: escape sequences, line breaks, marks that turn the direction of writing. So a text that is printed
is one line, whatever it holds, and a cell of a table is one line, too.
"""

import sys
import traceback
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import StringIO
from math import isfinite
from typing import TYPE_CHECKING, Any, TextIO

from byoc.errors import escape_unprintable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


# Numbers formatted for people: `4.1 ms`, `588 KiB`, `99.2 %`, `1 region`.

_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")


def format_quantity(value: float, unit: str) -> str:
    """Format seconds or joules (`s`, `J`) with a decimal prefix, or bytes (`B`) with a binary one.

    Without a unit, format the number alone.
    """
    if not unit:
        return f"{value:.4g}"
    if unit == "B":
        step = 0
        while value >= 1024 and step < len(_BINARY) - 1:
            value, step = value / 1024, step + 1
        return f"{_format_digits(value)} {_BINARY[step]}"
    for scale, prefix in _SMALL:
        if value >= scale:
            return f"{_format_digits(value / scale)} {prefix}{unit}"
    return f"0 {unit}" if not value else f"{value:.1e} {unit}"


def format_decibels(ratio: float) -> str:
    """Format a signal-to-noise ratio in dB; infinity means equal, -infinity that it is not known."""
    if isfinite(ratio):
        return f"{ratio:.1f} dB"
    return "equal" if ratio > 0 else "not known"


def format_share(value: float) -> str:
    """Format a part of one as a percentage that is never rounded up to the whole."""
    if value == 1:
        return "100 %"
    return f"{min(value * 100, 99.9):.1f} %"


def format_count(number: int, thing: str) -> str:
    """Format a number of things: `1 region`, `2 regions`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _format_digits(value: float) -> str:
    """Format three significant digits, or the whole part if it has more."""
    if value >= 99.95 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


_GAP = 3  # between the columns of a table
_LONGEST_WORD = 40  # a path that is longer is broken
_PIPE_WIDTH = 10_000  # nothing is wrapped where no terminal is
_PROGRAM = "byoc"


class FoldedText(StringIO):
    """Standard output that is kept as text, its tables folded to a number of columns."""

    def __init__(self, columns: int = _PIPE_WIDTH) -> None:
        """Begin with no text."""
        super().__init__()
        self.columns = columns


def make_console() -> "Console":
    """Return the console for results; in a pipe no line is folded to the width of a terminal."""
    from rich.console import Console  # noqa: PLC0415 - the help and most errors do without

    kept = sys.stdout.columns if isinstance(sys.stdout, FoldedText) else _PIPE_WIDTH
    width = None if sys.stdout.isatty() else kept
    return Console(width=width, emoji=False)  # in a name, `:car:` is just that


def print_lines(lines: Iterable[object], console: "Console | None" = None) -> None:
    """Print lines, by default on standard output. A line break inside one is shown as `\\n`."""
    for line in lines:
        print(escape_unprintable(str(line)), file=None if console is None else console.file)


def print_line(line: object = "") -> None:
    """Print a line on standard output."""
    print_lines([line])


def print_errors(lines: Iterable[object]) -> None:
    """Print lines on standard error, each after the name of the program."""
    for line in lines:
        print(f"{_PROGRAM}: {escape_unprintable(str(line))}", file=sys.stderr)  # noqa: T201


def print_traceback() -> None:
    """Print the traceback of the exception that is being handled on standard error."""
    _print_text(traceback.format_exc(), sys.stderr)


def print_table(
    rows: Sequence[Mapping[str, Any]], console: "Console | None" = None, right: Collection[str] = ()
) -> None:
    """Print rows that share their keys as a table; the columns in `right` are aligned there.

    In a narrow terminal text is folded between words and columns are left out, which a line below names:
    a name that is broken inside can be neither read nor copied.
    """
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = console or make_console()
    cells = {
        name: [_make_cell(name.replace("_", " ")), *(_make_cell(row[name]) for row in rows)]
        for name in (rows[0] if rows else ())
    }
    least = {name: _least_width(column, name in right) for name, column in cells.items()}
    left_out = _choose_left_out(least, right, console.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in (shown := [name for name in cells if name not in left_out]):
        title = cells[name][0]
        if name in right:
            table.add_column(title, justify="right", no_wrap=True)
        else:
            table.add_column(title, overflow="fold", min_width=least[name])
    for number in range(1, len(rows) + 1):
        table.add_row(*(cells[name][number] for name in shown))
    console.print(table)
    if left_out:
        names = ", ".join(str(cells[name][0]) for name in cells if name in left_out)
        print_lines([f"Left out, since the terminal is narrow: {names}", ""], console)


def _least_width(column: "Sequence[Text]", is_whole: bool) -> int:
    """Return the least width of a column that breaks no word, and no cell where it `is_whole`."""
    words = [each for cell in column for each in ([cell] if is_whole else cell.split(" "))]
    longest = max((word.cell_len for word in words), default=0)
    return longest if is_whole else min(longest, _LONGEST_WORD)


def _choose_left_out(least: Mapping[str, int], right: Collection[str], width: int) -> set[str]:
    """Return the columns that a table of so many characters is without: numbers first, the widest.

    The first column stays, which has the names that the rows are about.
    """
    shown = list(least)
    while len(shown) > 1 and sum(least[name] + _GAP for name in shown) > width + 1:
        numbers = [name for name in shown[1:] if name in right]
        shown.remove(max(numbers, key=lambda name: least[name]) if numbers else shown[-1])
    return set(least) - set(shown)


def make_warnings_printable() -> None:
    """Print Python's warnings as other lines are printed: they quote names, too."""

    def show(  # noqa: PLR0913, PLR0917 - the parameters of warnings.showwarning
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = warnings.formatwarning(message, category, filename, lineno, line)
        _print_text(text, file or sys.stderr)

    warnings.showwarning = show


def _print_text(text: str, stream: TextIO | None) -> None:
    """Print a text of several lines."""
    for line in text.splitlines():
        print(escape_unprintable(line), file=stream)


def _make_cell(value: Any) -> "Text":
    from rich.text import Text  # noqa: PLC0415

    if isinstance(value, bool):
        return Text("yes" if value else "no")
    return Text("" if value is None else escape_unprintable(str(value)))
