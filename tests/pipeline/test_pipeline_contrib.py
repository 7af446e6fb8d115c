"""Models with operators that only onnxruntime has, from the file to a verified bundle."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import parse
from onnx import helper, numpy_helper

import byoc
from byoc.model import prepare_model

pytest.importorskip("onnxruntime")

RULES = """
target: any
codegen: reference
cost_model: dla
dtype: any
regions: connected
ops: [{op: '*'}]
"""
ONES = "{1,1,1,1,1,1,1,1}"
FAST_GELU = "t = com.microsoft.FastGelu (x)\n y = Relu (t)"
NORM = "t = SimplifiedLayerNormalization <epsilon: float = 1e-5> (x, g)\n y = Relu (t)"
MODELS = {
    "a norm in ONNX's domain": f"g (float[1,8] x) => (float[1,8] y) <float[8] g = {ONES}> {{ {NORM} }}",
    "an activation": f"g (float[1,4] x) => (float[1,4] y) {{ {FAST_GELU} }}",
    "an activation with a stated type": (
        f"g (float[1,4] x) => (float[1,4] y) <float[1,4] t> {{ {FAST_GELU} }}"
    ),
    "an activation at the end": "g (float[1,4] x) => (float[1,4] y) { y = com.microsoft.FastGelu (x) }",
    "a norm that ONNX does not infer": (
        f"g (float[1,8,4,4] x) => (float[1,8,4,4] y) <float[8] s = {ONES}, float[8] b = {ONES}> "
        "{ t = GroupNormalization <num_groups = 2> (x, s, b)\n y = Relu (t) }"
    ),
    "dimensions of one odd name": (
        'g (float["?","?"] x, float["?","?"] w) => (float[N,M] y) '
        "{ t = Transpose <perm = [1, 0]> (w)\n y = MatMul (x, t) }"
    ),
}


def contrib(text: str) -> onnx.ModelProto:
    model = parse(text, ir=10, opset=21)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_a_model_goes_to_the_accelerator_as_a_whole(name: str, tmp_path: Path) -> None:
    rules = tmp_path / "any.yaml"
    rules.write_text(RULES, encoding="utf-8")
    model = contrib(MODELS[name])

    result = byoc.partition(model, rules, strategy="all-supported", output=tmp_path / "b")

    assert [len(region.nodes) for region in result.plan.regions] == [len(model.graph.node)]
    assert result.verification is not None
    assert result.verification.passed


def test_the_model_of_a_region_has_the_types_that_the_file_states_or_that_follow() -> None:
    ready = prepare_model(contrib(MODELS["an activation at the end"]), "test")
    assert str(ready.index.types["y"]) == "float32[1, 4]"
    ready = prepare_model(contrib(MODELS["a norm that ONNX does not infer"]), "test")
    assert str(ready.index.types["t"]) == "float32[1, 8, 4, 4]"
    ready = prepare_model(contrib(MODELS["an activation"]), "test")
    assert str(ready.index.types["t"]) == "float32[1, 4]"


def test_a_rotary_embedding_keeps_its_open_dimensions(tmp_path: Path) -> None:
    model = parse(
        "g (float[batch,seq,64] x, int64[batch,seq] pos) => (float[batch,seq,64] y) "
        "{ y = RotaryEmbedding <num_heads = 4> (x, c, s, pos) }",
        ir=10,
        opset=23,
    )
    angles = np.outer(np.arange(16), 10000.0 ** (-np.arange(8) / 8)).astype(np.float32)
    for name, table in (("c", np.cos(angles)), ("s", np.sin(angles))):
        model.graph.initializer.append(numpy_helper.from_array(table, name))
    rules = tmp_path / "any.yaml"
    rules.write_text(RULES, encoding="utf-8")

    result = byoc.partition(model, rules, strategy="all-supported", output=tmp_path / "b")

    assert str(result.plan.model.index.types["y"]) == "float32[batch, seq, 64]"
    assert result.verification is not None
    assert result.verification.passed


def test_the_operators_are_named_in_the_report(tmp_path: Path) -> None:
    rules = tmp_path / "any.yaml"
    rules.write_text(RULES, encoding="utf-8")

    report = byoc.partition(contrib(MODELS["a norm in ONNX's domain"]), rules).report

    notes = [str(note) for note in report.notes]
    assert "not ONNX's, but an operator of onnxruntime: SimplifiedLayerNormalization (1)" in notes
