"""Codegens that take all regions of their target in one call."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from helpers import vendors
from helpers.cutting import CHAIN, UNLIKE, cut, files, ramp, same_as_original
from helpers.support import parse, without_location

from byoc.bundle import open_bundle
from byoc.codegen import Artifact, CompileError, Executor, Region, ResourceError, Together
from byoc.onnxrt import open_session, run_session

Answer = Callable[[Sequence[Region]], Any]


def together(answer: Answer) -> tuple[type, list[list[str]]]:
    """Return a codegen class that gives `answer(regions)` for all, and the names of each call's."""
    calls: list[list[str]] = []

    class All:
        name = "all"

        def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
            raise AssertionError("one at a time")

        def compile_all(
            self, regions: Sequence[Region], options: Mapping[str, str]
        ) -> Mapping[str, Artifact]:
            calls.append([region.name for region in regions])
            return cast(Mapping[str, Artifact], answer(regions))

        def load(self, region: Region, artifact: Artifact) -> Executor:
            assert artifact.metadata["number"] == str(calls[0].index(region.name))
            session = open_session(region.path)
            return lambda inputs: run_session(session, inputs)

    return All, calls


def _blob(regions: Sequence[Region]) -> dict[str, Artifact]:
    """Return the same file for all, and which part of it is each region's."""
    blob = b"".join(region.path.read_bytes() for region in regions)
    return {
        region.name: Artifact({"blob.bin": blob}, {"number": str(i)})
        for i, region in reversed(list(enumerate(regions)))
    }


def test_all_regions_are_compiled_in_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, calls = together(_blob)
    vendors.install(monkeypatch, all=kind)
    assert isinstance(kind(), Together)
    steps: list[str] = []
    result = cut(parse(UNLIKE), tmp_path / "b", codegen="all", progress=steps.append)
    assert result.verification is not None
    assert result.verification.passed
    assert calls == [["dla_0", "dla_1"]]
    assert "compile dla_0, dla_1 with all" in steps
    same_as_original(parse(UNLIKE), tmp_path / "b", {"x": ramp(1, 4)})
    found = files(tmp_path / "b")
    assert found["artifacts/dla_0/blob.bin"] == found["artifacts/dla_1/blob.bin"]
    numbers = [r.artifact_metadata["number"] for r in open_bundle(tmp_path / "b").manifest.regions]
    assert numbers == ["0", "1"]


def test_the_same_region_is_handed_over_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, calls = together(_blob)
    vendors.install(monkeypatch, all=kind)
    cut(parse(CHAIN), tmp_path / "b", codegen="all")
    assert calls == [["dla_0"]]
    same_as_original(parse(CHAIN), tmp_path / "b", {"x": ramp(1, 4)})


def test_without_regions_nothing_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, calls = together(_blob)
    vendors.install(monkeypatch, all=kind)
    cut(parse("g (float[4] x) => (float[4] y) { y = Sigmoid(x) }"), tmp_path / "b", codegen="all")
    assert calls == []


def _raising(error: Exception) -> Answer:
    def answer(regions: Sequence[Region]) -> Any:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (lambda regions: None, "dla_0, dla_1: compile_all gave NoneType, not artifacts by region"),
        (lambda regions: {"dla_0": Artifact()}, "dla_1: compile_all gave no artifact for it"),
        (
            lambda regions: {**_blob(regions), "dla_9": Artifact()},
            "dla_0, dla_1: compile_all gave an artifact for 'dla_9', which it was not asked for",
        ),
        (
            lambda regions: {**_blob(regions), "dla_1": None},
            "dla_1: compile gave NoneType, not an Artifact",
        ),
        (
            lambda regions: {**_blob(regions), "dla_1": Artifact({"../x": b""})},
            "dla_1: '../x' is not a plain file name for an artifact",
        ),
        (
            lambda regions: {**_blob(regions), "dla_0": Artifact(cast(Any, [b"x"]))},
            "dla_0: the artifact's files are list, not a mapping",
        ),
        (_raising(CompileError("no")), "dla_0, dla_1: no"),
        (_raising(KeyError("w")), "dla_0, dla_1: failed with KeyError: 'w'"),
    ],
)
def test_what_it_gives_is_checked_as_ever(
    answer: Answer, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, all=together(answer)[0])
    with pytest.raises(CompileError) as caught:
        cut(parse(UNLIKE), tmp_path / "b", codegen="all")
    assert without_location(str(caught.value)) == f"codegen all: {sentence}"
    assert list(tmp_path.iterdir()) == []


def test_a_resource_error_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = _raising(ResourceError("3 MiB too large", ["a"]))
    vendors.install(monkeypatch, all=together(answer)[0])
    with pytest.raises(ResourceError, match="3 MiB too large") as caught:
        cut(parse(UNLIKE), tmp_path / "b", codegen="all")
    assert caught.value.nodes == ("a",)
