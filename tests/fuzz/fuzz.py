"""Hostile input by the thousand: `python tests/fuzz/fuzz.py models --inputs 100000 --seed 0`.

Input number i of a seed is the same on every run, whatever came before it. Inputs are tried in a process
of its own, with a limit on its memory; one that dies or hangs counts as a finding, and another goes on
behind it. The exit code is 1 when anything was found.
"""

import argparse
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

import model_inputs  # noqa: E402
import rule_inputs  # noqa: E402
from shrink import shrink  # noqa: E402
from targets import TARGETS, Models, Rules, peak_bytes, read_costs_once, signature  # noqa: E402

CORPUS = Path(__file__).parent / "corpus"
MAX_SECONDS = 10
MAX_BYTES = 2 << 30
_MAKERS = {"models": model_inputs.make, "rules": rule_inputs.make}
_GRACE = 10  # seconds for what runs outside Python, where no signal is seen


class TooLongError(BaseException):
    """An input took longer than it may; no handler of Exception swallows it."""


@dataclass(frozen=True)
class Finding:
    """An input by its number, and what it did."""

    number: int
    what: str
    trace: str = ""


def make(kind: str, seed: int, number: int) -> bytes:
    """Return an input: a function of its three arguments alone."""
    return _MAKERS[kind](random.Random(f"{kind}:{seed}:{number}"))


def attempt(target: Models | Rules, data: bytes) -> tuple[str, str, str]:
    """Return what became of an input: the outcome, or else the finding's signature and trace."""
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    try:
        return target(data), "", ""
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return "", signature(error), traceback.format_exc(limit=-6)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def ready(kind: str, folder: Path) -> Models | Rules:
    """Return a target made ready in this process, with all limits set."""
    signal.signal(signal.SIGALRM, _too_long)
    warnings.simplefilter("error")
    read_costs_once()
    target = TARGETS[kind](folder)
    target.prepare()
    return target


def _too_long(_: int, __: FrameType | None) -> None:
    raise TooLongError


def _worker(kind: str, seed: int, numbers: range, folder: Path) -> None:
    """Try inputs one after the other; what is found goes to standard output, a line each."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    target = ready(kind, folder)
    outcomes: Counter[str] = Counter()
    slowest = (0.0, -1)
    with (folder / "at").open("wb", buffering=0) as at:
        for number in numbers:
            at.seek(0)
            at.write(b"%-12d" % number)
            begun = time.perf_counter()
            outcome, what, trace = attempt(target, make(kind, seed, number))
            slowest = max(slowest, (time.perf_counter() - begun, number))
            outcomes[outcome or "found"] += 1
            if what:
                print(json.dumps(asdict(Finding(number, what, trace))), flush=True)
    print(json.dumps({"outcomes": outcomes, "slowest": slowest, "peak": peak_bytes()}), flush=True)


def fuzz(kind: str, seed: int, numbers: range) -> Iterator[Finding | dict[str, Any]]:
    """Yield what is found, and a summary for each process that came to its end."""
    start = numbers.start
    while start < numbers.stop:
        with tempfile.TemporaryDirectory(prefix="byoc-fuzz-") as name:
            stop = min(start + 20_000, numbers.stop)
            command = [sys.executable, __file__, kind, "--seed", str(seed)]
            command += ["--worker", str(start), str(stop), name]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                died = _watch(process, Path(name))
                for line in process.stdout or ():
                    content = json.loads(line)
                    yield Finding(**content) if "number" in content else content
            if not died and process.returncode == 0:
                start = stop
                continue
            reached = Path(name, "at")
            if not reached.exists():
                raise RuntimeError("the process that tries the inputs did not start")
            number = int(reached.read_bytes())
            yield Finding(number, died or f"ended with {process.returncode}")
            start = number + 1


def _watch(process: "subprocess.Popen[bytes]", folder: Path) -> str:
    """Wait for a process; end it when it has been at one input for too long, and say so."""
    last, since = b"", time.monotonic()
    while True:
        try:
            process.wait(timeout=0.2)
            return ""
        except subprocess.TimeoutExpired:
            at = folder / "at"
            now = at.read_bytes() if at.exists() else b""
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > MAX_SECONDS + _GRACE + 20 * (not now):
                process.kill()
                return "too long, outside Python"


def keep(kind: str, seed: int, finding: Finding) -> Path:
    """Write a finding's input to the corpus, as small as it gets while it does the same."""
    data = make(kind, seed, finding.number)
    with tempfile.TemporaryDirectory(prefix="byoc-fuzz-") as name:
        if finding.trace:
            target = ready(kind, Path(name))
            data = shrink(kind, data, lambda smaller: attempt(target, smaller)[1] == finding.what)
    words = "".join(c if c.isalnum() else "_" for c in finding.what.lower()).strip("_")
    suffix = TARGETS[kind](Path()).suffix
    path = CORPUS / kind / f"{words}_{seed}_{finding.number}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(_MAKERS))
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="shrink findings into the corpus")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        start, stop, folder = options.worker
        _worker(options.kind, options.seed, range(int(start), int(stop)), Path(folder))
        return 0
    begun = time.monotonic()
    outcomes: Counter[str] = Counter()
    found: Counter[str] = Counter()
    slowest, peak = [0.0, -1], 0
    for entry in fuzz(options.kind, options.seed, range(options.first, options.first + options.inputs)):
        if isinstance(entry, Finding):
            found[entry.what] += 1
            if found[entry.what] == 1:
                print(f"input {entry.number}: {entry.what}\n{entry.trace}", flush=True)
                if options.keep:
                    print(f"kept as {keep(options.kind, options.seed, entry)}", flush=True)
            continue
        outcomes.update(entry["outcomes"])
        slowest = max(slowest, list(entry["slowest"]))
        peak = max(peak, int(entry["peak"]))
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"{options.kind}, seed {options.seed}: {told}")
    print(f"{time.monotonic() - begun:.0f} s, slowest {slowest[0]:.2f} s (input {slowest[1]}), ", end="")
    print(f"peak {peak / 2**20:.0f} MiB, {len(found)} kinds of findings")
    for what, count in found.most_common():
        print(f"  {count:6} {what}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
