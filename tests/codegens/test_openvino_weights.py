"""Weights that the blobs of `openvino` read from the file in which they are, and do not hold."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from compiling import compiled, same
from helpers.cutting import original, ramp
from helpers.support import parse

import byoc
from byoc.codegen import Artifact, Region, find_codegen, read_region
from byoc.errors import InputError

pytestmark = pytest.mark.openvino
pytest.importorskip("openvino")

WIDE = 1024
INPUT = {"x": ramp(2, WIDE)}
WEIGHT = np.random.default_rng(0).normal(size=(WIDE, WIDE)).astype(np.float32)
SCALE = ramp(WIDE) + 1


def product(behind: str = "Add") -> onnx.ModelProto:
    """Return a product by a constant and an operation with another; OpenVINO makes one of Mul's two."""
    proto = parse(
        f"g (float[2,{WIDE}] x) => (float[2,{WIDE}] y) {{ t = MatMul(x, w) y = {behind}(t, s) }}"
    )
    weights = {"w": WEIGHT, "s": SCALE}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(w, n) for n, w in weights.items())
    return proto


def move(made: Region, folder: Path) -> Region:
    """Return a region whose weights lie 64 bytes later in the file, in another folder."""
    folder.mkdir()
    proto = onnx.load(made.path, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "offset":
                entry.value = str(int(entry.value) + 64)
    (folder / made.path.name).write_bytes(proto.SerializeToString())
    stored = (made.path.parent / "weights.bin").read_bytes()
    (folder / "weights.bin").write_bytes(bytes(64) + stored)
    return read_region(folder / made.path.name, made.name, made.target)


def load_without_compiling(made: Region, artifact: Artifact, patch: pytest.MonkeyPatch) -> Any:
    """Load an artifact where nothing may be compiled."""
    from byoc.codegens import openvino  # noqa: PLC0415 - what is replaced

    def refuse(*given: object) -> None:
        raise AssertionError("compiled anew")

    with patch.context() as context:
        context.setattr(openvino, "compile_region_model", refuse)
        found: Any = find_codegen("openvino")
        return found.load(made, artifact)


def test_a_blob_reads_its_weights_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = product()
    made, artifact, _ = compiled(proto, tmp_path, "openvino")
    imported = load_without_compiling(made, artifact, monkeypatch)
    found: Any = find_codegen("openvino")
    anew = found.load(made, Artifact({}, artifact.metadata))

    assert len(artifact.files["region.blob"]) < 0.02 * WEIGHT.nbytes
    assert artifact.metadata["weights_file"] == "weights.bin"
    assert "note" not in artifact.metadata
    np.testing.assert_array_equal(imported(INPUT)["y"], anew(INPUT)["y"])
    expected = original(proto, INPUT)["y"]
    np.testing.assert_allclose(imported(INPUT)["y"], expected, rtol=1e-4, atol=1e-4)


def test_a_region_whose_weights_lie_elsewhere_is_compiled_anew(tmp_path: Path) -> None:
    proto = product()
    made, artifact, run = compiled(proto, tmp_path, "openvino")
    moved = move(made, tmp_path / "moved")
    found: Any = find_codegen("openvino")

    assert found.compatible(made, artifact)
    sentence = "the blob reads weights at offsets in weights.bin where they no longer lie"
    assert str(found.compatible(moved, artifact)) == sentence
    same(found.load(moved, artifact)(INPUT), run(INPUT))


def test_weights_in_several_files_are_in_the_blob_and_it_says_so(tmp_path: Path) -> None:
    """A blob says at which byte a constant begins, and not in which file."""
    proto = product()
    made, _, run = compiled(proto, tmp_path, "openvino")
    parted = onnx.load(made.path, load_external_data=False)
    scale = next(tensor for tensor in parted.graph.initializer if tensor.name == "s")
    del scale.external_data[:]
    for key, value in (("location", "scale.bin"), ("offset", "0"), ("length", str(SCALE.nbytes))):
        scale.external_data.add(key=key, value=value)
    (tmp_path / "scale.bin").write_bytes(SCALE.tobytes())
    (tmp_path / "parted.onnx").write_bytes(parted.SerializeToString())
    region = read_region(tmp_path / "parted.onnx", "parted", "acc")
    found: Any = find_codegen("openvino")

    artifact = found.compile(region, found.Options())

    assert len(artifact.files["region.blob"]) > WEIGHT.nbytes
    assert "weights_file" not in artifact.metadata
    assert artifact.metadata["note"] == (
        "its blob holds 4.0 MiB of weights a second time, since they lie in several files, "
        "and OpenVINO reads those of one"
    )
    same(found.load(region, artifact)(INPUT), run(INPUT))


def test_a_device_that_reads_no_weights_from_files_gets_them_in_the_blob(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all devices of an older OpenVINO."""
    from byoc.codegens.openvino import openvino_blob as weights  # noqa: PLC0415 - what is replaced

    class Core:
        def get_property(self, device: str, name: str) -> list[str]:
            return []

    monkeypatch.setattr(weights, "openvino_core", Core)
    proto = product()
    _, artifact, run = compiled(proto, tmp_path, "openvino")

    assert artifact.metadata["note"].endswith("since OpenVINO's device CPU reads none from a file")
    np.testing.assert_allclose(run(INPUT)["y"], original(proto, INPUT)["y"], rtol=1e-4, atol=1e-4)


def test_of_a_region_without_weights_in_files_no_note_says_that_a_blob_holds_some(
    tmp_path: Path,
) -> None:
    """Its blob is large for other reasons, as many operators are."""
    from byoc.codegens.openvino import openvino_blob as weights  # noqa: PLC0415 - what is tested

    made, _, _ = compiled(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"), tmp_path, "openvino")
    found: Any = find_codegen("openvino")
    given = weights.choose_weights(made, found.Options())

    assert given == weights.EmbeddedWeights("")
    assert not weights.describe_embedded_weights(made, bytes(2 << 20), given)


@pytest.mark.parametrize(("limit", "stored"), [("1MiB", False), ("8MiB", True)])
def test_weights_that_openvino_changes_are_in_the_blob(
    limit: str, stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, artifact, run = compiled(product("Mul"), tmp_path, "openvino", blob_limit=limit)

    assert bool(artifact.files) == stored
    expected = original(product("Mul"), INPUT)["y"]
    np.testing.assert_allclose(run(INPUT)["y"], expected, rtol=1e-4, atol=1e-4)
    if stored:
        assert len(artifact.files["region.blob"]) > WEIGHT.nbytes
        assert artifact.metadata["note"].endswith("since OpenVINO changed them when it compiled")
        same(load_without_compiling(made, artifact, monkeypatch)(INPUT), run(INPUT))


def test_a_bundle_has_its_weights_once_in_a_folder_packed_and_linked(tmp_path: Path) -> None:
    onnx.save(product(), tmp_path / "m.onnx", save_as_external_data=True, location="data.bin")
    plans = {
        "a.byoc": {},
        "p.byoc.zip": {},
        "linked.byoc": {"weights": "link"},
        "referring.byoc": {"weights": "reference"},
    }
    expected = original(product(), INPUT)
    for name, options in plans.items():
        given: Any = options
        made = byoc.partition(
            tmp_path / "m.onnx",
            rules="openvino-cpu",
            output=tmp_path / name,
            strategy="all-supported",
            **given,
        )
        (region,) = byoc.open_bundle(tmp_path / name).manifest.regions
        assert region.artifact_metadata["weights_file"].endswith(".bin")
        assert made.verification is not None
        assert made.verification.passed
        found = byoc.load(tmp_path / name)(INPUT)["y"]
        np.testing.assert_allclose(found, expected["y"], rtol=1e-4, atol=1e-4)
    size = sum(path.stat().st_size for path in (tmp_path / "a.byoc").rglob("*") if path.is_file())
    assert size < 1.02 * (WEIGHT.nbytes + SCALE.nbytes)


def test_changed_weights_of_a_bundle_are_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "m.byoc"
    byoc.partition(product(), rules="openvino-cpu", output=folder, strategy="all-supported")
    weights = folder / "weights.bin"
    content = bytearray(weights.read_bytes())
    content[1000] ^= 1
    weights.write_bytes(content)

    with pytest.raises(InputError, match=r"^[^\n]*weights\.bin[^\n]*$"):
        byoc.load(folder)
