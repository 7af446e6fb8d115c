"""An artifact that does not fit where it is loaded is compiled anew, or both reasons are told."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers import vendors
from helpers.cutting import DEVICE_ONLY, cut, ramp
from helpers.support import parse

from byoc.codegen import Artifact, CompileError, Executor, Region
from byoc.errors import YES, InputError, Verdict, refuse
from byoc.runtime import load


class Versioned(vendors.Tables):
    """Loads what its own version made, and nothing else."""

    name = "versioned"
    version = "1"
    fails = False
    recompiles = False
    asked: ClassVar[list[dict[str, str]]]

    def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
        self.asked.append(dict(options))
        if self.fails:
            raise CompileError("version 2 knows no Relu")
        made = super().compile(region, options)
        return Artifact(made.files, {**made.metadata, "version": self.version})

    def load(self, region: Region, artifact: Artifact) -> Executor:
        assert artifact.metadata["version"] == self.version
        return super().load(region, artifact)

    def compatible(self, region: Region, artifact: Artifact) -> Verdict:
        made = artifact.metadata["version"]
        return YES if made == self.version else refuse(f"made by version {made}")


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Versioned]:
    """Return the codegen, of which a bundle is in `b`."""

    class Vendor(Versioned):
        asked: ClassVar[list[dict[str, str]]] = []

    kind = Vendor
    vendors.install(monkeypatch, versioned=kind)
    cut(parse(DEVICE_ONLY), tmp_path / "b", codegen="versioned", codegen_options={"level": "3"})
    kind.asked.clear()
    return kind


def _doubled(folder: Path) -> Any:
    (found,) = load(folder)({"x": ramp(1, 4)}).values()
    return found


def test_what_fits_is_not_compiled_again(vendor: type[Versioned], tmp_path: Path) -> None:
    assert np.array_equal(_doubled(tmp_path / "b"), np.maximum(2 * ramp(1, 4), 0))
    assert vendor.asked == []


def test_what_does_not_fit_is_compiled_anew_with_its_options(
    vendor: type[Versioned], tmp_path: Path
) -> None:
    vendor.version = "2"
    before = (tmp_path / "b" / "manifest.json").read_bytes()
    assert np.array_equal(_doubled(tmp_path / "b"), np.maximum(2 * ramp(1, 4), 0))
    assert vendor.asked == [{"level": "3"}]
    assert (tmp_path / "b" / "manifest.json").read_bytes() == before
    assert json.loads(before)["variants"][0]["regions"][0]["artifact_metadata"]["version"] == "1"


def test_where_that_fails_both_reasons_are_told(vendor: type[Versioned], tmp_path: Path) -> None:
    vendor.version, vendor.fails = "2", True
    with pytest.raises(InputError) as caught:
        load(tmp_path / "b")
    assert str(caught.value) == (
        "codegen versioned: dla_0: its artifact does not fit here (made by version 1) and recompiling "
        "it failed: version 2 knows no Relu"
    )


def test_a_codegen_that_copes_itself_is_not_asked(vendor: type[Versioned], tmp_path: Path) -> None:
    vendor.version, vendor.fails = "2", True
    vendor.recompiles = True
    with pytest.raises(InputError, match="AssertionError"):
        load(tmp_path / "b")
    assert vendor.asked == []


def test_an_answer_that_is_no_verdict_is_the_codegens_fault(
    vendor: type[Versioned], tmp_path: Path
) -> None:
    vendor.compatible = lambda *_: None  # type: ignore[method-assign,assignment]
    with pytest.raises(InputError, match="`compatible` gave a NoneType instead of a Verdict"):
        load(tmp_path / "b")
