"""What a bundle holds: the same bytes for the same inputs, every weight once, models that run alone."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers import vendors
from helpers.cutting import CHAIN, cut, files, number_regions, ramp, same_as_original
from helpers.support import VANILLA, parse

from byoc import zoo
from byoc.bundle import open_bundle
from byoc.pipeline import partition
from byoc.runtime import load


@pytest.fixture(scope="module")
def squeezenet() -> onnx.ModelProto:
    return zoo.load("squeezenet")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of squeezenet; not to be changed."""
    path = tmp_path_factory.mktemp("squeezenet") / "b"
    with number_regions():
        partition("zoo:squeezenet", VANILLA, output=path, what_if=False)
    return path


def test_the_same_inputs_give_the_same_bytes(package: Path, tmp_path: Path) -> None:
    with number_regions():
        partition("zoo:squeezenet", VANILLA, output=tmp_path / "another name", what_if=False)
    assert files(tmp_path / "another name") == files(package)


def test_every_weight_is_stored_once(package: Path, squeezenet: onnx.ModelProto) -> None:
    large = [t for t in squeezenet.graph.initializer if len(t.raw_data) > 1024]
    total = sum(len(tensor.raw_data) for tensor in large)
    sizes = {name: len(content) for name, content in files(package).items()}
    assert total <= sizes.pop("weights.bin") < total + 64 * len(large)
    assert max(sizes.values()) < 50_000, sizes


def test_weights_lie_where_every_model_says(package: Path, squeezenet: onnx.ModelProto) -> None:
    names = {t.name: t.raw_data for t in squeezenet.graph.initializer if len(t.raw_data) > 1024}
    for model in ("model.onnx", "dla_0.onnx"):
        stored = onnx.load(package / model, load_external_data=False).graph.initializer
        outside = [t for t in stored if t.data_location == onnx.TensorProto.EXTERNAL]
        assert {t.name for t in outside} == set(names)
        places = [{entry.key: entry.value for entry in t.external_data} for t in outside]
        assert all(int(place["offset"]) % 64 == 0 for place in places)
        loaded = onnx.load(package / model).graph.initializer
        assert all(t.raw_data == names[t.name] for t in loaded if t.name in names)


def test_every_model_runs_in_plain_onnxruntime(package: Path, squeezenet: onnx.ModelProto) -> None:
    image = zoo.sample_inputs("squeezenet")
    options = onnxruntime.SessionOptions()
    run = {
        model: onnxruntime.InferenceSession(package / model, options, ["CPUExecutionProvider"])
        for model in ("model.onnx", "dla_0.onnx")
    }
    (name,) = image
    (whole,) = run["model.onnx"].run(None, image)
    region = run["dla_0.onnx"]
    (given,) = open_bundle(package).manifest.regions[0].inputs
    assert (given.tensor, given.layout) == (name, "NHWC")
    (logits,) = region.run(None, {given.name: image[name].transpose(0, 2, 3, 1)})
    logits = logits.transpose(0, 3, 1, 2)
    powers = np.exp(logits - logits.max())
    np.testing.assert_allclose(powers / powers.sum(), whole, rtol=1e-4, atol=1e-7)


def test_the_models_pass_the_checker_from_the_folder(package: Path) -> None:
    for model in ("model.onnx", "dla_0.onnx"):
        onnx.checker.check_model(str(package / model), full_check=True)


def test_a_copy_elsewhere_runs(package: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a b" / "ü"
    shutil.copytree(package, copy)
    image = zoo.sample_inputs("squeezenet")
    here, there = load(package)(image), load(copy)(image)
    assert all(np.array_equal(here[name], there[name]) for name in here)


def test_the_manifest_names_every_other_file_by_its_hash(package: Path) -> None:
    content = files(package)
    manifest = json.loads(content.pop("manifest.json"))
    content.pop("signature.json", None)
    assert manifest["format"] == 4
    assert manifest["asked"]["model"] == "zoo:squeezenet"
    assert manifest["variants"][0]["report"]["verification"]["passed"] is True
    assert manifest["files"] == {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        for name, data in content.items()
    }


def test_no_path_of_this_machine_is_in_a_bundle(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    assert not any(str(tmp_path).encode() in content for content in files(tmp_path / "b").values())


def test_the_callers_model_is_not_changed(tmp_path: Path) -> None:
    model = parse(CHAIN)
    before = model.SerializeToString(deterministic=True)
    cut(model, tmp_path / "b")
    assert model.SerializeToString(deterministic=True) == before


def test_artifacts_come_back_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendors.install(monkeypatch, compileonly=vendors.CompileOnly)
    cut(parse(CHAIN), tmp_path / "b", codegen="compileonly")
    found = open_bundle(tmp_path / "b").regions()
    assert [region.name for _, region, _ in found] == ["dla_0", "dla_1"]
    assert all(dict(artifact.files) == {"firmware.bin": b"\x00\x01"} for *_, artifact in found)


def test_small_constants_stay_in_the_models(tmp_path: Path) -> None:
    model = parse("g (float[1, 256] x) => (float[1, 256] y) { a = Add(x, k) y = Relu(a) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(ramp(1, 256), "k"))
    cut(model, tmp_path / "b")
    assert files(tmp_path / "b")["weights.bin"] == b""
    same_as_original(model, tmp_path / "b", {"x": ramp(1, 256)})


def test_a_weight_read_by_host_and_regions_is_stored_once(tmp_path: Path) -> None:
    model = parse(
        "g (float[1, 400] x) => (float[1, 400] y) { a = Add(x, k) b = Sub(a, k) y = Add(b, k) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(ramp(1, 400), "k"))
    cut(model, tmp_path / "b")
    assert files(tmp_path / "b")["weights.bin"] == ramp(1, 400).tobytes()
    same_as_original(model, tmp_path / "b", {"x": ramp(1, 400)})
