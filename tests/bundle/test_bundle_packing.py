"""Packing of bundles function by function: entries, limits on both sides, what is written and when."""

import io
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import vendors
from helpers.cutting import CHAIN, files

from byoc.bundle import MANIFEST_FILE, open_bundle, pack_folder
from byoc.bundle._manifest import FileEntry
from byoc.bundle._packing import (
    _check_sizes,
    _read_packed_manifest,
    _zip_entries,
    check_packed_files,
    list_packed_files,
    unpack_bundle,
)
from byoc.errors import InputError


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_once: Callable[..., Path]) -> Path:
    vendors.install(monkeypatch, tables=vendors.Tables)
    return cut_once(CHAIN, tmp_path / "b", codegen="tables")


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
        set(open_bundle(bundle).manifest.files),
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


def test_a_bundle_is_unpacked_as_it_was_with_its_signature_or_without(
    bundle: Path, tmp_path: Path
) -> None:
    for number, name in enumerate(("signature.json", "")):
        if not name:
            (bundle / "signature.json").unlink()
        zipped, folder = tmp_path / f"{number}.zip", tmp_path / str(number)
        pack_folder(bundle, open_bundle(bundle).manifest.files, zipped)
        folder.mkdir()
        assert unpack_bundle(zipped, folder) == open_bundle(bundle).manifest
        assert files(folder) == files(bundle)
        assert (folder / "signature.json").exists() == bool(name)


def test_sizes_are_looked_at_before_the_first_file_is_written(bundle: Path, tmp_path: Path) -> None:
    listed = open_bundle(bundle).manifest.files
    for name in sorted(listed):
        content = (bundle / name).read_bytes()
        (bundle / name).write_bytes(content + b"x")
        pack_folder(bundle, listed, tmp_path / "b.zip")
        (bundle / name).write_bytes(content)
        folder = tmp_path / name.replace("/", "-")
        folder.mkdir()
        with pytest.raises(InputError, match=r"is not as it was written: its size differs$"):
            unpack_bundle(tmp_path / "b.zip", folder)
        assert list(folder.iterdir()) == []


def test_a_zip_has_at_most_200_000_files(tmp_path: Path) -> None:
    path = tmp_path / "z"
    path.touch()
    for count, sentence in ((200_000, "the file 'a' stands in it twice"), (200_001, "not a bundle: it")):
        archive: Any = SimpleNamespace(infolist=lambda: [zipfile.ZipInfo("a")] * count)  # noqa: B023
        with pytest.raises(InputError) as caught:
            _zip_entries(archive, path)
        assert str(caught.value).startswith(f"{path}: {sentence}")
    assert str(caught.value).endswith(" holds more than 200000 files")


@pytest.mark.parametrize(
    ("size", "packed", "fits"),
    [
        (1 << 20, 1, True),  # a small one may be packed as well as it can be
        ((1 << 20) + 1, 1, False),
        (100 << 20, 1 << 20, True),
        ((100 << 20) + 1, 1 << 20, False),
    ],
)
def test_a_manifest_may_be_small_or_a_hundred_times_as_large_as_packed(
    size: int, packed: int, fits: bool
) -> None:
    info = zipfile.ZipInfo(MANIFEST_FILE)
    info.file_size, info.compress_size = size, packed
    archive: Any = SimpleNamespace(open=lambda info: io.BytesIO(b"{}"))
    if fits:
        assert _read_packed_manifest(archive, {MANIFEST_FILE: info}, Path("z")) == b"{}"
        return
    with pytest.raises(InputError) as caught:
        _read_packed_manifest(archive, {MANIFEST_FILE: info}, Path("z"))
    assert str(caught.value) == (
        f"z: {packed} bytes of the manifest.json would unpack to {size}, over 100 times as many"
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError(28, "No space left on device"), "No space left on device"), (OSError("odd"), "odd")],
)
def test_a_file_that_cannot_be_unpacked_is_named(
    error: OSError, reason: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_folder(bundle, open_bundle(bundle).manifest.files, tmp_path / "b.zip")

    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("byoc.bundle._packing.copy_and_hash", fail)
    (tmp_path / "into").mkdir()
    with pytest.raises(InputError) as caught:
        unpack_bundle(tmp_path / "b.zip", tmp_path / "into")
    first = min(open_bundle(bundle).manifest.files)
    assert str(caught.value) == f"{tmp_path / 'b.zip'}: '{first}' cannot be unpacked: {reason}"


def test_a_packed_bundle_is_checked_where_it_is(bundle: Path, tmp_path: Path) -> None:
    listed = open_bundle(bundle).manifest.files
    zipped = tmp_path / "b.zip"
    pack_folder(bundle, listed, zipped)
    check_packed_files(zipped)
    for name in listed:
        pack_folder(bundle, listed.keys() - {name}, zipped)
        with pytest.raises(InputError) as caught:
            check_packed_files(zipped)
        assert str(caught.value) == f"{zipped}: the file '{name}' of the bundle is missing"
        content = (bundle / name).read_bytes()
        (bundle / name).write_bytes(content + b"x")
        pack_folder(bundle, listed, zipped)
        (bundle / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            check_packed_files(zipped)
        sentence = f"the file '{name}' is not as it was written: its size differs"
        assert str(caught.value) == f"{zipped}: {sentence}"
