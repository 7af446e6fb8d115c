"""Folders that the configuration names: what they give, and what is wrong with a configuration."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import parse
from onnx import numpy_helper

from byoc import zoo
from byoc.errors import InputError

MODEL = "g (float[n, 4] x, int64[2] k, bool b) => (float[n, 4] y) { y = Add(x, w) }"


def model() -> onnx.ModelProto:
    made = parse(MODEL)
    made.graph.initializer.append(numpy_helper.from_array(np.arange(4, dtype=np.float32), "w"))
    return made


@pytest.fixture
def config(home: Path) -> Path:
    file = home / "config" / "byoc" / "config.yaml"
    file.parent.mkdir(parents=True)
    return file


@pytest.fixture
def mine(tmp_path: Path, config: Path) -> Path:
    folder = tmp_path / "models"
    (folder / "deep" / "er").mkdir(parents=True)
    onnx.save(model(), folder / "net.v1.onnx")
    onnx.save(model(), folder / "deep" / "er" / "net.onnx")
    (folder / "readme.txt").write_text("no model", "utf-8")
    config.write_text(f"zoo: {{mine: {folder}}}\n", "utf-8")
    return folder


def test_every_onnx_file_below_is_a_model(mine: Path) -> None:
    found = [entry for entry in zoo.list_entries() if entry.name.startswith("mine/")]
    assert [(entry.name, entry.source) for entry in found] == [
        ("mine/deep/er/net", str(mine / "deep" / "er" / "net.onnx")),
        ("mine/net.v1", str(mine / "net.v1.onnx")),
    ]
    assert all(entry.present and entry.nodes is None for entry in found)
    assert zoo.load("mine/net.v1") == model()
    assert zoo.find_path("mine/net.v1") == mine / "net.v1.onnx"


def test_external_data_is_found_beside_the_file(mine: Path) -> None:
    onnx.save(model(), mine / "big.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (weight,) = zoo.load("mine/big").graph.initializer
    assert numpy_helper.to_array(weight).tolist() == [0, 1, 2, 3]
    path = zoo.find_path("mine/big")
    assert path is not None
    assert (path.parent / "w.bin").is_file()


@pytest.mark.usefixtures("mine")
def test_inputs_fit_the_model_and_are_seeded() -> None:
    first, again, other = (zoo.sample_inputs("mine/net.v1", seed) for seed in (1, 1, 2))
    shapes = {name: (value.shape, str(value.dtype)) for name, value in first.items()}
    assert shapes == {"x": ((1, 4), "float32"), "k": ((2,), "int64"), "b": ((), "bool")}
    assert np.array_equal(first["x"], again["x"])
    assert not np.array_equal(first["x"], other["x"])


def test_complex_numbers_have_no_samples(mine: Path) -> None:
    onnx.save(parse("g (complex64[1] x) => (complex64[1] y) { y = Identity(x) }"), mine / "c.onnx")
    with pytest.raises(InputError, match="no sample input can be made for 'x'"):
        zoo.sample_inputs("mine/c")


def test_a_file_that_is_no_model_is_named(mine: Path) -> None:
    (mine / "bad.onnx").write_bytes(b"\xff\xff\xff")
    for function in (zoo.load, zoo.sample_inputs):
        with pytest.raises(InputError, match=r"models/bad\.onnx: not an ONNX model"):
            function("mine/bad")


def test_a_folder_may_lie_beside_the_file_or_in_the_home_folder(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in (config.parent / "near", tmp_path / "far"):
        folder.mkdir()
        onnx.save(model(), folder / "m.onnx")
    config.write_text("zoo:\n  a: near\n  b: ~/far\n", "utf-8")
    assert zoo.find_path("a/m") == config.parent / "near" / "m.onnx"
    assert zoo.find_path("b/m") == tmp_path / "far" / "m.onnx"


def test_a_folder_that_is_gone_hides_no_other_model(config: Path, tmp_path: Path) -> None:
    config.write_text(f"zoo: {{gone: {tmp_path}/gone}}\n", "utf-8")
    sentence = f"{config}: zoo.gone: there is no folder '{tmp_path}/gone'"
    assert zoo.load("squeezenet").graph.node
    assert sentence in zoo.find_problems()[0]
    with pytest.raises(InputError) as caught:
        zoo.load("gone/m")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("zoo: [a]", "zoo: "),
        ("zo: {}", "zo: "),
        ("zoo: {a/b: x}", "zoo.a/b"),
        ("zoo: {a: ''}", "zoo.a: "),
        ("zoo: {a: x, a: y}", "the key 'a' stands twice"),
        ("{", "not valid YAML"),
        ("", "expected a mapping"),
    ],
)
def test_a_wrong_configuration_is_named(text: str, problem: str, config: Path) -> None:
    config.write_text(text, "utf-8")
    for function in (zoo.list_entries, lambda: zoo.load("squeezenet")):
        with pytest.raises(InputError) as caught:
            function()
        assert str(caught.value).startswith(str(config))
        assert problem in str(caught.value)


def test_without_a_home_folder_the_light_models_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(variable)
    monkeypatch.setattr(Path, "home", nowhere)
    assert zoo.load("squeezenet").graph.node
    assert "the trained models: zoo: there is no home folder here" in zoo.find_problems()[0]
