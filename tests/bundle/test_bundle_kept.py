"""Bundles that byoc 0.1.0 wrote before its release: every later version opens, runs and verifies them.

They are of a network of seven nodes, all on dla, in float32 and in int8. They are never written anew. A
version that cannot read one breaks the promise of docs/stability.md: mend the reader.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Ran

import byoc
from byoc.bundle import open_bundle

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
