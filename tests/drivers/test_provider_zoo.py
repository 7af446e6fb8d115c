"""Real networks in stock onnxruntime with byoc's provider, equal to what the Python runtime computes."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import byoc
from byoc.bundle import CONTEXT_MODEL_FILE
from byoc.onnxrt import open_provider_session
from byoc.samples import model_samples
from byoc.zoo import load_model

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
COSTS = (
    "{name: near, kind: roofline, peak: {default: 1.0e+12}, bandwidth: 1.0e+12, "
    "link: {bandwidth: 1.0e+12}}"
)
PIECES = """
target: dla
cost_model: near.yaml
dtype: float32
layout: {activations: NHWC, weights: OHWI}
ops: [{op: [Conv, BatchNormalization, Relu, MaxPool, AveragePool]}]
"""
"""Rules that leave on the host what joins branches, so that there are many regions."""


@pytest.mark.parametrize(
    ("name", "regions", "largest"),
    [
        ("squeezenet", 1, 1e-5),
        ("mobilenet_v3_large", 1, 1e-5),
        ("shufflenet", 20, 1e-5),
        ("eff_word_net_qint8", 1, 0.0),
    ],
)
def test_a_network_computes_the_same(
    name: str, regions: int, largest: float, tmp_path: Path, dla_library: Path
) -> None:
    (tmp_path / "near.yaml").write_text(COSTS)
    (tmp_path / "pieces.yaml").write_text(PIECES)
    rules = tmp_path / "pieces.yaml" if regions > 1 else "dla"
    byoc.partition(
        f"zoo:{name}", rules, output=tmp_path / "b", strategy="all-supported", codegen="dla",
        verify=False, emit="epcontext",
    )  # fmt: skip
    path = tmp_path / "b" / CONTEXT_MODEL_FILE
    nodes = onnx.load(path, load_external_data=False).graph.node
    assert sum(node.op_type == "EPContext" for node in nodes) >= regions
    session = open_provider_session(path, {"dla": dla_library})
    inputs = dict(model_samples(load_model(f"zoo:{name}")))
    expected = byoc.load(tmp_path / "b")(inputs)
    names = [value.name for value in session.get_outputs()]
    for output, found in zip(names, session.run(names, inputs), strict=True):
        span = np.ptp(expected[output])
        assert span > 0
        assert np.max(np.abs(found - expected[output])) <= largest * span
