"""Artifacts that are right and cannot run on this machine: kept, told, and run where they can be."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from helpers.cutting import UNLIKE, cut, number_regions, ramp, same_as_original
from helpers.faulty import faulty  # noqa: F401 - a fixture
from helpers.support import VANILLA, Ran, parse

from byoc.bundle import open_bundle
from byoc.errors import InputError
from byoc.reporting import Requirements, make_report_suite
from byoc.runtime import load
from byoc.verification import verify

pytestmark = pytest.mark.usefixtures("faulty")
OPTIONS = {"fault": "elsewhere"}
BOTH = "dla_0, dla_1 compiled, not verified here: there is no board"
FLAGS = ("--rules", VANILLA, "--strategy", "all-supported", "--codegen-option", "fault=elsewhere")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the path of a model with two regions: Relu, and Add."""
    onnx.save(parse(UNLIKE), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.mark.parametrize("isolate", [False, True])
def test_regions_for_elsewhere_are_kept_and_told(
    isolate: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "b"
    result = cut(model, output, codegen="faulty", codegen_options=OPTIONS, isolate=isolate)
    assert [region.not_here for region in result.report.regions] == ["there is no board"] * 2
    assert result.report.not_verified == BOTH
    assert result.report.verification_missing
    assert result.verification is not None
    assert result.verification.regions == ()
    assert result.verification.passed  # with the regions on onnxruntime
    kept = open_bundle(output).manifest
    assert [region.artifact_metadata for region in kept.regions] == [OPTIONS] * 2
    assert open_bundle(output).variant.report.not_verified == BOTH
    with pytest.raises(
        InputError,
        match=r"^codegen faulty: dla_0 cannot run on this machine: there is no board$",
    ):
        load(output, isolate=isolate)
    monkeypatch.setenv("BOARD", "1")
    same_as_original(parse(UNLIKE), output, {"x": ramp(1, 4)})
    assert [region.within for region in verify(output, isolate=isolate).regions] == [True, True]
    assert verify(output).not_here == {}


def test_regions_that_run_here_are_verified_beside_others(model: Path, tmp_path: Path) -> None:
    result = cut(model, tmp_path / "b", codegen="faulty", codegen_options={**OPTIONS, "op": "Add"})
    assert [region.not_here for region in result.report.regions] == ["", "there is no board"]
    assert result.report.not_verified == "dla_1 compiled, not verified here: there is no board"
    assert result.verification is not None
    assert [(region.name, region.within) for region in result.verification.regions] == [("dla_0", True)]
    suite = make_report_suite(result.report, Requirements(), compiled=True)
    assert {case.name: case.outcome for case in suite.cases}["verification"] == "error"
    with pytest.raises(InputError, match=r"^the gate cannot compare regions: codegen faulty: dla_1 can"):
        cut(
            model,
            codegen="faulty",
            output=tmp_path / "c",
            codegen_options=OPTIONS | {"op": "Add"},
            gate=True,
        )


def test_the_command_leaves_with_4_unless_that_is_allowed(
    model: Path, tmp_path: Path, byoc: Callable[..., Ran]
) -> None:
    output = tmp_path / "b"
    asked = ("partition", model, *FLAGS, "--codegen", "faulty", "-o", output)
    with number_regions():
        ran = byoc(*asked)
    assert ran.code == 4
    assert f"Not verified: {BOTH}" in ran.out
    assert "; compiled, not verified here: there is no board" in ran.out
    assert byoc(*asked, "--allow-unverified").code == 0
    missed = byoc(*asked, "--allow-unverified", "--require-verified")
    assert (missed.code, "it is not verified: " in missed.err) == (6, True)
    assert json.loads(byoc(*asked, "--format", "json").out)["not_verified"].endswith("no board")

    ran = byoc("verify", output)
    assert ran.code == 4
    assert "Boundary tensors" not in ran.out  # no region ran that could have made them wrong
    assert (
        len(re.findall(r"^dla_\w+ is compiled, not verified here: there is no board$", ran.out, re.M))
        == 2
    )
    assert byoc("verify", output, "--allow-unverified").code == 0
    told = json.loads(byoc("verify", output, "--format", "json").out)["not_here"]
    assert list(told.values()) == ["there is no board"] * 2
    shown = byoc("inspect", output).out
    assert shown.startswith("Not verified: ")
    assert shown.count("there is no board") == 4  # above, in the summary, and for each region
    ran = byoc("run", output, "--inputs", "random")
    assert ran.code == 1
    assert re.fullmatch(
        r"byoc: codegen faulty: \w+ cannot run on this machine: there is no board; "
        r"--fallback host runs it on the host\n",
        ran.err,
    )
    assert "there is no board" in (tmp_path / "b" / "manifest.json").read_text()


@pytest.mark.parametrize("isolate", [False, True])
def test_an_artifact_that_fits_nowhere_here_is_not_compiled_again_at_once(
    isolate: bool, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    options = {**OPTIONS, "log": str(log)}
    result = cut(
        model, tmp_path / "b", codegen="stamping", codegen_options=options, cache=False, isolate=isolate
    )
    assert result.report.regions[0].not_here == "it is for a board"
    assert log.read_text().splitlines() == ["Relu", "Add"]
    with pytest.raises(InputError, match="dla_0 cannot run on this machine: it is for a board"):
        load(tmp_path / "b", isolate=isolate)
    assert log.read_text().splitlines() == ["Relu", "Add", "Relu"]  # which does not fit either
    monkeypatch.setenv("BOARD", "1")
    same_as_original(parse(UNLIKE), tmp_path / "b", {"x": ramp(1, 4)})
