"""Models whose bodies use names twice, cut and run; Scans on the host without stated shapes."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.nested_models import BINARY, UNARY, make_nested, share_names
from helpers.support import parse, sample_cases
from helpers.warm_processes import WarmProcesses

import byoc
from byoc.onnxrt import open_session, run_session, without_optimizations
from byoc.verification import run_plain

# Formal parameters of a body as the values around are called: tables of a published model have 16 such.
SCAN = """g (float[4,2] x, float[2] s0) => (float[2] y, float[4,2] z) {
    v = Exp(x)
    y, z = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] v) => (float[2] so, float[2] vo) {
        so = Add(s, v)
        vo = Tanh(so)
    }> (s0, v)
}"""

BARE_SCAN = """g (float[2] s, float[n,2] x) => (float[2] y, float[n,2] z) {
    v = Relu(x)
    y, z = Scan <num_scan_inputs = 1, body = b (float[] a, float[] r) => (float[] o, float[] p) {
        o = Add(a, r)
        p = Sin(o)
    }> (s, v)
}"""

IN_A_FUNCTION = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
g (float[2] s, float[n,2] x) => (float[2] y, float[n,2] z) {
    v = Relu(x)
    y, z = own.f(s, v)
}
<opset_import: ["": 21], domain: "own"> f (s, v) => (y, z) {
    y, z = Scan <num_scan_inputs = 1, body = b (float[] a, float[] r) => (float[] o, float[] p) {
        o = Add(a, r)
        p = Sin(o)
    }> (s, v)
}"""


def write_rules(folder: Path, operators: list[str], regions: str = "connected") -> Path:
    """Write rules of an accelerator that takes some operators in float32, run by onnxruntime."""
    path = folder / "some.yaml"
    path.write_text(
        f"target: npu\ncost_model: dla\ncodegen: reference\nregions: {regions}\ndtype: float32\n"
        f"ops: [{{op: [{', '.join(operators)}]}}]\n",
        encoding="utf-8",
    )
    return path


def run_in_a_process(
    warm_processes: WarmProcesses, bundle: Path, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return what `byoc run` writes."""
    given, made = bundle.with_suffix(".in.npz"), bundle.with_suffix(".out.npz")
    np.savez(given, **inputs)
    command = [sys.executable, "-m", "byoc", "run", str(bundle), "--inputs", str(given), "-o", str(made)]
    ran = warm_processes.run(command)
    assert not ran.returncode, ran.stderr
    with np.load(made) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("rules", ["dla", ["Exp", "Add", "Tanh"], ["Exp"], ["Tanh", "Scan"]])
def test_a_body_may_call_its_inputs_as_values_around_it(
    rules: str | list[str], tmp_path: Path, warm_processes: WarmProcesses
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(parse(SCAN, ir=10, opset=21), path)
    target = rules if isinstance(rules, str) else write_rules(tmp_path, rules)
    result = byoc.partition(path, target, output=tmp_path / "m.byoc", strategy="all-supported")
    assert result.plan.regions
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
    sums = np.cumsum(np.exp(x), axis=0) + np.float32([1, 2])
    made = run_in_a_process(warm_processes, tmp_path / "m.byoc", {"x": x, "s0": np.float32([1, 2])})
    np.testing.assert_allclose(made["y"], sums[-1], rtol=1e-5)
    np.testing.assert_allclose(made["z"], np.tanh(sums), rtol=1e-5)


@pytest.mark.parametrize("text", [BARE_SCAN, IN_A_FUNCTION], ids=["graph", "function"])
def test_a_scan_behind_a_region_runs_on_the_host_without_stated_shapes(
    text: str, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model(text) if text.startswith("<") else parse(text, ir=10, opset=21)
    scopes = [model.graph, *model.functions]
    for body in (a.g for s in scopes for node in s.node for a in node.attribute if a.name == "body"):
        for value in (*body.input, *body.output):
            value.type.tensor_type.ClearField("shape")
    byoc.partition(
        model, write_rules(tmp_path, ["Relu"]), output=tmp_path / "b", strategy="all-supported"
    )
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
    made = byoc.load(tmp_path / "b")({"s": np.float32([1, 2]), "x": x})
    sums = np.cumsum(np.maximum(x, 0), axis=0) + np.float32([1, 2])
    np.testing.assert_allclose(made["y"], sums[-1], rtol=1e-6)
    np.testing.assert_allclose(made["z"], np.sin(sums), rtol=1e-6)


def test_an_output_of_another_rank_than_the_file_says_is_read_on_the_host(tmp_path: Path) -> None:
    model = parse("g (float[2,3] x) => (float[6] y, float[] z) { y = Relu(x)\n z = Sin(y) }")
    byoc.partition(
        model, write_rules(tmp_path, ["Relu"]), output=tmp_path / "b", strategy="all-supported"
    )
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    made = byoc.load(tmp_path / "b")({"x": x})
    np.testing.assert_allclose(made["z"], np.sin(np.maximum(x, 0)), rtol=1e-6)


def test_an_overriding_function_leaves_the_operator_what_it_is(
    tmp_path: Path, warm_processes: WarmProcesses
) -> None:
    path = tmp_path / "m.onnx"
    model = parse("g (float[2] x) => (float[2] y) { a = Sin(x)\n y = Relu(a) }", ir=10, opset=21)
    own = onnx.parser.parse_function(
        '<opset_import: ["": 21], domain: ""> Relu (x) => (y) { y = Neg(x) }'
    )
    model.functions.append(own)
    onnx.save(model, path)
    result = byoc.partition(path, "dla", output=tmp_path / "m.byoc", strategy="all-supported")
    assert any("own function 'Relu'" in note.text for note in result.report.notes)
    made = run_in_a_process(warm_processes, tmp_path / "m.byoc", {"x": np.float32([1, -1])})
    np.testing.assert_allclose(made["y"], [np.sin(1), 0], rtol=1e-6)


@pytest.mark.parametrize("seed", sample_cases(range(240), every=20))
def test_random_models_with_names_used_twice_compute_the_same(
    seed: int, tmp_path: Path, warm_processes: WarmProcesses
) -> None:
    model = make_nested(seed)
    generator = np.random.default_rng(seed)
    operators = [*UNARY, *BINARY, *(("If", "Loop", "Scan") if seed % 2 else ())]
    taken = [name for name in operators if generator.random() < 0.6] or ["Neg"]
    rules = write_rules(tmp_path, taken, "phase" if seed % 4 < 2 else "connected")
    path = tmp_path / "m.onnx"
    onnx.save(share_names(model, seed, odd=seed % 3 == 0), path)
    result = byoc.partition(path, rules, output=tmp_path / "m.byoc", strategy="all-supported")
    feed = {
        "m": generator.normal(size=(2, 3)).astype(np.float32),
        "r": generator.normal(size=3).astype(np.float32),
        "c": np.array(True),
        "n": np.array(2),
    }
    with without_optimizations():
        right = run_session(open_session(model), feed)
    plain = run_plain(result.model, byoc.load_model(path), feed)
    bundle = tmp_path / "m.byoc"
    in_process = seed % 60 == 0  # a process of its own takes seconds
    ran = run_in_a_process(warm_processes, bundle, feed) if in_process else byoc.load(bundle)(feed)
    for made in (plain, ran):
        assert made.keys() == right.keys()
        for name, value in right.items():
            np.testing.assert_allclose(made[name], value, rtol=1e-4, atol=1e-5)
