"""Shapes that the file states wrongly: a note where they contradict a run, and never a failure."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.support import VANILLA, Ran, parse

from byoc.bundle import open_bundle
from byoc.codegen import Artifact, Executor, Region
from byoc.errors import InputError
from byoc.onnxrt import open_session, run_session
from byoc.pipeline import Result, partition
from byoc.runtime import collect_contradictions, load_bundle

RULES = """
target: any
codegen: reference
cost_model: dla
dtype: any
regions: connected
ops: [{op: Softmax}, {op: STFT}, {op: Relu}]
"""

# `a` is [1, 7], since d is 0; the file says 11, and nothing that is inferred says otherwise.
STALE = """
g (float[1, 7] x, int64[2] z) => (float[1, 11] a, float[U, V, W] y) <int64[1] ax = {1}> {
  d = Sub(z, z) k = Shape(x) s = Add(k, d) r = Reshape(x, s) a = Softmax(r) y = Unsqueeze(a, ax)
}"""
STALE_NOTE = "the model says that 'a' is float32[1, 11], but it is float32[1, 7]"

# ONNX infers 512 frequencies where `onesided` is left out; there are 257.
SPECTRUM = """
g (float[1, 1024] x) => (float[A, B, C] y) <int64 hop = {128}, int64[1] ax = {3}> {
  n = Constant <value = int64[1] {512}> ()
  win = ConstantOfShape <value = float[1] {1}> (n)
  s = STFT(x, hop, win)
  q = ReduceSum <keepdims = 0> (s, ax)
  t = Relu(q)
  m = Constant <value = int64[2] {257, 2}> ()
  w = ConstantOfShape <value = float[1] {0.1}> (m)
  y = MatMul(t, w)
}"""


def cut(text: str, folder: Path, **options: Any) -> Result:
    (folder / "any.yaml").write_text(RULES, encoding="utf-8")
    return partition(
        parse(text), folder / "any.yaml", output=folder / "b", strategy="all-supported", **options
    )


def test_a_stale_output_is_a_note(tmp_path: Path, byoc: Callable[..., Ran]) -> None:
    result = cut(STALE, tmp_path)
    assert result.verification is not None
    assert result.verification.passed
    assert STALE_NOTE in result.verification.notes
    x = np.linspace(-1, 1, 7, dtype=np.float32)[None]
    outputs = load_bundle(open_bundle(tmp_path / "b"))({"x": x, "z": np.array([3, 4])})
    expected = np.exp(x) / np.exp(x).sum()
    np.testing.assert_allclose(outputs["a"], expected, rtol=1e-5)
    np.testing.assert_allclose(outputs["y"], expected[:, None], rtol=1e-5)
    ran = byoc("verify", tmp_path / "b")
    assert ran.code == 0
    assert f"note: {STALE_NOTE}" in ran.out


def test_a_run_says_what_the_file_states_wrongly(
    tmp_path: Path, byoc: Callable[..., Ran], golden: Callable[[str, str], None]
) -> None:
    cut(STALE, tmp_path, verify=False)
    np.savez(tmp_path / "x.npz", x=np.ones((1, 7), np.float32), z=np.array([3, 4]))
    row = ("run", tmp_path / "b", "--inputs", tmp_path / "x.npz", "--repeat", 2)
    ran = byoc(*row)
    assert (ran.code, ran.err) == (0, "")
    _, times, rest = ran.out.partition(" in all, the median of 2 runs\n")
    assert times
    golden("cli_run_contradictions.txt", rest)
    document = json.loads(byoc(*row, "--format", "json").out)
    assert document["notes"] == [STALE_NOTE]


def test_a_spectrum_has_one_side_in_the_cut_model_too(tmp_path: Path) -> None:
    result = cut(SPECTRUM, tmp_path)
    assert result.verification is not None
    assert result.verification.passed
    assert len(result.plan.regions) == 2
    x = np.random.default_rng(0).standard_normal((1, 1024)).astype(np.float32)
    whole = run_session(open_session(tmp_path / "b" / "model.onnx"), {"x": x})["y"]
    frames = np.stack([x[0, i : i + 512] for i in range(0, 513, 128)])
    spectrum = np.fft.rfft(frames)
    parts = np.maximum(spectrum.real + spectrum.imag, 0)
    expected = (0.1 * parts.sum(axis=1))[None, :, None] * np.ones((1, 1, 2))
    np.testing.assert_allclose(whole, expected, rtol=1e-3)


def test_the_cut_model_states_only_what_follows_from_its_inputs(tmp_path: Path) -> None:
    model = parse(STALE.replace("float[1, 11] a, ", "").replace("a = Soft", "b = Relu(r) a = Soft"))
    model.graph.value_info.append(
        onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [1, 11])
    )
    (tmp_path / "any.yaml").write_text(RULES, encoding="utf-8")
    result = partition(model, tmp_path / "any.yaml", strategy="all-supported")
    stated = {value.name: value.type.tensor_type for value in result.plan.proto.graph.value_info}
    assert [dim.dim_value for dim in stated["k"].shape.dim] == [2]
    assert not any(dim.HasField("dim_value") for dim in stated["a"].shape.dim)
    assert stated["a"].elem_type == onnx.TensorProto.FLOAT


def giving(change: Callable[[Any], Any], any_shape: bool) -> type:
    """Return a codegen that runs a region on onnxruntime, and changes its outputs."""

    class Changing:
        name = "changing"
        open_shapes = any_shape

        def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
            return Artifact()

        def load(self, region: Region, artifact: Artifact) -> Executor:
            session = open_session(region.open_model, region.path.parent)
            return lambda inputs: {
                name: change(value) for name, value in run_session(session, inputs).items()
            }

    return Changing


# The second region reads what the file says wrongly of the first one's output.
CHAIN = STALE.replace("y = Unsqueeze(a, ax)", "h = Neg(a) v = Relu(h) y = Unsqueeze(v, ax)")


def stale_chain() -> onnx.ModelProto:
    model = parse(CHAIN)
    model.graph.value_info.append(
        onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [1, 11])
    )
    return model


def load_changing(monkeypatch: pytest.MonkeyPatch, folder: Path, codegen: type) -> Any:
    vendors.install(monkeypatch, changing=codegen)
    (folder / "any.yaml").write_text(RULES, encoding="utf-8")
    partition(
        stale_chain(),
        folder / "any.yaml",
        output=folder / "b",
        strategy="all-supported",
        codegen="changing",
        verify=False,
    )
    return load_bundle(open_bundle(folder / "b"))


INPUTS = {"x": np.ones((1, 7), np.float32), "z": np.array([3, 4])}


def test_a_codegen_that_takes_any_extents_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = load_changing(monkeypatch, tmp_path, giving(lambda value: value, any_shape=True))
    with collect_contradictions() as notes:
        outputs = session(INPUTS)
    assert outputs["y"].shape == (1, 1, 7)
    assert "the model says that 'h' is float32[1, 11], but it is float32[1, 7]" in notes


def test_a_codegen_of_fixed_extents_says_so_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load_changing(monkeypatch, tmp_path, giving(lambda value: value, any_shape=False))
    sentence = r"input 'h' is float32\[1, 7\], but any_\w+ is compiled for float32\[1, 11\]$"
    with pytest.raises(InputError, match=sentence):
        session(INPUTS)


def test_a_shape_that_onnxruntime_does_not_make_is_the_codegens_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = giving(lambda value: value[:, :-1], any_shape=True)
    session = load_changing(monkeypatch, tmp_path, spoilt)
    with pytest.raises(InputError, match=r"gave output '\w' as float32\[1, 5\], but it is declared"):
        session(INPUTS)


def test_outputs_without_elements_prove_nothing(tmp_path: Path) -> None:
    text = "empty (float[N, 4] x) => (float[N, 4] y) { a = Relu (x) y = Relu (a) }"
    result = partition(
        parse(text), VANILLA, output=tmp_path / "b", strategy="all-supported", dims={"N": 0}
    )
    assert result.verification is None
    assert result.report.verification_missing
    assert result.report.not_verified == "empty: its outputs have no elements on any sample"
