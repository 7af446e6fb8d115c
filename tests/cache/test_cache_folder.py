"""The folder of a cache: what is stored is found whole or not at all, by its owner alone; bounded."""

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.support import examples
from helpers.warm_processes import WarmProcesses
from hypothesis import given, settings
from hypothesis import strategies as st

from byoc.errors import InputError
from byoc.support import cache as folders
from byoc.support.cache import Cache, CacheEntry, find_cache_folder, open_cache, open_user_cache

KILL = Path(__file__).parents[1] / "fault_suite/kill_cache.py"
KEYS = [f"{number:064x}" for number in range(16)]


def entry(size: int = 100, byte: int = 0) -> CacheEntry:
    return CacheEntry({"codegen": "acme"}, (bytes([byte]) * size,))


def found(cache: Cache, key: str) -> tuple[bytes, ...] | None:
    """Return the blobs of an entry as another program finds them."""
    entry = open_cache(cache.folder).find(key)
    return None if entry is None else tuple(entry.blobs)


def place(cache: Cache, key: str) -> Path:
    return cache.folder / "entries" / key[:2] / key[2:]


@settings(max_examples=examples(30), deadline=None)
@given(
    facts=st.dictionaries(st.text(), st.lists(st.text() | st.integers() | st.booleans())),
    blobs=st.lists(st.binary(max_size=2000), max_size=4),
)
def test_what_is_stored_is_found(
    facts: dict[str, list[str]], blobs: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = open_cache(tmp_path_factory.mktemp("cache") / "c")
    cache.store(KEYS[1], CacheEntry(facts, blobs))
    entry = open_cache(cache.folder).find(KEYS[1])
    assert entry is not None
    assert (entry.facts, list(entry.blobs)) == (facts, blobs)
    assert cache.find(KEYS[2]) is None


def test_the_later_entry_of_a_key_takes_the_place_of_the_earlier_one(cache: Cache) -> None:
    for byte in (1, 2):
        cache.store(KEYS[0], entry(byte=byte))
    assert found(cache, KEYS[0]) == (b"\2" * 100,)
    assert cache.measure().entries == 1


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
def test_no_changed_byte_is_taken(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = open_cache(tmp_path_factory.mktemp("cache") / "c")
    cache.store(KEYS[0], entry())
    path = place(cache, KEYS[0])
    content = bytearray(path.read_bytes())
    kind = data.draw(st.sampled_from(["change", "cut", "add"]))
    if kind == "change":
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content += data.draw(st.binary(min_size=1, max_size=9))
    path.write_bytes(content)
    assert found(cache, KEYS[0]) is None
    assert not path.exists(), "a damaged entry is removed"
    cache.store(KEYS[0], entry())
    assert found(cache, KEYS[0]) == (b"\0" * 100,)


def test_an_entry_under_the_name_of_another_is_not_taken(cache: Cache) -> None:
    cache.store(KEYS[0], entry())
    place(cache, KEYS[1]).parent.mkdir(parents=True, exist_ok=True)
    place(cache, KEYS[0]).rename(place(cache, KEYS[1]))
    assert found(cache, KEYS[1]) is None


def test_a_length_that_is_made_up_asks_for_no_memory(cache: Cache) -> None:
    cache.store(KEYS[0], entry())
    path = place(cache, KEYS[0])
    start = path.read_bytes().index(b"\n") + 1
    with path.open("r+b") as file:
        file.seek(start)
        file.write((1 << 60).to_bytes(8, "little"))
    assert found(cache, KEYS[0]) is None


def test_what_was_used_longest_ago_goes_first(cache: Cache) -> None:
    cache.set_limit(4500)
    for number, key in enumerate(KEYS[:3]):
        cache.store(key, entry(1000))
        os.utime(place(cache, key), (number, number))
    assert found(cache, KEYS[0])  # which makes it the one that was used last
    cache.store(KEYS[3], entry(1000))
    assert [found(cache, key) is not None for key in KEYS[:4]] == [True, False, True, True]
    assert cache.measure().size <= 4500


def test_the_limit_holds_for_later_programs_and_at_once(cache: Cache) -> None:
    for number, key in enumerate(KEYS):
        cache.store(key, entry(1000))
        os.utime(place(cache, key), (number, number))
    open_cache(cache.folder).set_limit(5000)
    assert [found(cache, key) is not None for key in KEYS] == [False] * 13 + [True] * 3
    assert open_cache(cache.folder).limit == 5000


def test_many_programs_keep_the_limit_together(cache: Cache) -> None:
    cache.set_limit(20_000)
    programs = [open_cache(cache.folder) for _ in range(4)]
    for number in range(40):
        programs[number % 4].store(f"{number:064x}", entry(1000))
    last = open_cache(cache.folder)
    last.store(KEYS[0], entry(1000))
    assert last.measure().size <= 20_000


def test_what_is_larger_than_the_limit_is_not_stored(cache: Cache) -> None:
    cache.set_limit(5000)
    cache.store(KEYS[0], entry(1000))
    cache.store(KEYS[1], entry(5000))
    assert [found(cache, key) is not None for key in KEYS[:2]] == [True, False]


@pytest.mark.parametrize("text", ["", "many", "-", "-5", "9" * 5000, "\xff"])
def test_a_limit_that_cannot_be_read_is_the_default(text: str, cache: Cache) -> None:
    (cache.folder / "limit").write_text(text, encoding="latin-1")
    assert cache.limit == folders.DEFAULT_LIMIT


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_pipes_and_endless_files_are_not_waited_for(cache: Cache) -> None:
    cache.store(KEYS[0], entry())
    place(cache, KEYS[0]).unlink()
    os.mkfifo(place(cache, KEYS[0]))
    assert cache.read_facts(cache.list_entries()[0]) is None
    assert cache.find(KEYS[0]) is None
    cache.store(KEYS[0], entry())
    assert found(cache, KEYS[0]) is not None
    os.mkfifo(cache.folder / "limit")
    assert cache.limit == folders.DEFAULT_LIMIT
    (cache.folder / "limit").unlink()
    (cache.folder / "limit").symlink_to("/dev/zero")
    assert cache.limit == folders.DEFAULT_LIMIT


def test_clear_removes_entries_and_leftovers_and_nothing_else(cache: Cache) -> None:
    for key in KEYS[:3]:
        cache.store(key, entry())
    (cache.folder / "entries" / "notes.txt").write_text("mine")
    (cache.folder / ".byoc-abcd1234").mkdir()
    assert cache.clear() == 3
    names = sorted(path.relative_to(cache.folder).as_posix() for path in cache.folder.rglob("*"))
    assert [name for name in names if "." in name] == ["CACHEDIR.TAG", "entries/notes.txt"]


def test_clear_of_some(cache: Cache) -> None:
    cache.store(KEYS[0], CacheEntry({"codegen": "one"}))
    cache.store(KEYS[1], CacheEntry({"codegen": "other"}))
    assert cache.clear(lambda facts: facts["codegen"] == "one") == 1
    assert [found(cache, key) is not None for key in KEYS[:2]] == [False, True]


def test_the_folder_is_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        cache = open_cache(tmp_path / "a" / "b" / "cache")
    finally:
        os.umask(before)
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    tag = (cache.folder / "CACHEDIR.TAG").read_text()
    assert tag.startswith("Signature: 8a477f597d28d172789f06886806bc55\n")


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702, 0o1777])
def test_a_folder_that_others_can_write_is_refused(mode: int, cache: Cache) -> None:
    cache.folder.chmod(mode)
    with pytest.raises(InputError) as caught:
        open_cache(cache.folder)
    assert str(caught.value) == (
        f"{cache.folder}: is not used as a cache: others may write it (its mode is {mode:03o}): "
        f"chmod 700 {cache.folder}"
    )
    cache.folder.chmod(0o700)


def test_a_folder_of_somebody_else_is_refused(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: cache.folder.stat().st_uid + 1)
    with pytest.raises(InputError, match="is not used as a cache: it belongs to another user"):
        open_cache(cache.folder)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="it holds other files, and is no cache"):
        open_cache(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: path.write_text(""), "it is not a folder"),
        (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
        (lambda path: path.parent.joinpath("file").write_text(""), "No such file|it is not a folder|"),
    ],
)
def test_what_is_no_folder_is_refused(make: Callable[[Path], object], why: str, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    make(path)
    if path.exists() or path.is_symlink():
        with pytest.raises(InputError, match=f"{path}: is not used as a cache: {why}"):
            open_cache(path)
    else:
        with pytest.raises(InputError, match=f"{tmp_path}/file/cache: is not used as a cache: "):
            open_cache(tmp_path / "file" / "cache")


def test_the_users_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert find_cache_folder() == tmp_path / "x" / "byoc" / "compiled"
    cache = open_user_cache()
    assert cache is not None
    assert cache.folder == find_cache_folder()


def test_without_a_place_for_it_there_is_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert open_user_cache() is None

    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setattr(Path, "home", no_home)
    assert open_user_cache() is None


def test_the_users_own_cache_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert open_user_cache() is not None
    find_cache_folder().chmod(0o777)
    with pytest.raises(InputError, match="others may write it"):
        open_user_cache()


def test_a_full_disk_is_no_error(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object) -> int:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folders, "write_entry", refuse)
    cache.store(KEYS[0], entry())
    assert found(cache, KEYS[0]) is None
    assert [path.name for path in cache.folder.iterdir() if path.name.startswith(".byoc")] == []


def test_facts_are_read_without_the_blobs(cache: Cache) -> None:
    cache.store(KEYS[0], entry())
    (only,) = cache.list_entries()
    assert cache.read_facts(only) == {"codegen": "acme"}
    header = json.dumps({"key": KEYS[0], "facts": {"codegen": "forged"}, "blobs": []}).encode()
    start = only.path.read_bytes().partition(b"\n")[0] + b"\n"
    only.path.write_bytes(start + len(header).to_bytes(8, "little") + header + bytes(32))
    assert cache.read_facts(only) is None
    only.path.unlink()
    assert cache.read_facts(only) is None


@pytest.mark.parametrize("more", [(), ("--points",)])
def test_killed_programs_leave_whole_entries(
    more: tuple[str, ...], warm_processes: WarmProcesses
) -> None:
    ran = warm_processes.run(
        [sys.executable, KILL, "--kills", "6", "--seed", "7", *more],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["killed"] >= 6
    assert found["rounds"] >= 2
