"""A packed bundle: the same bytes each time, opened by everything, and its folder gone with it."""

import gc
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import vendors
from helpers.cutting import CHAIN, DEVICE_ONLY, cut, files, ramp, same_as_original
from helpers.support import VANILLA, Ran, parse, sample_cases
from helpers.warm_processes import WarmProcesses

from byoc.bundle import open_bundle
from byoc.errors import InputError
from byoc.runtime import load
from byoc.verification import verify_against

Cli = Callable[..., Ran]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files; it has to be empty again in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    gc.collect()
    assert list(folder.iterdir()) == []


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_once: Callable[..., Path]) -> Path:
    vendors.install(monkeypatch, tables=vendors.Tables)
    return cut_once(CHAIN, tmp_path / "b", codegen="tables")


@pytest.fixture
def packed(bundle: Path, byoc: Cli) -> Path:
    path = bundle.parent / "b.byoc.zip"
    assert byoc("pack", bundle, "-o", path).code == 0
    return path


def content(path: Path) -> dict[str, bytes]:
    """Return the content of every entry of a zip by name, in its order."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_it_holds_the_files_of_the_folder(bundle: Path, packed: Path) -> None:
    assert content(packed) == files(bundle)
    with zipfile.ZipFile(packed) as archive:
        entries = archive.infolist()
    assert [entry.filename for entry in entries] == sorted(files(bundle))
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert {entry.external_attr >> 16 for entry in entries} == {0o100644}
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_STORED}


def test_what_was_put_into_the_folder_is_not_packed(bundle: Path, byoc: Cli) -> None:
    (bundle / "notes.txt").write_text("mine")
    (bundle / "more").mkdir()
    assert byoc("pack", bundle, "-o", bundle.parent / "p.zip").code == 0
    assert content(bundle.parent / "p.zip").keys() == files(bundle).keys() - {"notes.txt"}


def test_times_and_permissions_do_not_matter(bundle: Path, packed: Path, byoc: Cli) -> None:
    copy = bundle.parent / "copy"
    shutil.copytree(bundle, copy)
    for number, name in enumerate(files(copy)):
        (copy / name).chmod(0o600 + number)
        os.utime(copy / name, (10**9 + number, 10**9 + number))
    again = bundle.parent / "again"  # its name is free
    assert byoc("pack", copy, "-o", again).code == 0
    assert again.read_bytes() == packed.read_bytes()
    assert byoc("pack", packed, "-o", again).code == 0
    assert again.read_bytes() == packed.read_bytes()


def test_it_says_what_it_wrote(bundle: Path, packed: Path, byoc: Cli) -> None:
    data = packed.read_bytes()
    ran = byoc("pack", bundle, "-o", packed, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == {
        "bundle": str(packed),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    told = byoc("pack", packed, "-o", packed)
    assert told.out.startswith(f"{packed}: ") and hashlib.sha256(data).hexdigest() in told.out
    assert packed.read_bytes() == data


def test_a_partition_is_packed_by_its_name(packed: Path, tmp_path: Path) -> None:
    result = cut(parse(CHAIN), tmp_path / "other.ZIP", codegen="tables")
    assert (tmp_path / "other.ZIP").read_bytes() == packed.read_bytes()
    assert result.bundle == tmp_path / "other.ZIP"
    assert result.report.bundle == str(tmp_path / "other.ZIP")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("b", "b.byoc.zip", "other.ZIP", "temporary")
    ]


def test_everything_opens_it(bundle: Path, packed: Path, byoc: Cli) -> None:
    same_as_original(parse(CHAIN), packed, {"x": ramp(1, 4)})
    assert verify_against(packed).passed
    for arguments in (["verify"], ["inspect"], ["inspect", "--format", "json"]):
        verb, *options = arguments
        folder, zipped = byoc(verb, bundle, *options), byoc(verb, packed, *options)
        assert (zipped.code, zipped.err) == (0, "")
        told = zipped.out.replace(str(packed), str(bundle)).replace("packed, ", "folder, ")
        assert told == folder.out
    assert byoc("compare-costs", packed).code == 0


def test_its_files_last_as_long_as_what_uses_them(packed: Path, temporary: Path) -> None:
    opened = open_bundle(packed)
    assert opened.folder.parent == temporary
    assert files(opened.folder) == content(packed)
    assert opened.folder.stat().st_mode & 0o077 == 0
    folder = opened.folder
    session = load(packed)
    del opened
    gc.collect()
    assert not folder.exists()
    assert session.bundle.folder.is_dir()
    np.testing.assert_array_equal(session({"x": ramp(1, 4)})["y"].shape, (1, 4))


def test_a_fork_leaves_the_files_alone(packed: Path) -> None:
    opened = open_bundle(packed)
    child = os.fork()
    if not child:
        del opened
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert files(opened.folder) == content(packed)


def test_a_process_that_ends_leaves_no_files(
    packed: Path, temporary: Path, warm_processes: WarmProcesses
) -> None:
    program = (
        "import sys, pathlib; from byoc.bundle._reading import open_bundle\n"
        "bundle = open_bundle(pathlib.Path(sys.argv[1])); print(bundle.folder); sys.exit(3)"
    )
    ran = warm_processes.run(
        [sys.executable, "-c", program, packed], env={**os.environ, "TMPDIR": str(temporary)}
    )
    assert (ran.returncode, Path(ran.stdout.strip()).parent) == (3, temporary)


def test_one_that_other_tools_packed_is_opened(bundle: Path) -> None:
    """Compressed, with folders, in another order, with things that no bundle names."""
    (bundle / "notes.txt").write_text("mine")
    made = Path(shutil.make_archive(str(bundle.parent / "made"), "zip", bundle))
    assert content(made).keys() > files(bundle).keys()
    assert made.stat().st_size < sum(map(len, files(bundle).values()))
    same_as_original(parse(CHAIN), made, {"x": ramp(1, 4)})
    assert "notes.txt" not in files(open_bundle(made).folder)


def test_it_can_be_unzipped(bundle: Path, packed: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(packed, tmp_path / "unzipped")
    assert files(tmp_path / "unzipped") == files(bundle)
    load(tmp_path / "unzipped")


def test_a_packed_bundle_is_replaced_by_a_packed_one(packed: Path) -> None:
    packed.with_name("link.zip").symlink_to(packed)
    cut(parse(DEVICE_ONLY), packed.with_name("link.zip"))
    assert packed.with_name("link.zip").is_symlink()
    same_as_original(parse(DEVICE_ONLY), packed, {"x": ramp(1, 4)})


def _diary(path: Path) -> None:
    path.write_text("a diary")


def _photos(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("photo.jpg", b"jpg")


def _web_page(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", b'{"name": "a browser extension"}')


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "photo.jpg").write_bytes(b"jpg")


@pytest.mark.parametrize("there", [_diary, _photos, _web_page, _folder])
@pytest.mark.parametrize("verb", ["pack", "partition"])
def test_what_is_no_bundle_is_left_alone(
    verb: str, there: Callable[[Path], None], bundle: Path, byoc: Cli
) -> None:
    target = bundle.parent / "x.zip"
    there(target)
    before = files(bundle.parent)
    arguments = [bundle] if verb == "pack" else ["zoo:squeezenet", "--rules", VANILLA]
    ran = byoc(verb, *arguments, "-o", target)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"byoc: {target}: exists and is not a bundle, so it is not replaced\n"
    assert files(bundle.parent) == before


def test_what_a_user_put_into_a_packed_bundle_is_not_lost(packed: Path) -> None:
    with zipfile.ZipFile(packed, "a") as archive:
        archive.writestr("notes.txt", "mine")
    with pytest.raises(InputError, match=r"zip: is a bundle, but 'notes.txt' is not part of it"):
        cut(parse(DEVICE_ONLY), packed)
    assert content(packed)["notes.txt"] == b"mine"


def test_a_bundle_is_replaced_by_one_of_its_form(bundle: Path, packed: Path, byoc: Cli) -> None:
    ran = byoc("pack", packed, "-o", bundle)
    assert ran.err == (
        f"byoc: {bundle}: is a bundle, but a folder, so a packed one does not replace it\n"
    )
    packed.rename(packed.with_name("plain"))
    with pytest.raises(InputError, match="plain: is a bundle, but packed, so a folder does not replace"):
        cut(parse(DEVICE_ONLY), packed.with_name("plain"))


def test_a_failure_keeps_the_packed_bundle(
    packed: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    before, names = packed.read_bytes(), sorted(packed.parent.iterdir())

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("byoc.bundle._writing.pack_folder", full)
    with pytest.raises(InputError, match=r"zip: cannot be written: No space left on device"):
        cut(parse(DEVICE_ONLY), packed)
    assert packed.read_bytes() == before
    assert sorted(packed.parent.iterdir()) == names


@pytest.mark.parametrize("place", ["no/such/m.zip", "file/m.zip"])
def test_a_place_that_cannot_be_written(place: str, bundle: Path, byoc: Cli) -> None:
    (bundle.parent / "file").write_text("")
    target = bundle.parent / place
    ran = byoc("pack", bundle, "-o", target)
    folder = f"'{target.parent}'"
    why = f"{folder} is a file, no folder" if target.parent.is_file() else f"there is no folder {folder}"
    assert ran.err == f"byoc: {target}: cannot be written: {why}\n"


SCRIPT = """
import sys
from pathlib import Path
from byoc import Precision, partition
model, rules, *data, output = sys.argv[1:]
asked = {"precision": Precision(quantize="int8", data="random"), "codegen": "reference"} if data else {}
partition(model, rules.split(","), output=output, verify=False, **asked)
"""


SMALL = ["../small.onnx", "dla"]
TARGETS = ["zoo:squeezenet", "dla,tensorrt-dla"]
QUANTIZED = ["zoo:squeezenet", "ethos-u55", "quantized"]
PLACES = ("one.zip", "elsewhere/two.zip", "three", "elsewhere/four.byoc")


@pytest.mark.parametrize(
    ("arguments", "places"),
    sample_cases([(SMALL, PLACES[:2]), (TARGETS, PLACES), (QUANTIZED, PLACES)], (SMALL, PLACES[:2])),
)
def test_processes_write_the_same_bytes(
    arguments: list[str], places: tuple[str, ...], tmp_path: Path
) -> None:
    """Each has other hashes, another time zone and another working folder."""
    onnx.save(parse(CHAIN), tmp_path / "small.onnx")
    for number, output in enumerate(places):
        place = tmp_path / str(number)
        (place / "elsewhere").mkdir(parents=True)
        subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments, output],
            cwd=place,
            env={**os.environ, "PYTHONHASHSEED": str(number + 1), "TZ": f"UTC+{number}"},
            check=True,
            capture_output=True,
        )
    made = content(tmp_path / "0/one.zip")
    assert (tmp_path / "0/one.zip").read_bytes() == (tmp_path / "1/elsewhere/two.zip").read_bytes()
    for number, output in enumerate(places[2:], 2):
        assert files(tmp_path / str(number) / output) == made
    assert not any(str(tmp_path).encode() in data for data in made.values())
