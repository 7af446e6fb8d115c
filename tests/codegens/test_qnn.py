"""The codegen `qnn`: the real compiler and its emulator, asked what they take, held to onnxruntime."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import compiled as compile_here
from compiling import refusal, region
from helpers.cutting import original
from helpers.quantized import CONV, GEMM, MODELS, feed, model

import byoc
from byoc import zoo
from byoc.codegen import Artifact, ContextSource, Executable, Oracle, Stamped, find_codegen
from byoc.errors import InputError
from byoc.numerics import compute_signal_to_noise

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.qnn

MISH = """g (uint8[2,16] x) => (uint8[2,16] y) {
  d = DequantizeLinear(x, s, z) r = Relu(d) q = QuantizeLinear(r, s, z)
  e = DequantizeLinear(q, s, z) f = Mish(e) y = QuantizeLinear(f, s, z) }"""


def one_step(given: Mapping[str, Any], proto: onnx.ModelProto, inputs: Mapping[str, Any]) -> None:
    """Assert that outputs are onnxruntime's, to one step of the scale (0.02 where they are floats)."""
    expected = original(proto, dict(inputs))
    assert set(given) == set(expected)
    for name, value in expected.items():
        assert given[name].dtype == value.dtype, name
        assert given[name].shape == value.shape, name
        assert np.unique(value).size > 2, name
        step = 1.0 if value.dtype.kind != "f" else 0.0201
        assert np.max(np.abs(given[name].astype(float) - value.astype(float))) <= step, name


@pytest.mark.parametrize("name", MODELS)
def test_it_computes_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    proto = model(MODELS[name])
    _, artifact, run = compile_here(proto, tmp_path, "qnn")

    inputs = feed(proto)
    one_step(run(inputs), proto, inputs)

    assert set(artifact.files) == {"context.bin", "context.onnx"}


def test_it_runs_here_can_be_asked_and_makes_contexts() -> None:
    found = find_codegen("qnn")

    for ability in (Executable, Oracle, Stamped, ContextSource):
        assert isinstance(found, ability)


def test_the_same_region_gives_the_same_bytes(tmp_path: Path) -> None:
    proto = model(MODELS["gemm"])
    _, first, _ = compile_here(proto, tmp_path, "qnn")
    _, second, _ = compile_here(proto, tmp_path, "qnn")

    assert first.files == second.files
    assert first.metadata == second.metadata


def test_another_architecture_gives_another_context(tmp_path: Path) -> None:
    proto = model(MODELS["gemm"])
    _, usual, _ = compile_here(proto, tmp_path, "qnn")
    _, other, run = compile_here(proto, tmp_path, "qnn", htp_arch="75", optimization="3")

    assert usual.files["context.bin"] != other.files["context.bin"]
    assert other.metadata["htp_arch"] == "75"
    inputs = feed(proto)
    one_step(run(inputs), proto, inputs)


def test_what_it_leaves_to_the_cpu_is_refused_by_name(tmp_path: Path) -> None:
    error = refusal(region(model(MISH), tmp_path), "qnn")

    assert error.nodes == ("n4",)
    assert "leaves Mish 'n4' to the CPU: Operators of type `Mish` are not supported" in str(error)


def test_open_dimensions_are_refused(tmp_path: Path) -> None:
    text = "g (uint8[N,16] x) => (uint8[N,16] y) { d = DequantizeLinear(x, s, z) r = Relu(d)" \
        " y = QuantizeLinear(r, s, z) }"  # fmt: skip
    error = refusal(region(model(text), tmp_path), "qnn")

    assert set(error.nodes) == {"n0", "n1", "n2"}
    assert "Cannot get shape" in str(error)


def test_the_oracle_says_it_of_each_node() -> None:
    found: Any = find_codegen("qnn")
    verdicts = found.check(model(MISH), found.Options())

    # The last one quantizes what Mish gives, which is then a float that comes from elsewhere.
    assert [bool(verdict) for verdict in verdicts] == [True, True, True, True, False, False]
    assert "Mish" in str(verdicts[4])


def test_an_operator_that_onnxruntime_does_not_know_is_refused_alone() -> None:
    text = "g (float[2] x) => (float[2] y) { a = Relu(x) y = org.acme.Strange(a) }"
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "org.acme" : 1]>\n{text}')
    found: Any = find_codegen("qnn")
    known, strange = found.check(proto, found.Options())

    assert known
    assert not strange
    assert "Strange" in str(strange)


def test_a_compile_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    error = refusal(region(model(MODELS["gemm"]), tmp_path), "qnn", timeout="0.01")

    assert str(error) == "QNN took longer than 0.01 s and was stopped"


def test_a_context_of_another_qnn_is_compiled_anew(tmp_path: Path) -> None:
    proto = model(MODELS["gemm"])
    made, artifact, _ = compile_here(proto, tmp_path, "qnn")
    old = Artifact(dict.fromkeys(artifact.files, b"no"), {**artifact.metadata, "qnn": "1.0"})
    found: Any = find_codegen("qnn")

    assert found.compatible(made, artifact)
    assert "made for QNN 1.0" in str(found.compatible(made, old))
    inputs = feed(proto)
    one_step(found.load(made, old)(inputs), proto, inputs)


def test_a_broken_context_is_an_error_of_one_line(tmp_path: Path) -> None:
    made, artifact, _ = compile_here(model(MODELS["gemm"]), tmp_path, "qnn")
    broken = replace(artifact, files={**artifact.files, "context.bin": b"no context"})

    with pytest.raises(InputError, match="QNN does not load its context") as caught:
        find_codegen("qnn").load(made, broken)  # type: ignore[attr-defined]
    assert "\n" not in str(caught.value)


FRESH = """
import json, sys
import numpy as np
import byoc
bundle, inputs, outputs = sys.argv[1:]
np.savez(outputs, **byoc.load(bundle)(dict(np.load(inputs))))
"""


@pytest.mark.parametrize("body", [CONV, GEMM])
def test_a_bundle_runs_in_a_fresh_process(body: str, tmp_path: Path) -> None:
    shapes = {CONV: ("1,3,8,8", "1,4,8,8"), GEMM: ("2,16", "2,5")}[body]
    text = f"g (float[{shapes[0]}] f) => (float[{shapes[1]}] y) {{ x = QuantizeLinear(f, s, z)" \
        f" {body} r = Relu(c) o = QuantizeLinear(r, s, z) y = DequantizeLinear(o, s, z) }}"  # fmt: skip
    proto = model(text)
    bundle = tmp_path / "b.byoc"

    result = byoc.partition(
        proto, "qnn-htp", output=bundle, strategy="all-supported", verify=False, strict=True
    )
    assert len(result.plan.regions) == 1
    inputs = feed(proto)
    np.savez(tmp_path / "in.npz", **inputs)
    paths = (bundle, tmp_path / "in.npz", tmp_path / "out.npz")
    subprocess.run([sys.executable, "-c", FRESH, *map(str, paths)], check=True, capture_output=True)

    one_step(dict(np.load(paths[2])), proto, inputs)
    assert len(json.loads((bundle / "manifest.json").read_text())["regions"][0]["artifact_files"]) == 2


def test_a_network_is_what_onnxruntime_makes_of_it(tmp_path: Path) -> None:
    """Each layer is at most one step off, and steps add up."""
    outputs = {}
    for codegen in ("qnn", "reference"):
        result = byoc.partition(
            "zoo:squeezenet",
            "qnn-htp",
            output=tmp_path / codegen,
            codegen=codegen,
            strategy="all-supported",
            precision=byoc.Precision("uint8", None, "random"),
            verify=False,
            strict=True,
        )
        assert result.plan.regions
        outputs[codegen] = byoc.load(tmp_path / codegen)(zoo.sample_inputs("squeezenet"))

    (given,), (expected,) = (list(made.values()) for made in outputs.values())
    assert np.argmax(given) == np.argmax(expected)
    assert compute_signal_to_noise(expected, given) > 40
