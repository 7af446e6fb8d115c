"""Estimates of compilers beside predictions: in reports, tables and JSON, in worker processes too."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers import vendors
from helpers.cutting import CHAIN, UNLIKE, cut, number_regions
from helpers.support import VANILLA, Ran, parse
from helpers.wrecking import Wreck

from byoc.bundle import open_bundle
from byoc.codegen import Artifact, CompileError, Cycles, Region


class Counting(vendors.Tables):
    """Counts a cycle for each node, and does not say what Add takes."""

    name = "counting"

    def estimate(self, region: Region, options: Any, artifact: Artifact) -> float | Cycles:
        assert options == {"speed": "2"}
        assert artifact.metadata["speed"] == "2"
        if any(node.op_type == "Add" for node in region.nodes):
            raise CompileError("Add has no figures")
        return Cycles(int(artifact.metadata["steps"]), 1e6)


def _estimates(result: Any) -> list[Any]:
    return [region.estimate and region.estimate.seconds for region in result.report.regions]


def test_estimates_stand_beside_predictions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    vendors.install(monkeypatch, counting=Counting)
    given: Mapping[str, Any] = {"codegen": "counting", "codegen_options": {"speed": "2"}}
    assert _estimates(cut(parse(UNLIKE), tmp_path / "b", **given)) == [1e-6, None]
    kept = open_bundle(tmp_path / "b").variant.report
    assert [region.estimate for region in kept.regions][1] is None
    assert kept.to_json()["regions"][0]["estimate"] == {"seconds": 1e-6, "cycles": 1.0, "hertz": 1e6}
    assert "estimate" not in kept.to_json()["regions"][1]
    twins = cut(parse(CHAIN), tmp_path / "c", **given)  # compiled once
    assert _estimates(twins) == [1e-6, 1e-6]
    assert _estimates(cut(parse(CHAIN), **given)) == [None, None]  # nothing is compiled


def test_memory_on_the_chip_is_what_the_metadata_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vendors.install(monkeypatch, tables=vendors.Tables)

    def compile_with(**options: str) -> Any:
        return cut(parse(UNLIKE), tmp_path / "b", codegen="tables", codegen_options=options).report

    report = compile_with(sram="300", sram_limit="400")
    kept = open_bundle(tmp_path / "b").variant.report
    for each in (report, kept):
        document = each.to_json()
        assert document["sram"] == {"dla": {"used": 300, "limit": 400}}
        assert [region["sram"] for region in document["regions"]] == [{"used": 300, "limit": 400}] * 2
    assert compile_with(sram="300").to_json()["sram"] == {"dla": {"used": 300}}
    assert "sram" not in compile_with(sram_limit="400").to_json()
    report = compile_with(sram="12 KiB", sram_limit="-1")
    assert not report.sram
    assert [note.text for note in report.notes if "sram" in note.text] == [
        f"codegen tables: {region.name}: the metadata `sram` is '12 KiB' and `sram_limit` is '-1', "
        "not a whole number of bytes; it is not reported"
        for region in report.regions
    ]


def test_a_plug_in_of_version_1_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def estimate(self: object, region: Region) -> None:
        raise AssertionError("this is a method of its own")

    first = type("First", (vendors.Tables,), {"name": "first", "api": 1, "estimate": estimate})
    vendors.install(monkeypatch, first=first)
    result = cut(parse(UNLIKE), tmp_path / "b", codegen="first")
    assert _estimates(result) == [None, None]
    assert result.verification is not None
    assert result.verification.passed


@pytest.mark.parametrize("isolate", [False, True])
def test_an_estimate_that_fails_is_a_warning(
    isolate: bool, wreck: Wreck, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    onnx.save(parse(UNLIKE), tmp_path / "net.onnx")
    given: tuple[Any, ...] = (
        "partition",
        tmp_path / "net.onnx",
        "--rules",
        VANILLA,
        "-o",
        tmp_path / "b",
    )
    given += ("--strategy", "all-supported", "--codegen", "wrecker-together", *(["--isolate"] * isolate))
    with number_regions():
        ran = byoc(*given, "--codegen-option", "level=1", "--verbose")
    assert ran.code == 0
    lines = [line.split() for line in ran.out.splitlines() if line.startswith((" dla_", " region"))]
    assert lines[0][-2:] == ["predicted", "estimate"]
    assert [line[-2:] for line in lines[1:]] == [["501", "ms"]] * 2
    told = json.loads(byoc(*given, "--format", "json").out)
    assert [each["estimate"]["cycles"] for each in told["regions"]] == [500.0] * 2
    (note,) = [each for each in told["notes"] if "--ask costs" in each]
    assert note.startswith("the compiler estimates 1 s for the regions of dla, predicted are ")
    wreck("estimate raise")
    with number_regions():
        ran = byoc(*given)
    assert ran.code == 0
    assert "warning: codegen wrecker-together failed to estimate dla_0: failed with Zero" in ran.out
    assert " predicted   estimate" not in ran.out
