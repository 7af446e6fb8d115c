"""Reading of bundles function by function: limits on both sides, names, formats, identical regions."""

import hashlib
import io
import json
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from cutting import CHAIN, ramp

from byoc.bundle import open_bundle
from byoc.bundle._manifest import (
    MANIFEST_FILE,
    FileEntry,
    check_file_entry,
    copy_and_hash,
    describe_file,
    list_files,
    parse_manifest,
    resolve_inside,
)
from byoc.bundle._packing import (
    _check_sizes,
    _zip_entries,
    is_packed_name,
    list_packed_files,
    pack_folder,
    unpack_bundle,
)
from byoc.bundle._reading import Bundle, inspect, is_bundle
from byoc.errors import InputError


@pytest.fixture
def bundle(tmp_path: Path, cut_once: Callable[..., Path]) -> Path:
    return cut_once(CHAIN, tmp_path / "b")


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_bundle(path)
    return str(caught.value)


def rewrite(bundle: Path, **changes: Any) -> None:
    path = bundle / MANIFEST_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("size", "limit", "written"), [(0, 0, 0), (5, 5, 5), (6, 5, 0), (3 << 19, 1 << 20, 1 << 20)]
)
def test_no_more_is_copied_than_is_allowed(size: int, limit: int, written: int) -> None:
    content, target = bytes(range(256)) * (size // 256 + 1), io.BytesIO()
    entry = copy_and_hash(io.BytesIO(content[:size]), target, limit)
    assert (entry.bytes, entry.sha256) == (size, hashlib.sha256(content[:size]).hexdigest())
    assert target.getvalue() == content[:written]


def test_files_are_held_to_size_and_hash() -> None:
    right = FileEntry(sha256="a" * 64, bytes=3)
    check_file_entry(Path("b"), "n", right, right)
    for wrong, what in (({"sha256": "b" * 64}, "hash"), ({"bytes": 4}, "size")):
        found = right.model_copy(update=wrong)
        with pytest.raises(InputError) as caught:
            check_file_entry(Path("b"), "n", found, right)
        assert str(caught.value) == f"b: the file 'n' is not as it was written: its {what} differs"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ('{"files": {"a": 1, "b/c": 2}, "versions": {"byoc": "0"}}', {"a", "b/c"}),
        ('{"files": {}, "versions": {"byoc": "0"}}', set()),
        ('{"files": {}, "versions": {"byoc": 0}}', None),
        ('{"files": {}, "versions": {"npm": "0"}}', None),
        ('{"versions": {"byoc": "0"}}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_a_manifest_of_byocs_is_told_from_others(content: str, found: set[str] | None) -> None:
    assert list_files(content.encode()) == found


@pytest.mark.parametrize(
    ("format_", "sentence"),
    [
        (2, "format 2 is that of an older byoc: partition the model again"),
        (1, "format 1 is that of an older byoc: partition the model again"),
        (0, "format 0; this version of byoc reads format 3"),
        (-1, "format -1; this version of byoc reads format 3"),
        (4, "format 4 is that of a newer byoc; this one reads format 3"),
        (True, "format True; this version of byoc reads format 3"),
        (3.0, "format 3.0; this version of byoc reads format 3"),
        ("3", "format '3'; this version of byoc reads format 3"),
        (None, "format None; this version of byoc reads format 3"),
    ],
)
def test_other_formats_are_told_apart(format_: object, sentence: str, bundle: Path) -> None:
    rewrite(bundle, format=format_)
    assert refusal(bundle) == f"{bundle / MANIFEST_FILE}: {sentence}"


def test_a_manifest_may_be_as_large_as_the_limit(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (bundle / MANIFEST_FILE).read_bytes()
    monkeypatch.setattr("byoc.bundle._manifest.MAX_MANIFEST_BYTES", len(content))
    assert parse_manifest(content, Path("m")).model == "model.onnx"
    with pytest.raises(InputError) as caught:
        parse_manifest(content + b" ", Path("m"))
    assert str(caught.value) == f"m: not a manifest: it has more than {len(content)} bytes"


def test_paths_are_resolved_inside_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    folder.mkdir()
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "out").symlink_to(tmp_path)
    assert resolve_inside(folder, "a/b") == folder.resolve() / "a" / "b"
    for name in ("../b2", "/etc", "out/c", "a\0b"):
        with pytest.raises(InputError) as caught:
            resolve_inside(folder, name, Path("shown"))
        assert str(caught.value).startswith(f"shown/{MANIFEST_FILE}: the file ")
        assert str(caught.value).endswith(" is not inside the bundle")


def test_what_may_be_a_bundle(bundle: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "b.zip"
    pack_folder(bundle, [], zipped)
    assert is_bundle(bundle)
    assert is_bundle(zipped)
    assert not is_bundle(bundle / "model.onnx")
    assert not is_bundle(tmp_path / "none")
    assert not is_bundle(Path("a\0b"))
    assert [is_packed_name(Path(n)) for n in ("m.byoc.zip", "m.ZIP", "m.zip.byoc", "zip")] == [
        True,
        True,
        False,
        False,
    ]


def test_identical_regions_are_an_earlier_one_of_the_same_target_and_codegen(bundle: Path) -> None:
    opened = open_bundle(bundle)
    assert dict(opened.identical_regions) == {"dla_1": "dla_0"}
    (_, one, artifact), (_, other, shared) = opened.regions()
    assert (one.name, other.name, shared is artifact) == ("dla_0", "dla_1", True)
    first, second = opened.manifest.regions
    sentence = f"{bundle / MANIFEST_FILE}: regions: dla_1: it is not the same as 'dla_0'"
    for change in ({"target": "other"}, {"codegen": "other"}):
        changed = second.model_copy(update=change)
        manifest = opened.manifest.model_copy(update={"regions": (first, changed)})
        with pytest.raises(InputError) as caught:
            Bundle(bundle, manifest).identical_regions  # noqa: B018
        assert str(caught.value) == sentence
    manifest = opened.manifest.model_copy(update={"regions": (second, first)})  # of a later one
    with pytest.raises(InputError) as caught:
        Bundle(bundle, manifest).identical_regions  # noqa: B018
    assert str(caught.value) == sentence


def test_a_region_that_is_not_the_same_as_it_says(bundle: Path) -> None:
    path = bundle / "dla_1.onnx"
    model = onnx.load(path)
    model.graph.node[0].op_type = "Neg"
    onnx.save(model, path)
    manifest = json.loads((bundle / MANIFEST_FILE).read_text())
    rewrite(bundle, files=manifest["files"] | {"dla_1.onnx": describe_file(path).model_dump()})
    opened = open_bundle(bundle)
    with pytest.raises(InputError) as caught:
        opened.regions()
    assert str(caught.value) == (
        f"{bundle / MANIFEST_FILE}: regions: dla_1: it is not the same as 'dla_0'"
    )


def test_a_bundle_is_shown_by_the_path_that_was_given(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = open_bundle("b")
    assert (opened.display_path, opened.folder, opened.packed) == (Path("b"), bundle, None)
    assert Bundle(bundle, opened.manifest).display_path == bundle
    zipped = tmp_path / "b.zip"
    pack_folder(bundle, opened.manifest.files, zipped)
    packed = open_bundle(zipped)
    assert (packed.display_path, packed.packed) == (zipped, zipped)
    assert packed.folder != bundle
    shown = inspect(bundle)
    assert inspect(zipped) == shown
    assert shown.pop("trust")["trusted"] is True
    assert shown == opened.manifest.model_dump(mode="json")
    folder = packed.folder
    assert (folder / "model.onnx").read_bytes() == (bundle / "model.onnx").read_bytes()
    del packed
    assert not folder.exists()


def test_what_cannot_be_opened_leaves_no_folder_behind(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped = tmp_path / "b.zip"
    pack_folder(bundle, [], zipped)  # without the files
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(made))
    assert refusal(zipped).endswith("of the bundle is missing")
    assert list(made.iterdir()) == []


def test_packed_files_have_one_time_and_plain_permissions(bundle: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "b.zip"
    (bundle / "weights.bin").chmod(0o777)
    names = ["manifest.json", "model.onnx", "signature.json", "weights.bin"]
    pack_folder(bundle, ["weights.bin", "model.onnx"], zipped)
    with zipfile.ZipFile(zipped) as archive:
        infos = archive.infolist()
        assert [info.filename for info in infos] == names
        assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in infos} == {stat.S_IFREG | 0o644}
        assert {(info.create_system, info.compress_type) for info in infos} == {(3, 0)}
        assert archive.read("model.onnx") == (bundle / "model.onnx").read_bytes()
    listed = list_packed_files(zipped)
    assert listed == (
        (bundle / MANIFEST_FILE).read_bytes(),
        set(names),
    )
    assert list_packed_files(bundle / "model.onnx") is None
    with pytest.raises(InputError) as caught:
        pack_folder(bundle, ["gone"], tmp_path / "c.zip")
    assert str(caught.value) == f"{bundle}: the file 'gone' cannot be read: No such file or directory"


def test_a_zip_may_unpack_to_a_hundred_times_its_size_and_to_all_that_is_free(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "p"
    packed.write_bytes(bytes(10))
    manifest = open_bundle(bundle).manifest
    for size, free, sentence in (
        (1000, 1000, ""),
        (1001, 5000, "its 10 bytes would unpack to 1001, over 100 times as many"),
        (1000, 999, f"its 1000 bytes do not fit into '{tmp_path}', where 999 are free"),
    ):
        files = {"f": FileEntry(sha256="a" * 64, bytes=size)}
        entries = {"f": zipfile.ZipInfo("f")}
        entries["f"].file_size = size
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr("shutil.disk_usage", lambda folder, usage=usage: usage)
        changed = manifest.model_copy(update={"files": files})
        if not sentence:
            _check_sizes(changed, entries, packed, tmp_path)
            continue
        with pytest.raises(InputError) as caught:
            _check_sizes(changed, entries, packed, tmp_path)
        assert str(caught.value) == f"{packed}: {sentence}"


def test_entries_together_may_be_as_large_as_the_zip(tmp_path: Path) -> None:
    path = tmp_path / "z"
    path.write_bytes(bytes(10))
    info, folder = zipfile.ZipInfo("a"), zipfile.ZipInfo("d/")
    for size in (9, 10):
        info.compress_size = size
        archive: Any = SimpleNamespace(infolist=lambda: [info, folder])
        assert list(_zip_entries(archive, path)) == ["a"]
    info.compress_size = 11
    with pytest.raises(InputError, match="its files are larger than it is"):
        _zip_entries(archive, path)


def test_a_file_of_a_zip_is_held_to_its_hash(bundle: Path, tmp_path: Path) -> None:
    files = open_bundle(bundle).manifest.files
    path = bundle / "model.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    pack_folder(bundle, files, tmp_path / "b.zip")
    folder = tmp_path / "into"
    folder.mkdir()
    with pytest.raises(InputError, match="its hash differs"):
        unpack_bundle(tmp_path / "b.zip", folder)
    assert not (folder / MANIFEST_FILE).exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read(bundle: Path) -> None:
    (bundle / "model.onnx").chmod(0)
    assert refusal(bundle) == f"{bundle}: the file 'model.onnx' cannot be read: Permission denied"


def test_weights_beside_the_model_are_found_by_their_hash(bundle: Path) -> None:
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    tensor = onnx.numpy_helper.from_array(ramp(2), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="location", value="weights.bin")
    model.graph.initializer.append(tensor)
    onnx.save(model, bundle / "model.onnx")
    files = json.loads((bundle / MANIFEST_FILE).read_text())["files"]
    (bundle / "weights.bin").write_bytes(ramp(2).tobytes())
    for name in ("model.onnx", "weights.bin"):
        files[name] = describe_file(bundle / name).model_dump()
    rewrite(bundle, files=files)
    assert open_bundle(bundle).model().graph.initializer[-1].name == "w"
