"""The library of composites, held against the graphs of the exporters that it was written for.

Each composite has to be found exactly as often as something else in the graph says, to compute what its
nodes did to the last bit, and to leave alone what only looks like it. The models are made by
tools/export_fragments; those of the zoo that have to be fetched count only where they are.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import prepared, sample_cases
from lookalikes import EDITS, TEXTS, Edit
from occurrences import EVIDENCE, FRAGMENTS, RUN, TOGETHER, ZOO

from byoc import zoo
from byoc.errors import YES
from byoc.model import GraphIndex, Model, prepare_model, unshare_dequantize
from byoc.patterns import Mark, Match, group_units
from byoc.pipeline import Result, partition
from byoc.rules import Target, load_rules, read_library
from byoc.samples import sample_inputs
from byoc.verification import run_plain
from byoc.zoo import load_model

MODELS = Path(__file__).parent / "models"
ALL = sorted(read_library().entries)
QUANTIZED = "  - {op: '*', quantized: true}\n"


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the path of a rule file that takes every operator, and names one composite."""
    folder = tmp_path_factory.mktemp("rules")

    def write(name: str) -> Path:
        path = folder / f"{name}.yaml"
        quantized = QUANTIZED if name.startswith("qdq_") else ""
        path.write_text(
            f"target: {name}\ncost_model: dla\ndtype: any\nops:\n{quantized}  - op: '*'\n"
            f"composites:\n  - library: {name}\n"
        )
        return path

    return write


@cache
def model(graph: str) -> Model:
    """Return a model of the zoo, or a fragment."""
    name = graph.removeprefix("zoo:")
    if name == graph:
        return load_model(MODELS / f"{graph}.onnx")
    if not next(entry.present for entry in zoo.list_entries() if entry.name == name):
        pytest.skip(f"{name} is not on this machine")
    return load_model(graph)


def found(graph: Model, target: Target) -> Sequence[Match]:
    """Return where the composites of a target are, were all nodes accepted."""
    index = (unshare_dequantize(graph) if target.has_quantized_rules else graph).index
    units = group_units(index, target.patterns, [Mark(YES, "")] * len(index.nodes))
    return [unit.match for unit in units if unit.match is not None]


def test_every_composite_is_tried() -> None:
    tried = {name for name, *_ in FRAGMENTS}
    assert sorted(tried) == ALL
    assert sorted({name for name, *_ in EDITS} | TEXTS.keys()) == ALL
    assert all(entry.composite.description for name in ALL for entry in read_library().entries[name])
    assert not read_library().problems


@pytest.mark.parametrize(
    ("name", "graph", "count", "elsewhere"), [*FRAGMENTS, *sample_cases(ZOO, every=2)]
)
def test_found_as_often_as_the_graph_says(
    name: str, graph: str, count: int, elsewhere: int, rules: Callable[[str], Path]
) -> None:
    loaded = model(graph)
    assert EVIDENCE[name](loaded.index) == count + elsewhere
    assert len(found(loaded, load_rules(str(rules(name))))) == count


@pytest.mark.parametrize("name", ALL)
def test_every_variant_is_somewhere(name: str, rules: Callable[[str], Path]) -> None:
    target = load_rules(str(rules(name)))
    graphs = [graph for other, graph, *_ in FRAGMENTS if other == name]
    variants = {match.form.variant_number for graph in graphs for match in found(model(graph), target)}
    if name == "layer_norm_channels":
        variants.add(7)  # those of layer_norm, one of which writes the last axis in two ways
    assert variants == {form.variant_number for form in target.patterns[0].forms}


COUNTS = [(*row[:3],) for row in [*FRAGMENTS, *RUN]]
FIRST = {row[0]: row for row in reversed(COUNTS)}


@pytest.mark.parametrize(("name", "graph", "count"), sample_cases(COUNTS, *FIRST.values(), every=6))
def test_computes_what_its_nodes_did(
    name: str, graph: str, count: int, rules: Callable[[str], Path]
) -> None:
    loaded = model(graph)
    source = MODELS / f"{graph}.onnx" if not graph.startswith("zoo:") else graph
    result = partition(source, rules(name), strategy="all-supported", what_if=False)
    assert placed(result) == {name: count}
    assert_same(result, loaded)


@pytest.mark.parametrize(("graph", "expected"), TOGETHER)
def test_all_in_one_rule_file(graph: str, expected: Mapping[str, int], tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    composites = "".join(f"  - library: {name}\n" for name in ALL)
    path.write_text(
        f"target: all\ncost_model: dla\ndtype: any\nops: [op: '*']\ncomposites:\n{composites}"
    )
    result = partition(graph, path, strategy="all-supported")
    assert placed(result) == expected
    assert_same(result, model(graph))


def placed(result: Result) -> Counter[str]:
    """Return how often each composite is on the accelerator."""
    count: Counter[str] = Counter()
    for region in result.report.regions:
        count.update(region.composites)
    return count


def assert_same(result: Result, original: Model) -> None:
    """Run a model cut and uncut in plain onnxruntime, and hold the outputs against each other."""
    inputs = sample_inputs(original.index) if original.make_samples is None else original.make_samples(0)
    expected = run_plain(original.proto, original, inputs)
    actual = run_plain(result.model, original, inputs)
    for output, value in expected.items():
        np.testing.assert_array_equal(actual[output], value)
        assert actual[output].dtype == value.dtype


@pytest.mark.parametrize(("name", "graph"), {row[0]: row[1] for row in FRAGMENTS}.items())
def test_not_where_inner_values_are_used_elsewhere(
    name: str, graph: str, rules: Callable[[str], Path]
) -> None:
    loaded, target = model(graph), load_rules(str(rules(name)))
    before = found(loaded, target)
    index = (unshare_dequantize(loaded) if target.has_quantized_rules else loaded).index
    exposed = onnx.ModelProto()
    exposed.CopyFrom(index.proto)
    for match in before:
        for tensor in _inner(match, index):
            exposed.graph.output.add(name=tensor).type.CopyFrom(index.type_protos[tensor])
    after = found(prepare_model(exposed, "exposed"), target)
    assert {len(match.nodes) for match in after} <= {1}


def _inner(match: Match, index: GraphIndex) -> Sequence[str]:
    leaving = {match.tensors[name] for name in match.form.outputs}
    made = (tensor for number in match.nodes.values() for tensor in index.nodes[number].output)
    return [tensor for tensor in made if tensor and tensor not in leaving]


@pytest.mark.parametrize(("name", "graph", "edits", "left"), EDITS)
def test_not_what_looks_like_it(
    name: str, graph: str, edits: Sequence[Edit], left: int, rules: Callable[[str], Path]
) -> None:
    changed = onnx.load(MODELS / f"{graph}.onnx")
    for edit in edits:
        assert edit(changed), f"nothing to change in {graph}"
    assert len(found(prepare_model(changed, "changed"), load_rules(str(rules(name))))) == left


@pytest.mark.parametrize(("name", "text"), [(name, text) for name in TEXTS for text in TEXTS[name]])
def test_not_what_is_written_like_it(name: str, text: str, rules: Callable[[str], Path]) -> None:
    assert not found(prepared(text), load_rules(str(rules(name))))
