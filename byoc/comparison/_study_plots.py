"""Figures of a study's results, for papers and for the page with all of them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil, exp, fsum, isfinite, log
from pathlib import Path
from statistics import median
from typing import Any

from byoc._dataclasses import dataclass
from byoc.comparison._compare import SUFFIXES, escape_label, make_figure, render_figure, save_figure
from byoc.comparison._study_results import StudyRow, is_failure, read_results, read_table
from byoc.comparison._study_tables import (
    OVER_COMMON,
    OVER_OWN,
    PAGE_SUFFIX,
    describe_over,
    find_common_problems,
    find_problem,
    find_profile,
    find_variant,
    name_variants,
    render_study_page,
    select_rows,
)
from byoc.errors import InputError
from byoc.support import check_output, make_folder, write_text

MEASURED = "measured_seconds"
"""The column of measured seconds, in results or in a file beside them."""

WIDTHS = {"column": 3.5, "page": 7.16}
"""Inches: a column, and both of a page, of the journals of the IEEE."""

_LEAST_WIDTH, _MOST_WIDTH = 1.5, 40.0  # inches
_STYLES = ("-", "--", "-.", ":")
_MARKS = "osD^vPX*"
_TEXT_POINTS = 8.0  # as the captions of a paper
_LEGEND_POINTS = 7.0  # legible in print, and less than the labels
_GREY = "#777777"
_HOST_STYLE = (0, (6, 2))  # long dashes, as no strategy has them
_LIGHTEST = 0.85  # of the colour map, from dark to light: what is lighter is too faint on white
_WIDE_RANGE = 10.0  # from which on an axis is logarithmic
_COST_AXES = {
    "joules": "joules",
    "constant_bytes": "MB of constants",
}
_MOST_PANELS = 12  # models of a figure


@dataclass(frozen=True)
class _Drawing:
    """The content of figures, all rows and those compared, and their form, the width in inches."""

    every: Sequence[StudyRow]
    rows: Sequence[StudyRow]
    over: str
    width: float
    log: bool

    @property
    def names(self) -> dict[tuple[str, str], str]:
        """The name of each strategy with its options."""
        return name_variants(self.every)

    def group(self, rows: Iterable[StudyRow]) -> dict[str, list[StudyRow]]:
        """Return the rows of each strategy by its name."""
        names = self.names
        groups: dict[str, list[StudyRow]] = {}
        for row in rows:
            groups.setdefault(names[find_variant(row)], []).append(row)
        return groups

    def style(self, name: str) -> dict[str, Any]:
        """Return the style of a strategy: told apart by line, mark and lightness, so without colour."""
        from matplotlib import colormaps  # noqa: PLC0415 - optional, and here once there is a figure

        known = list(self.names.values())
        number = known.index(name)
        return {
            "color": colormaps["viridis"](_LIGHTEST * number / max(len(known) - 1, 1)),
            "linestyle": _STYLES[number % len(_STYLES)],
            "marker": _MARKS[number % len(_MARKS)],
            "markersize": 4,
            "linewidth": 1.2,
        }

    def add_legend(self, figure: Any, axes: Any, title: str = "") -> None:
        """Put one legend under all axes of a figure; its title says what is compared."""
        pairs: dict[str, Any] = {}
        for each in axes:
            handles, labels = each.get_legend_handles_labels()
            pairs |= dict(zip(labels, handles, strict=True))
        columns = min(max(len(pairs), 1), self.count_columns(pairs))
        figure.legend(
            pairs.values(),
            pairs.keys(),
            loc="outside lower center",
            ncols=columns,
            fontsize=_LEGEND_POINTS,
            title=title or self.describe(),
            title_fontsize=_LEGEND_POINTS,
            frameon=False,
        )

    def count_columns(self, names: Iterable[str]) -> int:
        """Return the columns that a legend with these names has room for."""
        longest = max(map(len, names), default=1)
        return max(1, int(self.width / (0.6 + 0.055 * longest)))  # inches of a mark, and of a letter

    def describe(self) -> str:
        """Return the title of a legend: the problems over which strategies are compared."""
        total = len({find_problem(row) for row in self.every})
        if self.over == OVER_OWN:
            return f"each over the problems that it solved itself, of {total}"
        return f"over {len(find_common_problems(self.every))} common problems of {total}"


def plot_study(  # noqa: PLR0913 - the options of the verb
    results: str | Path,
    output: str | Path,
    measured: str | Path | None = None,
    *,
    over: str = OVER_COMMON,
    width: str | float = "page",
    log: bool = False,
    form: str = "svg",
) -> list[Path]:
    """Plot the results of a study, and return the files that were written.

    Args:
        results: CSV or Parquet of `byoc study`.
        output: a `.svg`, `.png` or `.pdf` file for all figures, one below the other, a `.html` page of
            them with the table of `tabulate_study`, or a folder (made if need be) for a file each:
            `bandwidth`, `profile`, `gaps`, `pareto` and `measured`. Those for which the results have no
            numbers are left out.
        measured: CSV of seconds that were measured: `measured_seconds`, and columns of the results by
            which its rows are found, such as `model` and `strategy`.
        over: `common` or `own`, as of `tabulate_study`: the problems that figures are of.
        width: `column`, `page` (`WIDTHS`), or inches.
        log: makes the axis of objectives logarithmic; it is by itself where they span a factor of ten.
        form: the format of the files in a folder: `svg`, `png` or `pdf`.

    Raises InputError for files that cannot be read or written, for a width or format that is none, and
    where matplotlib is not installed.
    """
    inches = _read_width(width)
    if f".{form}" not in SUFFIXES:
        raise InputError(f"format {form}: no such format; known: svg, png, pdf")
    every = read_results(Path(results))
    rows = select_rows(every, over)
    if not rows and any(not is_failure(row) for row in every):
        raise InputError(f"{results}: no problem was solved by every strategy; --over own plots all")
    if measured is not None:
        rows = join_measured(rows, Path(measured))
    drawing = _Drawing(every, rows, over, inches, log)
    figures = [figure for figure in _FIGURES if rows and figure.has_numbers(drawing)]
    if not figures:
        raise InputError(f"{results}: no case was solved, so that there is nothing to plot")
    path = Path(output)
    if path.suffix in SUFFIXES:
        check_output(path)
        with _draw(figures, drawing) as drawn:
            save_figure(drawn, path)
        return [path]
    if path.suffix == PAGE_SUFFIX:
        check_output(path)
        images = {
            each.name: (each.make_caption(drawing), _render_svg(each, drawing)) for each in figures
        }
        write_text(path, render_study_page(Path(results).name, every, images, over))
        return [path]
    if path.suffix:
        raise InputError(f"{path}: figures are {', '.join((*SUFFIXES, PAGE_SUFFIX))}, or a folder")
    make_folder(path)
    written = []
    for each in figures:
        written.append(path / f"{each.name}.{form}")
        with _draw([each], drawing) as drawn:
            save_figure(drawn, written[-1])
    return written


def _read_width(given: str | float) -> float:
    """Return inches. Raises InputError for what is neither a name of `WIDTHS` nor a width."""
    try:
        inches = WIDTHS[given] if isinstance(given, str) and given in WIDTHS else float(given)
    except ValueError:
        inches = 0.0
    if not _LEAST_WIDTH <= inches <= _MOST_WIDTH:
        names = ", ".join(WIDTHS)
        asked = f"{names} or inches from {_LEAST_WIDTH:g} to {_MOST_WIDTH:g} are possible"
        raise InputError(f"width {given}: {asked}")
    return inches


def join_measured(rows: Sequence[StudyRow], path: Path) -> list[StudyRow]:
    """Return rows with the measured seconds of a file, None where it has none for a row.

    Raises InputError where the file lacks the column, a column is none of the results, or is no number,
    and where it has none for any row.
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
    joined = [
        row | {MEASURED: seconds.get(tuple(_format_key(row[name]) for name in names))} for row in rows
    ]
    if rows and all(row[MEASURED] is None for row in joined):
        by = f" by {', '.join(names)}" if names else ""
        raise InputError(f"{path}: none of its rows is of a row of the results{by}")
    return joined


def _format_key(value: Any) -> str:
    """Return a cell as text; a number has the same text however the file writes it (1, 1.0, 1e0)."""
    try:
        return repr(float(value))
    except (TypeError, ValueError):
        return "" if value is None else str(value)


@dataclass(frozen=True)
class _StudyFigure:
    """A figure: its name, how it is drawn, whether the results have numbers for it, and its caption.

    `shape` gives its height as a share of its width.
    """

    name: str
    caption: str
    draw: Callable[[Any, _Drawing], None]
    has_numbers: Callable[[_Drawing], bool]
    shape: Callable[[_Drawing], float]

    def make_caption(self, drawing: _Drawing) -> str:
        """Return the caption, with the problems that the figure is over."""
        if self.name == "profile":  # which is over all problems, whatever is compared
            return self.caption
        return f"{self.caption}; {describe_over(drawing.every, drawing.over)}"

    def find_height(self, drawing: _Drawing) -> float:
        """Return the height in inches: of the drawing, and of a legend under it."""
        names = drawing.names.values()
        columns = drawing.count_columns(names)
        return drawing.width * self.shape(drawing) + 0.16 * ceil((len(names) + 1) / columns) + 0.2


def _render_svg(figure: _StudyFigure, drawing: _Drawing) -> bytes:
    with _draw([figure], drawing) as drawn:
        return render_figure(drawn, "svg")


@contextmanager
def _draw(figures: Sequence[_StudyFigure], drawing: _Drawing) -> Iterator[Any]:
    """Draw figures one below the other, and yield it; it has to be written inside of the block."""
    heights = [each.find_height(drawing) for each in figures]
    whole = make_figure(drawing.width, sum(heights))
    from matplotlib import rc_context  # noqa: PLC0415 - optional, and here once there is a figure

    with rc_context({"font.size": _TEXT_POINTS, "axes.linewidth": 0.6}):
        parts = [whole]
        if len(figures) > 1:
            parts = whole.subfigures(len(figures), 1, height_ratios=heights)
        for part, each in zip(parts, figures, strict=True):
            each.draw(part, drawing)
        yield whole


# Objectives over the host alone, by the bandwidth of the link.


def _find_linked(drawing: _Drawing) -> list[StudyRow]:
    """Return the rows of problems that are there at every link, so that a line is of the same ones."""
    linked = [row for row in drawing.rows if row["link"] is not None and _host_value(row)]
    if drawing.over == OVER_OWN:
        return linked
    links: dict[Any, set[float]] = defaultdict(set)
    for row in linked:
        links[_without_link(row)].add(row["link"])
    every = {row["link"] for row in linked}
    return [row for row in linked if links[_without_link(row)] == every]


def _without_link(row: StudyRow) -> tuple[Any, ...]:
    return find_problem(row | {"link": None})


def _average(rows: Iterable[StudyRow]) -> float:
    """Return the geometric mean over problems of the median objective over the host alone."""
    found: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        found[find_problem(row)].append(log(row["value"] / _host_value(row)))
    return exp(fsum(map(median, found.values())) / len(found))


def _draw_bandwidth(figure: Any, drawing: _Drawing) -> None:
    """Plot the objectives over those of the host alone; a band is from one seed to another."""
    axes = figure.subplots()
    lowest, highest = 1.0, 1.0
    for name, own in drawing.group(_find_linked(drawing)).items():
        style, points = drawing.style(name), []
        for link, same in sorted(_group(own, "link").items()):
            seeds = [_average(each) for each in _group(same, "seed", "repetition").values()]
            points.append((link, _average(same), min(seeds), max(seeds)))
        x, y, low, high = zip(*points, strict=True)
        axes.plot(x, y, **style, label=escape_label(name))
        if low != high:
            axes.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)
        lowest, highest = min(lowest, *low), max(highest, *high)
    divisors = _name_divisors(drawing)
    grey: dict[str, Any] = {"color": _GREY, "linewidth": 1.0, "linestyle": _HOST_STYLE}
    axes.axhline(1.0, **grey, label=divisors.removeprefix("the "))
    is_wide = highest > _WIDE_RANGE * lowest
    axes.set(xscale="log", yscale="log" if drawing.log or is_wide else "linear")
    axes.set(xlabel="bandwidth of the link, GB/s", ylabel=f"objective over {divisors}")
    _number_axes(axes.xaxis, axes.yaxis)
    axes.grid(alpha=0.3)
    drawing.add_legend(figure, [axes])


def _number_axes(*axes: Any) -> None:
    """Label logarithmic axes with numbers, not powers of ten."""
    for axis in axes:
        if axis.get_scale() == "log":
            axis.set_major_formatter("{x:g}")


def _is_time(row: StudyRow) -> bool:
    """Return whether the value of a row is the seconds that the host alone has, too."""
    return bool(row["objective"] == "latency" and row["measure"] != "load")


def _host_value(row: StudyRow) -> float:
    """Return the divisor of a value: seconds of the host alone, or the best value if not seconds."""
    return float((row["host_only_seconds"] if _is_time(row) else row["best_value"]) or 0.0)


def _name_divisors(drawing: _Drawing) -> str:
    """Return the divisors of the values in the figure of bandwidths, as they are printed."""
    times = {_is_time(row) for row in _find_linked(drawing)}
    if len(times) > 1:
        return "the host alone, or the best found"
    return "the best found" if False in times else "the host alone"


def _group(rows: Iterable[StudyRow], *names: str) -> dict[Any, list[StudyRow]]:
    groups = defaultdict(list)
    for row in rows:
        key = tuple(row[name] for name in names)
        groups[key[0] if len(names) == 1 else key].append(row)
    return dict(groups)


# Performance profiles.


def _draw_profile(figure: Any, drawing: _Drawing) -> None:
    """Plot for each factor the share of problems that a strategy solves within it of the best value.

    All problems count that any strategy solved; one that failed is never within. A band is from the
    worst seed of each problem to its best one.
    """
    axes = figure.subplots()
    solved = {find_problem(row) for row in drawing.every if not is_failure(row)}
    rows = [row for row in drawing.every if find_problem(row) in solved]
    groups = drawing.group(rows)
    profiles = {name: find_profile(own, median) for name, own in groups.items()}
    finite = [ratio for ratios in profiles.values() for ratio in ratios if isfinite(ratio)]
    end = max(1.01, 1 + 1.05 * (max(finite, default=1.0) - 1))
    for name, ratios in profiles.items():
        style = drawing.style(name) | {"marker": ""}
        failed = sum(not isfinite(ratio) for ratio in ratios)
        label = f"{name} ({failed} of {len(ratios)} not solved)" if failed else name
        axes.step(*_make_steps(ratios, end), where="post", **style, label=escape_label(label))
        best, worst = (find_profile(groups[name], choose) for choose in (min, max))
        if best != worst:
            places = sorted({1.0, end, *(each for each in (*best, *worst) if each <= end)})
            shares = [
                [sum(each <= x for each in own) / len(own) for x in places] for own in (worst, best)
            ]
            axes.fill_between(places, *shares, step="post", color=style["color"], alpha=0.2, linewidth=0)
    axes.set(xlabel="objective over the best found, at most", ylabel="share of problems")
    axes.set(xscale="log" if drawing.log or end > _WIDE_RANGE else "linear")
    axes.set(xlim=(1.0, end), ylim=(0, 1.02))
    _number_axes(axes.xaxis)
    axes.grid(alpha=0.3)
    drawing.add_legend(figure, [axes], f"over all {len(solved)} problems that any strategy solved")


def _make_steps(ratios: Sequence[float], end: float) -> tuple[list[float], list[float]]:
    """Return the places and shares of the steps of a profile that begins at 1."""
    finite = [ratio for ratio in ratios if isfinite(ratio)]
    shares = [(place + 1) / len(ratios) for place in range(len(finite))]
    return [1.0, *finite, end], [0.0, *shares, shares[-1] if shares else 0.0]


def _draw_gaps(figure: Any, drawing: _Drawing) -> None:
    """Plot the share of cases within each gap to the best bound."""
    axes = figure.subplots()
    least, most = 1e-9, 1e-2
    for name, own in drawing.group(drawing.rows).items():
        gaps = sorted(max(row["gap"], least) for row in own if row["gap"] is not None)
        if gaps:
            most = max(most, gaps[-1])
            shares = [(place + 1) / len(gaps) for place in range(len(gaps))]
            style = drawing.style(name) | {"marker": ""}
            axes.step([least, *gaps], [0.0, *shares], where="post", **style, label=escape_label(name))
    axes.set(xscale="log", xlabel="gap to the best bound; none at the left edge")
    axes.set(ylabel="share of cases", xlim=(least / 2, 2 * most), ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    drawing.add_legend(figure, [axes])


# Fronts of seconds and another cost, a panel for each model.

_SETTING = ("rules", "cost_model", "host_cost_model", "parameters", "link", "no_passes")


def find_pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front of points whose numbers are both minimised, sorted by the first number."""
    front: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def _list_costs(drawing: _Drawing) -> list[str]:
    return [name for name in _COST_AXES if any(row[name] for row in drawing.rows)]


def _list_models(drawing: _Drawing) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in drawing.rows))


def _count_panels(drawing: _Drawing) -> tuple[int, int]:
    """Return the rows of panels for one cost, and the panels in each: half a column wide or more."""
    models = min(len(_list_models(drawing)), _MOST_PANELS)
    across = min(models, max(1, int(drawing.width / (WIDTHS["column"] / 2))))
    return ceil(models / across), across


def _draw_pareto(figure: Any, drawing: _Drawing) -> None:
    """Plot a front for each setting of a model; its points are strategies, objectives and limits.

    A dashed line is at the seconds of the host alone.
    """
    costs, models, (down, across) = _list_costs(drawing), _list_models(drawing), _count_panels(drawing)
    grid = figure.subplots(down * len(costs), across, squeeze=False)
    for number, axes in enumerate(grid.flat):
        cost, place = costs[number // (down * across)], number % (down * across)
        if place >= min(len(models), _MOST_PANELS):
            axes.set_axis_off()
            continue
        known = [row for row in drawing.rows if row["model"] == models[place] and row[cost] is not None]
        _draw_fronts(axes, drawing, known, cost)
        axes.set_title(escape_label(_shorten(models[place])), fontsize=_TEXT_POINTS)
        if place % across == 0:
            axes.set_ylabel(_COST_AXES[cost])
        if place + across >= min(len(models), _MOST_PANELS):
            axes.set_xlabel("predicted seconds")
    left_out = (
        f"; the first {_MOST_PANELS} of {len(models)} models" if len(models) > _MOST_PANELS else ""
    )
    drawing.add_legend(figure, grid.flat, f"{drawing.describe()}{left_out}")


def _draw_fronts(axes: Any, drawing: _Drawing, rows: Sequence[StudyRow], cost: str) -> None:
    """Draw the points of a model by strategy, the front of each setting, and the host alone."""
    scale = 1e-6 if cost == "constant_bytes" else 1.0
    for own in _group(rows, *_SETTING).values():
        front = find_pareto([(row["seconds"], row[cost] * scale) for row in own])
        axes.plot(*zip(*front, strict=True), color=_GREY, linewidth=0.6, drawstyle="steps-post")
    for name, own in drawing.group(rows).items():
        points = [(row["seconds"], row[cost] * scale) for row in own]
        style = drawing.style(name) | {"linestyle": "none", "alpha": 0.8}
        axes.plot(*zip(*points, strict=True), **style, label=escape_label(name))
    hosts = {row["host_only_seconds"] for row in rows if row["host_only_seconds"]}
    for seconds in hosts:
        axes.axvline(seconds, color=_GREY, linewidth=1.0, linestyle=_HOST_STYLE, label="host alone")
    _scale_axis(axes, "x", [*(row["seconds"] for row in rows), *hosts], drawing.log)
    _scale_axis(axes, "y", [row[cost] * scale for row in rows], drawing.log)
    axes.grid(alpha=0.3)


def _scale_axis(axes: Any, which: str, values: Sequence[float], log: bool) -> None:
    """Make an axis logarithmic where asked for, or where its values span a factor of ten."""
    least = min(values, default=0.0)
    is_wide = least > 0 and max(values) >= _WIDE_RANGE * least
    if not is_wide and not (log and least > 0):
        axes.locator_params(axis=which, nbins=4)
        return
    axes.set(**{f"{which}scale": "log"})
    if is_wide:  # else powers of ten, which have labels, may be absent
        getattr(axes, f"{which}axis").set_minor_formatter("")


def _shorten(model: str) -> str:
    """Return the name of a model that tells it from others of its kind: the file's, or the zoo's."""
    return Path(model.removeprefix("zoo:")).name.removesuffix(".onnx")


def _draw_measured(figure: Any, drawing: _Drawing) -> None:
    """Plot predicted seconds against measured ones, with the line of equality."""
    axes = figure.subplots()
    known = [row for row in drawing.rows if _get_measured_seconds(row)]
    for name, own in drawing.group(known).items():
        points = [(_get_measured_seconds(row), row["seconds"]) for row in own]
        style = drawing.style(name) | {"linestyle": "none"}
        axes.plot(*zip(*points, strict=True), **style, label=escape_label(name))
    ends = [
        float(value) for row in known for value in (_get_measured_seconds(row), row["seconds"]) if value
    ]
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color=_GREY, linewidth=0.8, label="equal")
    axes.set(xscale="log", yscale="log", xlabel="measured seconds", ylabel="predicted seconds")
    axes.grid(alpha=0.3)
    drawing.add_legend(figure, [axes])


def _get_measured_seconds(row: StudyRow) -> float | None:
    found = row.get(MEASURED) or row.get(f"own_{MEASURED}")
    return float(found) if found else None


def _use_half(drawing: _Drawing) -> float:
    return 0.7 if drawing.width <= WIDTHS["column"] else 0.45


def _size_panels(drawing: _Drawing) -> float:
    down, across = _count_panels(drawing)
    return down * len(_list_costs(drawing)) * 0.85 / across


_FIGURES = (
    _StudyFigure(
        "bandwidth",
        "Objective over the dashed line's by bandwidth of the link, geometric mean; bands are seeds",
        _draw_bandwidth,
        lambda drawing: len({row["link"] for row in _find_linked(drawing)}) > 1,
        _use_half,
    ),
    _StudyFigure(
        "profile",
        "Performance profiles over the problems that any strategy solved: the share whose objective is "
        "within a factor of the best; what failed is never within; bands are seeds",
        _draw_profile,
        lambda drawing: len(drawing.names) > 1,
        _use_half,
    ),
    _StudyFigure(
        "gaps",
        "Share of the cases within each gap to the best bound known",
        _draw_gaps,
        lambda drawing: any(row["gap"] is not None for row in drawing.rows),
        _use_half,
    ),
    _StudyFigure(
        "pareto",
        "Predicted seconds against another cost; what no other betters in both is joined",
        _draw_pareto,
        lambda drawing: bool(_list_costs(drawing)),
        _size_panels,
    ),
    _StudyFigure(
        "measured",
        "Predicted against measured seconds; on the grey line both are equal",
        _draw_measured,
        lambda drawing: any(_get_measured_seconds(row) for row in drawing.rows),
        _use_half,
    ),
)
