"""Packing and reading of bundles function by function: entries, limits, what is written and when."""

import hashlib
import io
import json
import os
import shutil
import stat
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import vendors
from helpers.cutting import CHAIN, files
from pydantic import ValidationError

from byoc.bundle import (
    MANIFEST_FILE,
    Bundle,
    Consent,
    inspect,
    open_bundle,
    pack_folder,
)
from byoc.bundle._manifest import FileEntry, TypeEntry, copy_and_hash
from byoc.bundle._manifest_reading import check_file_entry, list_files, parse_manifest, resolve_inside
from byoc.bundle._packing import (
    NO_CONSENT,
    _check_sizes,
    _read_packed_manifest,
    _zip_entries,
    check_packed_files,
    list_packed_files,
    unpack_bundle,
)
from byoc.bundle._reading import _close
from byoc.errors import InputError
from byoc.rules import ArithmeticContract


@pytest.fixture
def packable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_once: Callable[..., Path]) -> Path:
    vendors.install(monkeypatch, tables=vendors.Tables)
    return cut_once(CHAIN, tmp_path / "b", codegen="tables")


def test_packed_files_have_one_time_and_plain_permissions(packable: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "b.zip"
    (packable / "weights.bin").chmod(0o777)
    names = ["manifest.json", "model.onnx", "signature.json", "weights.bin"]
    pack_folder(packable, ["weights.bin", "model.onnx"], zipped)
    with zipfile.ZipFile(zipped) as archive:
        infos = archive.infolist()
        assert [info.filename for info in infos] == names
        assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in infos} == {stat.S_IFREG | 0o644}
        assert {(info.create_system, info.compress_type) for info in infos} == {(3, 0)}
        assert archive.read("model.onnx") == (packable / "model.onnx").read_bytes()
    listed = list_packed_files(zipped)
    assert listed == (
        set(open_bundle(packable).manifest.files),
        set(names),
    )
    assert list_packed_files(packable / "model.onnx") is None
    with pytest.raises(InputError) as caught:
        pack_folder(packable, ["gone"], tmp_path / "c.zip")
    assert str(caught.value) == f"{packable}: the file 'gone' cannot be read: No such file or directory"


def test_a_zip_may_unpack_to_a_hundred_times_its_size_and_to_all_that_is_free(
    packable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "p"
    packed.write_bytes(bytes(10))
    manifest = open_bundle(packable).manifest
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


def test_a_file_of_a_zip_is_held_to_its_hash(packable: Path, tmp_path: Path) -> None:
    files = open_bundle(packable).manifest.files
    path = packable / "model.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    pack_folder(packable, files, tmp_path / "b.zip")
    folder = tmp_path / "into"
    folder.mkdir()
    with pytest.raises(InputError, match="its hash differs"):
        unpack_bundle(tmp_path / "b.zip", folder)
    assert not (folder / MANIFEST_FILE).exists()


def test_a_bundle_is_unpacked_as_it_was_with_its_signature_or_without(
    packable: Path, tmp_path: Path
) -> None:
    for number, name in enumerate(("signature.json", "")):
        if not name:
            (packable / "signature.json").unlink()
        zipped, folder = tmp_path / f"{number}.zip", tmp_path / str(number)
        pack_folder(packable, open_bundle(packable).manifest.files, zipped)
        folder.mkdir()
        assert unpack_bundle(zipped, folder) == open_bundle(packable).manifest
        assert files(folder) == files(packable)
        assert (folder / "signature.json").exists() == bool(name)


def test_sizes_are_looked_at_before_the_first_file_is_written(packable: Path, tmp_path: Path) -> None:
    listed = open_bundle(packable).manifest.files
    for name in sorted(listed):
        content = (packable / name).read_bytes()
        (packable / name).write_bytes(content + b"x")
        pack_folder(packable, listed, tmp_path / "b.zip")
        (packable / name).write_bytes(content)
        folder = tmp_path / name.replace("/", "-")
        folder.mkdir()
        with pytest.raises(
            InputError,
            match=r"is not as it was written: its size differs; copy the bundle anew$",
        ):
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
    error: OSError, reason: str, packable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack_folder(packable, open_bundle(packable).manifest.files, tmp_path / "b.zip")

    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("byoc.bundle._packing.copy_and_hash", fail)
    (tmp_path / "into").mkdir()
    with pytest.raises(InputError) as caught:
        unpack_bundle(tmp_path / "b.zip", tmp_path / "into")
    first = min(open_bundle(packable).manifest.files)
    assert str(caught.value) == f"{tmp_path / 'b.zip'}: '{first}' cannot be unpacked: {reason}"


def test_a_packed_bundle_is_checked_where_it_is(packable: Path, tmp_path: Path) -> None:
    listed = open_bundle(packable).manifest.files
    zipped = tmp_path / "b.zip"
    pack_folder(packable, listed, zipped)
    check_packed_files(zipped)
    for name in listed:
        pack_folder(packable, listed.keys() - {name}, zipped)
        with pytest.raises(InputError) as caught:
            check_packed_files(zipped)
        assert str(caught.value) == f"{zipped}: the file '{name}' of the bundle is missing"
        content = (packable / name).read_bytes()
        (packable / name).write_bytes(content + b"x")
        pack_folder(packable, listed, zipped)
        (packable / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            check_packed_files(zipped)
        sentence = f"the file '{name}' is not as it was written: its size differs; copy the bundle anew"
        assert str(caught.value) == f"{zipped}: {sentence}"


@pytest.fixture
def bundle(tmp_path: Path, cut_once: Callable[..., Path]) -> Path:
    return cut_once(CHAIN, tmp_path / "b")


@pytest.mark.parametrize(
    ("size", "limit", "written"), [(0, 0, 0), (5, 5, 5), (6, 5, 0), (3 << 19, 1 << 20, 1 << 20)]
)
def test_no_more_is_copied_than_is_allowed(size: int, limit: int, written: int) -> None:
    content, target = bytes(range(256)) * (size // 256 + 1), io.BytesIO()
    entry = copy_and_hash(io.BytesIO(content[:size]), target, limit)
    assert (entry.bytes, entry.sha256) == (size, hashlib.sha256(content[:size]).hexdigest())
    assert target.getvalue() == content[:written]


@pytest.mark.parametrize(
    ("extent", "is_extent"), [(-1, 0), (0, 1), (1, 1), ("n", 1), (None, 1), (True, 0)]
)
def test_an_extent_is_a_number_a_name_or_unknown(extent: object, is_extent: int) -> None:
    text = json.dumps({"dtype": "float32", "shape": [extent]})
    if is_extent:
        assert TypeEntry.model_validate_json(text, strict=True).shape == (extent,)
        return
    with pytest.raises(ValidationError):
        TypeEntry.model_validate_json(text, strict=True)


@pytest.mark.parametrize(("size", "is_size"), [(-1, 0), (0, 1), (2**63 - 1, 1), (2**63, 0)])
def test_a_size_is_a_number_of_63_bits(size: int, is_size: bool) -> None:
    if is_size:
        assert FileEntry(sha256="a" * 64, bytes=size).bytes == size
        return
    with pytest.raises(ValidationError):
        FileEntry(sha256="a" * 64, bytes=size)


def test_files_are_held_to_size_and_hash() -> None:
    right = FileEntry(sha256="a" * 64, bytes=3)
    check_file_entry(Path("b"), "n", right, right)
    for wrong, what in (({"sha256": "b" * 64}, "hash"), ({"bytes": 4}, "size")):
        found = right.model_copy(update=wrong)
        with pytest.raises(InputError) as caught:
            check_file_entry(Path("b"), "n", found, right)
        assert (
            str(caught.value)
            == f"b: the file 'n' is not as it was written: its {what} differs; copy the bundle anew"
        )


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
    assert list_files(lambda _: content.encode()) == found


def test_a_manifest_may_be_as_large_as_the_limit(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (bundle / MANIFEST_FILE).read_bytes()
    monkeypatch.setattr("byoc.bundle._manifest_reading.MAX_MANIFEST_BYTES", len(content))
    assert parse_manifest(content, Path("m")).variants[0].model == "model.onnx"
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


def test_a_manifest_of_before_there_were_contracts_promises_what_onnx_defines(bundle: Path) -> None:
    content = json.loads((bundle / MANIFEST_FILE).read_text())
    del content["arithmetic"]
    manifest = parse_manifest(json.dumps(content).encode(), bundle)
    assert manifest.read_arithmetic("dla") == ArithmeticContract()


def test_a_bundle_is_shown_by_the_path_that_was_given(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    opened = open_bundle("b")
    assert opened.consent == Consent() == NO_CONSENT
    assert open_bundle("b", trust=True, codegens="dla").consent == Consent(True, frozenset({"dla"}))
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


def test_a_folder_is_removed_by_the_process_that_made_it_and_if_it_is_still_there(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = ExitStack()
    stack.callback(shutil.rmtree, bundle, ignore_errors=True)
    _close(stack, os.getpid() + 1)
    assert bundle.exists()
    for _ in range(2):
        _close(stack, os.getpid())
        assert not bundle.exists()

    def lose(path: Path, folder: Path) -> None:
        folder.rmdir()
        raise InputError("the first reason")

    monkeypatch.setattr("byoc.bundle._reading.unpack_bundle", lose)
    (tmp_path / "b.zip").touch()
    with pytest.raises(InputError, match=r"^the first reason$"):
        open_bundle(tmp_path / "b.zip")
