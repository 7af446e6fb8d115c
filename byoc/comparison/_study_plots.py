"""Figures and tables of a study's results: for papers, or as a page with all of them."""

import base64
import html
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import exp, fsum, log
from pathlib import Path
from typing import Any

from byoc.comparison._compare import SUFFIXES, escape_label, make_figure, render_figure, save_figure
from byoc.comparison._study_results import (
    HEADINGS,
    OVER_COMMON,
    StudyRow,
    describe_over,
    format_cell,
    is_failure,
    name_variants,
    read_results,
    read_table,
    select_rows,
    summarize_study,
)
from byoc.errors import InputError, escape_unprintable
from byoc.support import check_output, write_text

MEASURED = "measured_seconds"
"""The column of measured seconds, in results or in a file beside them."""

_SIZE = (6.4, 4.0)
_STYLES = ("-", "--", "-.", ":")
_MARKS = "osD^vPX*"
_TEXT_POINTS = 9.0  # as the captions of a paper
_COST_AXES = {
    "seconds": "predicted seconds",
    "joules": "joules",
    "constant_bytes": "MB of constants on accelerators",
}


def plot_study(
    results: str | Path,
    output: str | Path,
    measured: str | Path | None = None,
    over: str = OVER_COMMON,
) -> list[Path]:
    """Plot the results of a study, and return the files that were written.

    Args:
        results: CSV or Parquet of `byoc study`.
        output: a `.svg`, `.png` or `.pdf` file for all figures, one below the other, a `.html` page of
            them with the table of `tabulate_study`, or a folder (made if need be) for an SVG file each:
            `bandwidth`, `gaps`, `pareto` and `measured`. Those for which the results have no numbers are
            left out.
        measured: CSV of seconds that were measured: `measured_seconds`, and columns of the results by
            which its rows are found, such as `model` and `strategy`.
        over: `common` or `own`, as of `tabulate_study`: the problems that figures are of.

    Raises InputError for files that cannot be read or written, and where matplotlib is not installed.
    """
    every = read_results(Path(results))
    rows = select_rows(every, over)
    if not rows and any(not is_failure(row) for row in every):
        raise InputError(f"{results}: no problem was solved by every strategy; --over own plots all")
    if measured is not None:
        rows = join_measured(rows, Path(measured))
    drawn = [(name, draw) for name, draw in _FIGURES.items() if _HAS_NUMBERS[name](rows)]
    if not drawn:
        raise InputError(f"{results}: no case was solved, so that there is nothing to plot")
    path = Path(output)
    if path.suffix in SUFFIXES:
        check_output(path)
        _save(path, lambda figure: _draw_all(figure, drawn, rows), len(drawn))
        return [path]
    if path.suffix == PAGE_SUFFIX:
        check_output(path)
        images = {name: _render_svg(draw, rows) for name, draw in drawn}
        write_text(path, render_study_page(Path(results).name, every, images, over))
        return [path]
    if path.suffix:
        raise InputError(f"{path}: figures are {', '.join((*SUFFIXES, PAGE_SUFFIX))}, or a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made: {error.strerror or error}") from None
    written = []
    for name, draw in drawn:
        file = path / f"{name}.svg"
        _save(file, lambda figure, draw=draw: draw(figure, rows), 1)  # type: ignore[misc]
        written.append(file)
    return written


def join_measured(rows: Sequence[StudyRow], path: Path) -> list[StudyRow]:
    """Return rows with the measured seconds of a file, None where it has none for a row.

    Raises InputError where the file lacks the column, a column is none of the results, or is no number.
    """
    table = read_table(path)
    names = [name for name in (table[0] if table else ()) if name != MEASURED]
    if not table or MEASURED not in table[0]:
        raise InputError(f"{path}: there is no column {MEASURED}")
    for name in names:
        if rows and name not in rows[0]:
            raise InputError(f"{path}: there is no column {name} in the results")
    seconds: dict[tuple[str, ...], float] = {}
    for number, line in enumerate(table, 2):
        try:
            found = float(line[MEASURED])
        except (TypeError, ValueError):
            raise InputError(f"{path}:{number}: {MEASURED} is no number") from None
        if not 0 < found < float("inf"):
            raise InputError(f"{path}:{number}: {MEASURED} is not above 0")
        seconds[tuple(_format_key(line[name]) for name in names)] = found
    return [
        row | {MEASURED: seconds.get(tuple(_format_key(row[name]) for name in names))} for row in rows
    ]


def _format_key(value: Any) -> str:
    """Return a cell as text; a number has the same text however the file writes it (1, 1.0, 1e0)."""
    try:
        return repr(float(value))
    except (TypeError, ValueError):
        return "" if value is None else str(value)


def _save(path: Path, draw: Callable[[Any], None], count: int) -> None:
    with _draw_figure(draw, count) as figure:
        save_figure(figure, path)


def _render_svg(draw: Callable[..., None], rows: Sequence[StudyRow]) -> bytes:
    with _draw_figure(lambda figure: draw(figure, rows), 1) as figure:
        return render_figure(figure, "svg")


@contextmanager
def _draw_figure(draw: Callable[[Any], None], count: int) -> Iterator[Any]:
    """Draw a figure as high as `count` parts, and yield it; it has to be written inside of the block."""
    figure = make_figure(_SIZE[0], _SIZE[1] * count)
    from matplotlib import rc_context  # noqa: PLC0415 - optional, and here once there is a figure

    with rc_context({"font.size": _TEXT_POINTS}):
        draw(figure)
        yield figure


def _draw_all(
    figure: Any, drawn: Sequence[tuple[str, Callable[..., None]]], rows: Sequence[StudyRow]
) -> None:
    parts = figure.subfigures(len(drawn), 1, squeeze=False)
    for part, (_, draw) in zip(parts[:, 0], drawn, strict=True):
        draw(part, rows)


def _group(rows: Iterable[StudyRow], *names: str) -> dict[Any, list[StudyRow]]:
    groups = defaultdict(list)
    for row in rows:
        key = tuple(row[name] for name in names)
        groups[key[0] if len(names) == 1 else key].append(row)
    return dict(groups)


def _average(values: Iterable[float]) -> float | None:
    """Return the geometric mean of the values above 0, None where there are none."""
    logs = [log(value) for value in values if value and value > 0]
    return exp(fsum(logs) / len(logs)) if logs else None


def _draw_bandwidth(figure: Any, rows: Sequence[StudyRow]) -> None:
    """Plot the values, divided by those of the host alone, by bandwidth of the link."""
    axes = figure.subplots()
    variants = name_variants(rows)
    linked = [row for row in rows if row["link"] is not None]
    for number, (name, own) in enumerate(_by_variant(linked, variants).items()):
        points = [
            (link, _average(row["value"] / _host_value(row) for row in same if _host_value(row)))
            for link, same in sorted(_group(own, "link").items())
        ]
        shown = [(x, y) for x, y in points if y is not None]
        if shown:
            axes.plot(*zip(*shown, strict=True), **_style(number), label=escape_label(name))
    axes.set(
        xscale="log",
        xlabel="bandwidth of the link, GB/s",
        ylabel="objective over the host alone, geometric mean",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _host_value(row: StudyRow) -> float:
    """Return the divisor of a value: seconds of the host alone, or the best value if not seconds."""
    is_time = row["objective"] == "latency" and row["measure"] != "load"
    return float((row["host_only_seconds"] if is_time else row["best_value"]) or 0.0)


def _draw_gaps(figure: Any, rows: Sequence[StudyRow]) -> None:
    """Plot the share of cases within each gap to the best bound."""
    axes = figure.subplots()
    least, most = 1e-9, 1e-2
    for number, (name, own) in enumerate(_by_variant(rows, name_variants(rows)).items()):
        gaps = sorted(max(row["gap"], least) for row in own if row["gap"] is not None)
        if gaps:
            most = max(most, gaps[-1])
            shares = [(place + 1) / len(gaps) for place in range(len(gaps))]
            style = {**_style(number), "marker": ""}
            axes.step([least, *gaps], [0.0, *shares], where="post", **style, label=escape_label(name))
    axes.set(xscale="log", xlabel="gap to the best bound; none at the left edge")
    axes.set(ylabel="share of cases", xlim=(least / 2, 2 * most), ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def find_pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front of points whose numbers are both minimised, sorted by the first number."""
    front: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def _draw_pareto(figure: Any, rows: Sequence[StudyRow]) -> None:
    """Plot a front of seconds and another cost for each model under the same rules, costs and link.

    The points of a front are its strategies, objectives and limits.
    """
    others = [name for name in ("joules", "constant_bytes") if any(row[name] for row in rows)]
    all_axes = figure.subplots(1, len(others), squeeze=False)[0]
    models = list(dict.fromkeys(row["model"] for row in rows))
    for axes, other in zip(all_axes, others, strict=True):
        known = [row for row in rows if row[other] is not None]
        labelled = set[str]()
        scale = 1e-6 if other == "constant_bytes" else 1.0
        for setting, own in _group(known, *_SETTING).items():
            name, points = str(setting[0]), [(row["seconds"], row[other] * scale) for row in own]
            number = models.index(name)
            colour = f"C{number % 10}"
            axes.scatter(*zip(*points, strict=True), s=6, color=colour, alpha=0.3)
            label = None if name in labelled or number >= _MOST_MODELS else escape_label(name)
            style = {**_style(number), "markersize": 3, "linewidth": 0.8}
            front = zip(*find_pareto(points), strict=True)
            axes.plot(*front, **style, drawstyle="steps-post", label=label)
            labelled.add(name)
        axes.set(xlabel=_COST_AXES["seconds"], ylabel=_COST_AXES[other])
        seconds = [row["seconds"] for row in known]
        if 0 < 10 * min(seconds) <= max(seconds):  # else powers of ten, which have labels, may be absent
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter("")
        else:
            axes.locator_params(axis="x", nbins=4)
        axes.grid(alpha=0.3)
    all_axes[0].legend(fontsize=6, framealpha=0.5)


_MOST_MODELS = 10  # that a legend names
_SETTING = ("model", "rules", "cost_model", "host_cost_model", "parameters", "link", "no_passes")


def _draw_measured(figure: Any, rows: Sequence[StudyRow]) -> None:
    """Plot predicted seconds against measured ones, with the line of equality."""
    axes = figure.subplots()
    known = [row for row in rows if _get_measured_seconds(row)]
    for number, (name, own) in enumerate(_by_variant(known, name_variants(rows)).items()):
        points = [(_get_measured_seconds(row), row["seconds"]) for row in own]
        style = {**_style(number), "linestyle": "none"}
        axes.plot(*zip(*points, strict=True), **style, label=escape_label(name))
    ends = [
        float(value) for row in known for value in (_get_measured_seconds(row), row["seconds"]) if value
    ]
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color="#888888", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured seconds", ylabel="predicted seconds")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _get_measured_seconds(row: StudyRow) -> float | None:
    found = row.get(MEASURED) or row.get(f"own_{MEASURED}")
    return float(found) if found else None


def _by_variant(
    rows: Iterable[StudyRow], names: Mapping[tuple[str, str], str]
) -> dict[str, list[StudyRow]]:
    groups: dict[str, list[StudyRow]] = {}
    for row in rows:
        groups.setdefault(names[row["strategy"], row["options"] or ""], []).append(row)
    return groups


def _style(number: int) -> dict[str, Any]:
    """Return a style that is told apart without colour."""
    return {
        "color": f"C{number % 10}",
        "linestyle": _STYLES[number % len(_STYLES)],
        "marker": _MARKS[number % len(_MARKS)],
        "markersize": 4,
    }


_FIGURES: Mapping[str, Callable[..., None]] = {
    "bandwidth": _draw_bandwidth,
    "gaps": _draw_gaps,
    "pareto": _draw_pareto,
    "measured": _draw_measured,
}
_HAS_NUMBERS: Mapping[str, Callable[[Sequence[StudyRow]], bool]] = {
    "bandwidth": lambda rows: len({row["link"] for row in rows} - {None}) > 1,
    "gaps": lambda rows: any(row["gap"] is not None for row in rows),
    "pareto": lambda rows: any(row["joules"] or row["constant_bytes"] for row in rows),
    "measured": lambda rows: any(_get_measured_seconds(row) for row in rows),
}


# The results of a study as one HTML file, without scripts, that loads nothing from anywhere.

PAGE_SUFFIX = ".html"

_MOST_FAILURES = 200  # rows in the page; all are in the results
_CAPTIONS = {
    "bandwidth": "Objective over the host alone, by bandwidth of the link; a line for each strategy",
    "gaps": "Share of the cases within each gap to the best bound known",
    "pareto": "Predicted seconds against another cost: what no other placement betters in both",
    "measured": "Predicted against measured seconds; on the grey line both are equal",
}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title} · byoc study</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.3rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.05rem; margin-top: 2rem; }}
figure {{ margin: 1rem 0; }}
figure img {{ background: #fff; max-width: 100%; height: auto; border: 1px solid #8888; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; }}
th, td {{ padding: .25rem .7rem; border-bottom: 1px solid #8888; text-align: left; }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
</style>
</head>
<body>
<h1>Study {title}</h1>
<p>{summary}</p>
{sections}
</body>
</html>
"""


def render_study_page(
    title: str, rows: Sequence[StudyRow], figures: Mapping[str, bytes], over: str = OVER_COMMON
) -> str:
    """Return a page with figures (SVG by name), a table of the strategies, and what was not solved.

    The same rows and figures give the same text.
    """
    failed = [row for row in rows if is_failure(row)]
    models = len({row["model"] for row in rows})
    summary = f"{len(rows)} cases of {models} {'model' if models == 1 else 'models'}"
    if failed:
        counts = Counter(str(row["status"]) for row in failed)
        each = ", ".join(f"{count} {status}" for status, count in counts.items())
        summary += f"; {len(failed)} not solved ({each})"
    sections = [_render_figure(name, image) for name, image in figures.items()]
    table = [
        [format_cell(name, line[name]) for name in HEADINGS] for line in summarize_study(rows, over)
    ]
    sections += ["<h2>Strategies</h2>", _render_table(HEADINGS, table, text_columns=2)]
    sections.append(f"<p>Compared {describe_over(rows, over)}.</p>")
    if failed:
        names = ("model", "strategy", "options", "status", "reason")
        lines = dict.fromkeys(tuple(str(row[name] or "") for name in names) for row in failed)
        sections += ["<h2>Not solved</h2>", _render_table(names, [*lines][:_MOST_FAILURES], len(names))]
        if len(lines) > _MOST_FAILURES:
            sections.append(f"<p>and {len(lines) - _MOST_FAILURES} more</p>")
    return _PAGE.format(title=_escape(title), summary=_escape(summary), sections="\n".join(sections))


def _render_figure(name: str, image: bytes) -> str:
    data = base64.b64encode(image).decode("ascii")
    caption = _escape(_CAPTIONS[name])
    picture = f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
    return f'<figure id="{name}">{picture}<figcaption>{caption}</figcaption></figure>'


def _render_table(headings: Sequence[str], lines: Iterable[Sequence[str]], text_columns: int) -> str:
    """Return a table whose first columns are text and the others numbers."""
    kinds = ["" if place < text_columns else ' class="number"' for place in range(len(headings))]
    head = "".join(
        f'<th scope="col"{kind}>{_escape(name)}</th>' for kind, name in zip(kinds, headings, strict=True)
    )
    rows = (
        "".join(f"<td{kind}>{_escape(cell)}</td>" for kind, cell in zip(kinds, line, strict=True))
        for line in lines
    )
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
    )


def _escape(text: str) -> str:
    return html.escape(escape_unprintable(text))


# The results of a study as a table in Markdown or LaTeX.

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#!|~&$])")


def tabulate_study(results: str | Path, form: str = "markdown", over: str = OVER_COMMON) -> str:
    """Return a table of a study's results, a line for each strategy with its options.

    Args:
        results: CSV or Parquet of `byoc study`.
        form: `markdown` or `latex`, for which names are escaped. The LaTeX needs the package `booktabs`.
        over: `common`, the problems that every strategy solved which solved any, or `own`, for each
            strategy those that it solved: then one that fails on hard problems looks better.

    Raises InputError for results that cannot be read, and for another form.
    """
    if form not in _FORMS:
        raise InputError(f"format {form}: no such format; known: {', '.join(_FORMS)}")
    rows = read_results(Path(results))
    return _FORMS[form](summarize_study(rows, over), describe_over(rows, over))


def _escape_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", escape_unprintable(text))


def _escape_latex(text: str) -> str:
    shown = "".join(_LATEX.get(mark, mark) for mark in escape_unprintable(text))
    return shown.replace("--", "-{}-")  # no dash instead of two hyphens


def _format_markdown(rows: Sequence[Mapping[str, Any]], over: str) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * 2}{'---:|' * (len(HEADINGS) - 2)}"]
    for row in rows:
        cells = [format_cell(name, row[name]) for name in HEADINGS]
        lines.append(f"| {' | '.join([_escape_markdown(cells[0]), *cells[1:]])} |")
    return "\n".join([*lines, "", f"Compared {over}."]) + "\n"


def _format_latex(rows: Sequence[Mapping[str, Any]], over: str) -> str:
    lines = [
        f"% Compared {over}.",
        rf"\begin{{tabular}}{{ll{'r' * (len(HEADINGS) - 2)}}}",
        r"\toprule",
        rf"{' & '.join(HEADINGS)} \\",
        r"\midrule",
    ]
    for row in rows:
        cells = (_escape_latex(format_cell(name, row[name])) for name in HEADINGS)
        lines.append(rf"{' & '.join(cells)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


_FORMS: Mapping[str, Callable[[Sequence[Mapping[str, Any]], str], str]] = {
    "markdown": _format_markdown,
    "latex": _format_latex,
}
