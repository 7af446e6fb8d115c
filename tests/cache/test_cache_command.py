"""A command that is run again: taken from the cache where nothing changed, and else run."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL

import numpy as np
import onnx
import pytest
from helpers.cutting import files
from helpers.support import VANILLA, parse

MODEL = """
net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) <float[4, 4, 1, 1] w> {
  a = Conv(x, w)
  y = Relu(a)
}
"""
# Runs the command line; where a file is there, it says that it would run, and does not.
PROGRAM = """
import os, shutil, signal, sys
from pathlib import Path
import byoc.cli
if Path(sys.argv.pop(1)).exists():
    def partition(*_, **__):
        os.write(1, b"it would run")
        os.kill(os.getpid(), signal.SIGKILL)  # so that nothing is kept of it
    byoc.partition = partition
elif Path("another").exists():  # a command that ends now puts its bundle at the same place
    own = byoc.partition
    def partition(*asked, **options):
        made = own(*asked, **options)
        shutil.copytree("m.byoc", "other")
        Path("other/of_another.txt").write_text("another")
        shutil.rmtree("m.byoc")
        Path("other").rename("m.byoc")
        return made
    byoc.partition = partition
byoc.cli.main()
"""


class Commands:
    """Runs of one command in a folder, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.was_taken = False
        self.words = ["partition", "model.onnx", "--rules", "mine.yaml", "-o", "m.byoc"]
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        self.environment |= {f"XDG_{name}_HOME": str(folder / name) for name in ("CONFIG", "DATA")}
        self.site = folder / "site"
        self.site.mkdir()
        self.environment["PYTHONPATH"] = os.pathsep.join(
            [str(self.site), os.environ.get("PYTHONPATH", "")]
        )

    def run(self, *more: str) -> str:
        """Run it; return what it prints."""
        ran = self._start(more)
        assert ran.returncode == 0, ran.stderr
        self.was_taken = "its outcome is taken from the cache" in ran.stderr
        return ran.stdout

    def would_run(self, *more: str) -> bool:
        """Return whether it would run now, and not be taken."""
        (self.folder / "try.it").touch()
        ran = self._start(more)
        (self.folder / "try.it").unlink()
        runs = "it would run" in ran.stdout + ran.stderr
        assert ran.returncode == (-SIGKILL if runs else 0), ran.stderr
        return runs

    def _start(self, more: tuple[str, ...]) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", PROGRAM, str(self.folder / "try.it"), *self.words, *more]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """A model with its weights beside it, a rule file with a cost file, samples, and settings."""
    made = Commands(tmp_path)
    proto = parse(MODEL)
    weights = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    place = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(proto, tmp_path / "model.onnx", **place)
    (tmp_path / "w.bin").rename(tmp_path / "w0.bin")
    (tmp_path / "w1.bin").write_bytes(bytes(64))
    (tmp_path / "w.bin").symlink_to("w0.bin")
    (tmp_path / "mine.yaml").write_text("extends: dla.yaml\ntarget: dla\n")
    shutil.copy(VANILLA, tmp_path / "base.txt")
    np.savez(tmp_path / "x.npz", x=np.ones((1, 4, 8, 8), np.float32))
    made.words += ["--inputs", "x.npz", "--host-cost-model", "costs.yaml", "--codegen", "dla"]
    (tmp_path / "costs.yaml").write_text(COSTS)
    time.sleep(0.1)  # what is as young as the run could have changed while it ran
    return made


COSTS = "kind: roofline\nname: mine\npeak: {default: 1.0e+6}\nbandwidth: 1.0e+6\noverhead: 1.0e-6\n"


def append(path: Path, text: str = "\n# changed\n") -> None:
    """Change a file's content at its end; its time of change stays, where content has to count."""
    before = path.stat()
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip(path: Path) -> None:
    """Change one byte in the middle; size and time of change stay."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _put_on_path(commands: Commands) -> None:
    before = commands.environment["PYTHONPATH"]
    commands.environment["PYTHONPATH"] = os.pathsep.join([str(commands.folder), before])


Change = Callable[[Commands], object]
CHANGES: dict[str, Change] = {
    "model": lambda each: flip(each.folder / "model.onnx"),
    "weights beside the model": lambda each: flip(each.folder / "w0.bin"),
    "where the weights' link leads": lambda each: _lead(each.folder / "w.bin", "w1.bin"),
    "a file in place of an installed one": lambda each: _lead(each.folder / "dla.yaml", "base.txt"),
    "rule file": lambda each: append(each.folder / "mine.yaml"),
    "cost file": lambda each: append(each.folder / "costs.yaml"),
    "samples": lambda each: flip(each.folder / "x.npz"),
    "an option": lambda each: each.words.append("--strict"),
    "another output": lambda each: each.words.__setitem__(5, "n.byoc"),
    "an environment variable": lambda each: each.environment.update(DLA_SPEED="1"),
    "the Python path": _put_on_path,
    "an installed distribution": lambda each: (each.site / "acme-1.0.dist-info").mkdir(),
    "the user's settings": lambda each: _write(each.folder / "CONFIG/byoc/settings.yaml", "{}\n"),
    "the key of this machine": lambda each: flip(each.folder / "DATA/byoc/signing_key"),
    "a mode in the bundle": lambda each: (each.folder / "m.byoc/manifest.json").chmod(0o666),
    "a byte of the bundle": lambda each: flip(each.folder / "m.byoc/manifest.json"),
    "a file in the bundle": lambda each: _write(each.folder / "m.byoc/more.txt", "more"),
    "an entry of the cache": lambda each: _damage(each.folder / "cache"),
}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _lead(link: Path, target: str) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _damage(folder: Path) -> None:
    for path in folder.rglob("entries/*/*"):
        flip(path)


def test_the_second_run_says_and_writes_the_same(commands: Commands) -> None:
    first = commands.run()
    assert not commands.was_taken
    bundle = files(commands.folder / "m.byoc")
    assert not commands.would_run()
    (commands.folder / "model.onnx").touch()
    assert commands.run() == first
    assert commands.was_taken
    times = [(commands.folder / name).stat().st_mtime_ns for name in ("model.onnx", "m.byoc")]
    assert times == sorted(times)  # as make compares them
    for path in sorted((commands.folder / "m.byoc").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (commands.folder / "m.byoc").rmdir()
    assert not commands.would_run()  # it is written again, and nothing runs
    assert files(commands.folder / "m.byoc") == bundle
    for name, change in CHANGES.items():
        undo = _remember(commands)
        change(commands)
        assert commands.would_run(), name
        undo()
    assert not commands.would_run()


def _remember(commands: Commands) -> Callable[[], None]:
    """Return what puts back all files, times, words and variables as they are now."""
    folder, words, variables = commands.folder, [*commands.words], {**commands.environment}
    links = {path: path.readlink() for path in folder.rglob("*") if path.is_symlink()}
    paths = [path for path in folder.rglob("*") if path.is_file() and path not in links]
    before = {path: (path.read_bytes(), path.stat()) for path in paths}
    folders = {path for path in folder.rglob("*") if path.is_dir()}

    def undo() -> None:
        commands.words, commands.environment = words, variables
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_symlink() or (path.is_file() and path not in before):
                path.unlink()
            elif path.is_dir() and path not in folders:
                path.rmdir()
        for path, (content, status) in before.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(status.st_mode)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        for path, target in links.items():
            path.symlink_to(target)

    return undo


def test_a_verdict_that_is_taken_says_so(commands: Commands) -> None:
    first = json.loads(commands.run("--format", "json"))
    second = json.loads(commands.run("--format", "json"))
    assert (first["verification"]["cached"], second["verification"]["cached"]) == (False, True)
    second["verification"]["cached"] = False
    assert second == first


def test_a_sample_beside_the_bundle_counts_and_the_umask(commands: Commands) -> None:
    (commands.folder / "samples").mkdir()
    (commands.folder / "x.npz").rename(commands.folder / "samples/x.npz")
    commands.words[5:8] = ["samples/m.zip", "--inputs", "samples"]
    commands.run()
    assert not commands.would_run()
    before = os.umask(0o007)
    try:
        assert commands.would_run()
    finally:
        os.umask(before)
    shutil.copy(commands.folder / "samples/x.npz", commands.folder / "samples/y.npz")
    assert commands.would_run()


def test_a_model_whose_name_begins_like_json(commands: Commands) -> None:
    (commands.folder / "model.onnx").rename(commands.folder / "[a].onnx")
    time.sleep(0.1)
    commands.words[1] = "[a].onnx"
    commands.words += ["--strategy", "all-supported"]
    first = commands.run()
    assert first.startswith("[a].onnx")
    assert commands.run() == first


@pytest.mark.parametrize(
    "more", [("--no-cache",), ("--html", "page.html"), ("--isolate",)], ids=lambda words: words[0]
)
def test_what_is_not_kept_runs_again(commands: Commands, more: tuple[str, ...]) -> None:
    commands.run(*more)
    assert commands.would_run(*more)


def test_a_bundle_that_another_command_put_there_is_not_kept(commands: Commands) -> None:
    (commands.folder / "another").touch()
    commands.run()
    assert (commands.folder / "m.byoc/of_another.txt").exists()
    assert commands.would_run()


def test_a_codegen_of_which_nothing_is_kept_runs_again(commands: Commands) -> None:
    commands.words[-1] = "reference"  # it says `cached = False`
    commands.run()
    assert commands.would_run()


def test_a_run_that_failed_is_not_kept(commands: Commands) -> None:
    append(commands.folder / "mine.yaml", "\n- not a mapping: [\n")
    with pytest.raises(AssertionError, match=r"mine\.yaml"):
        commands.run()
    assert commands.would_run()
