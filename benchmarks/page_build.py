"""How long making the page takes, against planning, how large it is, and how soon a browser paints it.

    python benchmarks/page_build.py [MODEL...] [--rules dla] [--paint]

All times but those of the browser are processor time in this process, the least of two runs. For each
model: planning (all that `byoc partition` does without an output), the decision document and the page
with it as ratios to that, and the bytes of the page and, beyond the scripts, of a node. Models are those
of the zoo that are here. `--paint` opens each page in Chromium (extra `browser`) and adds the seconds
until its first paint, and until the graph is drawn.
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import byoc
from byoc import zoo
from byoc.errors import InputError
from byoc.reporting import make_decision_document
from byoc.reporting.page import PageParts, render_page

_RUNS = 2
_ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
_READY = "document.documentElement.dataset.ready === 'yes'"
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--rules", default="dla")
    parser.add_argument("--paint", action="store_true")
    options = parser.parse_args()
    names = options.models or [entry.name for entry in zoo.list_entries() if entry.present]
    columns = ("model", "nodes", "plan s", "decisions / plan", "page / plan", "KB", "bytes a node")
    table = Table(*columns, *(("painted s", "drawn s") if options.paint else ()))
    empty = None
    worst = 0.0
    for name in names:
        try:
            plan_seconds, result = time_least(
                lambda name=name: byoc.partition(f"zoo:{name}", options.rules)
            )
        except InputError as error:
            print(f"{name}: {error}")
            continue
        made_seconds, document = time_least(partial(make_decision_document, result.plan))
        parts = PageParts(result.report, document)
        page_seconds, page = time_least(partial(render_page, parts))
        empty = empty or len(render_empty(parts))
        nodes = sum(len(graph.nodes.names) for graph in document.graphs)
        worst = max(worst, (made_seconds + page_seconds) / plan_seconds)
        row = [name, str(nodes), f"{plan_seconds:.2f}", f"{made_seconds / plan_seconds:.3f}"]
        row += [f"{(made_seconds + page_seconds) / plan_seconds:.3f}", f"{len(page) / 1000:.0f}"]
        row += [f"{(len(page) - empty) / nodes:.0f}"]
        if options.paint:
            row += [f"{seconds:.2f}" for seconds in time_paint(page)]
        table.add_row(*row)
    Console(width=120).print(table)
    scripts = (empty or 0) / 1000
    print(f"the page takes at most {worst:.2f} of planning; without a model it has {scripts:.0f} KB")


def time_least(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the least processor time of some runs, and what the last gave."""
    least, result = float("inf"), None
    for _ in range(_RUNS):
        start = time.process_time()
        result = run()
        least = min(least, time.process_time() - start)
    return least, result


def render_empty(parts: PageParts) -> str:
    """Return the page without its data."""
    page = render_page(parts)
    before, _, rest = page.partition('<script id="data" type="application/octet-stream">')
    return before + rest.partition("</script>")[2]


def time_paint(page: str) -> tuple[float, float]:
    """Return the seconds until Chromium paints a page, and until the graph is drawn."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - not without --paint

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder, "page.html")
        path.write_text(page, encoding="utf-8")
        chromium = shutil.which("chromium") or "chromium"
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_ARGUMENTS))
        opened = browser.new_page()
        start = time.perf_counter()
        opened.goto(path.as_uri())
        opened.wait_for_function(_READY)
        drawn = time.perf_counter() - start
        painted = opened.evaluate(_PAINT)
        browser.close()
    return painted, drawn


if __name__ == "__main__":
    main()
