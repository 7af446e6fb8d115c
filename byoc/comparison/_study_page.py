"""The results of a study as one HTML file, without scripts, that loads nothing from anywhere."""

import base64
import html
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from byoc.comparison._study_rows import StudyRow, is_failure
from byoc.comparison._study_tables import HEADINGS, format_cell, summarize_study
from byoc.errors import escape_unprintable

PAGE_SUFFIX = ".html"

_MOST_FAILURES = 200
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


def render_study_page(title: str, rows: Sequence[StudyRow], figures: Mapping[str, bytes]) -> str:
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
    table = [[format_cell(name, line[name]) for name in HEADINGS] for line in summarize_study(rows)]
    sections += ["<h2>Strategies</h2>", _render_table(HEADINGS, table, text_columns=2)]
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
