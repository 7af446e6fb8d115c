"""What a bundle takes from a folder of onnxruntime-genai, and what it may not take."""

import json
import os
from pathlib import Path
from typing import Any

import onnx
import pytest
from helpers.support import parse

from byoc.bundle import write_genai_files
from byoc.errors import InputError
from byoc.model import ONLY_VARIANT
from byoc.zoo import GenaiFolder, load_model

TEXT = "g (int64[B,S] input_ids) => (int64[B,S] y) { y = Identity(input_ids) }"
CONFIG: dict[str, Any] = {
    "model": {"decoder": {"filename": "m.onnx"}, "type": "é"},
    "search": {"top_k": 1},
}


@pytest.fixture
def genai(tmp_path: Path) -> GenaiFolder:
    folder = tmp_path / "genai"
    (folder / "one" / "two").mkdir(parents=True)
    onnx.save(parse(TEXT), folder / "m.onnx")
    (folder / "genai_config.json").write_text("{}")
    for name in ("a.json", "one/b.txt", "one/c.txt", "one/two/d.txt"):
        (folder / name).write_text(name)
    return GenaiFolder(folder, CONFIG, folder / "m.onnx")


def write(genai: GenaiFolder, tmp_path: Path) -> Path:
    folder = tmp_path / "staged"
    folder.mkdir(exist_ok=True)
    models = {ONLY_VARIANT.name: load_model(genai.decoder)}
    write_genai_files(folder, genai, tmp_path / "b", models)
    return folder


def test_all_other_files_are_copied_and_the_configuration_names_the_model(
    genai: GenaiFolder, tmp_path: Path
) -> None:
    folder = write(genai, tmp_path)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == {"genai_config.json", "a.json", "one/b.txt", "one/c.txt", "one/two/d.txt"}
    for name in names - {"genai_config.json"}:
        assert (folder / name).read_text() == name
    text = (folder / "genai_config.json").read_text(encoding="utf-8")
    decoder = {"filename": "model.onnx"}
    assert json.loads(text) == {**CONFIG, "model": {**CONFIG["model"], "decoder": decoder}}
    assert "é" in text  # people read it
    assert text.endswith("}\n")
    assert CONFIG["model"]["decoder"]["filename"] == "m.onnx"


@pytest.mark.parametrize("name", ["manifest.json", "signature.json", "a.json"])
def test_a_name_of_the_bundles_own_is_refused(name: str, genai: GenaiFolder, tmp_path: Path) -> None:
    (genai.path / name).write_text("theirs")
    (tmp_path / "staged").mkdir()
    (tmp_path / "staged" / "a.json").write_text("own")
    for each in ("a.json",) if name != "a.json" else ():
        (tmp_path / "staged" / each).unlink()
    with pytest.raises(InputError) as caught:
        write(genai, tmp_path)
    reason = "cannot be passed through: the bundle has a file of that name"
    assert str(caught.value) == f"{genai.path / name}: {reason}"


def test_a_name_that_no_bundle_may_have_is_refused(genai: GenaiFolder, tmp_path: Path) -> None:
    (genai.path / "a\\b").write_text("")
    with pytest.raises(InputError, match=r"a\\b: cannot be passed through: it "):
        write(genai, tmp_path)


def test_a_file_that_cannot_be_read_is_named(
    genai: GenaiFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr("shutil.copyfile", fail)
    with pytest.raises(InputError, match=r"a\.json: cannot be read: Permission denied$"):
        write(genai, tmp_path)
