"""Make one bundle under twenty-one settings: `python tests/fault_suite/same_bytes.py [MODEL]`.

The settings are seeds of hashes, locales, numbers of threads, working folders, umasks, time zones, other
temporary folders, flags of Python, and other processes that keep all processors busy. Prints for each
setting what differs from the first, by file; the exit code is 1 when anything does. `--only` chooses
settings by number. What signs a bundle is of one machine and one user, and is left out.
"""

import argparse
import hashlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = ("signature.json",)
BUSY_PROCESSES = 6


@dataclass(frozen=True)
class Setting:
    """What surrounds a run: its environment, flags of Python, umask, processors, load, folders."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    umask: int = 0o022
    one_processor: bool = False
    busy: bool = False
    folder: str = ""
    output: str = ""


SETTINGS = (
    Setting("as it is"),
    Setting("hash seed 1", {"PYTHONHASHSEED": "1"}),
    Setting("hash seed 4294967295", {"PYTHONHASHSEED": "4294967295"}),
    Setting("busy processors", busy=True),
    Setting("hash seed 0", {"PYTHONHASHSEED": "0"}),
    Setting("locale C", {"LC_ALL": "C", "LANG": "C"}),
    Setting("locale C, no UTF-8", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    Setting("locale C.UTF-8", {"LC_ALL": "C.UTF-8"}),
    Setting("language tr_TR", {"LANG": "tr_TR.UTF-8", "LC_NUMERIC": "de_DE.UTF-8"}),
    Setting("one thread", {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}),
    Setting("seven threads", {"OMP_NUM_THREADS": "7", "OPENBLAS_NUM_THREADS": "7"}),
    Setting("one processor", one_processor=True),
    Setting("time zone", {"TZ": "Asia/Kathmandu", "SOURCE_DATE_EPOCH": "1"}),
    Setting("working folder", folder="/"),
    Setting("umask 077", umask=0o077),
    Setting("umask 0", umask=0),
    Setting("temporary folder", {"TMPDIR": "/dev/shm"}),
    Setting("output on another file system", output="/dev/shm"),
    Setting("python -O", flags=("-O",)),
    Setting("busy processors, python -OO", {"PYTHONHASHSEED": "77"}, ("-OO",), busy=True),
    Setting(
        "hash seed 3, no UTF-8, working folder, umask 077, python -O",
        {"PYTHONHASHSEED": "3", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        ("-O",),
        umask=0o077,
        folder="/",
    ),
)


@contextmanager
def keep_busy(wanted: bool) -> Iterator[None]:
    """Keep all processors busy inside the block."""
    others = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(BUSY_PROCESSES * wanted)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def _burn() -> None:
    while True:
        pass


def make_bundle(model: str, options: Sequence[str], setting: Setting) -> dict[str, str]:
    """Return the hash of each file of the bundle that is made under a setting, by name."""
    place = setting.output if Path(setting.output or "/").is_dir() else ""
    with tempfile.TemporaryDirectory(dir=place or None) as folder, keep_busy(setting.busy):
        path = Path(folder) / "b.zip"
        command = [sys.executable, *setting.flags, "-m", "byoc", "partition", model, *options]
        ran = subprocess.run(
            [*command, "--no-cache", "-o", str(path)],
            env={**os.environ, "PYTHONPATH": str(ROOT), **setting.environment},
            cwd=setting.folder or folder,
            umask=setting.umask,
            preexec_fn=_take_one_processor if setting.one_processor else None,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        if ran.returncode:
            raise SystemExit(f"{setting.name}: {ran.stderr}")
        with ZipFile(path) as archive:
            return {
                name: hashlib.sha256(archive.read(name)).hexdigest()
                for name in archive.namelist()
                if name not in LEFT_OUT
            }


def _take_one_processor() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def main() -> int:
    """Run all settings, print what differs, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="zoo:squeezenet")
    parser.add_argument("--rules", default="dla.yaml")
    parser.add_argument("--codegen", default="dla")
    parser.add_argument("--only", nargs="+", type=int, default=range(len(SETTINGS)))
    asked = parser.parse_args()
    options = ["--rules", asked.rules, "--codegen", asked.codegen]
    first: dict[str, str] | None = None
    different = 0
    for number in asked.only:
        found = make_bundle(asked.model, options, SETTINGS[number])
        first = found if first is None else first
        wrong = sorted({name for name, _ in found.items() ^ first.items()})
        different += bool(wrong)
        sys.stdout.write(f"{SETTINGS[number].name}: {', '.join(wrong) or f'{len(found)} same files'}\n")
        sys.stdout.flush()
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
