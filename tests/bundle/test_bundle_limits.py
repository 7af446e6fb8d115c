"""Small files that ask for much: each is refused before it costs, in one sentence."""

import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.cutting import CHAIN, cut
from helpers.support import Ran, parse
from helpers.warm_processes import WarmProcesses

from byoc.bundle import check_destination, open_bundle, read_only_manifest
from byoc.codegen import parse_strict_json
from byoc.errors import InputError
from byoc.support import read_limited

MIB = 1 << 20
MOST_VALUES = 1 << 22  # of a JSON document


class CountedKey(str):
    """A key that counts how often it is compared; its hash is its own, as texts have it."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedKey.compared += 1
        return str.__eq__(self, str(other))

    __hash__ = str.__hash__


def test_a_repeated_key_is_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting each key in all of them took 19 s for 170 KB."""
    pairs = [(CountedKey(f"k{number}"), number) for number in [*range(5_000), 4_999]]

    def load(_: str, *, object_pairs_hook: Callable[[Any], Any], **__: object) -> Any:
        return object_pairs_hook(pairs)

    monkeypatch.setattr("byoc.codegen._isolated_abilities.json.loads", load)
    CountedKey.compared = 0
    with pytest.raises(ValueError, match="the key 'k4999' stands twice"):
        parse_strict_json(b"{}")
    assert CountedKey.compared < 5 * len(pairs)


@pytest.mark.parametrize("value", [b"{},", b"[],", b'"",', b"0,"])
def test_values_are_counted_before_they_are_made(
    value: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b'{"format":3,"asked":[' + value * (MOST_VALUES + 1) + b"0]}"
    (tmp_path / "manifest.json").write_bytes(content)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("it is parsed")

    monkeypatch.setattr("byoc.codegen._isolated_abilities.json.loads", fail)
    with pytest.raises(InputError, match=f"not a manifest: it has more than {MOST_VALUES} values"):
        read_only_manifest(tmp_path)
    check_destination(tmp_path / "b")  # which is in no bundle


def test_a_packed_manifest_that_swells_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 MB came out of 42 KB, and became 2 GB in memory."""
    path = tmp_path / "m.zip"
    body = json.dumps({"format": 4, "asked": {"a": [{}] * (MIB // 2)}}).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", body)
    packed = zipfile.ZipFile(path).getinfo("manifest.json").compress_size
    assert path.stat().st_size < len(body) / 500
    monkeypatch.setattr(zipfile.ZipFile, "open", None)
    with pytest.raises(InputError) as caught:
        open_bundle(path)
    assert str(caught.value) == (
        f"{path}: {packed} bytes of the manifest.json would unpack to {len(body)}, "
        "over 100 times as many"
    )


def test_a_bundle_that_was_deflated_opens(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "m.zip", verify=False)
    with zipfile.ZipFile(tmp_path / "m.zip") as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "small.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    listed = set(open_bundle(tmp_path / "small.zip").manifest.files)
    assert listed == set(content) - {"manifest.json", "signature.json"}


def test_a_zip_of_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byoc.bundle._packing._MAX_FILES", 3)
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        for number in range(4):
            archive.writestr(str(number), b"")
    with pytest.raises(InputError, match=r"m\.zip: not a bundle: it holds more than 3 files"):
        open_bundle(tmp_path / "m.zip")


class AskedFile(io.BytesIO):
    """A file that notes how many bytes it is asked for at a time."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.asked: list[int] = []

    def read(self, size: int | None = -1) -> bytes:
        self.asked.append(-1 if size is None else size)
        return super().read(size)


@pytest.mark.parametrize("size", [0, 10, MIB, 3 * MIB + 1])
def test_a_file_is_read_in_blocks_up_to_its_limit(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + bytes(size % 256)
    file = AskedFile(content)
    assert read_limited(file, 1 << 40) == content
    assert all(0 < asked <= MIB for asked in file.asked)
    for limit in (0, 9, 2 * MIB):
        assert read_limited(io.BytesIO(content), limit) == content[: limit + 1]


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of memory is Linux's")
def test_a_small_manifest_takes_little_memory(tmp_path: Path, warm_processes: WarmProcesses) -> None:
    """256 MiB were asked for whatever the size of the file."""
    (tmp_path / "manifest.json").write_text('{"format": 4}')
    script = f"""
import resource
from pathlib import Path
from byoc.bundle import open_bundle
from byoc.errors import InputError
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {64 * MIB}, used + {64 * MIB}))
try:
    open_bundle({str(tmp_path)!r})
except InputError as error:
    print(error)
"""
    ran = warm_processes.run([sys.executable, "-c", script])
    assert ran.stdout.startswith(f"{tmp_path / 'manifest.json'}: not a manifest: "), ran.stderr


def test_too_little_memory_is_one_sentence(
    tmp_path: Path, byoc: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path, **_options: object) -> None:
        raise MemoryError

    monkeypatch.setattr("byoc.open_bundle", fail)
    ran = byoc("inspect", tmp_path)
    assert (ran.code, ran.out, ran.err) == (1, "", "byoc: there is not enough memory for it\n")


def test_identical_regions_are_found_by_name(tmp_path: Path) -> None:
    chain = "\n".join(f"a{n} = Relu(s{n})\ns{n + 1} = Sigmoid(a{n})" for n in range(40))
    cut(
        parse(f"many (float[1, 4] s0) => (float[1, 4] s40) {{ {chain} }}"),
        tmp_path / "b",
        verify=False,
    )
    bundle = open_bundle(tmp_path / "b")
    assert len(bundle.identical_regions) == 39
    regions = bundle.regions()
    assert [region.name for _, region, _ in regions] == [f"dla_{number}" for number in range(40)]
    assert len({id(artifact) for _, _, artifact in regions}) == 1
