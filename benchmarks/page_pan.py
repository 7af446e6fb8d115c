"""How fluid the graph of a page is while it is moved, with everything opened that can be opened.

    python benchmarks/page_pan.py [MODEL...] [--rules dla] [--frames 60] [--plain]

Each page is opened in Chromium (extra `browser`), all its parts at once, and then dragged with the
mouse, a step for each frame of the browser, at three zooms: the whole graph, 0.3, and 1. For each it
prints the frames drawn in a second by the clock; the milliseconds of processor time that the page's
thread takes for a frame, which other work on the machine does not change; and those of pressing the
button with the first frames, and of drawing again at rest. A page is fluid where a frame takes less
than 16 ms. `--plain` draws every part in each frame, as it would be without any level of detail.
"""

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import byoc

_ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
_READY = "document.documentElement.dataset.ready === 'yes'"
_OPEN_ALL = """() => {
  const { picture } = byocPage;
  picture.openAll();
  return [picture.scene.parts.length, picture.scene.edges.length];
}"""
_PLAIN = """() => {
  const picture = byocPage.picture;
  Object.assign(picture.cy.renderer(), { hideEdgesOnViewport: false, textureOnViewport: false });
}"""
_ZOOM = """(zoom) => {
  const { cy } = byocPage.picture;
  cy.zoom({ level: zoom, renderedPosition: { x: cy.width() / 2, y: cy.height() / 2 } });
}"""
_PRESS = """async () => {
  const graph = document.getElementById("graph");
  const box = graph.getBoundingClientRect();
  window.panStart = { x: box.x + box.width / 2, y: box.y + box.height / 2 };
  window.panFire = (type, target, step) => target.dispatchEvent(new MouseEvent(type, {
    clientX: panStart.x + 4 * step, clientY: panStart.y + 3 * step,
    button: 0, buttons: type === "mouseup" ? 0 : 1, bubbles: true, view: window,
  }));
  window.panFrame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  window.panDrawn = 0;
  byocPage.picture.cy.on("render", () => window.panDrawn++);
  panFire("mousedown", graph.querySelector("canvas"), 0);
  for (let step = 1; step <= 3; step++) {
    panFire("mousemove", window, step);
    await panFrame();
  }
}"""
_DRAG = """async (frames) => {
  window.panDrawn = 0;
  const start = performance.now();
  for (let step = 4; step < 4 + frames; step++) {
    panFire("mousemove", window, step);
    await panFrame();
  }
  return [panDrawn, (performance.now() - start) / 1000];
}"""
_RELEASE = """async () => {
  panFire("mouseup", window, 0);
  await panFrame();
  byocPage.picture.cy.removeListener("render");
}"""


def main() -> None:
    """Print a row for each model and zoom."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=["ssdlite320"])
    parser.add_argument("--rules", default="dla")
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    table = Table(
        *("model", "parts", "edges", "open ms", "zoom", "drawn / s", "ms a frame", "first ms", "rest ms")
    )
    for name in options.models:
        page = byoc.partition(f"zoo:{name}", options.rules, what_if=False).make_page()
        for row in pan_page(page, options.frames, plain=options.plain):
            table.add_row(name, *row)
    Console(width=120).print(table)


def pan_page(html: str, frames: int, *, plain: bool) -> list[tuple[str, ...]]:
    """Return for each zoom the columns of the table behind the model."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only here is a browser needed

    rows = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder, "page.html")
        path.write_text(html, encoding="utf-8")
        chromium = shutil.which("chromium") or "chromium"
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_ARGUMENTS))
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(300_000)
        page.goto(path.as_uri())
        page.wait_for_function(_READY)
        clock = ThreadClock(page)
        parts, edges = page.evaluate(_OPEN_ALL)
        opened = clock.take_milliseconds()
        if plain:
            page.evaluate(_PLAIN)
        for zoom in (None, 0.3, 1.0):
            if zoom is not None:
                page.evaluate(_ZOOM, zoom)
            page.wait_for_timeout(500)
            clock.take_milliseconds()
            page.evaluate(_PRESS)
            first = clock.take_milliseconds()
            drawn, seconds = page.evaluate(_DRAG, frames)
            moving = clock.take_milliseconds()
            page.evaluate(_RELEASE)
            page.wait_for_timeout(500)
            rest = clock.take_milliseconds()
            shown = page.evaluate("byocPage.picture.cy.zoom()")
            figures = (moving / max(drawn, 1), first, rest)
            counts = (str(parts), str(edges), f"{opened:.0f}", f"{shown:.2f}", f"{drawn / seconds:.1f}")
            rows.append((*counts, *(f"{each:.1f}" for each in figures)))
        browser.close()
    return rows


class ThreadClock:
    """The processor time of a page's main thread."""

    def __init__(self, page: Any) -> None:
        """Begin to measure a page of playwright."""
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._last = 0.0
        self.take_milliseconds()

    def take_milliseconds(self) -> float:
        """Return the milliseconds since the last call."""
        found = self._session.send("Performance.getMetrics")["metrics"]
        now = next(1000 * each["value"] for each in found if each["name"] == "TaskDuration")
        since, self._last = now - self._last, now
        return since


if __name__ == "__main__":
    main()
