"""The page in Chromium: it draws, opens, searches and answers what a user asks by clicking.

Needs `pip install '.[browser]'` and Chromium of the system; run with `pytest -m browser`.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import vendors
from helpers.cutting import DEVICE_ONLY, cut
from helpers.support import parse

import byoc
from byoc.bundle import open_bundle
from byoc.codegen import NotHereError
from byoc.reporting.page import make_diff_page

sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
READY = "document.documentElement.dataset.ready === 'yes'"
SELECTED = "(byocPage.picture.selected || {}).title || ''"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Return a function that opens a page, and fails at the end if anything went wrong in it."""
    problems: list[str] = []
    requests: list[str] = []
    opened: list[Any] = []

    def open_page(html: str, scheme: str = "light") -> Any:
        path = tmp_path / f"{len(opened)}.html"
        path.write_text(html, encoding="utf-8")
        page = browser.new_page(color_scheme=scheme, viewport={"width": 1440, "height": 900})
        opened.append(page)
        page.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
        page.goto(path.as_uri())
        page.wait_for_function(READY, timeout=30_000)
        return page

    yield open_page
    for page in opened:
        page.close()
    assert problems == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in requests)


@pytest.fixture(scope="module")
def ssdlite() -> Any:
    return byoc.partition("zoo:ssdlite320", "dla.yaml")


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    byoc.partition("zoo:squeezenet", "dla.yaml", output=folder / "s.byoc", verify=False)
    return folder / "s.byoc"


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> byoc.Result:
    folder = tmp_path_factory.mktemp("quantized")
    precision = byoc.Precision("int8", data="random")
    return byoc.partition("zoo:squeezenet", "dla.yaml", output=folder / "q.byoc", precision=precision)


def search(page: Any, text: str) -> None:
    page.keyboard.press("/")
    page.keyboard.type(text)
    page.wait_for_selector("#found li")
    page.keyboard.press("Enter")


def find_on_host(result: byoc.Result, operator: str) -> Any:
    """Return the first unit of an operator that is on the host, and why."""
    graph = result.plan.root
    return next(
        (unit, why)
        for unit, why in graph.host_units
        if graph.index.nodes[unit.nodes[0]].op_type == operator
    )


def test_ranges_of_integers_stand_beside_those_of_the_data(show: Any, quantized: byoc.Result) -> None:
    page = show(quantized.make_page())
    search(page, "n0")
    assert "Integers against the data" in page.inner_text("#details")
    labels = page.locator("#details svg.ranges").evaluate_all(
        "all => all.map((one) => one.getAttribute('aria-label'))"
    )
    assert len(labels) == 2  # what it reads and what it makes
    assert all(label.startswith("int8 ") and "; data " in label for label in labels)
    page.click("#tab-ranges")
    shares = page.locator("#list tbody tr td:nth-child(3)").all_inner_texts()
    unused = [float(text.strip("< %")) for text in shares]
    assert unused == sorted(unused, reverse=True)
    page.click("#list tbody tr:first-child")
    assert page.locator("#details svg.ranges").count() == 1


def test_a_user_finds_why_a_node_is_on_the_host(show: Any, ssdlite: Any) -> None:
    page = show(ssdlite.make_page())
    graph = ssdlite.plan.root
    unit, reason = next(
        (unit, why)
        for unit, why in graph.host_units
        if graph.index.nodes[unit.nodes[0]].op_type == "TopK"
    )
    search(page, unit.name)
    shown = page.inner_text("#details")
    assert unit.name in shown
    assert f"On the host: {reason}" in shown
    assert "add op: TopK" in page.inner_text("#details .remedy")


def test_a_user_finds_why_a_conv_is_on_the_host(show: Any) -> None:
    result = byoc.partition("zoo:shufflenet", "nnpa.yaml")
    graph = result.plan.root
    conv, reason = next(
        (unit, why)
        for unit, why in graph.host_units
        if graph.index.nodes[unit.nodes[0]].op_type == "Conv"
    )
    page = show(result.make_page())
    page.click("#tab-reasons")
    page.click("#list tbody tr >> nth=0")
    search(page, conv.name)
    assert str(reason) in page.inner_text("#details [data-role=reason]")
    assert "if the accelerator can, widen" in page.inner_text("#details")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 480)])
def test_a_user_sees_the_accuracy_of_int8_first(
    scheme: str, width: int, show: Any, quantized: byoc.Result
) -> None:
    page = show(quantized.make_page(), scheme)
    page.set_viewport_size({"width": width, "height": 900})
    (output,) = quantized.report.verification.accuracy.outputs
    first, second, *_ = page.query_selector_all("#verdict .chip")
    assert first.inner_text().startswith(f"{output.signal_to_noise:.1f} dB against the float model")
    assert second.inner_text() == "Scales are from random data"
    assert "warn" in second.get_attribute("class")
    summary = page.inner_text("#summary")
    assert summary.startswith("Accuracy (signal-to-noise against the float model)")
    assert "Scales are from random data." in summary
    assert "Verified against the model in int8" in page.inner_text("#verdict")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sides = page.evaluate(
        "['side', 'lists', 'top'].map((id) => document.getElementById(id).scrollWidth)"
    )
    assert all(side <= width for side in sides)


def test_a_user_finds_the_largest_boundary_tensor(show: Any, ssdlite: Any) -> None:
    page = show(ssdlite.make_page())
    nodes = ssdlite.report.nodes
    counts = f"{nodes.offloaded:,} on accelerators, {nodes.host:,} on the host"
    assert f"{nodes.total:,} that run: {counts}" in page.inner_text("#summary")
    page.click("#tab-boundary")
    page.click("#list tbody tr >> nth=0")
    regions = ssdlite.report.regions
    largest = max((t for r in regions for t in (*r.inputs, *r.outputs)), key=lambda t: t.bytes or 0)
    assert page.inner_text("#details h1") == largest.name


def test_a_user_finds_the_slowest_region(show: Any) -> None:
    result = byoc.partition("zoo:bert", "nnpa.yaml")
    assert len(result.report.regions) > 1
    page = show(result.make_page())
    page.click("#tab-regions")
    page.click("#list tbody tr >> nth=0")
    slowest = max(region.seconds for region in result.report.regions)
    name = page.inner_text("#details h1")
    assert next(r for r in result.report.regions if r.name == name).seconds == pytest.approx(slowest)
    assert page.evaluate(SELECTED) == name
    assert ", its launch included" in page.inner_text("#details")
    page.click("#tab-gains")
    link = next(each.link for each in result.report.break_even if each.link is not None)
    assert f"it would pay from a link of {link / 1e9:.3g} GB/s" in page.inner_text("#list")


def test_regions_have_what_their_compiler_estimates(show: Any, squeezenet: Path) -> None:
    (region,) = open_bundle(squeezenet).variant.report.regions
    assert region.estimate is not None
    assert region.estimate.cycles is not None
    page = show(byoc.make_page(squeezenet))
    search(page, region.name)
    shown = page.inner_text("#details")
    assert "compiler's estimate" in shown
    assert f"{region.estimate.cycles:,.0f} cycles" in shown.replace("\u2009", ",").replace("\u202f", ",")


def test_regions_for_another_machine_are_told_first(
    show: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Board(vendors.Tables):
        name = "board"

        def load(self, region: Any, artifact: Any) -> Any:
            raise NotHereError("there is no board")

    vendors.install(monkeypatch, board=Board)
    result = cut(parse(DEVICE_ONLY), tmp_path / "b", codegen="board")
    page = show(result.make_page())
    verdict = page.inner_text("#verdict")
    assert "Not verified: dla_0 compiled, not verified here: there is no board" in verdict
    assert "Verified, largest error" not in verdict
    search(page, "dla_0")
    shown = page.inner_text("#details")
    assert "it cannot run on the machine that compiled it: there is no board" in shown


def test_parts_open_and_close_by_keys_and_double_clicks(show: Any, ssdlite: Any) -> None:
    page = show(ssdlite.make_page())
    count = "byocPage.picture.scene.parts.length"
    page.click("[data-zoom=close]")
    before = page.evaluate(count)
    search(page, ssdlite.report.regions[0].name)
    assert page.evaluate(SELECTED) == ssdlite.report.regions[0].name
    page.keyboard.press("Enter")
    opened = page.evaluate(count)
    assert opened > before
    page.keyboard.press("Enter")
    assert page.evaluate(count) == before
    at = page.evaluate(
        "byocPage.picture.cy.getElementById(byocPage.picture.selected.id).renderedPosition()"
    )
    box = page.locator("#graph").bounding_box()
    page.mouse.dblclick(box["x"] + at["x"], box["y"] + at["y"])
    page.wait_for_function(f"{count} === {opened}")
    page.keyboard.press("f")
    page.click("[data-zoom=in]")


def test_dragging_moves_the_graph_wherever_it_begins(show: Any, squeezenet: Path) -> None:
    page = show(byoc.make_page(squeezenet))
    page.evaluate("byocPage.picture.select(null)")
    pan = "byocPage.picture.cy.pan()"
    kinds: set[str] = set()
    for part in page.evaluate(
        "byocPage.picture.scene.parts.map(({ id, kind, open }) => ({ id, kind: open ? 'open' : kind }))"
    ):
        at = page.evaluate(
            f"(() => {{ const e = byocPage.picture.cy.getElementById('{part['id']}');"
            " byocPage.picture.cy.center(e); const p = e.renderedPosition();"
            " const b = document.getElementById('graph').getBoundingClientRect();"
            " return { x: b.x + p.x, y: b.y + p.y }; })()"
        )
        before = page.evaluate(pan)
        page.mouse.move(at["x"], at["y"])
        page.mouse.down()
        page.mouse.move(at["x"] + 20, at["y"] + 5)
        page.mouse.move(at["x"] + 40, at["y"] + 10)
        page.mouse.up()
        after = page.evaluate(pan)
        moved = (after["x"] - before["x"], after["y"] - before["y"])
        assert moved == pytest.approx((40, 10)), part
        kinds.add(part["kind"])
    assert {"open", "ports"} <= kinds
    assert page.evaluate("byocPage.picture.selected") is None


def test_an_arrow_tells_what_crosses_and_what_it_costs(show: Any, squeezenet: Path) -> None:
    page = show(byoc.make_page(squeezenet))
    page.evaluate(
        "byocPage.picture.selectEdge(byocPage.picture.scene.edges.find("
        "(edge) => edge.crossing && edge.target.kind !== 'ports' && edge.source.region >= 0))"
    )
    (region,) = open_bundle(squeezenet).decisions().graphs[0].regions
    (leaving,) = [each for each in region.boundary if not each.enters]
    assert leaving.bytes == 4000
    shown = page.inner_text("#details")
    assert "Crosses the boundary" in shown
    assert f"3.91 KiB in {1e6 * leaving.seconds:.3g} µs" in shown
    assert f"{1e6 * leaving.seconds:.3g} µs of transfer less in a run" in shown
    assert leaving.layout in shown


def test_many_parts_are_moved_as_a_picture(show: Any, ssdlite: Any) -> None:
    page = show(ssdlite.make_page())
    modes = "(({ textureOnViewport, hideEdgesOnViewport }) => [textureOnViewport, hideEdgesOnViewport])"
    modes += "(byocPage.picture.cy.renderer())"
    assert page.evaluate(modes) == [False, False]
    page.click("[data-zoom=open]")
    assert page.evaluate("byocPage.picture.scene.parts.length") > 2000
    assert page.evaluate(modes) == [True, True]
    page.click("[data-zoom=close]")
    assert page.evaluate(modes) == [False, False]


def test_arrow_keys_walk_along_the_edges(show: Any, squeezenet: Path) -> None:
    page = show(byoc.make_page(squeezenet))
    page.focus("#graph")
    seen = []
    for _ in range(4):
        page.keyboard.press("ArrowDown")
        seen.append(page.evaluate("byocPage.picture.selected.id"))
    assert len(set(seen)) == 4
    page.keyboard.press("ArrowUp")
    assert page.evaluate("byocPage.picture.selected.id") == seen[-2]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#keys").is_visible()


def test_the_theme_follows_the_system_and_the_switch(show: Any, squeezenet: Path) -> None:
    page = show(byoc.make_page(squeezenet), "dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark, light) == ("rgb(20, 23, 27)", "rgb(255, 255, 255)")
    page.emulate_media(color_scheme="dark")
    page.keyboard.press("d")


def test_every_list_and_chart_is_drawn(show: Any, squeezenet: Path, tmp_path: Path) -> None:
    session = byoc.load(squeezenet)
    trace = byoc.Trace()
    session.run({"data_0": np.zeros((1, 3, 224, 224), np.float32)}, trace)
    path = tmp_path / "trace.json"
    path.write_text(trace.to_text())
    region = open_bundle(squeezenet).manifest.regions[0].name
    page = show(byoc.make_page(squeezenet, path))
    for name in ("regions", "boundary", "reasons", "gains", "memory", "timeline", "notes"):
        page.click(f"#tab-{name}")
        assert page.inner_text("#list").strip()
    page.click("#tab-timeline")
    assert page.locator("#list svg rect.live").count() == len(trace.events) + 2
    moved = [each.text_content() for each in page.locator("#list svg rect.transfer title").all()]
    assert [each.split(",")[0] for each in moved] == [
        f"588 KiB into {region}",
        f"3.91 KiB out of {region}",
    ]
    assert page.locator("#list svg rect.layer").count() > 10
    assert "Not verified: verification was turned off" in page.inner_text("#verdict .bad")
    page.click("#tab-regions")
    assert "Measured" in page.inner_text("#list")
    page.click("#list tbody tr")
    assert "Layers of the compiled region" in page.inner_text("#details")
    entry = open_bundle(squeezenet).manifest.regions[0]
    assert entry.inputs[0].layout in page.inner_text("#details")
    page.click("#tab-memory")
    page.locator("#list svg rect").first.click(force=True)
    assert "Read by" in page.inner_text("#details")


def test_a_body_opens_inside_its_node(show: Any) -> None:
    page = show(byoc.partition("zoo:silero_vad_v5", "dla.yaml").make_page())
    path = page.evaluate("byocPage.tables.graphs[byocPage.tables.graphs.length - 1].path")
    name = page.evaluate("byocPage.tables.graphs[byocPage.tables.graphs.length - 1].nodes.names.at(-1)")
    page.evaluate(
        "(() => { const graph = byocPage.tables.graphs.at(-1);"
        " byocPage.picture.reveal(graph, graph.unitNodes.at(-1)[0]); })()"
    )
    assert path in page.inner_text("#details")
    assert name
    assert "body" in page.evaluate("byocPage.picture.scene.parts.map((part) => part.kind)")


HOSTILE = "</script><img src=x onerror=alert(1)> \u202e\x1b[31m"


def test_hostile_names_are_shown_as_text(show: Any) -> None:
    proto = parse("g (float[1,4] x) => (float[1,4] y) { a = Relu(x) b = Sin(a) y = Relu(b) }")
    proto.graph.name = HOSTILE
    proto.graph.node[1].name = HOSTILE
    page = show(byoc.partition(proto, "dla.yaml").make_page())
    search(page, "onerror")
    assert page.locator("img").count() == 0
    shown = page.inner_text("#details h1")
    assert shown.startswith("</script><img src=x onerror=alert(1)>")
    assert "\u202e" not in shown
    assert "\\u202e" in shown


def test_a_model_of_10000_nodes_opens_folded(show: Any) -> None:
    page = show(byoc.partition("zoo:transformer_10k", "dla.yaml", what_if=False).make_page())
    assert page.evaluate("byocPage.picture.scene.parts.length") < 60
    search(page, "matmul")
    assert page.evaluate("byocPage.picture.selected.kind") == "node"
    assert page.evaluate("byocPage.picture.scene.parts.length") < 200


RANDOM_USE = """
(start) => {
  let state = start;
  const draw = (count) => {
    state = (state * 1103515245 + 12345) & 0x7fffffff;
    return state % Math.max(1, count);
  };
  const page = byocPage;
  const picture = page.picture;
  const pick = (list) => list[draw(list.length)];
  const actions = [
    (graph) => picture.reveal(graph, draw(graph.nodes.names.length)),
    () => picture.toggle(pick(picture.scene.parts)),
    () => picture.select(pick(picture.scene.parts)),
    () => picture.move(pick(["up", "down", "left", "right"])),
    () => page.showList(pick(Object.keys(page.lists))),
    (graph) => graph.regions.length && picture.revealRegion(graph, draw(graph.regions.length)),
    () => page.tables.reasons.length && page.showReason(pick(page.tables.reasons)),
    () => picture.scene.edges.length && picture.selectEdge(pick(picture.scene.edges)),
    (graph) => page.showTensor(graph, draw(graph.raw.tensors.names.length)),
  ];
  for (let step = 0; step < 30; step++) {
    pick(actions)(pick(page.tables.graphs));
    for (const { title, x, y, box } of picture.scene.parts) {
      if (!Number.isFinite(x + y) || !(box.width > 0)) throw new Error(`no place for ${title}`);
    }
  }
}
"""


@pytest.mark.parametrize(
    ("model", "rules"),
    [("ssdlite320", "nnpa.yaml"), ("silero_vad_v5", "dla.yaml"), ("bert", ["dla.yaml", "nnpa.yaml"])],
)
def test_whatever_is_clicked_everything_has_its_place(show: Any, model: str, rules: Any) -> None:
    plan = byoc.partition(f"zoo:{model}", rules, strategy="all-supported", what_if=False)
    page = show(plan.make_page())
    for seed in (1, 2, 3):
        page.evaluate(RANDOM_USE, seed)


def test_a_user_sees_attributes_and_the_values_of_weights(show: Any, squeezenet: Path) -> None:
    page = show(byoc.make_page(squeezenet))
    search(page, "n2")
    assert "kernel_shape\n3, 3" in page.inner_text("#details")
    search(page, "conv1_w_0")
    assert "range\n-0.333 to 0.333" in page.inner_text("#details")
    assert page.locator("#details svg.histogram rect").count() == 24


def test_a_user_colours_the_graph_by_numbers_of_his_own(
    show: Any, squeezenet: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.csv").write_text("node,noise\nn2,0.25\nn17,0.75\n")
    page = show(byoc.make_page(squeezenet, overlay=tmp_path / "mine.csv"))

    fills = """
    byocPage.picture.scene.parts.filter((part) => part.kind === 'node')
      .map((part) => byocPage.picture.cy.getElementById(part.id).data('fill'))"""
    own = page.evaluate(fills)
    assert len({*own} - {"#ffffff"}) == 2
    page.select_option("#legend select", "device")
    assert not {*own} & {*page.evaluate(fills)}
    search(page, "n17")
    assert "noise\n0.75" in page.inner_text("#details")


def test_a_user_saves_the_picture_and_moves_the_border_of_the_lists(
    show: Any, squeezenet: Path, tmp_path: Path
) -> None:
    page = show(byoc.make_page(squeezenet))
    with page.expect_download() as download:
        page.click("[data-zoom=save]")
    download.value.save_as(tmp_path / "saved.png")
    assert download.value.suggested_filename == "squeezenet.png"
    assert (tmp_path / "saved.png").read_bytes().startswith(b"\x89PNG")

    height = "document.getElementById('lists').clientHeight"
    before = page.evaluate(height)
    page.focus("#split")
    page.keyboard.press("ArrowUp")
    assert page.evaluate(height) > before


def test_one_number_for_all_nodes_has_no_scale(show: Any, squeezenet: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("node,noise\nn2,0.25\nn17,0.25\n")
    page = show(byoc.make_page(squeezenet, overlay=tmp_path / "mine.csv"))
    legend = page.inner_text("#legend")
    assert "noise: 0.25" in legend
    assert "0.25 to" not in legend


def test_no_arrow_crosses_the_heading_of_an_open_group(show: Any, ssdlite: Any) -> None:
    """Headings are drawn over arrows, on a plate that hides these."""
    page = show(ssdlite.make_page())
    found = page.evaluate(
        """byocPage.picture.scene.parts.filter((part) => part.open && part.canOpen).map((part) => {
             const { cy } = byocPage.picture;
             const heading = cy.getElementById(`${part.id} heading`);
             const [plate, box] = [heading.boundingBox(), cy.getElementById(part.id).boundingBox()];
             return [heading.data('label').includes('▾'), Number(heading.style('z-index')),
               plate.x1 >= box.x1 && plate.y1 >= box.y1 && plate.y2 < box.y2,
               Math.max(0, ...cy.edges().map((edge) => Number(edge.style('z-index'))))];
           })"""
    )
    assert found
    assert all(opens and inside and above > below for opens, above, inside, below in found)


def test_two_plans_are_drawn_beside_one_another(browser: Any, squeezenet: Path, tmp_path: Path) -> None:
    opened = open_bundle(squeezenet)
    path = tmp_path / "d.html"
    path.write_text(make_diff_page(opened, opened, ("alike\n\nMoved:\n",) * 2, {"n2"}), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(path.as_uri())
    for frame in page.frames[1:]:
        frame.wait_for_function(READY, timeout=30_000)
        legend = frame.inner_text("#legend")
        assert "moved" in legend
        assert "1" not in legend.split()
    assert len(page.frames) == 3
    assert page.inner_text("summary") == "alike"
    page.close()
    assert not problems
