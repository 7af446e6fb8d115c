"""Bundles and files are replaced in one step, are on the disk before, and nothing dead is left."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.cutting import CHAIN, DEVICE_ONLY, cut, files, ramp, same_as_original
from helpers.support import parse
from helpers.warm_processes import WarmProcesses

from byoc.bundle import open_bundle, stage_bundle
from byoc.errors import InputError
from byoc.support import open_workspace, write_text

KILL = Path(__file__).parents[1] / "fault_suite/kill.py"
BAD_NAME = os.fsdecode(b"b\xff")


def _kill(warm_processes: WarmProcesses, *options: str) -> dict[str, int]:
    """Return what a run of the script that kills writing processes counted."""
    run = [sys.executable, KILL, "--points", *options]
    found = warm_processes.run(run, timeout=600)
    assert found.returncode == 0, found.stderr
    counted: dict[str, int] = json.loads(found.stdout)
    return counted


def test_a_bundle_survives_the_death_of_its_writer(warm_processes: WarmProcesses) -> None:
    found = _kill(warm_processes, "--kinds", "folder", "--kills", "20")
    assert (found["killed"], found["cleanings"]) == (20, 2)
    assert min(found["old"], found["new"], found["leftovers"]) > 0
    assert "moved back" not in found


@pytest.mark.thorough
def test_where_folders_cannot_be_exchanged_the_next_write_brings_a_bundle_back(
    warm_processes: WarmProcesses,
) -> None:
    found = _kill(warm_processes, "--kinds", "folder", "--kills", "60", "--two-steps")
    assert (found["killed"], found["cleanings"]) == (60, 6)
    assert min(found["old"], found["new"], found["moved back"]) > 0


def _leave(folder: Path, name: str = ".byoc-aaaaaaaa", destination: str = "") -> Path:
    """Leave a workspace as a process that was killed does; return it."""
    (folder / name / "new").mkdir(parents=True)
    (folder / name / "new/model.onnx").touch()
    (folder / name / "lock").write_text(destination)
    return folder / name


def test_the_next_write_removes_what_dead_processes_left_and_nothing_else(tmp_path: Path) -> None:
    _leave(tmp_path)
    (tmp_path / ".byoc-bbbbbbbb").mkdir()  # killed before it had a lock
    kept = [".byoc-cccccccc", ".byoc-notes", "byoc-dddddddd"]
    for name in kept:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.txt").touch()
    (tmp_path / ".byoc-eeeeeeee").symlink_to("byoc-dddddddd")
    with open_workspace(tmp_path) as living:
        (living / "precious").touch()
        write_text(tmp_path / "t.txt", "text")
        assert (living / "precious").exists()
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {*kept, ".byoc-eeeeeeee", living.name, "t.txt"}
    assert not living.exists()


def test_a_workspace_without_a_lock_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a dead process left is removed only where locks tell it from it."""
    fcntl = pytest.importorskip("fcntl")

    def refuse(file: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with open_workspace(tmp_path) as workspace:
        left = _leave(tmp_path)
        write_text(tmp_path / "t.txt", "text")
        assert {path.name for path in tmp_path.iterdir()} == {workspace.name, left.name, "t.txt"}
        monkeypatch.undo()
        write_text(tmp_path / "t.txt", "text")
        assert {path.name for path in tmp_path.iterdir()} == {workspace.name, "t.txt"}


@pytest.mark.parametrize("name", ["b", "../b", "/b", "..", "b\0"])
def test_a_bundle_that_was_moved_aside_comes_back(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    cut(parse(CHAIN), folder / "b")
    left = _leave(folder, destination=name)
    (folder / "b").rename(left / "old")
    write_text(folder / "t.txt", "text")
    assert (folder / "b").exists() == (name == "b")
    assert not (tmp_path / "b").exists()
    if name == "b":
        same_as_original(parse(CHAIN), folder / "b", {"x": ramp(1, 4)})


def test_a_bundle_that_was_moved_aside_replaces_nothing(tmp_path: Path) -> None:
    cut(parse(DEVICE_ONLY), tmp_path / "b")
    before = files(tmp_path)
    (_leave(tmp_path, destination="b") / "old").mkdir()
    write_text(tmp_path / "t.txt", "text")
    assert files(tmp_path) == before | {"t.txt": b"text"}


@pytest.mark.parametrize("packed", [False, True])
def test_all_of_a_bundle_is_on_the_disk_before_it_is_there(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ("b.zip" if packed else "b")
    cut(parse(CHAIN), path)
    before = path.read_bytes() if packed else files(path)
    names: dict[int, str] = {}
    synced: dict[bool, list[str]] = {False: [], True: []}
    open_file, sync = os.open, os.fsync

    def watch_open(name: os.PathLike[str], *more: int, **named: Any) -> int:
        opened = open_file(name, *more, **named)
        names[opened] = Path(name).name
        return opened

    def watch_sync(file: int) -> None:
        is_new = (path.read_bytes() if packed else files(path)) != before
        synced[is_new].append(names[file])
        sync(file)

    monkeypatch.setattr(os, "open", watch_open)
    monkeypatch.setattr(os, "fsync", watch_sync)
    cut(parse(DEVICE_ONLY), path)
    inside = ["packed"] if packed else [*files(path), "new"]
    assert sorted(synced[False]) == sorted(inside)
    assert synced[True] == [tmp_path.name]


@pytest.mark.parametrize("suffix", ["", ".zip"])
def test_what_is_read_back_differs(suffix: str, tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "good")
    path = tmp_path / f"b{suffix}"
    cut(parse(DEVICE_ONLY), path)
    before = files(tmp_path)
    with (
        pytest.raises(InputError) as caught,
        stage_bundle(path) as folder,
    ):
        shutil.copytree(tmp_path / "good", folder, dirs_exist_ok=True)
        model = folder / "dla_0.onnx"
        model.write_bytes(model.read_bytes()[:-1] + b"?")
    assert str(caught.value) == (
        f"{path}: was not written: what was read back is wrong: {path.name}: the file 'dla_0.onnx' is "
        "not as it was written: its hash differs; copy the bundle anew"
    )
    assert files(tmp_path) == before


def test_what_a_user_adds_while_a_bundle_is_written_is_not_lost(tmp_path: Path) -> None:
    cut(parse(CHAIN), tmp_path / "b")
    with (
        pytest.raises(InputError, match=r"b: is a bundle, but 'notes.txt' is not part of it"),
        stage_bundle(tmp_path / "b") as folder,
    ):
        shutil.copytree(tmp_path / "b", folder, dirs_exist_ok=True)
        (tmp_path / "b/notes.txt").write_text("mine")
    assert (tmp_path / "b/notes.txt").read_text() == "mine"


@pytest.mark.parametrize("path", [BAD_NAME, f"{BAD_NAME}/b", f"{BAD_NAME}/b.zip"])
def test_a_path_that_is_not_text_is_refused(path: str, tmp_path: Path) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    with pytest.raises(InputError) as caught:
        cut("no such model.onnx", tmp_path / path)
    shown = str(tmp_path / path).replace("\udcff", "\\udcff")
    assert str(caught.value) == (
        f"{shown}: cannot be written: '{shown}' is not UTF-8, and onnxruntime opens no other paths"
    )
    assert not (tmp_path / path).exists()


def test_a_bundle_that_is_replaced_stays_readable(tmp_path: Path) -> None:
    """Who has opened the old one reads its files to the end."""
    cut(parse(CHAIN), tmp_path / "b")
    with (tmp_path / "b/model.onnx").open("rb") as old:
        cut(parse(DEVICE_ONLY), tmp_path / "b")
        assert len(old.read()) > 0
    assert len(open_bundle(tmp_path / "b").model().graph.node) == 1
