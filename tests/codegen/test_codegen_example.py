"""The example package, without installing it: it compiles by its table and runs in its simulator."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import ramp
from helpers.support import parse

from byoc.bundle import open_bundle
from byoc.errors import InputError
from byoc.pipeline import partition

EXAMPLE = Path(__file__).parents[2] / "examples" / "acme"


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Register the example's codegen, and return the folder of its rule file and cost model."""
    monkeypatch.syspath_prepend(EXAMPLE)
    import byoc_acme  # noqa: PLC0415 - there while the test runs

    vendors.install(monkeypatch, acme=byoc_acme.Acme)
    yield EXAMPLE / "byoc_acme"
    for name in [name for name in sys.modules if name.partition(".")[0] == "byoc_acme"]:
        del sys.modules[name]


def model() -> onnx.ModelProto:
    found = parse(
        "g (float[1, 3, 9, 9] x) => (float[1, 4, 3, 3] y) {"
        " a = Conv<strides = [2, 2], pads = [1, 0, 1, 0]>(x, w, b) r = Relu(a)"
        " c = Conv(r, v) s = Relu(c) t = Add(s, e) y = Relu(t) }"
    )
    for name, shape in (("w", (5, 3, 3, 3)), ("b", (5,)), ("v", (4, 5, 3, 2)), ("e", (4, 1, 1))):
        found.graph.initializer.append(onnx.numpy_helper.from_array(ramp(*shape) * 2, name))
    return found


def test_the_example_compiles_and_runs(acme: Path, tmp_path: Path) -> None:
    options = {
        "cost_model": str(acme / "cost_models" / "acme_costs.yaml"),
        "strategy": "all-supported",
        "output": tmp_path / "b",
    }
    rules = acme / "annotations" / "acme.yaml"
    result = partition(model(), rules, codegen_options={"indent": "3"}, **options)
    assert result.verification is not None
    assert result.verification.passed
    ((_, region, artifact),) = open_bundle(tmp_path / "b").regions()
    text = artifact.files["program.json"].decode()
    program = json.loads(text)
    assert text.startswith("[\n   {\n")
    assert [(step["do"], step.get("relu")) for step in program] == [
        *(("conv", True), ("conv", True), ("add", None), ("relu", None)),
    ]
    assert [step.get("strides") for step in program[:2]] == [[2, 2], [1, 1]]
    assert [step.get("pads") for step in program[:2]] == [[1, 0, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(region.constant("b"), ramp(5) * 2)
    with pytest.raises(InputError, match=r"has no option 'indnt' \(did you mean indent\?\)"):
        partition(model(), rules, codegen_options={"indnt": "3"}, **options)
