"""If, Loop, Scan and kinds of Attention as programs in C, against ONNX's definition."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from c_libraries import build_library, run_library
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support import parse

from byoc.errors import InputError
from byoc.standalone import _written_operators, export_c

pytest.importorskip("emx_onnx_cgen")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

COMMAND = ("cc", "-std=c99", "-O1", "-w")
# It has a body in a body, a stored tensor in it, and a tensor of the outer graph that it reads.
BODIES = """net (float[2, 3] x) => (float[2, 3] kept, float[4, 2, 3] rows)
    <int64 count = {4}, bool yes = {1}, bool no = {0}> {
    kept, rows = Loop (count, yes, x) <body = each (int64 i, bool on, float[2, 3] a)
        => (bool go, float[2, 3] b, float[2, 3] row) <float[3] half = {0.5, 0.25, 2.0}> {
        go = Identity (on)
        at = Cast <to = 1> (i)
        scaled = Mul (a, half)
        b = If (no) <then_branch = yes_branch () => (float[2, 3] t) { t = Neg (scaled) },
            else_branch = no_branch () => (float[2, 3] e) { e = Add (scaled, x) }>
        row = Sub (b, at)
    }>
}"""
SCAN = """net (float[3, 2] s) => (float[2] sum, float[2, 3] back) {
    zero = Constant <value = float[2] {0.0, 0.0}> ()
    sum, back = Scan (zero, s) <num_scan_inputs = 1, scan_input_directions = [1],
        scan_output_axes = [-1], scan_output_directions = [1], body = step (float[2] old, float[2] part)
        => (float[2] new, float[2] made) {
        new = Add (old, part)
        made = Exp (new)
    }>
}"""
ENDLESS = """net (float[2] x, bool more) => (float[2] y) <int64 count = {3}> {
    y = Loop (count, more, x) <body = each (int64 i, bool on, float[2] a) => (bool go, float[2] b) {
        go = Identity (on)
        b = Tanh (a)
    }>
}"""


def compare(model: onnx.ModelProto, inputs: dict[str, np.ndarray], out: Path) -> None:
    """Run a model's program, and compare every output with that of the reference."""
    export_c(model, output=out)
    expected = ReferenceEvaluator(model).run(None, inputs)
    names = [each.name for each in model.graph.output]
    given = {name: np.zeros_like(value) for name, value in zip(names, expected, strict=True)}
    library = build_library(out, COMMAND)
    made = run_library(library, [inputs[each.name] for each in model.graph.input], given)
    for name, value in zip(names, expected, strict=True):
        np.testing.assert_allclose(made[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_bodies_that_run_a_known_number_of_times_are_steps(tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(2, 3)).astype(np.float32)

    compare(parse(BODIES), {"x": x}, tmp_path / "out")


def test_a_scan_reads_from_the_end_and_writes_from_the_end(tmp_path: Path) -> None:
    s = np.random.default_rng(3).normal(size=(3, 2)).astype(np.float32)
    sums = np.cumsum(s[::-1], axis=0)

    export_c(parse(SCAN), output=tmp_path / "out")
    library = build_library(tmp_path / "out", COMMAND)
    given = {"sum": np.zeros(2, np.float32), "back": np.zeros((2, 3), np.float32)}
    made = run_library(library, [s], given)

    np.testing.assert_allclose(made["sum"], sums[-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(made["back"], np.exp(sums)[::-1].T, rtol=1e-5, atol=1e-6)


def test_a_body_that_runs_as_often_as_an_input_says_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"Loop .* its iterations are not known before a run"):
        export_c(parse(ENDLESS), output=tmp_path / "out")
    monkeypatch.setattr(_written_operators, "MOST_ADDED", 8)
    with pytest.raises(InputError, match=r"Loop .* add more than"):
        export_c(parse(BODIES), output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_attention_over_a_window_is_written_out(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    inputs = {name: random.normal(size=(1, 2, 5, 4)).astype(np.float32) for name in "qkv"}
    graph = onnx.GraphProto(name="net")
    for name in inputs:
        graph.input.append(helper.make_tensor_value_info(name, 1, (1, 2, 5, 4)))
    graph.output.append(helper.make_tensor_value_info("y", 1, (1, 2, 5, 4)))
    lengths = numpy_helper.from_array(np.array([4], np.int64), "lengths")
    graph.initializer.append(lengths)
    given = ["q", "k", "v", "", "", "", "lengths"]
    graph.node.append(helper.make_node("Attention", given, ["y"], is_causal=1))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)

    compare(model, inputs, tmp_path / "out")
