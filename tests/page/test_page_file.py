"""The page is one file that needs nothing else, and shows names of others as text."""

import base64
import gzip
import hashlib
import html
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.calibrating import wide_inputs, wide_network
from helpers.support import VANILLA, Ran, parse
from onnx import helper, numpy_helper

import byoc as library
from byoc.bundle import open_bundle
from byoc.errors import InputError
from byoc.reporting import make_decision_document
from byoc.reporting.page import draw_constants, read_trace

CHAIN = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Relu(x) b = Sin(a) y = Relu(b) }"
HOSTILE = "</script><img src=x onerror=alert(1)><!--$data ${x} \u202e\u2028\x1b"


class Elements(HTMLParser):
    """Collects the elements of a page: tags with attributes, and the text of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script"
        self.scripts += [""] * self.inside

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data


def read_data(page: str) -> Any:
    """Return the data inside of a page."""
    found = re.search(
        r'<script id="data" type="application/octet-stream">([A-Za-z0-9+/=]*)</script>', page
    )
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("page") / "b.byoc"
    library.partition(
        parse(CHAIN), VANILLA, output=output, strategy="all-supported", codegen="reference"
    )
    return output


def test_the_plans_of_an_accuracy_budget_are_in_the_page(tmp_path: Path) -> None:
    onnx.save(wide_network(), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for number, sample in enumerate(wide_inputs(2)):
        np.savez(tmp_path / f"data/{number}.npz", **sample)
    precision = library.Precision("int8", data=tmp_path / "data", budget=library.Budget("dB", 20))
    result = library.partition(tmp_path / "m.onnx", VANILLA, precision=precision)
    page = result.make_page()
    trade = read_data(page)["report"]["precision"]["trade"]
    lowered = result.plan.lowered
    assert lowered is not None
    assert [point["seconds"] for point in trade] == [point.seconds for point in lowered.trade]
    assert [point["taken"] for point in trade] == [True] + [False] * (len(trade) - 1)
    assert len(trade) > 1
    names: set[str] = set()
    for point, own in zip(trade, lowered.trade, strict=True):
        names = (names | {*point["to_float"]}) - {*point["to_wide"], *point["to_narrow"]}
        assert names == {*own.in_float}
        assert point["in_float"] == len(names)
    assert "listTrade" in Elements(page).scripts[-1]


def test_a_page_loads_nothing_and_runs_its_own_scripts_alone(bundle: Path) -> None:
    page = library.make_page(bundle)
    elements = Elements(page)
    for tag, attributes in elements.tags:
        assert not {"src", "srcset", "action", "data", "poster"} & attributes.keys(), tag
        assert not any(name.startswith("on") for name in attributes), tag
        assert "href" not in attributes
    assert {tag for tag, _ in elements.tags}.isdisjoint({"link", "iframe", "object", "embed", "base"})
    policies = [
        a["content"] for t, a in elements.tags if a.get("http-equiv") == "Content-Security-Policy"
    ]
    (policy,) = policies
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.partition("style-src")[0]
    assert "unsafe-eval" not in policy
    assert "http" not in policy
    run = [text for text in elements.scripts if not re.fullmatch(r"[A-Za-z0-9+/=]*", text)]
    for text in run:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert len(run) == policy.count("'sha256-") == 3
    style = page.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style
    assert "@import" not in style
    assert "sourceMappingURL" not in page


def test_no_script_of_ours_parses_text_as_html_or_asks_a_network() -> None:
    assets = files("byoc.reporting.page") / "assets"
    for each in assets.iterdir():
        if each.name.endswith(".js"):
            text = each.read_text(encoding="utf-8")
            forbidden = (
                r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function"
                r"|fetch\(|XMLHttp|import\("
            )
            assert not re.search(forbidden, text), each.name


def test_names_of_others_end_no_element_and_are_there_as_they_are(tmp_path: Path) -> None:
    proto = parse(CHAIN)
    proto.graph.name = HOSTILE
    proto.graph.node[1].name = HOSTILE
    proto.graph.node[1].output[0] = proto.graph.node[2].input[0] = HOSTILE + "tensor"
    result = library.partition(proto, VANILLA, strategy="all-supported")
    page = result.make_page()
    assert "<img" not in page
    assert len(Elements(page).scripts) == 4
    names = read_data(page)["decisions"]["graphs"][0]["nodes"]["names"]
    assert HOSTILE in names


def test_the_title_of_a_page_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "<b>&amp;.onnx"
    path.write_bytes(parse(CHAIN).SerializeToString())
    page = library.partition(path, VANILLA).make_page()
    title = page.partition("<title>")[2].partition("</title>")[0]
    assert "&lt;b&gt;&amp;amp;.onnx" in title
    assert "<b>" not in page


def test_a_page_has_the_report_and_the_decisions_of_its_bundle(bundle: Path) -> None:
    opened = open_bundle(bundle)
    data = read_data(library.make_page(bundle))
    assert data["report"] == opened.variant.report.to_json()
    decisions = opened.decisions()
    assert decisions is not None
    assert data["decisions"] == json.loads(decisions.to_json())
    assert data["trace"] is None


def test_the_same_plan_gives_the_same_page() -> None:
    pages = {library.partition("zoo:squeezenet", "dla.yaml").make_page() for _ in range(2)}
    assert len(pages) == 1


@pytest.mark.parametrize("model", ["squeezenet", "bert", "ssdlite320"])
def test_a_page_has_at_most_3_mb_and_a_kilobyte_a_node(model: str) -> None:
    result = library.partition(f"zoo:{model}", "dla.yaml", what_if=False)
    nodes = sum(len(graph.nodes.names) for graph in make_decision_document(result.plan).graphs)
    assert len(result.make_page().encode()) < 3_000_000 + 1_000 * nodes


def test_the_memory_picture_has_no_two_tensors_in_one_place() -> None:
    data = read_data(library.partition("zoo:inception_v1", "dla.yaml", what_if=False).make_page())
    memory, graph = data["memory"], data["decisions"]["graphs"][0]
    buffers = memory["buffers"]
    assert len(buffers) > 50
    for at, (_, offset, size, first, last, _) in enumerate(buffers):
        assert 0 <= offset <= offset + size <= memory["peak"]
        for _, other, length, begin, end, _ in buffers[:at]:
            together = begin <= last and first <= end
            assert not together or offset + size <= other or other + length <= offset
    for tensor, _, _, first, last, _ in buffers:
        units = graph["nodes"]["units"]
        makers = [units[n] for n, made in enumerate(graph["nodes"]["outputs"]) if tensor in made]
        readers = [units[n] for n, read in enumerate(graph["nodes"]["inputs"]) if tensor in read]
        assert first == (makers[0] if makers else 0)
        assert last >= max(readers, default=first)


def test_layers_of_dla_come_with_their_cycles(tmp_path: Path) -> None:
    output = tmp_path / "b.byoc"
    library.partition("zoo:squeezenet", "dla.yaml", output=output, verify=False)
    (layers,) = read_data(library.make_page(output))["layers"].values()
    assert sum(each["cycles"] for each in layers) > 1000


def test_the_libraries_are_those_that_the_readme_names() -> None:
    folder = files("byoc.reporting.page") / "third_party"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\S+\.js)` \| `([0-9a-f]{64})`", readme)
    assert len(named) == 2
    for path, digest in named:
        assert hashlib.sha256((folder / path).read_bytes()).hexdigest() == digest
        assert "Permission is hereby granted" in (folder / path).parent.joinpath("LICENSE").read_text()


EVENT = {
    **{"name": "dla_0", "cat": "dla", "ph": "X", "ts": 5.0, "dur": 20.0, "pid": 1, "tid": 0},
    "args": {"device": "dla", "bytes in": 4, "bytes out": 8},
}


def test_a_trace_becomes_rows_of_devices(tmp_path: Path, bundle: Path) -> None:
    host = {**EVENT, "name": "host segment 0", "ts": 0.0, "dur": 5.0, "args": {"device": "host"}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "M"}, EVENT, host]}))
    trace = read_trace(path)
    assert trace.rows == ("host", "dla")
    assert [(e.name, e.row, e.start, e.seconds) for e in trace.events] == [
        *(("host segment 0", 0, 0.0, 5e-06), ("dla_0", 1, 5e-06, 20e-06))
    ]
    assert trace.seconds == 25e-06
    assert read_data(library.make_page(bundle, path))["trace"]["rows"] == ["host", "dla"]


def test_operators_of_a_trace_belong_to_their_stages(tmp_path: Path, bundle: Path) -> None:
    inside = {"device": "dla", "stage": "dla_0", "nodes": ["a", "b"], "seconds": 0.25, "cycles": 5.0}
    operator = {**EVENT, "name": "conv", "cat": "operator", "ts": 6.0, "dur": 3.0, "args": inside}
    more = {"bytes held": 12, "peak bytes": 4096, "variant": "decode", "padded": "seq 3 to 4"}
    stage = {**EVENT, "args": {**EVENT["args"], **more}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [stage, operator, {**operator, "ts": 9.0}]}))
    trace = read_trace(path)
    assert trace.rows == ("dla",)
    (event,) = trace.events
    assert (event.bytes_held, event.peak_bytes) == (12, 4096)
    ((name, operators),) = trace.operators.items()
    assert name == "dla_0"
    assert [(e.name, e.nodes, e.seconds, e.cycles) for e in operators] == [("conv", ("a", "b"), 0.25, 5)]
    data = read_data(library.make_page(bundle, path))["trace"]
    assert data["operators"]["dla_0"][0]["nodes"] == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "it has no list traceEvents"),
        ("{}", "it has no list traceEvents"),
        ("{", "Expecting"),
        (json.dumps({"traceEvents": [{**EVENT, "ts": 1e308, "dur": 1e308}]}), "ts: "),
        ('{"traceEvents": 1}', "it has no list traceEvents"),
        ('{"traceEvents": [1]}', "Input should be"),
        (json.dumps({"traceEvents": [{**EVENT, "dur": -1}]}), "dur: "),
        (json.dumps({"traceEvents": [{**EVENT, "more": 1}]}), "more: "),
        (json.dumps({"traceEvents": [{**EVENT, "ts": 1e999}]}), ""),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_trace(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: not a trace")
    assert said in message
    assert "\n" not in message


def test_a_bundle_without_decisions_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("byoc.bundle._decisions.MAX_DECISION_VALUES", 10)
    library.partition(parse(CHAIN), VANILLA, output=tmp_path / "b", codegen="reference")
    with pytest.raises(InputError, match="holds no decisions"):
        library.make_page(tmp_path / "b")


def test_a_page_has_the_attributes_of_nodes_and_the_values_of_constants(tmp_path: Path) -> None:
    text = """
    g (float[1,4,8,8] x) => (float[1,4,3,3] y)
    <float few = {2.5}>
    {
      a = Mul(x, few)
      y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (a)
    }"""
    output = tmp_path / "b.byoc"
    library.partition(parse(text), VANILLA, output=output, strategy="all-supported", codegen="reference")

    data = read_data(library.make_page(output))

    document = data["decisions"]
    nodes = document["graphs"][0]["nodes"]
    shown = {
        name: document["attributes"][number]
        for name, number in zip(nodes["names"], nodes["attributes"], strict=True)
        if number >= 0
    }
    assert shown == {"y": "kernel_shape: 3, 3\nstrides: 2, 2"}
    assert data["constants"]["few"]["values"] == [2.5]


def test_constants_are_drawn_as_they_lie() -> None:
    values = np.append(np.zeros(8, np.float32), np.linspace(-1, 3, 32, dtype=np.float32))
    tensors = {
        "spread": values,
        "same": np.full(40, 7, np.int8),
        "odd": np.append(values, [np.inf, np.nan]).astype(np.float16),
        "huge": np.full(40, 1.5e308),
        "few": np.array([1, 2], np.int64),
        "empty": np.zeros(0, np.float32),
        "text": np.array(["a"], object),
    }
    stored = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    model = helper.make_model(helper.make_graph([], "g", [], [], stored))

    found = draw_constants(model, Path())

    assert found.keys() == tensors.keys() - {"empty", "text"}
    assert sum(found["spread"]["bins"]) == 40
    assert (found["spread"]["least"], found["spread"]["greatest"], found["spread"]["zeros"]) == (
        -1,
        3,
        0.2,
    )
    assert found["huge"]["mean"] == pytest.approx(1.5e308)
    assert found["same"]["bins"] == ()
    assert (found["odd"]["odd"], sum(found["odd"]["bins"])) == (2, 40)
    assert found["few"]["values"] == (1.0, 2.0)


def test_numbers_of_nodes_go_with_the_page(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("node,noise \na,1.5\n\nb,-2\n")

    data = read_data(library.make_page(bundle, overlay=tmp_path / "mine.csv"))

    assert data["overlay"] == {"title": "noise", "values": {"a": 1.5, "b": -2.0}, "marks": False}
    assert read_data(library.make_page(bundle))["overlay"] is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "line 1: the first row must be `node,TITLE`"),
        ("node\na\n", "line 1: the first row must be `node,TITLE`"),
        ("node,noise\n", "has no row for a node"),
        ("node,noise\na\n", "line 2: has 1 columns, not a name and a number"),
        ("node,noise\na,1\nconv,1\n", "line 3: no node 'conv'"),
        ("node,noise\na,nan\n", "line 2: 'nan' is not a finite number"),
        ("node,noise\na,1\na,2\n", "line 3: node 'a' has a number already"),
        ("node,noise\na,loud\n", "line 2: 'loud' is not a finite number"),
        ("node,\udcff\na,1\n", "not a CSV file in UTF-8"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused_with_its_line(
    bundle: Path, tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "mine.csv"
    path.write_bytes(content.encode(errors="surrogateescape"))

    with pytest.raises(InputError, match=re.escape(said)):
        library.make_page(bundle, overlay=path)
    with pytest.raises(InputError, match=r"none\.csv: cannot be read"):
        library.make_page(bundle, overlay=tmp_path / "none.csv")


def test_two_bundles_stand_beside_one_another_with_what_moved(
    bundle: Path, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    text = CHAIN.replace("Sin", "Abs")
    library.partition(
        parse(text), VANILLA, output=tmp_path / "new", strategy="all-supported", codegen="reference"
    )

    ran = byoc("diff", bundle, tmp_path / "new", "--html", tmp_path / "d.html")

    assert ran.code == 0, ran.err
    page = (tmp_path / "d.html").read_text("utf-8")
    before, after = re.findall(r'srcdoc="([^"]*)"', page)
    for shown, other in ((before, bundle), (after, tmp_path / "new")):
        data = read_data(html.unescape(shown))
        assert data["report"] == open_bundle(other).variant.report.to_json()
    assert page.count("<pre class=") == 2  # on wide and on narrow screens
    assert "regions differ" in page or "moved" in page


def test_what_is_no_bundle_is_not_drawn(bundle: Path, tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    ran = byoc("diff", bundle, "dla.yaml", "--model", "zoo:squeezenet", "--html", tmp_path / "d.html")

    assert ran.code == 1
    assert "dla.yaml: --html draws bundles, and this is none" in ran.err
    assert not (tmp_path / "d.html").exists()
    inside = byoc("diff", bundle, bundle, "--html", bundle / "d.html")
    assert inside.code == 1
    assert "it would change the bundle that is shown" in inside.err
