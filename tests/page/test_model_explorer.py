"""`byoc report --format model-explorer`: files that Model Explorer opens, with the bundle's decisions.

The schema is that of the package ai-edge-model-explorer 0.1.34, restated here; where the package is
installed, its own classes are asked.
"""

import dataclasses
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import VANILLA, Ran, parse

import byoc as library
from byoc.bundle import DecidedGraph, open_bundle

# Class -> its fields, with those that the viewer's code needs first.
SCHEMA = {
    "Graph": ({"id", "nodes"}, {"groupNodeAttributes", "groupNodeConfigs"}),
    "GraphNode": (
        {"id", "label", "namespace"},
        {"subgraphIds", "attrs", "incomingEdges", "outputsMetadata", "style"},
    ),
    "IncomingEdge": ({"sourceNodeId"}, {"sourceNodeOutputId", "targetNodeInputId"}),
    "KeyValue": ({"key", "value"}, set()),
    "MetadataItem": ({"id"}, {"attrs"}),
    "GroupNodeConfig": ({"namespaceRegex"}, {"backgroundColor"}),
    "GraphNodeStyle": (set(), {"backgroundColor"}),
    "GraphNodeData": ({"results"}, {"name", "gradient"}),
    "NodeDataResult": ({"value"}, {"bgColor"}),
    "GradientItem": ({"stop"}, {"bgColor"}),
}
LOOP = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4] x) => (float[1,4] y) {
    count = Constant <value_int = 3> ()
    go = Constant <value = bool {1}> ()
    a = Relu(x)
    y = Loop (count, go, a) <body = b (int64 i, bool c, float[1,4] s) => (bool d, float[1,4] t) {
        d = Identity(c)
        r = Relu(s)
        t = Add(r, x)
    }>
}"""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle in int8, of which a softmax has integers for more than its data."""
    folder = tmp_path_factory.mktemp("explorer")
    model = parse(
        "g (float[1,3,8,8] x) => (float[1,4,8,8] y) { a = Conv <pads = [1,1,1,1]> (x, w) b = Relu(a)"
        " y = MaxPool <kernel_shape = [1,1]> (b) }"
    )
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, folder / "m.onnx")
    data = [
        {"x": np.random.default_rng(n).standard_normal((1, 3, 8, 8)).astype(np.float32)}
        for n in range(4)
    ]
    ranges = library.calibrate(folder / "m.onnx", data, method="percentile", percentile=90.0)
    library.partition(
        folder / "m.onnx",
        VANILLA,
        output=folder / "q.byoc",
        strategy="all-supported",
        precision=library.Precision("int8", calibration=ranges),
    )
    return folder / "q.byoc"


def check(document: dict[str, Any], kind: str) -> None:
    needed, optional = SCHEMA[kind]
    assert needed <= set(document) <= needed | optional, (kind, document)


def read_files(bundle: Path, **options: Any) -> dict[str, Any]:
    return {
        name: json.loads(text) for name, text in library.make_explorer_files(bundle, **options).items()
    }


def check_files(files: dict[str, Any]) -> None:
    """Raise AssertionError where the files are not of the schema, or name nodes that there are not."""
    collection = files["graph.json"]
    assert set(collection) == {"label", "graphs"}
    ids = {}
    for graph in collection["graphs"]:
        check(graph, "Graph")
        ids[graph["id"]] = [node["id"] for node in graph["nodes"]]
        assert len(set(ids[graph["id"]])) == len(graph["nodes"])
        spaces = {node["namespace"] for node in graph["nodes"]}
        assert all(
            any(f"{s}/".startswith(f"{k}/") for s in spaces) for k in graph["groupNodeAttributes"] if k
        )
        for each in graph["groupNodeConfigs"]:
            check(each, "GroupNodeConfig")
        for node in graph["nodes"]:
            check(node, "GraphNode")
            check(node.get("style", {}), "GraphNodeStyle")
            pairs = [
                *node.get("attrs", ()),
                *(a for m in node.get("outputsMetadata", ()) for a in m["attrs"]),
            ]
            assert all(
                set(pair) == {"key", "value"} and isinstance(pair["value"], str) for pair in pairs
            )
            for edge in node.get("incomingEdges", ()):
                check(edge, "IncomingEdge")
                assert edge["sourceNodeId"] in ids[graph["id"]]
    for graph in collection["graphs"]:
        assert all(body in ids for node in graph["nodes"] for body in node.get("subgraphIds", ()))
    for name, overlay in files.items():
        for graph, data in overlay.items() if name != "graph.json" else ():
            check(data, "GraphNodeData")
            assert set(data["results"]) <= set(ids[graph])
            for result in data["results"].values():
                check(result, "NodeDataResult")


def find_decided(bundle: Path) -> DecidedGraph:
    decisions = open_bundle(bundle).decisions()
    assert decisions is not None
    return decisions.graphs[0]


def test_a_bundle_in_int8_has_every_overlay(quantized: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("node,mine\na,3\n")
    files = read_files(quantized, overlay=tmp_path / "mine.csv")
    check_files(files)
    assert set(files) == {
        f"{n}.json" for n in ("graph", "device", "seconds", "bytes", "decibels", "unused", "overlay")
    }

    graph = find_decided(quantized)
    seconds = [data["value"] for data in files["seconds.json"]["main graph"]["results"].values()]
    placed = sum(
        graph.units.seconds[device][unit] or 0 for unit, device in enumerate(graph.units.devices)
    )
    assert sum(seconds) == pytest.approx(placed)
    assert [each["value"] for each in files["overlay.json"]["main graph"]["results"].values()] == [3.0]
    convolution = next(
        node for node in files["graph.json"]["graphs"][0]["nodes"] if node["label"] == "Conv"
    )
    shown = {pair["key"]: pair["value"] for pair in convolution["attrs"]}
    assert shown["device"] == "dla"
    assert convolution["namespace"].split("/")[0] == graph.regions[0].name == shown["region"]


def test_integers_are_held_to_the_values_of_the_data(quantized: Path) -> None:
    """The range of the integers is that of scale and zero point, the data's that of the samples."""
    graph = find_decided(quantized)
    found = {graph.tensors.names[each.tensor]: each for each in graph.ranges}
    samples = [
        np.random.default_rng(n).standard_normal((1, 3, 8, 8)).astype(np.float32) for n in range(4)
    ]
    values = np.concatenate([each.ravel() for each in samples])
    own = found["x"]
    assert own.data == pytest.approx((values.min(), values.max()), rel=1e-5)
    assert own.clipped == pytest.approx(0.1, abs=0.01)  # percentile 90
    assert 0 < own.beyond < 1
    proto = open_bundle(quantized).model()
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in proto.graph.initializer}
    scale, zero = float(constants["x_scale"]), int(constants["x_zero_point"])
    assert own.low == pytest.approx((-128 - zero) * scale, rel=1e-5)
    assert own.high == pytest.approx((127 - zero) * scale, rel=1e-5)
    outside = ((values < own.low) | (values > own.high)).mean()
    assert outside <= own.clipped + 0.01


def test_a_body_is_a_graph_behind_its_node(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(LOOP), tmp_path / "m.onnx")
    library.partition(tmp_path / "m.onnx", VANILLA, output=tmp_path / "b.byoc", strategy="all-supported")
    files = read_files(tmp_path / "b.byoc")
    check_files(files)
    main, body = files["graph.json"]["graphs"]
    assert [node["subgraphIds"] for node in main["nodes"] if node["label"] == "Loop"] == [[body["id"]]]


def test_the_verb_prints_how_to_open_them(
    byoc: Callable[..., Ran], quantized: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "with space"
    for _ in range(2):  # the folder may be there
        ran = byoc("report", quantized, "-o", folder, "--format", "model-explorer")
        assert ran.code == 0
        assert (
            f"model-explorer '{folder}/graph.json' --node_data_paths '{folder}/device.json'," in ran.out
        )
    assert json.loads((folder / "graph.json").read_text())["graphs"]
    for arguments, sentence in (
        (("--trace", "t.json"), "the page alone has a timeline"),
        (("-o", quantized / "inside"), "it would change the bundle"),
    ):
        ran = byoc("report", quantized, "-o", folder, "--format", "model-explorer", *arguments)
        assert ran.code == 1
        assert sentence in ran.err
    (tmp_path / "file").write_text("")
    ran = byoc("report", quantized, "-o", tmp_path / "file", "--format", "model-explorer")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "a file of that name" in ran.err


def test_a_new_folder_is_written_whole(
    byoc: Callable[..., Ran], quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, text: str) -> None:
        if path.name != "graph.json":
            raise KeyboardInterrupt
        path.write_text(text)

    monkeypatch.setattr("byoc.cli._bundle_verbs.write_text", write)
    assert byoc("report", quantized, "-o", tmp_path / "new", "--format", "model-explorer").code == 130
    assert list(tmp_path.iterdir()) == []


def test_the_schema_is_that_of_the_package() -> None:
    builder = pytest.importorskip("model_explorer.graph_builder")
    data = importlib.import_module("model_explorer.node_data_builder")
    for name, (needed, optional) in SCHEMA.items():
        kind = getattr(builder, name, None) or getattr(data, name)
        assert needed | optional <= {field.name for field in dataclasses.fields(kind)}, name
