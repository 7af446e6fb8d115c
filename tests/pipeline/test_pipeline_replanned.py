"""What is known of a target once it refused something: which nodes go where, and what is asked again."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from byoc.codegens.reference import Reference
from helpers import vendors
from helpers.calibrating import inputs, network
from helpers.cutting import UNLIKE, cut, ramp, same_as_original
from helpers.failing import on_devices, rules, working
from helpers.faulty import REASON, faulty  # noqa: F401 - a fixture
from helpers.support import examples, parse, without_location
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import GraphMaker

from byoc.codegen import Artifact, CompileError, NoOptions, Operation, Region
from byoc.pipeline import partition
from byoc.quantization import Budget, Precision
from byoc.reporting import summarize_report
from byoc.runtime import load

LONG = """
long (float[1, 4] x) => (float[1, 4] y) {
  [first] a = Add(x, x)
  [rectify] b = Relu(a)
  [second] c = Add(b, x)
  [third] y = Add(c, a)
}
"""


@pytest.mark.usefixtures("faulty")
def test_only_the_nodes_that_a_codegen_names_go(tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = {"fault": "names", "op": "Relu", "log": str(log)}
    (tmp_path / "out").mkdir()
    result = working(parse(LONG), tmp_path / "out/b", codegen_options=options)
    assert on_devices(result) == {"a": "dla", "b": "host", "c": "dla", "y": "dla"}
    assert [[*refusal.nodes] for refusal in result.report.refusals] == [["rectify"]]
    assert log.read_text().splitlines() == ["Add Relu Add Add", "Add", "Add Add"]
    assert result.plan.proto.graph.node  # the partitioned model says why, too
    reasons = {
        node.name: entry.value
        for node in result.plan.proto.graph.node
        for entry in node.metadata_props
        if entry.key == "byoc.reason"
    }
    assert reasons == {"rectify": f"codegen faulty refused: {REASON}"}


@pytest.mark.parametrize(("most", "halves"), [(1, {6, 3, 1}), (2, {6, 3, 1}), (4, {6, 3}), (6, {6})])
@pytest.mark.usefixtures("faulty")
def test_a_region_that_is_too_large_is_split(most: int, halves: set[int], tmp_path: Path) -> None:
    names = ["x", *(f"t{number}" for number in range(11)), "y"]
    lines = "".join(f"  {made} = Add({read}, x)\n" for read, made in pairwise(names))
    model = parse(f"g (float[1, 4] x) => (float[1, 4] y) {{\n{lines}}}")
    result = working(model, tmp_path / "b", codegen_options={"fault": "large", "most": str(most)})
    sizes = [region.nodes for region in result.report.regions]
    assert sum(sizes) == 12
    assert max(sizes) <= most
    refusals = result.report.refusals
    assert {refusal.split for refusal in refusals} == halves
    assert [(refusal.nodes, refusal.host) for refusal in refusals] == [((), 0)] * len(refusals)
    assert str(result.report.notes[0]) == (
        f"warning: codegen faulty: dla_0: 12 operations of at most {most}; dla is planned again split "
        "into regions of at most 6 nodes"
    )


@pytest.mark.usefixtures("faulty")
def test_one_unit_that_is_too_large_goes_back(tmp_path: Path) -> None:
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) y = Relu(a) }")
    result = working(model, tmp_path / "b", codegen_options={"fault": "large"})
    assert on_devices(result) == {"a": "host", "y": "host"}
    assert [refusal.split for refusal in result.report.refusals] == [1, None, None]
    assert "; 2 nodes went back to the host: " in summarize_report(result.report)
    (why,) = {item.reason for item in result.report.host_reasons}
    assert why == "codegen faulty refused: 1 operations of at most 0"


@pytest.fixture
def files_of_rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for rule files, which is not that of the bundle."""
    return tmp_path_factory.mktemp("rules")


@pytest.mark.usefixtures("faulty")
def test_what_one_target_refuses_another_may_take(files_of_rules: Path, tmp_path: Path) -> None:
    both = [
        rules(files_of_rules, "one", "Add", "Relu", more="codegen: faulty\n"),
        rules(files_of_rules, "two", "Relu", "Neg"),
    ]
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) b = Relu(a) y = Neg(b) }")
    options = {"one:fault": "names", "one:op": "Relu"}
    before = partition(model, both, strategy="all-supported")
    assert on_devices(before) == {"a": "one", "b": "one", "y": "two"}
    after = partition(
        model, both, strategy="all-supported", output=tmp_path / "b", codegen_options=options
    )
    assert on_devices(after) == {"a": "one", "b": "two", "y": "two"}
    assert after.verification is not None
    assert after.verification.passed
    same_as_original(model, tmp_path / "b", {"x": ramp(1, 4)})
    (refusal,) = after.report.refusals
    assert (refusal.target, refusal.nodes, refusal.host) == ("one", ("b",), 0)
    assert "went back to the host" not in summarize_report(after.report)


@pytest.mark.usefixtures("faulty")
def test_both_targets_refuse(files_of_rules: Path, tmp_path: Path) -> None:
    both = [rules(files_of_rules, name, "Relu", more="codegen: faulty\n") for name in ("one", "two")]
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }")
    options = {"one:fault": "refuses", "two:fault": "raises"}
    result = partition(
        model, both, strategy="all-supported", output=tmp_path / "b", codegen_options=options
    )
    assert on_devices(result) == {"y": "host"}
    assert [without_location(item.reason) for item in result.report.host_reasons] == [
        f"one: codegen faulty refused: {REASON}; "
        "two: codegen faulty failed with ZeroDivisionError: division by zero"
    ]
    assert [refusal.target for refusal in result.report.refusals] == ["one", "two"]
    assert "; 1 node went back to the host: " in summarize_report(result.report)


@pytest.mark.usefixtures("faulty")
def test_what_must_be_on_an_accelerator_goes_back_all_the_same(
    files_of_rules: Path, tmp_path: Path
) -> None:
    file = rules(files_of_rules, "one", "{op: Relu, level: must}", "Add", more="codegen: faulty\n")
    for fault in ("refuses", "large"):
        result = partition(
            parse(UNLIKE),
            file,
            strategy="all-supported",
            output=tmp_path / "b",
            codegen_options={"fault": fault, "op": "Relu"},
        )
        assert on_devices(result) == {"a": "host", "b": "host", "y": "one"}


@pytest.mark.usefixtures("faulty")
def test_inside_bodies(files_of_rules: Path, tmp_path: Path) -> None:
    file = rules(files_of_rules, "one", "Relu", "Add", "Neg", more="codegen: faulty\n")
    model = parse("""
    g (float[1, 4] x, bool c) => (float[1, 4] y) {
      a = Add(x, x)
      y = If(c) <
        then_branch = yes () => (float[1, 4] t) { t1 = Relu(a) t = Add(t1, a) },
        else_branch = no () => (float[1, 4] t) { t1 = Neg(a) t = Add(t1, a) }
      >
    }
    """)
    result = partition(
        model,
        file,
        strategy="all-supported",
        output=tmp_path / "b",
        codegen_options={"fault": "names", "op": "Relu"},
    )
    where = [
        (graph.path, graph.index.nodes[unit.nodes[0]].op_type, int(label))
        for graph in result.plan.root.walk()
        for unit, label in zip(graph.units, graph.placement.labels, strict=True)
    ]
    assert [op for _, op, label in where if not label] == ["If", "Relu"]
    (refusal,) = result.report.refusals
    assert (refusal.nodes, refusal.host) == (("y/then_branch/t1",), 1)
    assert result.verification is not None
    assert result.verification.passed
    for condition in (False, True):
        same_as_original(model, tmp_path / "b", {"x": ramp(1, 4), "c": np.array(condition)})


@pytest.mark.usefixtures("faulty")
def test_a_composite_and_what_is_named_inside_it(tmp_path: Path) -> None:
    weights = onnx.numpy_helper.from_array(np.ones((3, 3, 1, 1), np.float32), "w")
    model = parse("""
    g (float[1, 3, 4, 4] x) => (float[1, 3, 4, 4] y) {
      [one] c = Conv(x, w)
      [two] r = Relu(c)
      [three] s = Add(r, x)
      [four] d = Conv(s, w)
      [five] y = Relu(d)
    }
    """)
    model.graph.initializer.append(weights)
    for fault in ("composite", "inside", "inlined"):
        options = {"fault": fault}
        result = cut(model, tmp_path / "b", strict=False, codegen="faulty", codegen_options=options)
        refused = [[*refusal.nodes] for refusal in result.report.refusals]
        assert refused == [["one", "two"]], fault
        assert on_devices(result) == {
            **{"c": "host", "r": "host", "s": "dla", "d": "dla", "y": "dla"},
        }
        same_as_original(model, tmp_path / "b", {"x": ramp(1, 3, 4, 4)})


@pytest.mark.usefixtures("faulty")
def test_a_given_placement_yields(tmp_path: Path, files_of_rules: Path) -> None:
    pins = files_of_rules / "pins.yaml"
    pins.write_text("format: 1\nnodes: {a: dla, y: dla}\n")
    options = {"fault": "refuses", "op": "Relu"}
    result = working(parse(UNLIKE), tmp_path / "b", placement=pins, codegen_options=options)
    assert on_devices(result) == {"a": "host", "b": "host", "y": "dla"}
    assert any("not taken by the device: 'a'; placed anew" in note.text for note in result.report.notes)


@settings(max_examples=examples(12), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    ops=st.sets(
        st.sampled_from(["Conv", "Relu", "Add", "Mul", "Sum", "Concat"]), min_size=1, max_size=3
    ),
    named=st.booleans(),
)
def test_whatever_is_refused_the_bundle_computes_the_same(
    seed: int, ops: set[str], named: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def compile_(region: Region) -> Artifact:
        wrong = [each.name for each in region.operations() if ops & _ops(each)]
        if wrong:
            raise CompileError("not these", wrong[:2] if named else ())
        return Artifact()

    class Picky(Reference):
        name = "picky"

        def compile(self, region: Region, options: NoOptions) -> Artifact:
            return compile_(region)

    model = GraphMaker(seed).model(20)
    output = tmp_path_factory.mktemp("random") / "b"
    with pytest.MonkeyPatch.context() as patch:
        vendors.install(patch, picky=Picky)
        result = cut(model, output, strict=False, codegen="picky")
        assert result.verification is not None
        assert result.verification.passed
        for region in result.plan.regions:
            inside = {region.index.nodes[node].op_type for node in region.nodes}
            assert not inside & ops


def _ops(operation: Operation) -> set[str]:
    return {operation.op, *(inner.op for inner in operation.inner)}


@pytest.mark.usefixtures("faulty")
def test_a_quantized_group_and_a_budget(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for number, sample in enumerate(inputs(4)):
        np.savez(tmp_path / f"data/{number}.npz", **sample)
    for budget in (None, Budget("dB", 10.0)):
        precision = Precision("int8", data=str(tmp_path / "data"), budget=budget)
        log = tmp_path / "log"
        log.unlink(missing_ok=True)
        result = cut(
            onnx.load(tmp_path / "m.onnx"),
            tmp_path / "b",
            strict=False,
            cache=False,  # the refusal of the first time would do
            codegen="faulty",
            codegen_options={"fault": "names", "op": "Mul", "log": str(log)},
            precision=precision,
        )
        assert result.verification is not None
        assert result.verification.passed
        assert "Mul" in log.read_text()
        (first, *_) = result.report.refusals
        assert first.nodes
        assert not {name for name in first.nodes if name.startswith("byoc")}
        assert load(tmp_path / "b")
        for region in result.plan.regions:
            assert "Mul" not in {region.index.nodes[node].op_type for node in region.nodes}
