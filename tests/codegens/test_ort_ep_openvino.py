"""The codegen `ort_ep` with OpenVINO's provider, which writes contexts and says what they fit."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import CASES, compiled, model, refusal, same
from compiling import region as make_region
from helpers.cutting import original
from helpers.plugin_providers import find_openvino_provider
from helpers.quantized import MODELS, feed
from helpers.quantized import model as quantized_model

import byoc
from byoc.codegen import find_codegen, parse_codegen_options
from byoc.errors import InputError, MissingRuntimeError

pytestmark = pytest.mark.openvino
LIBRARY = {"library": str(find_openvino_provider())}


@pytest.mark.parametrize(
    "name", ["conv and relu", "gemm", "large constant", "int64", "constants computed"]
)
def test_it_computes_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    text, inputs = CASES[name]
    proto = model(text)
    _, artifact, run = compiled(proto, tmp_path, "ort_ep", **LIBRARY)

    same(run(inputs), original(proto, inputs))
    assert set(artifact.files) == {"context.bin", "context.onnx"}


def test_settings_reach_the_provider(tmp_path: Path) -> None:
    """Without VNNI OpenVINO's sums of integers saturate, unless it is told to compute in floats."""
    (tmp_path / "floats.json").write_text('{"CPU": {"LP_TRANSFORMS_MODE": "NO"}}', encoding="utf-8")
    settings = f"load_config='{tmp_path / 'floats.json'}'"
    proto = quantized_model(MODELS["gemm"])
    _, _, run = compiled(proto, tmp_path, "ort_ep", **LIBRARY, settings=settings)
    inputs = feed(proto)

    for name, value in original(proto, inputs).items():
        assert np.max(np.abs(run(inputs)[name].astype(int) - value.astype(int))) <= 1, name


def test_settings_that_the_provider_refuses_end_the_run(tmp_path: Path) -> None:
    found: Any = find_codegen("ort_ep")
    options = parse_codegen_options(found, {**LIBRARY, "settings": f"load_config={tmp_path / 'none'}"})
    region = make_region(model(CASES["gemm"][0]), tmp_path)

    with pytest.raises(MissingRuntimeError, match="does not work: JSON parsing error"):
        found.compile(region, options)


def test_what_it_does_not_take_is_named(tmp_path: Path) -> None:
    text = "g (float[2,3,3] x) => (float[2] y) { p = Relu(x) q = Det(p) y = Neg(q) }"
    error = refusal(make_region(model(text), tmp_path), "ort_ep", **LIBRARY)

    assert error.nodes == ("q",)
    assert str(error) == "the provider leaves Det to onnxruntime, 'q'"


def test_the_provider_says_whether_a_context_fits(tmp_path: Path) -> None:
    made, artifact, _ = compiled(model(CASES["gemm"][0]), tmp_path, "ort_ep", **LIBRARY)
    found: Any = find_codegen("ort_ep")
    stated = artifact.metadata["compatibility"]
    other = stated.replace("2026", "2019")

    assert other != stated
    assert found.compatible(made, artifact)
    newer = replace(artifact, metadata={**artifact.metadata, "provider_version": "9.9"})
    assert found.compatible(made, newer)  # it is the provider that knows
    old = replace(artifact, metadata={**artifact.metadata, "compatibility": other})
    assert "the provider does not support the context" in str(found.compatible(made, old))


def test_without_a_statement_the_version_must_be_the_same(tmp_path: Path) -> None:
    made, artifact, _ = compiled(model(CASES["gemm"][0]), tmp_path, "ort_ep", **LIBRARY)
    found: Any = find_codegen("ort_ep")
    silent = {**artifact.metadata, "compatibility": ""}

    assert found.compatible(made, replace(artifact, metadata=silent))
    old = replace(artifact, metadata={**silent, "provider_version": "0.1"})
    here = artifact.metadata["provider_version"]
    expected = f"the context was made for version 0.1 of the provider, this is {here}"
    assert str(found.compatible(made, old)) == expected


def test_a_context_that_does_not_fit_is_compiled_anew(tmp_path: Path) -> None:
    text, inputs = CASES["gemm"]
    made, artifact, _ = compiled(model(text), tmp_path, "ort_ep", **LIBRARY)
    found: Any = find_codegen("ort_ep")
    old = {**artifact.metadata, "compatibility": "", "provider_version": "0.1"}
    stale = replace(artifact, files=dict.fromkeys(artifact.files, b"no"), metadata=old)

    same(found.load(made, stale)(inputs), original(model(text), inputs))


def test_a_damaged_context_is_an_error_of_one_line(tmp_path: Path) -> None:
    made, artifact, _ = compiled(model(CASES["gemm"][0]), tmp_path, "ort_ep", **LIBRARY)
    damaged = replace(artifact, files={**artifact.files, "context.bin": b"no context"})
    found: Any = find_codegen("ort_ep")

    with pytest.raises(InputError, match="the provider does not load it") as caught:
        found.load(made, damaged)
    assert "\n" not in str(caught.value)


FRESH = """
import sys
import numpy as np
import byoc
bundle, inputs, outputs = sys.argv[1:]
np.savez(outputs, **byoc.load(bundle)(dict(np.load(inputs))))
"""


def test_a_fresh_process_runs_a_bundle(tmp_path: Path) -> None:
    text, inputs = CASES["pools, concat and softmax"]
    path, bundle = tmp_path / "net.onnx", tmp_path / "b"
    onnx.save(model(text), path)
    result = byoc.partition(
        path,
        "ort-ep",
        output=bundle,
        strategy="all-supported",
        codegen_options=LIBRARY,
        emit="epcontext",
    )
    np.savez(tmp_path / "x.npz", **inputs)
    command = [
        sys.executable,
        "-c",
        FRESH,
        str(bundle),
        str(tmp_path / "x.npz"),
        str(tmp_path / "y.npz"),
    ]
    subprocess.run(command, check=True)

    assert result.verification.passed
    same(dict(np.load(tmp_path / "y.npz")), original(model(text), inputs))
    nodes = onnx.load(bundle / "model_ctx.onnx").graph.node
    (context,) = (node for node in nodes if node.op_type == "EPContext")
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in context.attribute}
    assert attributes["source"] == b"OpenVINOExecutionProvider"
