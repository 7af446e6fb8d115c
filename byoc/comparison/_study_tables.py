"""Tables of a study's results in Markdown and LaTeX: a line for each strategy."""

import re
from collections.abc import Callable, Mapping, Sequence
from math import exp, fsum, log
from pathlib import Path
from typing import Any

from byoc.comparison._study_results import read_results
from byoc.comparison._study_rows import StudyRow, is_failure
from byoc.errors import InputError, escape_unprintable

HEADINGS = (
    *("strategy", "measure", "cases", "failed", "mean ratio", "worst ratio", "mean gap"),
    *("largest gap", "seconds"),
)
"""The columns: ratios to the best value of each problem, their geometric mean and the worst; gaps to the
best bound; the mean of the strategy's seconds."""

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


def tabulate_study(results: str | Path, form: str = "markdown") -> str:
    """Return a table of a study's results, a line for each strategy with its options.

    Args:
        results: CSV or Parquet of `byoc study`.
        form: `markdown` or `latex`, for which names are escaped. The LaTeX needs the package `booktabs`.

    Raises InputError for results that cannot be read, and for another form.
    """
    if form not in _FORMS:
        raise InputError(f"format {form}: no such format; known: {', '.join(_FORMS)}")
    return _FORMS[form](summarize_study(read_results(Path(results))))


def name_variants(rows: Sequence[StudyRow]) -> dict[tuple[str, str], str]:
    """Return the name of each strategy with options: with the options only where they differ."""
    pairs = dict.fromkeys((row["strategy"], row["options"] or "") for row in rows)
    counts: dict[str, int] = {}
    for name, _ in pairs:
        counts[name] = counts.get(name, 0) + 1
    return {
        (name, options): f"{name} ({options})" if options and counts[name] > 1 else name
        for name, options in pairs
    }


def summarize_study(rows: Sequence[StudyRow]) -> list[dict[str, Any]]:
    """Return a row for each strategy with its options and each measure, with the keys `HEADINGS`."""
    names = name_variants(rows)
    groups: dict[str, list[StudyRow]] = {}
    for row in rows:
        groups.setdefault(names[row["strategy"], row["options"] or ""], []).append(row)
    return [_summarize(name, own) for name, own in groups.items()]


def _summarize(name: str, rows: Sequence[StudyRow]) -> dict[str, Any]:
    solved = [row for row in rows if not is_failure(row)]
    ratios = [row["ratio"] for row in solved if row["ratio"]]
    gaps = [row["gap"] for row in solved if row["gap"] is not None]
    seconds = [row["solver_seconds"] for row in solved if row["solver_seconds"] is not None]
    values = (
        name,
        " and ".join(dict.fromkeys(row["measure"] for row in solved)),
        len(rows),
        len(rows) - len(solved),
        exp(fsum(map(log, ratios)) / len(ratios)) if ratios else None,
        max(ratios, default=None),
        fsum(gaps) / len(gaps) if gaps else None,
        max(gaps, default=None),
        fsum(seconds) / len(seconds) if seconds else None,
    )
    return dict(zip(HEADINGS, values, strict=True))


def format_cell(name: str, value: Any) -> str:
    """Return a value of `summarize_study` under one of `HEADINGS` as text; empty for None."""
    if value is None:
        return ""
    if "ratio" in name:
        return f"{value:.4f}"
    if "gap" in name:
        return f"{value:.3%}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _escape_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", escape_unprintable(text))


def _escape_latex(text: str) -> str:
    shown = "".join(_LATEX.get(mark, mark) for mark in escape_unprintable(text))
    return shown.replace("--", "-{}-")  # no dash instead of two hyphens


def _format_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * 2}{'---:|' * (len(HEADINGS) - 2)}"]
    for row in rows:
        cells = [format_cell(name, row[name]) for name in HEADINGS]
        lines.append(f"| {' | '.join([_escape_markdown(cells[0]), *cells[1:]])} |")
    return "\n".join(lines) + "\n"


def _format_latex(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        rf"\begin{{tabular}}{{ll{'r' * (len(HEADINGS) - 2)}}}",
        r"\toprule",
        rf"{' & '.join(HEADINGS)} \\",
        r"\midrule",
    ]
    for row in rows:
        cells = (_escape_latex(format_cell(name, row[name])) for name in HEADINGS)
        lines.append(rf"{' & '.join(cells)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


_FORMS: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {
    "markdown": _format_markdown,
    "latex": _format_latex,
}
