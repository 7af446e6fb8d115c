"""Verbs of the command line under faults: `python tests/fault_suite/verbs.py --seed 1`.

`partition`, `pack`, `study` and a partition that keeps what it compiles in a cache run in processes of
their own, each under a fault, over an older output and where there is none:

- `disk`: the output's disk, or the cache's, is full at one of 30 points (a small tmpfs; needs the right
  to mount, else it is left out)
- `file`: no file may grow beyond one of 30 sizes (RLIMIT_FSIZE)
- `memory`: no more memory than one of 30 sizes (RLIMIT_AS)
- `kill`, `interrupt`, `terminate`: a signal at a random moment
- `twice`: two processes write to one output, and use one cache
- `odd`: no home, locale C, `python -O`, umask 000, files of the future

Then the output must be whole, the older one or the new one, or absent where none was, and nothing else
be left behind; the exit code must be none of byoc's own (3), and what is printed one clear sentence, no
traceback. A run without a fault follows and must give what one in an empty folder gives.
"""

import argparse
import csv
import json
import os
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.support import VANILLA, parse
from helpers.warm_processes import ForkedProcess, ForkServer

from byoc.bundle import open_bundle
from byoc.comparison import RUN_COLUMNS
from byoc.support import remove_leftovers

FAULTS = ("disk", "file", "memory", "kill", "interrupt", "terminate", "twice", "odd")
VERBS = ("partition", "pack", "study", "cache")
POINTS = 30
_RUNS_OF_A_REPETITION = 4
"""Of so many runs under a fault, one is followed by one without."""
_TURNS_OF_A_SIGNAL = 4
"""At most so many runs for each that a signal is to end: some end before it comes."""
_IMPORTS = "import pytest, byoc.cli._partition_verb, byoc.comparison._case_schedulers"
_NET = """
net (float[1, 4] x) => (float[1, 4] y) {
  a = Relu(x)
  b = Sigmoid(a)
  y = Add(b, b)
}
"""
# Sets limits, says that it begins, and runs the command line.
_PROGRAM = """
import os, resource, signal, sys
limits, mask, begun, *words = sys.argv[1:]
os.umask(int(mask, 8))
pages = int(open("/proc/self/statm").read().split()[0])
for name, number in eval(limits).items():
    if name == "RLIMIT_AS":
        number += pages * os.sysconf("SC_PAGE_SIZE")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(getattr(resource, name), (number, number))
sys.argv = ["byoc", *words]
from byoc.cli import main
try:
    open(begun, "w").close()
except OSError:
    pass
main()
"""
_SENTENCE = re.compile(r"byoc: .+|(warning|note): .+")
_PROGRESS = re.compile(r"byoc: \d+ of \d+ cases: ")
_CASES = "r.csv.cases.jsonl"
"""What a study keeps beside its results, so that it goes on where it was broken off."""
_MOST_SECONDS = 120
_NO_END = 1000
"""Stands for the exit code of a process that does not end by itself."""
_CACHE_PAGES = 12
"""The size of a cache's disk, in pages: an entry takes a few."""
_LIBRARY_ENDS = re.compile(
    r"cannot allocate memory for thread-local data|memory allocation of \d+ bytes failed"
)
"""What the libraries of C and of Rust say before they end a process without memory."""
_ALL_AT_ONCE = 3
"""The most lines of errors that count as one sentence: a warning may precede it."""


@dataclass
class Ran:
    """What a process left with, and said."""

    code: int
    out: str
    err: str
    seconds: float = 0.0


class Runner:
    """Runs verbs in a folder, in forks of a process that has imported byoc."""

    def __init__(self, base: Path) -> None:
        self.base = base
        kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        kept |= {f"XDG_{kind}_HOME": str(base / kind.lower()) for kind in ("DATA", "CONFIG", "CACHE")}
        self.environment = kept | {"OPENBLAS_NUM_THREADS": "1", "TMPDIR": str(base / "tmp")}
        (base / "tmp").mkdir()
        self._server = ForkServer(["-c", _IMPORTS], self.environment)
        self._number = 0

    def start(
        self,
        folder: Path,
        words: Sequence[str],
        limits: Mapping[str, int] | None = None,
        *,
        umask: int = 0o022,
        environment: Mapping[str, str] | None = None,
    ) -> "Started":
        """Start a verb in a folder."""
        self._number += 1
        begun = self.base / f"begun{self._number}"
        arguments = ["-c", _PROGRAM, repr(dict(limits or {})), oct(umask), str(begun), *words]
        process = ForkedProcess(
            self._server,
            arguments,
            environment or self.environment,
            (subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE),  # files would be limited, too
            passed=(),
            folder=folder,
        )
        return Started(process, begun)

    def run(self, folder: Path, words: Sequence[str], limits: Mapping[str, int] | None = None) -> Ran:
        """Run a verb to its end."""
        return self.start(folder, words, limits).finish()

    def close(self) -> None:
        """End the server."""
        self._server.close()


@dataclass
class Started:
    """A verb that runs."""

    process: ForkedProcess
    begun: Path
    began: float = field(default_factory=time.monotonic)

    def wait_until_begun(self) -> None:
        """Wait until it has its limits and is byoc's."""
        while not self.begun.exists() and self.process.poll() is None:
            time.sleep(0.002)
        self.began = time.monotonic()

    def finish(self) -> Ran:
        """Wait for its end, and return what it said."""
        try:
            self.process.wait(_MOST_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_MOST_SECONDS)
            return Ran(_NO_END, "", "it does not end")
        seconds = time.monotonic() - self.began
        out, err = (text.decode(errors="replace") for text in self.process.communicate())
        self.begun.unlink(missing_ok=True)
        return Ran(self.process.returncode or 0, out, err, seconds)


@dataclass(frozen=True)
class Verb:
    """A verb, with what it writes and what its inputs are."""

    name: str
    words: Sequence[str]
    output: str

    def prepare(self, folder: Path, ready: Path) -> None:
        """Put its inputs into an empty folder."""
        for path in ready.iterdir():
            if path.is_dir():
                shutil.copytree(path, folder / path.name)
            else:
                shutil.copy(path, folder / path.name)


_PARTITION = ("partition", "m.onnx", "--rules", "rules.yaml", "--strategy", "all-supported")
_ALL_VERBS = {
    "partition": Verb("partition", (*_PARTITION, "-o", "out/b", "--no-cache"), "out/b"),
    "pack": Verb("pack", ("pack", "ready.byoc", "-o", "out/b.zip"), "out/b.zip"),
    "study": Verb("study", ("study", "study.yaml", "-o", "out/r.csv", "--jobs", "1"), "out/r.csv"),
    "cache": Verb(
        "cache",
        (*_PARTITION[:3], "dla", *_PARTITION[4:], "-o", "out/b", "--cache-dir", "kept/cache"),
        "out/b",
    ),
}
_STUDY = """
models: m.onnx
rules: rules.yaml
strategies: [all-supported, min-cut, host-only]
links: [0.1, 1, 10]
"""


def make_inputs(runner: Runner, folder: Path) -> None:
    """Write what the verbs read."""
    folder.mkdir()
    model = parse(_NET)
    weight = np.random.default_rng(0).random(9000, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "unread"))
    onnx.save(model, folder / "m.onnx")
    shutil.copy(VANILLA, folder / "rules.yaml")
    (folder / "study.yaml").write_text(_STUDY, encoding="utf-8")
    done = runner.run(folder, [*_PARTITION, "-o", "ready.byoc", "--no-cache"])
    assert done.code == 0, done


def read_output(path: Path) -> object:
    """Return what an output holds, None where there is none. Raises when it is not whole."""
    if not path.exists():
        return None
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return [{name: text for name, text in row.items() if _is_lasting(name)} for row in rows]
    bundle = open_bundle(path)
    bundle.regions()
    if path.is_dir():
        return {
            str(each.relative_to(path)): each.read_bytes()
            for each in sorted(path.rglob("*"))
            if each.is_file()
        }
    return path.read_bytes()


def _is_lasting(column: str) -> bool:
    return column not in RUN_COLUMNS


class Trial:
    """One verb under one fault, over an older output or none."""

    def __init__(self, runner: Runner, ready: Path, verb: Verb) -> None:
        self.runner, self.ready, self.verb = runner, ready, verb
        self.found: Counter[str] = Counter()
        self.sentences: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._older = runner.base / f"older-{verb.name}"
        with self._folder() as folder:
            ran = runner.start(folder, verb.words)
            ran.wait_until_begun()
            done = ran.finish()
            assert done.code == 0, done
            self.seconds = done.seconds
            self.expected = read_output(folder / verb.output)
            self.size = sum(
                each.stat().st_size for each in (folder / "out").rglob("*") if each.is_file()
            )
            assert self.expected, verb

    @contextmanager
    def _folder(self, over: bool = False) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.runner.base, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            self.verb.prepare(folder, self.ready)
            (folder / "out").mkdir()
            if over and self._older.exists():
                shutil.rmtree(folder / "out")
                shutil.copytree(self._older, folder / "out")
            elif over:
                done = self.runner.run(folder, self.verb.words)
                assert done.code == 0, done
                shutil.copytree(folder / "out", self._older)
            yield folder

    def judge(self, label: str, folder: Path, ran: Ran, over: bool) -> None:
        """Hold what a run left to what it may leave."""
        self.found["runs"] += 1
        self.found[f"code {ran.code}"] += 1
        said = [line for line in ran.err.strip().splitlines() if not _PROGRESS.match(line)]
        if _LIBRARY_ENDS.search(ran.err):
            ran = Ran(-signal.SIGKILL, ran.out, ran.err)
        if ran.code not in (0, 1, 4, 5, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT):
            self.wrong.append(f"{label}: exit code {ran.code}: {' / '.join(said[-3:])[:400]}")
        if "Traceback" in ran.err + ran.out:
            self.wrong.append(f"{label}: a traceback: {' / '.join([*said[:2], *said[-4:]])[:600]}")
        if ran.code == 1:
            clear = [line for line in said if _SENTENCE.match(line)]
            self.sentences[re.sub(r"/\S+|\d+", "*", clear[-1] if clear else ran.err)[:120]] += 1
            if not clear or len(said) > _ALL_AT_ONCE:
                self.wrong.append(f"{label}: not one sentence: {' / '.join(said)[:400]}")
        path = folder / self.verb.output
        try:
            held = read_output(path)
        except Exception as error:
            self.wrong.append(f"{label}: {type(error).__name__}: {error}"[:400])
            return
        if self.verb.name == "study":
            rows = held if isinstance(held, list) else []
            self.found["whole" if rows == self.expected else "part" if rows else "absent"] += 1
            if over and ran.code and rows != self.expected:
                self.found["older rows gone"] += 1
        elif held is None:
            self.found["absent"] += 1
            if over or ran.code in (0, 4):
                self.wrong.append(f"{label}: exit code {ran.code}, and no output is there")
        else:
            self.found["whole"] += 1
            if ran.code == 0 and not self._is_expected(held, label):
                self.wrong.append(f"{label}: the output is another than without a fault")

    def _is_expected(self, held: object, label: str) -> bool:
        """Say whether an output is that without a fault; without a home it has another signature."""
        if label == "no home" and isinstance(held, dict) and isinstance(self.expected, dict):
            return {**held, "signature.json": b""} == {**self.expected, "signature.json": b""}
        return held == self.expected

    def repeat(self, label: str, folder: Path) -> None:
        """Run once more without a fault: the output must be right, and nothing else be there."""
        done = self.runner.run(folder, self.verb.words)
        if done.code != 0 or "Traceback" in done.err:
            self.wrong.append(f"{label}: the next run: {done.code}: {done.err[-300:]}")
            return
        held = read_output(folder / self.verb.output)
        if held != self.expected:
            self.wrong.append(f"{label}: the next run gives another output")
        remove_leftovers(folder / "out")
        left = {path.name for path in (folder / "out").iterdir()} - {Path(self.verb.output).name}
        if left - {_CASES}:
            self.wrong.append(f"{label}: left behind: {sorted(left)}")

    def limit_files(self, points: int) -> None:
        """Let no file grow beyond a size."""
        for number in range(points):
            size = int(self.size * 1.2 * number / points)
            self._try(f"file of {size}", {"RLIMIT_FSIZE": size}, over=bool(number % 2))

    def limit_memory(self, points: int) -> None:
        """Let the process have no more memory than so much beside what it has."""
        for number in range(points):
            size = 400_000_000 * number * number // (points * points)
            self._try(f"{size} bytes of memory", {"RLIMIT_AS": size}, over=bool(number % 2))

    def _try(self, label: str, limits: Mapping[str, int], over: bool) -> None:
        with self._folder(over) as folder:
            self.judge(label, folder, self.runner.run(folder, self.verb.words, limits), over)
            if self.found["runs"] % _RUNS_OF_A_REPETITION == 1:
                self.repeat(label, folder)

    def fill_disk(self, points: int) -> None:
        """Let the disk of the output, or of the cache, be full at a point."""
        place = "kept" if self.verb.name == "cache" else "out"
        for number in range(points):
            with self._folder() as folder:
                disk = folder / place
                disk.mkdir(exist_ok=True)
                pages, files = 2 + int((self.size * 2.6 // 4096 + 12) * number / points), 0
                if place == "kept":  # an entry is small: most of the disk is full, or files are few
                    pages, files = (_CACHE_PAGES, 0) if number % 2 else (_CACHE_PAGES, 2 + number % 20)
                with _mount(disk, pages, files):
                    label = f"disk of {pages} pages and {files or 'any'} files"
                    if place == "kept" and not files:
                        free = number // 2 % _CACHE_PAGES
                        (disk / "full").write_bytes(bytes((pages - free) * resource.getpagesize()))
                        label += f", {free} pages free"
                    self.judge(label, folder, self.runner.run(folder, self.verb.words), False)
                    left = {path.name for path in disk.iterdir()} if place == "out" else set()
                    left -= {Path(self.verb.output).name, _CASES}
                    if left:
                        self.wrong.append(f"{label}: left behind: {sorted(left)}")
                    if place == "kept":
                        self._use_cache(label, folder)
                if number % _RUNS_OF_A_REPETITION == 0:
                    self.repeat(label, folder)  # on the disk below, which is empty

    def _use_cache(self, label: str, folder: Path) -> None:
        """Count what a full disk let a cache keep, and use it again: it must be whole."""
        is_kept = any(each.is_file() for each in (folder / "kept" / "cache" / "entries").rglob("*"))
        self.found["kept" if is_kept else "not kept"] += 1
        shutil.rmtree(folder / self.verb.output, ignore_errors=True)
        self.judge(f"{label}, again", folder, self.runner.run(folder, self.verb.words), False)

    def send_signals(self, number: signal.Signals, times: int, seed: int) -> None:
        """End so many runs by a signal at random moments, every other one over an older output."""
        chosen = random.Random(seed)
        lasted = [self.seconds]
        turn = 0
        while self.found["ended by it"] < times and turn < _TURNS_OF_A_SIGNAL * times:
            over = bool(turn % 2)
            with self._folder(over) as folder:
                started = self.runner.start(folder, self.verb.words)
                started.wait_until_begun()
                time.sleep(chosen.random() * statistics.median(lasted))
                started.process.send_signal(number)
                label = f"{number.name} {turn}"
                ran = started.finish()
                if ran.code:
                    self.found["ended by it"] += 1
                else:
                    self.found["too late"] += 1
                    lasted.append(ran.seconds)
                self.judge(label, folder, ran, over)
                if turn % _RUNS_OF_A_REPETITION == 0:
                    self.repeat(label, folder)
            turn += 1
        if self.found["ended by it"] < times:
            self.wrong.append(f"{number.name}: only {self.found['ended by it']} of {times} were ended")

    def run_twice(self, times: int) -> None:
        """Let two processes write one output, and use one cache."""
        for turn in range(times):
            with self._folder() as folder:
                both = [self.runner.start(folder, self.verb.words) for _ in range(2)]
                for place, started in enumerate(both):
                    self.judge(f"twice {turn}.{place}", folder, started.finish(), False)
                self.repeat(f"twice {turn}", folder)

    def meet_oddities(self) -> None:
        """Run without a home, in locale C, by `python -O`, with umask 000, and files of the future."""
        homeless = {
            name: value
            for name, value in self.runner.environment.items()
            if name != "HOME" and not name.startswith("XDG_")
        }
        plain = {**self.runner.environment, "LC_ALL": "C", "LANG": "C"}
        for label, environment, umask in (
            ("no home", homeless, 0o022),
            ("locale C", plain, 0o022),
            ("umask 000", self.runner.environment, 0o000),
        ):
            with self._folder() as folder:
                started = self.runner.start(
                    folder, self.verb.words, environment=environment, umask=umask
                )
                ran = started.finish()
                self.judge(label, folder, ran, False)
                if ran.code:
                    self.wrong.append(f"{label}: exit code {ran.code}: {ran.err[-300:]}")
        with self._folder() as folder:
            command = [sys.executable, "-O", "-m", "byoc", *self.verb.words]
            done = subprocess.run(
                command,
                cwd=folder,
                env=self.runner.environment,
                capture_output=True,
                text=True,
                check=False,
            )
            self.judge("-O", folder, Ran(done.returncode, done.stdout, done.stderr), False)
            if done.returncode:
                self.wrong.append(f"-O: exit code {done.returncode}: {done.stderr[-300:]}")
        with self._folder(over=True) as folder:
            later = time.time() + 400 * 86_400
            for path in [*folder.rglob("*"), *self.runner.base.rglob("cache/**/*")]:
                os.utime(path, (later, later))
            self.judge("files of the future", folder, self.runner.run(folder, self.verb.words), True)
            self.repeat("files of the future", folder)


@contextmanager
def _mount(folder: Path, pages: int, files: int = 0) -> Iterator[None]:
    """Mount a disk of so many pages, and of so many files where they are not 0."""
    size = pages * resource.getpagesize()
    options = f"size={size},mode=700" + (f",nr_inodes={files}" if files else "")
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def can_mount(base: Path) -> bool:
    """Say whether a tmpfs can be mounted."""
    place = base / "mounted"
    place.mkdir()
    try:
        with _mount(place, 4):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Try the faults that are asked for; return what was found, by verb and fault."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="byoc-verbs-") as name:
        base = Path(os.path.realpath(name))
        runner = Runner(base)
        ready = base / "ready"
        make_inputs(runner, ready)
        mounts = can_mount(base)
        for verb in arguments.verbs:
            for fault in arguments.faults:
                trial = Trial(runner, ready, _ALL_VERBS[verb])
                if fault == "file":
                    trial.limit_files(arguments.points)
                elif fault == "memory":
                    trial.limit_memory(arguments.points)
                elif fault == "disk" and mounts:
                    trial.fill_disk(arguments.points)
                elif fault in ("kill", "interrupt", "terminate"):
                    numbers = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}
                    number = numbers.get(fault, signal.SIGTERM)
                    trial.send_signals(number, arguments.signals, arguments.seed)
                elif fault == "twice":
                    trial.run_twice(max(arguments.points // 6, 1))
                elif fault == "odd":
                    trial.meet_oddities()
                counts = {**trial.found, "wrong": trial.wrong, "sentences": trial.sentences}
                found[f"{verb}, {fault}"] = counts
                sys.stderr.write(f"{verb}, {fault}: {json.dumps(counts)}\n")
        runner.close()
    return found


def main() -> int:
    """Run, and print what was found as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=VERBS)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--signals", type=int, default=50, help="runs of each verb that a signal ends")
    parser.add_argument("--seed", type=int, default=1)
    found = run(parser.parse_args())
    sys.stdout.write(json.dumps(found) + "\n")
    return int(any(counts["wrong"] for counts in found.values()))  # type: ignore[index]


if __name__ == "__main__":
    sys.exit(main())
