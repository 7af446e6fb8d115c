"""A process that reads a file of each kind opens, writes and executes what it must, and no more.

An audit hook (`watching/sitecustomize.py`) records what the process and its children do; libraries that
open files by themselves are watched by inotify, in the folders where nothing is to be opened.
"""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from input_box import (
    CANARY,
    DECOYS,
    Box,
    add_decoys,
    describe_tree,
    make_box,
    skip_without,
    watch_openings,
)
from input_files import KINDS, Words

import byoc

pytest.importorskip("onnxruntime")
_CHECKOUT = Path(byoc.__file__).parents[1]
_WATCHING = Path(__file__).with_name("watching")
_INSTALLED = (
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    *{sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev", "/usr/lib", "/usr/share", "/etc/os-release"},
    *(str(_CHECKOUT / name) for name in ("byoc", "codegens", "annotations", "cost_models")),
    str(_WATCHING),
)


_UNPICKLED = ("byoc.", "onnx.", "numpy.", "numpy", "collections", "pathlib", "builtins.Exception")
"""What byoc's own processes tell one another is pickled, and holds these classes."""


@dataclass(frozen=True)
class Watched:
    """What a process and its children did: exit code, what was printed, and what was recorded."""

    code: int
    text: str
    events: frozenset[tuple[str, str]]

    def pick(self, kind: str) -> list[str]:
        """Return the paths, commands or classes of the events of a kind, sorted."""
        return sorted(what for each, what in self.events if each == kind)

    def find_outside(self, kind: str, *allowed: str | Path) -> list[str]:
        """Return the paths that are neither the allowed files and folders, nor in one of these."""
        roots = [os.path.normpath(root) for root in allowed]
        return [
            path
            for path in map(os.path.normpath, self.pick(kind))
            if not any(path == root or path.startswith(root + os.sep) for root in roots)
        ]


def run_watched(box: Box, words: Words) -> Watched:
    """Run the command line in a fresh process, in the box's folder `cwd`, and record what it does."""
    log, temporary = box.root / "log", box.root / "tmp"
    temporary.mkdir()
    path = os.pathsep.join([str(_WATCHING), str(_CHECKOUT)])
    homes = {f"XDG_{name}_HOME": str(box.root / "home" / name) for name in ("CONFIG", "CACHE")}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "ORT_"))}
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "byoc", *map(str, words)],
        cwd=box.cwd,
        env={
            **kept,
            **homes,
            "PYTHONPATH": path,
            "BYOC_WATCH_LOG": str(log),
            "TMPDIR": str(temporary),
            "HOME": str(box.root / "user"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    events = frozenset((kind, what) for kind, what in map(json.loads, log.read_text().splitlines()))
    return Watched(ran.returncode, ran.stdout + ran.stderr, events)


def _is_expected(command: str, expected: Sequence[str]) -> bool:
    """Return whether a command is one of the expected programs, or a library is an installed one."""
    program, *_ = command.split()
    installed = (*_INSTALLED, "/usr", "/lib")
    is_library = ".so" in program and (os.sep not in program or program.startswith(installed))
    is_own = program == sys.executable and any(each in command for each in expected if each[0] == "-")
    return (
        is_library or is_own or Path(program).name in {*expected, "uname"}
    )  # platform.processor calls it


@pytest.mark.parametrize("name", KINDS)
def test_reading_a_file_opens_writes_and_executes_no_more_than_it_must(
    name: str, tmp_path: Path
) -> None:
    box, kind = make_box(tmp_path.resolve()), KINDS[name]
    skip_without(kind.needs)
    words = kind.read(box)
    for folder in (box.theirs, box.cwd):
        add_decoys(folder, box.mark)
    (box.cwd / "dla").write_text(f"{CANARY}: [")
    before = describe_tree(box.theirs, box.cwd, box.secret)

    with (
        watch_openings(box.secret) as secrets,
        watch_openings(box.cwd) as here,
        watch_openings(box.theirs) as theirs,
    ):
        did = run_watched(box, words)

    assert did.code == 0, did.text
    assert (secrets, here, DECOYS & {*theirs}) == ([], [], set())
    assert CANARY not in did.text
    assert not box.mark.exists()
    assert not (box.root / "user").exists()  # where onnxruntime kept what it tells its maker
    assert describe_tree(box.theirs, box.cwd, box.secret) == before
    key = Path(os.environ["XDG_DATA_HOME"], "byoc")
    own = (box.root / "home", box.root / "tmp", box.mine, key, "/dev/null")
    # A name in an open folder is recorded as one in `cwd`, where inotify saw that nothing is opened.
    assert did.find_outside("read", *_INSTALLED, *own, box.theirs, box.cwd) == []
    assert [p for p in did.find_outside("write", *own) if "__pycache__" not in p] == []
    assert [each for each in did.pick("execute") if not _is_expected(each, kind.executes)] == []
    assert [each for each in did.pick("unpickle") if not each.startswith(_UNPICKLED)] == []
    assert did.pick("network") == []
