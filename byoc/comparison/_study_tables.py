"""The strategies of a study beside one another: statistics, tables for papers, a page of HTML."""

import base64
import html
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, fsum, inf, log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from byoc.comparison._study_results import (
    ASKED_COLUMNS,
    TOLERANCE,
    StudyRow,
    format_csv,
    is_failure,
    read_results,
)
from byoc.errors import InputError, escape_unprintable

# Which rows are compared: the problems that strategies have in common, or each strategy's own.

OVER_COMMON, OVER_OWN = "common", "own"
GROUPINGS = ("model", "link", "rules")
"""The columns by which a table may have groups of lines."""

_SAME_PROBLEM = tuple(
    name for name in ASKED_COLUMNS if name not in ("strategy", "options", "seed", "repetition")
)

Problem = tuple[Any, ...]
"""What is the same in all cases of one problem: the columns `_SAME_PROBLEM`."""


def find_problem(row: Mapping[str, Any]) -> Problem:
    """Return the problem of a case: its columns but for strategy, seed and repetition."""
    return tuple(row[name] for name in _SAME_PROBLEM)


def find_variant(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the strategy of a case with its options."""
    return row["strategy"], row["options"] or ""


def find_common_problems(rows: Sequence[StudyRow]) -> set[Problem]:
    """Return the problems of which every case was solved, by every strategy that solved any case."""
    solving = {find_variant(row) for row in rows if not is_failure(row)}
    solved: dict[Problem, set[tuple[str, str]]] = defaultdict(set)
    failed = set()
    for row in rows:
        if not is_failure(row):
            solved[find_problem(row)].add(find_variant(row))
        elif find_variant(row) in solving:
            failed.add(find_problem(row))
    return {problem for problem, by in solved.items() if by == solving} - failed


def select_rows(rows: Sequence[StudyRow], over: str) -> list[StudyRow]:
    """Return the solved rows: of common problems, or all. Raises InputError for another choice."""
    if over not in (OVER_COMMON, OVER_OWN):
        raise InputError(f"over {over}: no such choice; known: {OVER_COMMON}, {OVER_OWN}")
    solved = [row for row in rows if not is_failure(row)]
    if over == OVER_OWN:
        return solved
    common = find_common_problems(rows)
    return [row for row in solved if find_problem(row) in common]


def describe_over(rows: Sequence[StudyRow], over: str, by: Sequence[str] = ()) -> str:
    """Return over which problems strategies are compared, as a sentence without its end."""
    total = len({find_problem(row) for row in rows})
    if over == OVER_OWN:
        return f"each strategy over those of {total} problems that it solved"
    common = sum(len(find_common_problems(group)) for group in _group_rows(rows, by).values())
    each = f", in each group of the same {' and '.join(by)}" if by else ""
    return f"over the {common} of {total} problems that every strategy solved which solved any{each}"


def name_variants(rows: Sequence[StudyRow]) -> dict[tuple[str, str], str]:
    """Return the name of each strategy with options: with the options only where they differ."""
    pairs = dict.fromkeys(map(find_variant, rows))
    counts = Counter(name for name, _ in pairs)
    return {
        (name, options): f"{name} ({options})" if options and counts[name] > 1 else name
        for name, options in pairs
    }


def _group_rows(rows: Sequence[StudyRow], by: Sequence[str]) -> dict[tuple[Any, ...], list[StudyRow]]:
    groups: dict[tuple[Any, ...], list[StudyRow]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in by)].append(row)
    return groups


# Statistics of each strategy. A problem counts once, by the median of its seeds and repetitions.

_RESAMPLES = 2000  # of the bootstrap: the ends of an interval move by a hundredth of its width
_INTERVAL = (2.5, 97.5)  # per cent

SUMMARY_KEYS = (
    *("strategy", "measure", "cases", "failed", "problems"),
    *("mean_ratio", "mean_low", "mean_high", "seed_median", "seed_low", "seed_high", "worst_ratio"),
    *("p", "p_holm", "mean_gap", "largest_gap", "seconds"),
)
"""The keys of a line. `cases` and `failed` count rows; all else is over `problems`, each of which counts
once, by the median of its seeds and repetitions. Ratios are to the best value of a problem. `mean_ratio`
is their geometric mean, and 95 % of the means of resampled problems lie from `mean_low` to `mean_high`.
`seed_median`, `seed_low` and `seed_high` are the median, the least and the greatest of the means of
single seeds and repetitions, None where there is one. `p` is that of the two-sided Wilcoxon signed-rank
test against the strategy of the least mean with the same measure, and `p_holm` the same corrected for
the number of tests in the table, by Holm's method. Gaps are to the best bound, as shares; `seconds` is
the mean of the strategy's."""


def summarize_study(
    rows: Sequence[StudyRow], over: str = OVER_COMMON, by: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return a line for each strategy with its options, with the keys `by` and `SUMMARY_KEYS`.

    `over` and `by` are as in `tabulate_study`. Raises InputError for others.
    """
    for name in by:
        if name not in GROUPINGS:
            raise InputError(f"by {name}: no such group; known: {', '.join(GROUPINGS)}")
    names = name_variants(rows)
    lines = []
    for key, group in _group_rows(rows, by).items():
        lines += [
            dict(zip(by, key, strict=True)) | line for line in _summarize_group(group, over, names)
        ]
    _correct_by_holm(lines)
    return lines


def _summarize_group(
    rows: Sequence[StudyRow], over: str, names: Mapping[tuple[str, str], str]
) -> list[dict[str, Any]]:
    kept: dict[str, list[StudyRow]] = defaultdict(list)
    for row in select_rows(rows, over):
        kept[names[find_variant(row)]].append(row)
    groups: dict[str, list[StudyRow]] = defaultdict(list)
    for row in rows:
        groups[names[find_variant(row)]].append(row)
    logs = {name: find_logs(kept[name]) for name in groups}
    measures = {name: _name_measures(own) for name, own in groups.items()}
    best: dict[str, str] = {}
    for name in (name for name in groups if logs[name]):
        before = best.get(measures[name], name)
        if before == name or _mean(logs[name].values()) < _mean(logs[before].values()):
            best[measures[name]] = name
    lines = []
    for name, own in groups.items():
        other = best.get(measures[name], name)
        p = None if other == name else _compare_ranks(logs[name], logs[other])
        lines.append(_summarize(name, measures[name], own, kept[name]) | {"p": p})
    return lines


def _summarize(
    name: str, measure: str, rows: Sequence[StudyRow], kept: Sequence[StudyRow]
) -> dict[str, Any]:
    logs = [*find_logs(kept).values()]
    low, high = _find_interval(logs)
    middle, least, most = _find_seed_spread(kept)
    gaps = [row["gap"] for row in kept if row["gap"] is not None]
    seconds = [row["solver_seconds"] for row in kept if row["solver_seconds"] is not None]
    values = (
        *(name, measure, len(rows), sum(map(is_failure, rows))),
        len({find_problem(row) for row in kept}),
        *(exp(_mean(logs)) if logs else None, low, high),
        *(middle, least, most),
        exp(max(logs)) if logs else None,
        *(None, None),
        *(_mean(gaps) if gaps else None, max(gaps, default=None)),
        _mean(seconds) if seconds else None,
    )
    return dict(zip(SUMMARY_KEYS, values, strict=True))


def _name_measures(rows: Sequence[StudyRow]) -> str:
    return " and ".join(dict.fromkeys(row["measure"] for row in rows if not is_failure(row)))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fsum(listed) / len(listed)


def find_logs(rows: Sequence[StudyRow]) -> dict[Problem, float]:
    """Return for each problem the logarithm of its median ratio; rows without one are passed over."""
    found: dict[Problem, list[float]] = defaultdict(list)
    for row in rows:
        if row["ratio"]:
            found[find_problem(row)].append(log(row["ratio"]))
    return {problem: median(values) for problem, values in found.items()}


def _find_interval(logs: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the ends of the interval of the mean ratio by a bootstrap over problems; None for one."""
    if len(logs) < 2:
        return None, None
    random = np.random.default_rng(0)  # the same results give the same table
    values = np.array(logs)
    means = [values[random.integers(0, len(logs), len(logs))].mean() for _ in range(_RESAMPLES)]
    low, high = np.exp(np.percentile(means, _INTERVAL))
    return float(low), float(high)


def _find_seed_spread(rows: Sequence[StudyRow]) -> tuple[float | None, float | None, float | None]:
    """Return the median, the least and the greatest mean ratio of a seed; None where there is one."""
    groups: dict[Any, list[StudyRow]] = defaultdict(list)
    for row in rows:
        groups[row["seed"], row["repetition"]].append(row)
    found = [[*find_logs(own).values()] for own in groups.values()]
    means = [exp(_mean(own)) for own in found if own]
    return (median(means), min(means), max(means)) if len(means) > 1 else (None, None, None)


def _compare_ranks(logs: Mapping[Problem, float], best: Mapping[Problem, float]) -> float | None:
    """Return the p of Wilcoxon's signed-rank test of two strategies; None without common problems.

    Differences of rounding are none.
    """
    moved = [logs[problem] - best[problem] for problem in logs.keys() & best.keys()]
    if not moved:
        return None
    differences = [0.0 if abs(each) <= 2 * TOLERANCE else each for each in moved]
    if not any(differences):
        return 1.0
    from scipy.stats import wilcoxon  # noqa: PLC0415 - takes time to import

    return float(wilcoxon(sorted(differences)).pvalue)  # sorted, since sets have no order


def _correct_by_holm(lines: Sequence[dict[str, Any]]) -> None:
    """Set `p_holm` of lines (Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure")."""
    tested = sorted((line for line in lines if line["p"] is not None), key=lambda line: float(line["p"]))
    least = 0.0
    for number, line in enumerate(tested):
        least = max(least, min(1.0, (len(tested) - number) * line["p"]))
        line["p_holm"] = least


# Performance profiles (Dolan and More 2002, "Benchmarking optimization software with performance
# profiles"): for each factor the share of problems that a strategy solves within it of the best value.


def find_profile(rows: Sequence[StudyRow], choose: Callable[[Sequence[float]], float]) -> list[float]:
    """Return the ratio to the best value of each problem of one strategy, sorted.

    It is infinite where the case failed. `choose` takes the ratio of a problem from those of its seeds:
    their median, or the least or greatest of them.
    """
    found: dict[Problem, list[float]] = defaultdict(list)
    for row in rows:
        ratio = inf if is_failure(row) else row["ratio"]
        if ratio is not None:
            found[find_problem(row)].append(ratio)
    return sorted(choose(values) for values in found.values())


# Tables of the lines, for people, programs and documents.


def _join_interval(low: str, high: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda line: "" if line[low] is None else f"{line[low]:.4f} to {line[high]:.4f}"


def _format_seeds(line: Mapping[str, Any]) -> str:
    middle = line["seed_median"]
    spread = f"{line['seed_low']:.4f} to {line['seed_high']:.4f}" if middle is not None else ""
    return f"{middle:.4f} ({spread})" if middle is not None else ""


def _format_with(form: str, name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda line: "" if line[name] is None else format(line[name], form)


_CELLS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "strategy": _format_with("", "strategy"),
    "measure": _format_with("", "measure"),
    "cases": _format_with("d", "cases"),
    "failed": _format_with("d", "failed"),
    "problems": _format_with("d", "problems"),
    "mean ratio": _format_with(".4f", "mean_ratio"),
    "95 % of means": _join_interval("mean_low", "mean_high"),
    "by seed": _format_seeds,
    "worst ratio": _format_with(".4f", "worst_ratio"),
    "p (Holm)": _format_with(".2g", "p_holm"),
    "mean gap": _format_with(".3%", "mean_gap"),
    "largest gap": _format_with(".3%", "largest_gap"),
    "seconds": _format_with(".3g", "seconds"),
}
_TEXT_COLUMNS = ("strategy", "measure", "model", "rules")


def make_cells(lines: Sequence[Mapping[str, Any]], by: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return the lines of `summarize_study` as texts by heading, without columns that are all empty."""
    columns = {name: _format_with("", name) for name in by} | _CELLS
    cells = [{name: make(line) for name, make in columns.items()} for line in lines]
    used = [name for name in columns if any(each[name] for each in cells)]
    return [{name: each[name] for name in used} for each in cells]


def tabulate_study(
    results: str | Path,
    form: str = "markdown",
    over: str = OVER_COMMON,
    by: Sequence[str] = (),
) -> str:
    """Return a table of a study's results, a line for each strategy with its options.

    Args:
        results: CSV or Parquet of `byoc study`.
        form: `markdown` or `latex`, for which names are escaped; the LaTeX needs the package `booktabs`.
            `csv` and `json` have the numbers in full, with the keys `by` and `SUMMARY_KEYS`.
        over: `common`, the problems that every strategy solved which solved any, or `own`, for each
            strategy those that it solved: then one that fails on hard problems looks better.
        by: columns for each of whose values there are lines of their own: `model`, `link`, `rules`.

    Raises InputError for results that cannot be read, and for another form, choice or column.
    """
    if form not in _FORMS:
        raise InputError(f"format {form}: no such format; known: {', '.join(_FORMS)}")
    rows = read_results(Path(results))
    return _FORMS[form](summarize_study(rows, over, by), describe_over(rows, over, by), by)


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


def _escape_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", escape_unprintable(text))


def _escape_latex(text: str) -> str:
    shown = "".join(_LATEX.get(mark, mark) for mark in escape_unprintable(text))
    return shown.replace("--", "-{}-")  # no dash instead of two hyphens


def _format_markdown(lines: Sequence[Mapping[str, Any]], over: str, by: Sequence[str]) -> str:
    cells = make_cells(lines, by)
    marks = ("---" if name in _TEXT_COLUMNS else "---:" for name in cells[0])
    text = [f"| {' | '.join(cells[0])} |", f"|{'|'.join(marks)}|"]
    text += (f"| {' | '.join(map(_escape_markdown, each.values()))} |" for each in cells)
    return "\n".join([*text, "", f"Compared {over}."]) + "\n"


def _format_latex(lines: Sequence[Mapping[str, Any]], over: str, by: Sequence[str]) -> str:
    """Return a tabular; a rule stands between groups, and each group is named once."""
    cells = make_cells(lines, by)
    places = "".join("l" if name in _TEXT_COLUMNS else "r" for name in cells[0])
    text = [
        f"% Compared {over}.",
        rf"\begin{{tabular}}{{{places}}}",
        r"\toprule",
        rf"{' & '.join(map(_escape_latex, cells[0]))} \\",
        r"\midrule",
    ]
    before: list[str] | None = None
    for each in cells:
        group = [each.get(name, "") for name in by]
        if before is not None and group != before:
            text.append(r"\addlinespace")
        shown = {**each, **dict.fromkeys(by, "")} if group == before else each
        text.append(rf"{' & '.join(map(_escape_latex, shown.values()))} \\")
        before = group
    return "\n".join([*text, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _format_csv(lines: Sequence[Mapping[str, Any]], over: str, by: Sequence[str]) -> str:
    return format_csv(lines, (*by, *SUMMARY_KEYS))


def _format_json(lines: Sequence[Mapping[str, Any]], over: str, by: Sequence[str]) -> str:
    document = {"compared": over, "by": list(by), "lines": list(lines)}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


_FORMS: Mapping[str, Callable[[Sequence[Mapping[str, Any]], str, Sequence[str]], str]] = {
    "markdown": _format_markdown,
    "latex": _format_latex,
    "json": _format_json,
    "csv": _format_csv,
}


# The results of a study as one HTML file, without scripts, that loads nothing from anywhere.

PAGE_SUFFIX = ".html"

_MOST_FAILURES = 200  # rows in the page; all are in the results
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
    title: str, rows: Sequence[StudyRow], figures: Mapping[str, tuple[str, bytes]], over: str
) -> str:
    """Return a page with figures (by name, caption and SVG), a table, and what was not solved.

    The same rows and figures give the same text.
    """
    failed = [row for row in rows if is_failure(row)]
    models = len({row["model"] for row in rows})
    summary = f"{len(rows)} cases of {models} {'model' if models == 1 else 'models'}"
    if failed:
        counts = Counter(str(row["status"]) for row in failed)
        each = ", ".join(f"{count} {status}" for status, count in counts.items())
        summary += f"; {len(failed)} not solved ({each})"
    sections = [_render_figure(name, *figure) for name, figure in figures.items()]
    cells = make_cells(summarize_study(rows, over))
    table = [[*line.values()] for line in cells]
    sections += ["<h2>Strategies</h2>", _render_table([*cells[0]], table)]
    sections.append(f"<p>Compared {describe_over(rows, over)}.</p>")
    if failed:
        names = ("model", "strategy", "options", "status", "reason")
        lines = dict.fromkeys(tuple(str(row[name] or "") for name in names) for row in failed)
        sections += ["<h2>Not solved</h2>", _render_table(names, [*lines][:_MOST_FAILURES])]
        if len(lines) > _MOST_FAILURES:
            sections.append(f"<p>and {len(lines) - _MOST_FAILURES} more</p>")
    return _PAGE.format(title=_escape(title), summary=_escape(summary), sections="\n".join(sections))


def _render_figure(name: str, caption: str, image: bytes) -> str:
    data = base64.b64encode(image).decode("ascii")
    caption = _escape(caption)
    picture = f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
    return f'<figure id="{name}">{picture}<figcaption>{caption}</figcaption></figure>'


def _render_table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table; columns of numbers are aligned to the right."""
    texts = (*_TEXT_COLUMNS, "options", "status", "reason")
    kinds = ["" if name in texts else ' class="number"' for name in headings]
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
