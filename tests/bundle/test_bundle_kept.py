"""Bundles that byoc 0.1.0 wrote before its release: every later version opens, runs and verifies them.

They are of a network of seven nodes, all on dla, in float32 and in int8; the package is of two networks
for two devices, which share a weight. They are never written anew. A version that cannot read one breaks
the promise of docs/stability.md: mend the reader.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.support import Ran

import byoc
from byoc.bundle import list_models, open_bundle

KEPT = Path(__file__).parent / "kept"
INPUT = (np.arange(192, dtype=np.float32) % 17 / 17).reshape(1, 3, 8, 8)
OUTPUTS = {
    "float32": [-2.85287619, -0.14068478, -1.39381886, -1.64963377, 0.04422568],
    "int8": [-2.84928727, -0.14246435, -1.38902748, -1.63834012, 0.0],
}


# Another onnxruntime or processor than that of the bundle's maker may say so; all nodes are on dla.
@pytest.mark.filterwarnings("ignore:onnxruntime .* multiplies small integers otherwise:RuntimeWarning")
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_bundle_of_then_computes_the_same(name: str) -> None:
    found = byoc.load(KEPT / f"{name}.byoc.zip")({"x": INPUT})["y"]
    np.testing.assert_allclose(found[0], OUTPUTS[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_bundle_of_then_says_what_it_said(name: str, byoc: Any) -> None:
    bundle = open_bundle(KEPT / f"{name}.byoc.zip")
    (entry,) = bundle.manifest.regions
    assert (entry.codegen, entry.target) == ("dla", "dla")
    ran: Ran = byoc("inspect", KEPT / f"{name}.byoc.zip")
    assert ran.code == 0, ran.err
    assert entry.name in ran.out
    ran = byoc("verify", KEPT / f"{name}.byoc.zip")
    assert ran.code == 0, ran.err


PACKAGE = KEPT / "package.byoc.zip"
PACKAGE_INPUT = (np.arange(16, dtype=np.float32) / 8 - 1).reshape(1, 16)
PACKAGE_OUTPUTS = {
    "first": [0.26025420, -0.69041717, -1.40122414, -0.94812322, 0.61024636],
    "second": [-0.11880001, -0.39587662, 0.03908475, -0.51126909, -0.00153789],
}


@pytest.mark.parametrize("device", ["board", "pc"])
@pytest.mark.parametrize("name", PACKAGE_OUTPUTS)
def test_a_package_of_then_computes_the_same(name: str, device: str) -> None:
    found = byoc.load(PACKAGE / name, prefer=device)
    assert found.choice.chosen == (device,)
    values = found({"x": PACKAGE_INPUT})["y"][0]
    np.testing.assert_allclose(values, PACKAGE_OUTPUTS[name], rtol=1e-4, atol=1e-5)


def test_a_package_of_then_is_verified_and_split(byoc: Any, tmp_path: Path) -> None:
    assert list_models(PACKAGE) == [PACKAGE / name for name in PACKAGE_OUTPUTS]
    for command in (("inspect", PACKAGE), ("verify", PACKAGE)):
        ran: Ran = byoc(*command)
        assert ran.code == 0, ran.err
    ran = byoc("package", "split", PACKAGE, "--for", "board", "-o", tmp_path / "p")
    assert ran.code == 0, ran.err
    assert "2 models for board" in ran.out


def test_a_package_of_a_newer_format_is_not_replaced(byoc: Any, tmp_path: Path) -> None:
    package = tmp_path / "p"
    package.mkdir()
    (package / "manifest.json").write_text('{"format": 8, "models": {"one": {}}, "files": []}')
    ran: Ran = byoc("package", "-o", package, "net=zoo:squeezenet", "--for", "board=dla")
    assert ran.code == 1
    assert f"{package}: " in ran.err
    assert [path.name for path in package.iterdir()] == ["manifest.json"]
