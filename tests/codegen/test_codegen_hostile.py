"""Codegens that lie, trash and raise where nobody looks: one sentence, and nothing of theirs stays."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import CHAIN, cut, ramp, same_as_original
from helpers.support import parse, without_location

from byoc.codegen import Artifact, ArtifactError, CompileError, Region, compile_together, read_region
from byoc.errors import InputError, describe_error, must_propagate, shorten_text
from byoc.runtime import load
from byoc.verification import verify_against

ODD = "\ud800\x1b[31m\x00\x07\u202e \r\n x"
ESCAPED = "\\ud800\\x1b[31m\\x00\\x07\\u202e x"
LONG = "\u00e9" * 101  # two bytes each


class SilentError(CompileError):
    def __str__(self) -> str:
        raise ValueError("no text")


class NodesError(CompileError):
    nodes = cast(Any, property(lambda self: 1 / 0, lambda self, value: None))


class Closed(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("closed")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("closed")

    def __len__(self) -> int:
        return 1


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise ValueError("no text")

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return True


class Attributes(Artifact):
    def __getattribute__(self, name: str) -> Any:
        if name in {"files", "metadata"}:
            raise RuntimeError("closed")
        return super().__getattribute__(name)


def _raises(error: BaseException) -> Callable[[Region], Any]:
    def compile_(region: Region) -> Any:
        raise error

    return compile_


def _gives(artifact: Callable[[], Artifact]) -> Callable[[Region], Any]:
    return lambda region: artifact()


def _trashes(region: Region) -> Artifact:
    size = region.path.stat().st_size
    region.path.write_bytes(b"x" * size)
    return Artifact()


def _removes(region: Region) -> Artifact:
    region.path.unlink()
    return Artifact()


CHANGED = "it changed the file it was handed, dla_0.onnx"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (_raises(CompileError(ODD)), ESCAPED),
        (_raises(ValueError(ODD)), f"failed with ValueError: {ESCAPED}"),
        (_raises(SilentError("x")), "it does not say why"),
        (_raises(NodesError("why")), "why"),
        (_raises(SystemExit(cast(Any, [1]))), "failed with SystemExit: [1]"),
        (_gives(lambda: Artifact(Closed())), "failed with RuntimeError: closed"),
        (_gives(lambda: Artifact({}, Closed())), "failed with RuntimeError: closed"),
        (_gives(Attributes), "failed with RuntimeError: closed"),
        (
            _gives(lambda: Artifact({}, {"k": "\ud800"})),
            "the metadata '\\ud800' is not text that can be stored",
        ),
        (
            _gives(lambda: Artifact({}, {"\ud800": "v"})),
            "the metadata '\\ud800' is not text that can be stored",
        ),
        (
            _gives(lambda: Artifact({"c\ud800": b""})),
            "the file name 'c\\ud800' is not text that can be stored",
        ),
        (
            _gives(lambda: Artifact({LONG: b""})),
            f"the file name '{LONG[:40]}'... is longer than 200 bytes",
        ),
        (_trashes, CHANGED),
        (_removes, CHANGED),
    ],
)
@pytest.mark.parametrize("strict", [True, False])
def test_a_hostile_compile_is_one_sentence(
    answer: Any, sentence: str, strict: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendors.install(monkeypatch, odd=vendors.compiles(answer))
    if strict:
        with pytest.raises(InputError) as caught:
            cut(parse(CHAIN), tmp_path / "b", codegen="odd", strict=True)
        assert without_location(str(caught.value)) == f"codegen odd: dla_0: {sentence}"
        assert list(tmp_path.iterdir()) == []
        return
    result = cut(parse(CHAIN), tmp_path / "b", codegen="odd", strict=False)
    assert result.plan.regions == ()
    assert without_location(result.plan.refusals[0].reason) == sentence
    same_as_original(parse(CHAIN), tmp_path / "b", {"x": ramp(1, 4)})


def test_texts_of_a_subclass_are_stored_as_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = Artifact({Text("c"): b"1"}, {Text("k"): Text("v")})
    vendors.install(monkeypatch, odd=vendors.compiles(lambda region: artifact))
    cut(parse(CHAIN), tmp_path / "b", codegen="odd", verify=False)
    assert (tmp_path / "b/artifacts/dla_0/c").read_bytes() == b"1"


def test_a_closed_mapping_from_compile_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(vendors.CompileOnly):
        name = "odd"

        def compile_all(self, regions: Any, options: Any) -> Any:
            return Closed()

    vendors.install(monkeypatch, odd=Odd)
    with pytest.raises(CompileError, match=r"dla_0: failed with RuntimeError: closed \(test_"):
        cut(parse(CHAIN), tmp_path / "b", codegen="odd", strict=True, verify=False)


@pytest.mark.parametrize("stage", ["load", "run"])
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (SilentError("x"), "it does not say why"),
        (InputError(ODD), ESCAPED.replace(" x", " \\r\\n x")),
    ],
)
def test_what_loads_and_runs_may_be_silent_too(
    stage: str, error: Exception, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(vendors.CompileOnly):
        name = "odd"

        def load(self, region: Region, artifact: Artifact) -> Any:
            def run(inputs: Any) -> Any:
                raise error

            return run(None) if stage == "load" else run

    vendors.install(monkeypatch, odd=Odd)
    result = cut(parse(CHAIN), tmp_path / "b", codegen="odd", strict=False)
    assert result.plan.refusals[0].reason == why
    cut(parse(CHAIN), tmp_path / "c", codegen="odd", verify=False)
    with pytest.raises(InputError) as caught:
        load(tmp_path / "c")({"x": ramp(1, 4)})
    assert str(caught.value).endswith(f": {why}")


@pytest.mark.parametrize("stage", ["compile", "load", "run"])
def test_a_codegen_that_changes_the_working_directory(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    here.mkdir()
    away.mkdir()
    monkeypatch.chdir(here)

    class Odd(vendors.Tables):
        name = "odd"

        def compile(self, region: Region, options: Mapping[str, str]) -> Artifact:
            if stage == "compile":
                os.chdir(away)
            return super().compile(region, options)

        def load(self, region: Region, artifact: Artifact) -> Any:
            if stage == "load":
                os.chdir(away)
            found = super().load(region, artifact)

            def run(inputs: Mapping[str, Any]) -> Any:
                if stage == "run":
                    os.chdir(away)
                return found(inputs)

            return run

    vendors.install(monkeypatch, odd=Odd)
    weights = np.full((1, 4), 0.375, np.float32)
    model = parse("g (float[1, 4] x) => (float[1, 4] y) { a = Relu(x) y = Mod <fmod = 1> (a, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    cut("m.onnx", Path("b"), codegen="odd")
    assert list(away.iterdir()) == []
    assert sorted(path.name for path in here.iterdir()) == ["b", "m.onnx", "w.bin"]
    monkeypatch.chdir(here)
    assert verify_against("b", "m.onnx").passed
    monkeypatch.chdir(here)
    found = load("b")({"x": ramp(1, 4)})
    np.testing.assert_array_equal(found["y"], np.fmod(np.maximum(ramp(1, 4), 0), weights))


@pytest.mark.parametrize(("named", "kind"), [("dla_0", ArtifactError), ("nope", CompileError)])
def test_a_failure_of_a_region_that_was_not_asked_for(named: str, kind: type, tmp_path: Path) -> None:
    class Together(vendors.compiles(None)):  # type: ignore[misc]
        def compile_all(self, regions: Any, options: Any) -> Any:
            raise ArtifactError("r", named)

    onnx.save(parse(CHAIN), tmp_path / "r.onnx")
    region = read_region(tmp_path / "r.onnx", "dla_0", "dla")
    with pytest.raises(CompileError, match=r"^r$") as caught:
        compile_together(Together(), [region], {})
    assert isinstance(caught.value, ArtifactError) == (kind is ArtifactError)


def test_texts_of_errors_are_cut_and_escaped() -> None:
    assert describe_error(SilentError("x")) == "SilentError"
    assert shorten_text("a\u2028b \x00", 100) == "a b \\x00"
    assert shorten_text("\x00" * 50, 100) == "\\x00" * 24 + "\\..."
    assert not must_propagate(SystemExit(cast(Any, [1])))
    assert must_propagate(SystemExit(143))


def test_a_model_whose_nodes_form_a_cycle(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b", codegen="reference")
    model = onnx.load(tmp_path / "b/model.onnx", load_external_data=False)
    model.graph.node[0].input[0] = model.graph.output[0].name
    rewritten(tmp_path / "b", "model.onnx", model.SerializeToString())
    with pytest.raises(InputError, match=r"'model.onnx': not valid ONNX: .* be topologically sorted"):
        load(tmp_path / "b")


def rewritten(bundle: Path, name: str, content: bytes) -> None:
    """Put other content into a bundle, with its hash."""
    (bundle / name).write_bytes(content)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
