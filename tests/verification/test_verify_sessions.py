"""What is verified is what runs: the same sessions on the host, in the mode that the bundle records."""

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import byoc
from byoc import onnxrt

pytestmark = pytest.mark.processor

# Products of uint8 by int8 whose sums of pairs are beyond 16 bits, between quantizers, and a Softmax.
MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
host (float[4,96] x) => (float[4,8] y, float[4,96] z)
<float s = {0.01}, uint8 zero = {0}, float t = {40.0}, uint8 middle = {128}, float one = {1.0}> {
    q = QuantizeLinear(x, s, zero)
    a = DequantizeLinear(q, s, zero)
    b = DequantizeLinear(w, one)
    c = MatMul(a, b)
    r = QuantizeLinear(c, t, middle)
    y = DequantizeLinear(r, t, middle)
    z = Softmax(x)
}"""
RULES = """
target: far
cost_model: dla
codegen: reference
dtype: float32
ops: [{op: Softmax}]
"""
Found = list[tuple[str, int]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model = parse_model(MODEL)
    weights = np.full((96, 8), 127, np.int8)
    weights[:, 1::2] = -128
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "far.yaml").write_text(RULES, encoding="utf-8")
    np.savez(tmp_path / "x.npz", x=np.full((4, 96), 2.55, np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Found]:
    """Collect the segments for which sessions are opened, with their level of optimization."""
    found: Found = []
    plain = onnxruntime.InferenceSession

    def open_one(model: Any, options: Any, *rest: Any, **named: Any) -> Any:
        if isinstance(model, bytes):
            name = onnx.load_from_string(model).graph.name
            found.append((name, int(options.graph_optimization_level)))
        return plain(model, options, *rest, **named)

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_one)
    return found


def partition(mode: str) -> Any:
    return byoc.partition(
        "m.onnx", "far.yaml", output="m.byoc", strategy="all-supported", host_mode=mode, inputs="x.npz"
    )


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_verification_and_calls_open_the_same_sessions(mode: str, opened: Found) -> None:
    partition(mode)
    levels = {}
    for name, run in (
        ("verify", lambda: byoc.verify("m.byoc", "m.onnx", inputs="x.npz")),
        ("load", lambda: byoc.load("m.byoc")),
    ):
        opened.clear()
        run()
        levels[name] = {each for each in opened if each[0].startswith("host_")}
    off = int(onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    assert levels["load"] == {("host_0", off if mode == "exact" else 99)}
    # Boundary tensors are compared with a second run, operator by operator.
    assert levels["load"] <= levels["verify"] <= levels["load"] | {("host_0", off)}


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_fresh_process_computes_products_of_small_integers_right(mode: str, here: Path) -> None:
    result = partition(mode)
    assert result.verification.passed
    manifest = json.loads((here / "m.byoc" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["host"]["mode"] == mode
    assert manifest["host"]["inexact"] == list(onnxrt.find_inexact_kernels())
    words = [sys.executable, "-m", "byoc", "run", "m.byoc", "--inputs", "x.npz", "-o", "y.npz"]
    subprocess.run(words, check=True, capture_output=True)
    exact = 255 * 96 * np.where(np.arange(8) % 2, -128, 127)
    wanted = (np.clip(np.rint(exact * 0.01 / 40) + 128, 0, 255) - 128) * 40
    made = np.load("y.npz")["y"]
    assert np.abs(made - wanted).max() <= 40  # one unit


@pytest.mark.usefixtures("here")
def test_a_machine_whose_kernels_answer_otherwise_says_so() -> None:
    partition("exact")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        byoc.load("m.byoc")
    file = Path("m.byoc/manifest.json")
    manifest = json.loads(file.read_text(encoding="utf-8"))
    there = {*manifest["host"]["inexact"]} ^ {"QGemm int8 int8"}
    manifest["host"]["inexact"] = sorted(there)
    file.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.warns(RuntimeWarning, match=r"QGemm int8 int8.*byoc verify m\.byoc"):
        byoc.load("m.byoc")
