"""What a codegen gives for a region: artifacts kept, failures told, nothing left behind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import CHAIN, UNLIKE, cut, files, ramp, same_as_original
from helpers.support import parse, without_location

from byoc.bundle import open_bundle
from byoc.codegen import Artifact, CompileError, Region
from byoc.errors import InputError
from byoc.runtime import load


def test_a_codegen_runs_from_its_artifact_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, tables=vendors.Tables)
    result = cut(parse(CHAIN), tmp_path / "b", codegen="tables", codegen_options={"speed": "high"})
    assert result.verification is not None
    assert result.verification.passed
    same_as_original(parse(CHAIN), tmp_path / "b", {"x": ramp(1, 4)})
    entry = open_bundle(tmp_path / "b").manifest.regions[0]
    assert entry.codegen == "tables"
    assert entry.artifact_metadata == {"steps": "1", "speed": "high"}
    assert entry.artifact_files == {
        "code.json": "artifacts/dla_0/code.json",
        "empty.bin": "artifacts/dla_0/empty.bin",
    }


def test_the_region_handed_over_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Region] = []

    def compile_(region: Region) -> Artifact:
        model = region.load()
        onnx.checker.check_model(model, full_check=True)
        assert [v.name for v in model.graph.input] == [v.name for v in region.inputs]
        assert onnx.numpy_helper.to_array(model.graph.initializer[0]).tolist() == weights.tolist()
        seen.append(region)
        return Artifact()

    weights = ramp(1, 400)
    model = parse("g (float[N, 400] x) => (float[N, 400] y) { a = Add(x, w) y = Relu(a) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    vendors.install(monkeypatch, odd=vendors.compiles(compile_))
    cut(model, tmp_path / "b", codegen="odd", verify=False)
    (region,) = seen
    assert (region.name, region.target, region.path.name) == ("dla_0", "dla", "dla_0.onnx")
    assert [(v.name, str(v.type)) for v in region.inputs] == [("x", "float32[N, 400]")]
    assert [(v.name, str(v.type)) for v in region.outputs] == [("y", "float32[N, 400]")]
    assert region.composites == ()


def test_constants_come_one_by_one_as_the_target_wants_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, bias = ramp(5, 3, 10, 10), ramp(5)
    seen: list[Region] = []

    def compile_(region: Region) -> Artifact:
        packed = region.constant("w")
        np.testing.assert_array_equal(packed, weight.transpose(0, 2, 3, 1))
        assert packed.flags["C_CONTIGUOUS"]
        np.testing.assert_array_equal(region.constant("b"), bias)
        with pytest.raises(KeyError, match=r"dla_0 has no constant 'x', it has: w, b"):
            region.constant("x")
        seen.append(region)
        return Artifact()

    model = parse("g (float[1, 3, 12, 12] x) => (float[1, 5, 3, 3] y) { c = Conv(x, w, b) y = Relu(c) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(bias, "b"))
    vendors.install(monkeypatch, odd=vendors.compiles(compile_))
    cut(model, tmp_path / "b", codegen="odd", verify=False)
    (region,) = seen
    assert {c.name: str(c) for c in region.constants} == {
        "w": "float32[5, 10, 10, 3] in OHWI",
        "b": "float32[5]",
    }
    (_, again, _) = open_bundle(tmp_path / "b").regions()[0]
    assert (again.inputs, again.outputs, again.constants) == (
        region.inputs,
        region.outputs,
        region.constants,
    )
    np.testing.assert_array_equal(again.constant("w"), weight.transpose(0, 2, 3, 1))


def _refuses(region: Region) -> Any:
    raise CompileError("Relu needs a licence")


def _breaks(region: Region) -> Any:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (_refuses, "codegen odd: dla_0: Relu needs a licence"),
        (_breaks, "codegen odd: dla_0: failed with ZeroDivisionError: division by zero"),
        (lambda region: None, "codegen odd: dla_0: compile gave NoneType, not an Artifact"),
        (
            lambda region: Artifact({"a": cast(Any, "text")}),
            "codegen odd: dla_0: the content of 'a' is str, not bytes",
        ),
        (
            lambda region: Artifact(metadata={"cycles": cast(Any, 7)}),
            "codegen odd: dla_0: the metadata 'cycles' is not text",
        ),
    ],
)
def test_a_compile_that_goes_wrong_is_one_sentence(
    answer: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, odd=vendors.compiles(answer))
    with pytest.raises(CompileError) as caught:
        cut(parse(CHAIN), tmp_path / "b", codegen="odd")
    assert without_location(str(caught.value)) == sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "", "a/b", "..", ".", "/etc/x", "a\\b", "a\0b", 7])
def test_an_artifact_file_has_a_plain_name(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, odd=vendors.compiles(lambda region: Artifact({name: b"x"})))
    with pytest.raises(CompileError, match="is not a plain file name for an artifact"):
        cut(parse(CHAIN), tmp_path / "b", codegen="odd")
    assert list(tmp_path.iterdir()) == []


def test_the_reference_has_no_options(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^codegen reference has no option 'fast'; it has: none$"):
        cut(parse(CHAIN), tmp_path / "b", codegen_options={"fast": "1"})
    assert list(tmp_path.iterdir()) == []


def test_without_a_way_to_run_the_bundle_is_written_unverified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, compileonly=vendors.CompileOnly)
    result = cut(parse(UNLIKE), tmp_path / "b", codegen="compileonly")
    assert result.verification is None
    assert result.report.not_verified == "codegen compileonly cannot run here what it compiles"
    assert files(tmp_path / "b")["artifacts/dla_1/firmware.bin"] == b"\x00\x01"
    with pytest.raises(InputError) as caught:
        load(tmp_path / "b")
    assert str(caught.value) == (
        "codegen compileonly cannot run what it compiles here (it has no `load`)"
    )


def test_a_bundle_whose_codegen_is_gone_says_what_is_installed(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        vendors.install(patch, tables=vendors.Tables)
        cut(parse(CHAIN), tmp_path / "b", codegen="tables")
    with pytest.raises(InputError, match=r"^tables: no such codegen.*; installed: .*reference"):
        load(tmp_path / "b")


Inputs = Mapping[str, Any]


def _relu(inputs: Inputs) -> Any:
    return np.maximum(next(iter(inputs.values())), 0)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (
            lambda inputs, name: {name: _relu(inputs).astype(np.float64)},
            "gave output 'a' as float64[1, 4], but it is declared float32[1, 4]",
        ),
        (
            lambda inputs, name: {name: _relu(inputs)[0]},
            "gave output 'a' as float32[4], but it is declared float32[1, 4]",
        ),
        (
            lambda inputs, name: {name: np.zeros((1, 5), np.float32)},
            "gave output 'a' as float32[1, 5], but it is declared float32[1, 4]",
        ),
        (lambda inputs, name: {}, "gave no output 'a'"),
        (lambda inputs, name: {"other": _relu(inputs)}, "gave no output 'a'"),
        (lambda inputs, name: inputs["nothing"], "failed with KeyError: 'nothing'"),
        (lambda inputs, name: None, "failed with TypeError: it gave a NoneType instead"),
    ],
)
def test_what_a_region_gives_is_held_against_its_type(
    answer: Any, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, odd=vendors.gives(answer))
    with pytest.raises(InputError) as caught:
        cut(parse(CHAIN), tmp_path / "b", codegen="odd")
    assert str(caught.value).startswith(f"the bundle does not run: dla_0: codegen odd: {sentence}")
    assert list(tmp_path.iterdir()) == []


def test_outputs_that_nobody_declared_reach_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(inputs: Inputs, name: str) -> Inputs:
        return {name: _relu(inputs), "x": np.zeros((1, 4), np.float32)}

    text = "g (float[1, 4] x) => (float[1, 4] y) { a = Relu(x) y = Sub(a, x) }"
    vendors.install(monkeypatch, odd=vendors.gives(answer))
    result = cut(parse(text), tmp_path / "b", codegen="odd")
    assert result.verification is not None
    assert result.verification.passed


def test_wrong_numbers_are_found_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, odd=vendors.gives(lambda inputs, name: {name: _relu(inputs) + 1}))
    text = "g (float[1, 4] x) => (float[1, 4] y) { y = Relu(x) }"
    with pytest.raises(InputError) as caught:
        cut(parse(text), tmp_path / "b", codegen="odd")
    message = str(caught.value)
    assert message.startswith("verification failed: output 'y' differs from g by ")
    assert message.endswith(
        " of its range, at most 0.0001 is allowed for float32 "
        "(nothing was written; --no-verify writes it all the same)"
    )
    assert list(tmp_path.iterdir()) == []


def test_without_verification_wrong_numbers_go_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, odd=vendors.gives(lambda inputs, name: {name: _relu(inputs) + 1}))
    result = cut(parse(CHAIN), tmp_path / "b", codegen="odd", verify=False)
    assert result.report.not_verified == "verification was turned off"


def test_a_load_that_fails_names_codegen_and_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Offline(vendors.CompileOnly):
        name = "offline"

        def load(self, region: Region, artifact: Artifact) -> Any:
            raise OSError("no device /dev/npu0")

    vendors.install(monkeypatch, offline=Offline)
    with pytest.raises(InputError) as caught:
        cut(parse(CHAIN), tmp_path / "b", codegen="offline")
    assert without_location(str(caught.value)) == (
        "the bundle does not run: "
        "codegen offline: dla_0: loading failed with OSError: no device /dev/npu0 "
        "(nothing was written; --no-verify writes it all the same)"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_second_region_failing_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_(region: Region) -> Artifact:
        if region.name == "dla_1":
            raise CompileError("out of memory")
        return Artifact({"big.bin": b"1"})

    vendors.install(monkeypatch, odd=vendors.compiles(compile_))
    with pytest.raises(CompileError, match=r"^codegen odd: dla_1: out of memory$"):
        cut(parse(UNLIKE), tmp_path / "b", codegen="odd")
    assert list(tmp_path.iterdir()) == []
