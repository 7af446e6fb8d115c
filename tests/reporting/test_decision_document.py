"""The decision document has what the plan has, for every node of every graph."""

import gzip
from collections import Counter
from pathlib import Path

import pytest
from helpers.support import VANILLA, parse, sample_cases

import byoc
from byoc.bundle import DecisionDocument, open_bundle
from byoc.errors import list_causes
from byoc.planning import Plan
from byoc.reporting import make_decision_document

LOOP = """
g (int64 n, bool c, float[4,4] x) => (float[4,4] y) {
  h = Relu(x)
  z = Loop<body = inner (int64 i, bool k, float[4,4] a) => (bool k2, float[4,4] b) {
    k2 = Identity(k)  e = Exp(h)  r = Relu(a)  b = Add(r, e)
  }>(n, c, h)
  y = Sigmoid(z)
}
"""
MODELS = ("zoo:squeezenet", "zoo:ssdlite320", "zoo:bert", "zoo:decoder_int4_decode", "zoo:silero_vad_v5")


def make_plan(model: object) -> Plan:
    return byoc.partition(model, "dla.yaml", what_if=False).plan  # type: ignore[arg-type]


@pytest.mark.parametrize("model", sample_cases(MODELS, "zoo:squeezenet", "zoo:silero_vad_v5"))
def test_every_node_is_where_the_plan_has_it(model: str) -> None:
    plan = make_plan(model)
    document = make_decision_document(plan)
    by_path = {graph.path: graph for graph in document.graphs}
    assert document.graphs[0].path == ""
    for graph in plan.root.walk():
        found = by_path[graph.path]
        tensors = found.tensors.names
        assert len(found.nodes.names) == len(graph.index.nodes)
        for number, node in enumerate(graph.index.nodes):
            row = graph.row_of_node.get(number)
            assert found.nodes.units[number] == (-1 if row is None else row)
            operator = document.operators[found.nodes.operators[number]]
            assert (operator.name, operator.domain) == (node.op_type, node.domain)
            made = [tensors[n] if n >= 0 else "" for n in found.nodes.outputs[number]]
            assert made == list(node.output)
            read = [tensors[n] if n >= 0 else "" for n in found.nodes.inputs[number]]
            assert read[: len(node.input)] == list(node.input)
            if row is None:
                assert number in graph.index.constant_nodes
                continue
            label = int(graph.placement.labels[row])
            assert found.find_device(number) == label
            reason = found.units.reasons[row]
            assert (
                reason == -1 if label else document.reasons[reason].text == str(graph.host_reason(row))
            )
            taken = {rule for unit in graph.units[row].on_device[label - 1] for rule in unit.rules}
            assert {document.rules[n] for n in found.units.rules[row]} == (taken if label else set())
            assert found.units.seconds[0][row] == pytest.approx(
                graph.graph_problem.latency.seconds[row, 0], rel=1e-5
            )
        assert [region.name for region in found.regions] == [region.name for region in graph.regions]
        for region, planned in zip(found.regions, graph.regions, strict=True):
            assert region.seconds == pytest.approx(planned.seconds, rel=1e-5)
            entering = [tensors[each.tensor] for each in region.boundary if each.enters]
            assert entering == list(planned.interface.inputs)
    assert sum(len(each.nodes.names) for each in document.graphs) == sum(
        len(index.nodes) for index in plan.root.index.walk()
    )


def test_a_body_names_the_node_around_it_and_what_it_captures_is_an_input() -> None:
    document = make_decision_document(make_plan(parse(LOOP)))
    main, body = document.graphs
    graph, node = body.around
    assert graph == 0
    assert document.operators[main.nodes.operators[node]].name == "Loop"
    assert body.path.endswith("/body")
    read = [main.tensors.names[n] for n in main.nodes.inputs[node]]
    assert read == ["n", "c", "h"]  # what it captures stands once


def test_the_document_of_a_bundle_has_its_contracts(tmp_path: Path) -> None:
    proto = parse("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Relu(x) b = Sin(a) y = Relu(b) }")
    output = tmp_path / "b.byoc"
    byoc.partition(proto, VANILLA, output=output, strategy="all-supported", codegen="reference")
    bundle = open_bundle(output)
    document = bundle.decisions()
    assert document is not None
    assert "decisions.json.gz" in bundle.manifest.files
    (graph,) = document.graphs
    for region, entry in zip(graph.regions, bundle.manifest.regions, strict=True):
        assert region.name == entry.name
        for each in region.boundary:
            contract = entry.boundary_contracts[graph.tensors.names[each.tensor]]
            assert (each.dtype, each.layout) == (contract.type.dtype, contract.layout)
            assert each.seconds is not None and each.seconds > 0
            assert each.bytes == 1024
    assert document == DecisionDocument.read(
        gzip.compress(document.to_json()), Path("decisions.json.gz")
    )


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = set()
    for name in ("a.byoc", "b.byoc"):
        byoc.partition("zoo:squeezenet", "dla.yaml", output=tmp_path / name, verify=False)
        contents.add((tmp_path / name / "decisions.json.gz").read_bytes())
    assert len(contents) == 1
    document = open_bundle(tmp_path / "a.byoc").decisions()
    assert document is not None
    devices = Counter(map(document.graphs[0].find_device, range(len(document.graphs[0].nodes.names))))
    assert devices[1] == 64


@pytest.mark.parametrize("model", sample_cases(MODELS, "zoo:squeezenet", "zoo:silero_vad_v5"))
def test_reasons_keep_their_causes(model: str) -> None:
    """A reader of the file knows what the plan knew: each cause, not only the sentence of all."""
    plan = make_plan(model)
    written = make_decision_document(plan).to_json()
    document = DecisionDocument.read(gzip.compress(written), Path("d"))
    known = {
        str(verdict): [
            (cause.kind, cause.operator, cause.constraint, cause.value, cause.allowed, cause.flags)
            for cause in list_causes(verdict)
        ]
        for _, verdict in reversed(plan.host_units)
    }
    assert known
    for reason in document.reasons:
        causes = reason.causes
        assert [
            (each.kind, each.operator, each.constraint, each.value, each.allowed, each.flags)
            for each in causes
        ] == known[reason.text]
    assert any(cause.constraint for reason in document.reasons for cause in reason.causes)
