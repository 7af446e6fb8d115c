"""How much of a plan is an estimate, which node is to blame, and what the report then does not claim."""

from io import StringIO
from pathlib import Path

import onnx
import pytest
from helpers.support import VANILLA, parse
from onnx import helper
from rich.console import Console

from byoc import explain
from byoc.pipeline import partition
from byoc.reporting import make_explanation_document, print_explanation, summarize_report

# Relu and Add are among the operators of dla; behind `o` nothing has a known shape.
TEXT = """
g (float[8, 8] x) => (float[A, B] y) {
  a = Relu (x)
  o = acme.Odd (a)
  b = Relu (o)
  c = Relu (b)
  y = Add (c, c)
}
"""
CAUSE = "the shape of 'o', which Odd 'o' makes, is not known (state it as value_info of the model)"


def model(shape: tuple[int, int] | None = None, text: str = TEXT) -> onnx.ModelProto:
    found = parse(text)
    found.opset_import.append(helper.make_opsetid("acme", 1))
    if shape is not None:
        found.graph.value_info.append(helper.make_tensor_value_info("o", onnx.TensorProto.FLOAT, shape))
    return found


def warnings(report: object) -> list[str]:
    return [note.text for note in report.notes if note.severity == "warning"]  # type: ignore[attr-defined]


def test_the_share_of_the_work_by_hand() -> None:
    """The host: 2 us a node, then the time of its bytes; four of five nodes are behind the culprit."""
    report = partition(model(), VANILLA).report
    # Unknown ranks are 4096 bytes: Odd reads 256 and writes 4096, Relu and Add read and write 4096.
    known = 2e-6 + 512 / 20e9
    unknown = 4 * 2e-6 + (256 + 4096 + 2 * 2 * 4096) / 20e9
    shape = 4  # y has the rank 2 that is stated, and unknown extents
    unknown += (4096 + shape) / 20e9
    assert report.predicted.host_only == pytest.approx(known + unknown)
    assert report.predicted.estimated == pytest.approx(unknown / (known + unknown))
    (text,) = warnings(report)
    assert text == (
        f"82.0 % of the work (the host's predicted time) is an estimate: {CAUSE}; it concerns 4 nodes"
    )


def test_a_stated_shape_leaves_the_operator_alone() -> None:
    report = partition(model((8, 8)), VANILLA).report
    (text,) = warnings(report)
    assert (
        "the work of Odd 'o' is not counted (a cost model that has the operator); it concerns 1" in text
    )
    assert report.predicted.estimated == pytest.approx(0.2, rel=0.05)


def test_what_is_known_is_no_warning() -> None:
    known = TEXT.replace("acme.Odd", "Relu").replace("float[A, B] y", "float[8, 8] y")
    report = partition(model(text=known), VANILLA).report
    assert report.predicted.estimated == 0
    assert not warnings(report)
    assert "estimate" not in summarize_report(report)


def test_no_share_of_compute_is_claimed_that_is_smaller_than_the_estimate() -> None:
    """Behind Odd next to nothing is counted, so the share is of what is known."""
    report = partition(model(), VANILLA, strategy="all-supported").report
    share = f"{100 * report.compute.offloaded:.1f}"
    assert report.compute.offloaded > 0.9
    assert f"({share} % of the known compute) on dla" in summarize_report(report)
    small = TEXT.replace("float[8, 8] x", "float[1] x").replace(
        "a = Relu (x)", "a = Relu (x) i = Neg (x)"
    )
    report = partition(model(text=small), VANILLA, strategy="all-supported").report
    summary = summarize_report(report)
    assert report.compute.offloaded < report.predicted.estimated
    assert "(an unknown share of the compute) on dla" in summary
    assert f"; {100 * report.predicted.estimated:.1f} % of the work is an estimate; " in summary
    alone = partition(model(), VANILLA, strategy="host-only").report
    assert "0 of 5 nodes (0.0 % of the compute)" in summarize_report(alone)


RULES = """
target: tiny
cost_model: dla
dtype: float32
shapes: static
ops:
  - op: [Relu, Add]
"""


def test_all_nodes_behind_the_culprit_have_one_reason(tmp_path: Path) -> None:
    rules = tmp_path / "tiny.yaml"
    rules.write_text(RULES)
    report = partition(model(), rules, strategy="all-supported").report
    reasons = {each.reason: each.nodes for each in report.host_reasons}
    assert reasons == {
        CAUSE: 3,
        "acme.Odd is not among the operators of tiny": 1,
    }
    document = make_explanation_document(explain(model(), rules), details=True)
    (group,) = [row for row in document.refused if row.nodes == 3]
    assert [reason.text for reason in group.reasons] == [CAUSE]
    assert group.operators == {"Relu": 2, "Add": 1}
    assert document.compute.estimated > 0.75
    stream = StringIO()
    print_explanation(document, Console(file=stream, width=200))
    lines = stream.getvalue().splitlines()
    assert lines[0].endswith("of the work is an estimate")
    (shown,) = [line for line in lines if line.startswith("Add 'y'")]
    assert shown == "Add 'y', an unknown share of the compute"
    assert document.details is not None
    assert document.details[-1].reasons[0].text == f"the rank of A is not known: {CAUSE}"


def test_an_open_dimension_is_no_estimate_but_a_reason(tmp_path: Path) -> None:
    """It counts at its planned size; the nodes behind the input that has it share one reason."""
    rules = tmp_path / "tiny.yaml"
    rules.write_text(RULES)
    text = TEXT.replace("acme.Odd", "Relu").replace("[8, 8]", "[N, 8]").replace("[A, B]", "[N, 8]")
    report = partition(model(text=text), rules).report
    assert report.predicted.estimated == 0
    assert not warnings(report)
    reasons = {each.reason: each.nodes for each in report.host_reasons}
    assert reasons["dimension N of input 'x' is not fixed (--dim N=SIZE)"] == 4
