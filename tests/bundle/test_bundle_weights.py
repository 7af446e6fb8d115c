"""Weights in files beside the model: copied into the bundle, linked into it, or referred to."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import Ran, parse
from onnx import numpy_helper

import byoc
from byoc.bundle import open_bundle
from byoc.errors import InputError
from byoc.quantization import Precision
from byoc.runtime import Session

RULES = """target: npu
cost_model: openvino-cpu
codegen: CODEGEN
dtype: any
ops: [{op: MatMul}, {op: Add}]
"""
NET = """g (float[n, 64] x) => (float[n, 64] y) {
    a = MatMul(x, v)
    b = Relu(a)
    c = MatMul(b, w)
    y = Add(c, x)
}"""


def save_model(folder: Path, text: str = NET, *, beside: bool = True) -> Path:
    """Save a model of two weights of 16 KiB, by default in a file beside it."""
    model = parse(text)
    model.graph.initializer.append(numpy_helper.from_array(np.float32(2), "two"))
    for seed, name in enumerate(("v", "w")):
        weights = np.random.default_rng(seed).standard_normal((64, 64), np.float32) / 8
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "net.onnx"
    onnx.save(model, path, save_as_external_data=beside, location="net.data", size_threshold=1024)
    return path


def write(model: Path, output: Path, codegen: str = "reference", **options: Any) -> byoc.Result:
    rules = output.parent / "npu.yaml"
    rules.write_text(RULES.replace("CODEGEN", codegen))
    return byoc.partition(model, rules, output=output, strategy="all-supported", **options)


def compute(bundle: Path) -> Any:
    session = byoc.load(bundle)
    assert isinstance(session, Session)
    return session({"x": np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)})["y"]


def list_sizes(bundle: Path) -> Mapping[str, int]:
    return {path.name: path.stat().st_size for path in bundle.iterdir() if path.is_file()}


@pytest.mark.parametrize("codegen", ["reference", "openvino", "c"])
@pytest.mark.parametrize("sharing", ["link", "reference"])
def test_a_bundle_that_shares_weights_computes_what_a_copy_does(
    sharing: Any, codegen: str, tmp_path: Path
) -> None:
    pytest.importorskip({"reference": "onnxruntime", "c": "emx_onnx_cgen"}.get(codegen, codegen))
    model = save_model(tmp_path / "model")
    fixed = {"n": 2}
    copy = write(model, tmp_path / "copy", codegen, dims=fixed)
    shared = write(model, tmp_path / "shared", codegen, dims=fixed, weights=sharing)
    assert copy.verification is not None
    assert shared.verification is not None
    assert shared.verification.passed
    np.testing.assert_array_equal(compute(tmp_path / "shared"), compute(tmp_path / "copy"))
    assert byoc.verify(tmp_path / "shared", model).passed
    assert list_sizes(tmp_path / "copy")["weights.bin"] == 2 * 64 * 64 * 4
    assert list_sizes(tmp_path / "shared")["weights.bin"] == 0


def test_a_link_takes_no_room_and_has_a_hash(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    result = write(model, tmp_path / "b", weights="link")
    linked = tmp_path / "b" / "original_weights_1.bin"
    assert linked.read_bytes() == (tmp_path / "model" / "net.data").read_bytes()
    assert "original_weights_1.bin" in open_bundle(tmp_path / "b").manifest.files
    told = " ".join(map(str, result.plan.notes))
    if linked.stat().st_nlink > 1:
        assert "is linked into the bundle: onnx.load refuses a file with several hard links" in told
    else:
        assert "shares the blocks of" in told
    with linked.open("r+b") as file:  # where there is a hard link, it is the user's file as well
        file.write(b"1")
    with pytest.raises(InputError, match=r"original_weights_1\.bin' is not as it was written: its hash"):
        byoc.load(tmp_path / "b")


def test_a_file_with_another_hard_link_that_shares_blocks_is_no_hard_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_model(tmp_path / "model")
    (tmp_path / "elsewhere.data").hardlink_to(tmp_path / "model" / "net.data")

    def clone(source: Path, target: Path) -> bool:  # as a file system with reflinks does
        shutil.copyfile(source, target)
        return True

    monkeypatch.setattr("byoc.bundle._original_weights.clone_file", clone)
    notes = " ".join(map(str, write(model, tmp_path / "b", weights="link").plan.notes))
    assert "shares the blocks of" in notes
    assert "hard links" not in notes


def test_a_reference_is_followed_where_both_were_moved_together(tmp_path: Path) -> None:
    model = save_model(tmp_path / "project" / "models")
    (tmp_path / "project" / "out").mkdir()
    write(model, tmp_path / "project" / "out" / "b", weights="reference")
    expected = compute(tmp_path / "project" / "out" / "b")
    manifest = json.loads((tmp_path / "project" / "out" / "b" / "manifest.json").read_text())
    (entry,) = manifest["references"].values()
    assert entry["path"] == "../../models/net.data"
    assert sum(list_sizes(tmp_path / "project" / "out" / "b").values()) < 2 * 64 * 64 * 4
    shutil.move(tmp_path / "project", tmp_path / "elsewhere")
    bundle = tmp_path / "elsewhere" / "out" / "b"
    np.testing.assert_array_equal(compute(bundle), expected)
    opened = open_bundle(bundle)
    folder = opened.folder
    assert folder != bundle
    assert (folder / "original_weights_1.bin").is_file()
    del opened
    assert not folder.exists()
    assert {each.name for each in bundle.parent.iterdir()} == {"b", "npu.yaml"}


def test_a_file_that_moved_or_changed_is_told_in_a_sentence(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    write(model, tmp_path / "b", weights="reference")
    data = tmp_path / "model" / "net.data"
    what = "b: the weights that it refers to, '../model/net.data', are not"
    content = data.read_bytes()
    for changed, reason in (
        (content + b"1", "as they were when the bundle was written: the size differs"),
        (b"1" + content[1:], "as they were when the bundle was written: the hash differs"),
        (None, "there: the file was moved or removed"),
    ):
        data.unlink()
        if changed is not None:
            data.write_bytes(changed)
        with pytest.raises(InputError) as caught:
            byoc.load(tmp_path / "b")
        assert str(caught.value).endswith(f"{what} {reason}")
        data.write_bytes(content)
    compute(tmp_path / "b")


def test_what_byoc_changes_is_in_the_bundle(tmp_path: Path) -> None:
    """The pass scales `w`, and has both weights in memory; `v` is found by its bytes."""
    scaled = NET.replace("MatMul(b, w)", "Gemm(b, w)").replace("Add(c, x)", "Mul(c, two)")
    model = save_model(tmp_path / "model", scaled)
    content = (tmp_path / "model" / "net.data").read_bytes()
    result = write(model, tmp_path / "b", weights="link", passes="fold-scales")
    assert (tmp_path / "b" / "weights.bin").read_bytes() == (
        np.frombuffer(content[1 << 14 :], np.float32) * 2
    ).tobytes()
    stored = onnx.load(tmp_path / "b" / "model.onnx", load_external_data=False).graph.initializer
    places = {tensor.name: tensor.external_data[0].value for tensor in stored if tensor.external_data}
    assert sorted(places.values()) == ["original_weights_1.bin", "weights.bin"]
    assert result.verification is not None
    assert result.verification.passed

    model = save_model(tmp_path / "other")
    half = write(model, tmp_path / "half", weights="reference", precision=Precision("float16"))
    assert any("are all changed, so they are copied" in str(note) for note in half.plan.notes)


def test_what_is_in_the_model_is_copied(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", beside=False)
    result = write(model, tmp_path / "b", weights="link")
    assert list_sizes(tmp_path / "b")["weights.bin"] == 2 * 64 * 64 * 4
    assert any("weights are not in files beside the model" in str(n) for n in result.plan.notes)


def test_what_cannot_be_shared_is_refused(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model")
    for options, reason in (
        ({"weights": "link", "name": "b.zip"}, "--weights link: a packed bundle holds its weights"),
        ({"weights": "reference", "emit": "epcontext"}, "--weights reference: applications load"),
    ):
        given: dict[str, Any] = dict(options)
        output = tmp_path / given.pop("name", "b")
        with pytest.raises(InputError, match=reason):
            write(model, output, **given)
        assert not output.exists()
    with pytest.raises(InputError, match=r"--weights link is about the bundle: say where .* \(-o\)"):
        byoc.partition(model, tmp_path / "npu.yaml", weights="link")


def test_a_file_on_another_file_system_is_not_linked(tmp_path: Path, other_folder: Path) -> None:
    model = save_model(other_folder)
    with pytest.raises(InputError, match="it is on another file system than the bundle"):
        write(model, tmp_path / "b", weights="link")
    assert not (tmp_path / "b").exists()
    write(model, tmp_path / "b", weights="reference")
    compute(tmp_path / "b")
    (entry,) = open_bundle(tmp_path / "b").manifest.references.values()
    assert Path(entry.path).is_absolute()


@pytest.fixture
def other_folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder on another file system than `tmp_path`; skips where there is none."""
    here = tmp_path.stat().st_dev
    for place in (Path("/dev/shm"), Path("/tmp"), Path.cwd()):
        if place.is_dir() and os.access(place, os.W_OK) and place.stat().st_dev != here:
            folder = place / f"byoc-{os.getpid()}-{tmp_path.name}"
            folder.mkdir()
            yield folder
            shutil.rmtree(folder)
            return
    pytest.skip("there is one file system only")


@pytest.mark.parametrize(
    ("name", "path", "reason"),
    [
        ("original_weights_1.bin", "/dev/zero", "are not there"),
        ("original_weights_1.bin", "..", "are not there"),
        ("original_weights_1.bin", "x\0", "cannot be read: no file can have this name"),
        ("original_weights_1.bin", "n" * 4000, "(cannot be read|are not there)"),
        ("original_weights_1.bin", "", r"not a manifest: references\.original_weights_1\.bin\.path"),
        ("../x", "../model/net.data", "the file '../x' is not inside the bundle"),
        ("model.onnx", "../model/net.data", "'model.onnx' is both in the bundle and outside of it"),
        ("MODEL.onnx", "../model/net.data", "cannot be two files on every system"),
        ("manifest.json", "../model/net.data", "is the manifest itself"),
        ("other.bin", "../model/net.data", "the file 'original_weights_1.bin' has no hash"),
    ],
)
def test_a_reference_that_someone_changed_is_refused(
    name: str, path: str, reason: str, tmp_path: Path, shared_once: Path
) -> None:
    shutil.copytree(shared_once, tmp_path / "all")
    manifest = tmp_path / "all" / "b" / "manifest.json"
    content = json.loads(manifest.read_text())
    (entry,) = content["references"].values()
    content["references"] = {name: {**entry, "path": path}}
    manifest.write_text(json.dumps(content))
    with pytest.raises(InputError, match=reason):
        byoc.load(tmp_path / "all" / "b", trust=True)


@pytest.mark.parametrize("path", ["../model/net.data", "../model/gone.data", "../model"])
def test_a_strangers_reference_is_not_looked_at(
    path: str,
    tmp_path: Path,
    shared_once: Path,
    byoc: Callable[..., Ran],
) -> None:
    """Else each of the three paths, a file, none and a folder, would have a sentence of its own."""
    shutil.copytree(shared_once, tmp_path / "all")
    bundle = tmp_path / "all" / "b"
    content = json.loads((bundle / "manifest.json").read_text())
    for entry in content["references"].values():
        entry["path"] = path
    (bundle / "manifest.json").write_text(json.dumps(content))
    sentence = f"refers to weights outside of it, '{path}', which are not looked at: "
    page = tmp_path / "r.html"
    for verb in (["inspect"], ["report", "-o", page], ["run", "--inputs", "random"], ["verify"]):
        ran = byoc(verb[0], bundle, *verb[1:])
        assert (ran.code, ran.err.count("\n")) == (1, 1)
        assert sentence in ran.err
        assert ran.err.endswith("give --trust (in Python trust=True)\n")  # there is no key to trust
    ran = byoc("trust", bundle)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "there is no key to trust" in ran.err
    packed, compared = byoc("pack", bundle, "-o", tmp_path / "b.zip"), byoc("diff", bundle, bundle)
    assert (packed.code, "which a packed bundle cannot" in packed.err) == (1, True)
    assert compared.code == 0
    assert "--trust" not in packed.err + compared.err  # which the two do not have


def test_a_strangers_reference_is_looked_at_with_trust(
    tmp_path: Path, shared_once: Path, byoc: Callable[..., Ran]
) -> None:
    shutil.copytree(shared_once, tmp_path / "all")
    bundle = tmp_path / "all" / "b"
    (bundle / "signature.json").unlink()
    manifest = bundle / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")  # this process trusts what it wrote
    assert byoc("inspect", bundle).code == 1
    for verb in (["inspect"], ["report", "-o", tmp_path / "r.html"], ["run", "--inputs", "random"]):
        assert byoc(verb[0], bundle, *verb[1:], "--trust").code == 0


@pytest.fixture(scope="module")
def shared_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle `b` that refers to the weights of a model beside it; not to be changed."""
    folder = tmp_path_factory.mktemp("shared")
    model = save_model(folder / "model")
    write(model, folder / "b", weights="reference", verify=False, dims={"n": 2})
    return folder


def test_a_reference_is_not_packed_and_is_exported(shared_once: Path, tmp_path: Path, byoc: Any) -> None:
    ran = byoc("pack", shared_once / "b", "-o", tmp_path / "b.zip")
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "refers to files outside of it, which a packed bundle cannot" in ran.err
    ran = byoc("inspect", shared_once / "b")
    assert "../model/net.data" in ran.out
    ran = byoc("run", shared_once / "b", "--inputs", "random")
    assert ran.code == 0
    pytest.importorskip("emx_onnx_cgen")
    ran = byoc("export-c", shared_once / "b", "-o", tmp_path / "program")
    assert ran.code == 0
    assert (tmp_path / "program" / "weights.bin").stat().st_size > 2 * 64 * 64 * 4
