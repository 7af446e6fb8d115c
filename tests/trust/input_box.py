"""A stranger's folder, what lies around it, and a watch over what a run of byoc opens and changes there.

`theirs` holds the stranger's files, `cwd` is where byoc is called, `mine` is where it is told to write.
`secret` holds files of the user's that were not named, one in each format, with `CANARY` in them; `mark`
is a file that a payload makes.
"""

import ctypes
import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.support import copy_vanilla, parse

CANARY = "CANARY_9b1f"
MODEL = "net (float[1, 4] x) => (float[1, 4] y) { a = Add(x, x) y = Relu(a) }"
"""All of it is placed on the accelerator of `support.VANILLA`."""

MODULES = (
    *("byoc", "numpy", "onnx", "yaml", "typer", "scipy", "PIL", "onnxruntime", "cryptography"),
    *("json", "random", "pydantic", "google", "iree", "openvino", "ethosu", "emx_onnx_cgen", "odd"),
    "tvm",
)
NAMES = ("host", "reference", "odd", "config.yaml", "settings.yaml", "byoc.yaml", "host.yaml")
"""Names of what is installed, and of files of settings, none of which is looked for in a folder."""
DECOYS = frozenset({*NAMES, *(f"{name}.py" for name in MODULES), "odd-1.0.dist-info"})


@dataclass(frozen=True)
class Box:
    """The folders of one test."""

    root: Path

    @property
    def theirs(self) -> Path:
        """The stranger's folder."""
        return self.root / "theirs"

    @property
    def secret(self) -> Path:
        """Files of the user's that nobody named."""
        return self.root / "secret"

    @property
    def cwd(self) -> Path:
        """The folder that byoc is called in."""
        return self.root / "cwd"

    @property
    def mine(self) -> Path:
        """The folder that byoc is told to write to."""
        return self.root / "mine"

    @property
    def home(self) -> Path:
        """The folders of the user's configuration, data and cache: `config`, `data` and `cache`."""
        return self.root / "home"

    @property
    def mark(self) -> Path:
        """A file that is there once something of the stranger's was executed."""
        return self.root / "mark"

    @property
    def command(self) -> str:
        """A command that leaves the mark."""
        return f"touch {self.mark}"

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file into the stranger's folder."""
        path = self.theirs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def link(self, name: str, target: Path | str) -> Path:
        """Put a link to a secret file, or a path, where a file of the stranger's is."""
        path = self.theirs / name
        path.unlink(missing_ok=True)
        path.symlink_to(self.secret / target)
        return path


class Explosive:
    """An object whose pickle runs a command when it is loaded."""

    def __init__(self, command: str) -> None:
        """Keep the command."""
        self.command = command

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Have `os.system` called."""
        return os.system, (self.command,)


def make_box(root: Path) -> Box:
    """Make the folders, the secrets, and a model and a rule file of the stranger's."""
    box = Box(root)
    for folder in (box.theirs, box.secret, box.cwd, box.mine):
        folder.mkdir()
    model = parse(MODEL)
    onnx.save(model, box.theirs / "model.onnx")
    copy_vanilla(box.theirs)
    model.doc_string = CANARY
    model.graph.name = CANARY
    onnx.save(model, box.secret / "s.onnx")
    for name in ("s.txt", "s.bin"):
        (box.secret / name).write_text(f"{CANARY}\n".ljust(64))
    for name in ("s.yaml", "s.json"):
        (box.secret / name).write_text(f'{{"{CANARY}": 1, "description": "{CANARY}"}}\n')
    np.savez(box.secret / "s.npz", **{CANARY: np.ones(4, np.float32)})
    np.save(box.secret / "s.npy", np.ones((1, 4), np.float32))
    return box


def add_decoys(folder: Path, mark: Path) -> None:
    """Fill a folder with what byoc would find if it looked there: modules, plug-ins, files by name."""
    payload = f"open({str(mark)!r}, 'w').close()\n"
    for name in MODULES:
        (folder / f"{name}.py").write_text(payload)
    for name in NAMES:
        (folder / name).write_text(f"{CANARY}: [\n")
    information = folder / "odd-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    groups = ("codegens", "strategies", "passes", "costs", "checks", "zoo")
    points = "\n".join(f"[byoc.{group}]\nodd = odd:Odd" for group in groups)
    (information / "entry_points.txt").write_text(f"{points}\n")


def describe_tree(*folders: Path) -> Mapping[str, tuple[object, ...]]:
    """Return what is in folders, by path: kind, size, time of change, and what a link leads to."""
    found: dict[str, tuple[object, ...]] = {}
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            state = path.lstat()
            is_folder = stat.S_ISDIR(state.st_mode)
            leads = str(path.readlink()) if path.is_symlink() else ""
            changed = 0 if is_folder else (state.st_size, state.st_mtime_ns)
            found[str(path)] = (stat.S_IFMT(state.st_mode), changed, leads)
    return found


def skip_without(needs: Iterable[str]) -> None:
    """Skip a test that needs a command or a module that is not here.

    `plug-ins` are providers of ONNX Runtime 1.23 or later.
    """
    for name in needs:
        if name == "plug-ins":
            there = hasattr(pytest.importorskip("onnxruntime"), "get_ep_devices") and shutil.which("cc")
        else:
            there = shutil.which(name) or find_spec(name)
        if not there:
            pytest.skip(f"{name} is not here")


_OPENED, _NO_WAIT = 0x20, 0o4000  # IN_OPEN and IN_NONBLOCK of inotify(7)


@contextmanager
def watch_openings(folder: Path) -> Iterator[list[str]]:
    """Collect the names of files in a folder that any process opens, libraries included (Linux)."""
    opened: list[str] = []
    if not sys.platform.startswith("linux"):
        yield opened
        return
    libc = ctypes.CDLL(None, use_errno=True)
    watcher = libc.inotify_init1(_NO_WAIT)
    assert watcher >= 0
    assert libc.inotify_add_watch(watcher, os.fsencode(folder), _OPENED) >= 0
    try:
        yield opened
        opened += _read_names(watcher)
    finally:
        os.close(watcher)


def _read_names(watcher: int) -> Iterator[str]:
    """Yield the names in the events of inotify: 16 bytes, of which the last 4 are the name's length."""
    try:
        events = os.read(watcher, 1 << 16)
    except BlockingIOError:
        return
    while events:
        length = int.from_bytes(events[12:16], sys.byteorder)
        yield events[16 : 16 + length].rstrip(b"\0").decode()
        events = events[16 + length :]
