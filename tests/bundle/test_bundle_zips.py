"""A zip that lies is refused in one sentence, and nothing of it is written anywhere."""

import json
import shutil
import stat
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.cutting import UNLIKE, cut, files, ramp
from helpers.support import Ran, examples, parse
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.bundle import MANIFEST_FILE, open_bundle
from byoc.codegen import quote_name
from byoc.errors import InputError
from byoc.runtime import load

Content = dict[str, bytes]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed bundle; not to be changed."""
    path = tmp_path_factory.mktemp("made") / "b.zip"
    cut(parse(UNLIKE), path, sign=False)
    return path


@pytest.fixture
def content(made: Path) -> Content:
    with zipfile.ZipFile(made) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a zip is to be written; nothing else may be there in the end."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    yield tmp_path / "z.zip"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["temporary", "z.zip"]


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_bundle(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}") and len(sentence.splitlines()) == 1
    return sentence.removeprefix(str(path)).removeprefix(": ")


def write(path: Path, content: Content, **options: Any) -> None:
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(name), data, archive.compression)


def listed(content: Content, name: str, **entry: Any) -> None:
    """Change what the manifest says of a file."""
    manifest = json.loads(content[MANIFEST_FILE])
    manifest["files"].setdefault(name, {"sha256": "0" * 64, "bytes": 0}).update(entry)
    content[MANIFEST_FILE] = json.dumps(manifest).encode()


def test_the_command_line_leaves_with_1(path: Path, content: Content, byoc: Callable[..., Ran]) -> None:
    content["../../slipped"] = b"x"
    write(path, content)
    for verb in ("inspect", "verify"):
        ran = byoc(verb, path)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == f"byoc: {path}: the file '../../slipped' is not inside the bundle\n"
    assert not (path.parents[2] / "slipped").exists()


SLIPS = ["../x", "/x", "a/../../x", "..", "C:\\x", "c:x", "..\\x", "\\x", "/x/"]


@pytest.mark.parametrize("name", SLIPS)
@pytest.mark.parametrize("also_listed", [False, True])
def test_names_that_lead_out(name: str, also_listed: bool, path: Path, content: Content) -> None:
    content[name] = b"x"
    if also_listed:
        listed(content, name, bytes=1)
    write(path, content)
    assert refused(path) == f"the file {quote_name(name)} is not inside the bundle"


@pytest.mark.parametrize("name", ["./x", "a//x", "a\\b", "a\nb", "x.", "com1", "a/b:c", "a\x1b[2J", "/"])
def test_names_that_are_not_plain(name: str, path: Path, content: Content) -> None:
    content[name] = b"x"
    write(path, content)
    assert refused(path) == f"the file {quote_name(name)} does not have a plain name"


def test_a_name_cut_short_by_a_nul(path: Path, content: Content) -> None:
    write(path, {**content, "modelQonnx": b"x"})
    path.write_bytes(path.read_bytes().replace(b"modelQonnx", b"model\0onnx"))
    assert refused(path) == r"the file 'model\x00onnx' does not have a plain name"


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_links_and_devices(kind: int, path: Path, content: Content) -> None:
    info = zipfile.ZipInfo("weights.bin")
    info.external_attr = (kind | 0o777) << 16
    del content["weights.bin"]
    write(path, content)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(info, b"/etc/passwd")
    assert refused(path) == "the file 'weights.bin' is a link or a device"


@pytest.mark.parametrize("name", ["model.onnx", MANIFEST_FILE, "notes.txt"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_stands_twice(name: str, path: Path, content: Content) -> None:
    write(path, {"notes.txt": b"", **content})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, content.get(name, b""))
    assert refused(path) == f"the file '{name}' stands in it twice"


def test_an_encrypted_file(path: Path, content: Content) -> None:
    write(path, content)
    data = bytearray(path.read_bytes())
    at = data.rfind(b"PK\x01\x02")  # the entry of the last file in the table
    data[at + 8] |= 1
    path.write_bytes(data)
    assert refused(path) == "the file 'weights.bin' is encrypted"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_another_compression(method: int, path: Path, content: Content) -> None:
    write(path, content, compression=method)
    assert refused(path) == f"the file '{next(iter(content))}' is compressed in a way that is not read"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("name", ["model.onnx", "dla_0.onnx", "dla_1.onnx"])
def test_files_that_are_not_as_they_were(name: str, method: int, path: Path, content: Content) -> None:
    data = content[name]
    for changed, what in ((bytes([data[0] ^ 1]) + data[1:], "hash"), (data + b"\0", "size")):
        write(path, {**content, name: changed}, compression=method)
        assert (
            refused(path)
            == f"the file '{name}' is not as it was written: its {what} differs; copy the bundle anew"
        )
    del content[name]
    write(path, content)
    assert refused(path) == f"the file '{name}' of the bundle is missing"


def test_what_holds_no_manifest(made: Path, path: Path, content: Content) -> None:
    for inner in ({"b.zip": made.read_bytes()}, {}, {f"m/{n}": data for n, data in content.items()}):
        write(path, inner)
        assert refused(path) == "not a bundle: it holds no manifest.json"


def test_a_folder_that_is_called_manifest(path: Path, content: Content) -> None:
    del content[MANIFEST_FILE]
    write(path, content)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{MANIFEST_FILE}/", b"")
    assert refused(path) == "not a bundle: it holds no manifest.json"


@pytest.mark.parametrize("data", [b"", b"P", b"a diary", b"\x7fELF" * 100])
def test_what_is_no_zip(data: bytes, path: Path) -> None:
    path.write_bytes(data)
    assert refused(path).startswith(
        "not a bundle: neither a folder nor a zip; `byoc partition` makes one"
    )


def test_one_that_is_cut_short(made: Path, path: Path) -> None:
    data = made.read_bytes()
    for length in (4, 100, len(data) // 2, len(data) - 30, len(data) - 1):
        path.write_bytes(data[:length])
        assert refused(path).startswith("a zip that is damaged or cut short: ")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "not a manifest: Expecting value"),
        (b'{"format": 2}', "format 2 is that of an older byoc: partition the model again"),
        (b"[" * 100_000, "not a manifest: it is nested too deep"),
    ],
)
def test_its_manifest_is_read_as_in_a_folder(
    text: bytes, told: str, path: Path, content: Content
) -> None:
    write(path, {**content, MANIFEST_FILE: text})
    assert refused(path).startswith(f"/manifest.json: {told}")


def bomb(content: Content, size: int) -> Content:
    """Return a bundle with a file of zeros; its hash is not reached."""
    listed(content, "zeros.bin", bytes=size)
    return {**content, "zeros.bin": bytes(size)}


def test_what_would_unpack_to_far_more_than_it_is(path: Path, content: Content) -> None:
    size = 10_000_000
    write(path, bomb(content, size), compression=zipfile.ZIP_DEFLATED)
    total = size + sum(len(data) for name, data in content.items() if name != MANIFEST_FILE)
    packed = path.stat().st_size
    assert packed < total / 100
    assert refused(path) == f"its {packed} bytes would unpack to {total}, over 100 times as many"


def test_what_does_not_fit(path: Path, content: Content, monkeypatch: pytest.MonkeyPatch) -> None:
    total = sum(len(data) for name, data in content.items() if name != MANIFEST_FILE)
    usage = type("Usage", (), {"free": total - 1})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    write(path, content)
    told = refused(path)
    assert told.startswith(f"its {total} bytes do not fit into '{path.parent / 'temporary'}/byoc-")
    assert told.endswith(f"', where {total - 1} are free")


def _patched(path: Path, name: str, sizes: Callable[[int, int], tuple[int, int]]) -> None:
    """Change the compressed and full size that the headers of an entry say."""
    data = bytearray(path.read_bytes())
    for mark, skip, at in ((b"PK\x03\x04", 30, 18), (b"PK\x01\x02", 46, 20)):
        start = -1
        while (start := data.find(mark, start + 1)) >= 0:
            if data[start + skip : start + skip + len(name)] == name.encode():
                old = struct.unpack_from("<II", data, start + at)
                struct.pack_into("<II", data, start + at, *sizes(*old))
    path.write_bytes(data)


def test_a_header_that_says_less_than_there_is(path: Path, content: Content) -> None:
    size = 10_000_000
    write(path, bomb(content, size), compression=zipfile.ZIP_DEFLATED)
    _patched(path, "zeros.bin", lambda packed, full: (packed, 10))
    assert (
        refused(path)
        == "the file 'zeros.bin' is not as it was written: its size differs; copy the bundle anew"
    )
    listed(content, "zeros.bin", bytes=10)
    write(path, {**content, "zeros.bin": bytes(size)}, compression=zipfile.ZIP_DEFLATED)
    _patched(path, "zeros.bin", lambda packed, full: (packed, 10))
    assert "a zip that is damaged or cut short: Bad CRC-32 for file 'zeros.bin'" in refused(path)


def test_a_header_that_says_more_than_there_is(path: Path, content: Content) -> None:
    listed(content, "zeros.bin", bytes=1000)
    write(path, {**content, "zeros.bin": bytes(10)})
    _patched(path, "zeros.bin", lambda packed, full: (packed, 1000))
    assert (
        refused(path)
        == "the file 'zeros.bin' is not as it was written: its size differs; copy the bundle anew"
    )
    _patched(path, "zeros.bin", lambda packed, full: (1 << 30, 1000))
    assert refused(path) == "a zip that is damaged: its files are larger than it is"


def test_a_manifest_of_gigabytes_is_not_read(path: Path, content: Content) -> None:
    content[MANIFEST_FILE] = b" " * (2**28 + 1)
    write(path, content)
    assert refused(path) == "/manifest.json: not a manifest: it has more than 268435456 bytes"


def test_a_file_in_a_file(path: Path, content: Content) -> None:
    listed(content, "model.onnx/x", bytes=1)
    write(path, {**content, "model.onnx/x": b"x"})
    assert refused(path).endswith("'model.onnx' and 'model.onnx/x' cannot be two files on every system")


@settings(deadline=None, max_examples=examples(300))
@given(data=st.data())
def test_whatever_is_changed_in_a_zip(data: st.DataObject, made: Path) -> None:
    """It is refused in a sentence, or holds what was packed; never anything else."""
    with zipfile.ZipFile(made) as archive:
        expected = {name: archive.read(name) for name in archive.namelist()}
    changed = bytearray(made.read_bytes())
    table = changed.find(b"PK\x01\x02")  # where the sizes and names are
    places = st.integers(0, len(changed) - 1) | st.integers(table, len(changed) - 1)
    for at in data.draw(st.lists(places, min_size=1, max_size=4)):
        changed[at] = data.draw(st.integers(0, 255) | st.sampled_from([0, 255]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "z.zip"
        path.write_bytes(changed)
        try:
            bundle = open_bundle(path)
            assert files(bundle.folder) == expected
            assert load(path)({"x": ramp(1, 4)})
        except InputError as error:
            assert len(str(error).splitlines()) == 1
        assert [path.name for path in Path(folder).iterdir()] == ["z.zip"]
