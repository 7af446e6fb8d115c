"""Hostile input by the thousand: `python tests/fuzz/fuzz.py models --inputs 100000 --seed 0`.

Input number i of a seed is the same on every run, whatever came before it. With `--coverage --seconds N`
atheris (the extra `fuzz`) changes inputs that reached new code instead, beginning with the corpus, for
that much processor time. Inputs are tried in a process of its own, with a limit on its memory; one that
dies or hangs counts as a finding, and another goes on behind it. The exit code is 1 when there are
findings.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

from attempts import AT, Finding, Recorder, attempt, make_ready  # noqa: E402
from kinds import CORPUS, KINDS  # noqa: E402
from reached_lines import choose_inputs, read_corpus, write_corpus  # noqa: E402
from shrink import shrink  # noqa: E402

_MAX_WAIT = 600  # seconds by the clock for an input that takes no processor time
_INPUTS_OF_A_PROCESS = 20_000


def make(kind: str, seed: int, number: int) -> bytes:
    """Return an input: a function of its three arguments alone."""
    return KINDS[kind].make(random.Random(f"{kind}:{seed}:{number}"))


def _work(kind: str, seed: int, numbers: range, folder: Path) -> None:
    """Try inputs one after the other; what is found goes to standard output, a line each."""
    with Recorder(kind, folder, numbers.start) as recorder:
        for number in numbers:
            recorder.try_input(make(kind, seed, number))


@dataclass
class Summary:
    """What became of all inputs of a run."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, -1)
    peak: int = 0
    edges: int = 0

    def add(self, content: dict[str, Any]) -> None:
        """Add what a process says at its end."""
        self.outcomes.update(content["outcomes"])
        self.slowest = max(self.slowest, (content["slowest"][0], content["slowest"][1]))
        self.peak = max(self.peak, content["peak"])


def fuzz(kind: str, seed: int, numbers: range, summary: Summary) -> Iterator[Finding]:
    """Yield what is found in the inputs of a seed."""
    start = numbers.start
    while start < numbers.stop:
        stop = min(start + _INPUTS_OF_A_PROCESS, numbers.stop)
        arguments = [__file__, kind, "--seed", str(seed), "--worker", str(start), str(stop)]
        with tempfile.TemporaryDirectory(prefix="byoc-fuzz-") as name:
            last = yield from _run_process(arguments, Path(name), summary)
        start = stop if last is None else last + 1


def fuzz_by_coverage(
    kind: str, seed: int, seconds: float, summary: Summary, keeping: bool
) -> Iterator[Finding]:
    """Yield what is found by changing inputs that reached new code, and print what they reached.

    With `keeping` a few of them that reach the same lines replace those in the corpus.
    """
    with tempfile.TemporaryDirectory(prefix="byoc-fuzz-") as name:
        corpus = Path(name, "corpus")
        corpus.mkdir()
        for data in (*KINDS[kind].seeds(), *read_corpus(kind)):
            (corpus / sha256(data).hexdigest()).write_bytes(data)
        begun, number = _used_by_children(), 0
        while (left := seconds - (_used_by_children() - begun)) > 1:
            script = str(Path(__file__).with_name("coverage_worker.py"))
            rooms = ":".join(KINDS[kind].rooms)
            arguments = [script, kind, str(seed + number), rooms, f"{left:.0f}", str(corpus)]
            with tempfile.TemporaryDirectory(prefix="byoc-fuzz-") as folder:
                yield from _run_process(arguments, Path(folder), summary)
            number += 1
        found = [path.read_bytes() for path in corpus.iterdir()]
        chosen, reached, lines = choose_inputs(kind, found)
        print(f"{kind}: {len(found)} inputs reached new code, {summary.edges} edges; ", end="")
        print(
            f"{len(chosen)} of them reach {reached} of {lines} lines of {', '.join(KINDS[kind].rooms)}"
        )
        if keeping:
            write_corpus(kind, chosen)


def _used_by_children() -> float:
    """Return the processor seconds of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run_process(
    arguments: list[str], folder: Path, summary: Summary
) -> Generator[Finding, None, int | None]:
    """Yield what a process finds; return the number of the input that ended it, None if none did."""
    command = [sys.executable, *arguments, str(folder)]
    with (folder / "log").open("wb") as log, (folder / "out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=log)
        died = _watch(process, folder)
    for line in (folder / "out").read_text().splitlines():
        content = json.loads(line)
        if "outcomes" in content:
            summary.add(content)
        else:
            yield Finding.from_json(content)
    text = (folder / "log").read_text(errors="replace")
    edges = [rest.split()[0] for rest in text.split(" cov: ")[1:]]
    summary.edges = max([summary.edges, *map(int, edges)])
    if not died and process.returncode == 0:
        return None
    if not (folder / AT).exists():
        raise RuntimeError(f"the process that tries the inputs did not start: {text[-3000:]}")
    number, _, data = (folder / AT).read_bytes().partition(b"\n")
    yield Finding(int(number), died or f"ended with {process.returncode}", text[-3000:], data, True)
    return int(number)


def _watch(process: "subprocess.Popen[bytes]", folder: Path) -> str:
    """Wait for a process; end it when it has been at one input for too long, and say so."""
    last, since = b"", time.monotonic()
    while True:
        try:
            process.wait(timeout=0.2)
            return ""
        except subprocess.TimeoutExpired:
            at = folder / AT
            now = at.read_bytes()[:12] if at.exists() else b""
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > _MAX_WAIT:
                process.kill()
                process.wait()
                return "waits for something"


def keep(kind: str, finding: Finding) -> Path:
    """Write a finding's input to the corpus, as small as it gets while it does the same."""
    data = finding.data
    with tempfile.TemporaryDirectory(prefix="byoc-fuzz-") as name:
        if not finding.died:
            target = make_ready(kind, Path(name))
            data = shrink(kind, data, lambda smaller: attempt(target, smaller)[1] == finding.what)
    words = "".join(c if c.isalnum() else "_" for c in finding.what.lower()).strip("_")
    suffix = KINDS[kind].target(Path()).suffix
    path = CORPUS / kind / f"{words}_{sha256(data).hexdigest()[:8]}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--coverage", action="store_true", help="change inputs that reached new code")
    parser.add_argument("--seconds", type=float, default=300, help="processor time for that")
    parser.add_argument("--keep", action="store_true", help="shrink findings into the corpus")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    kind = options.kind
    if options.worker:
        start, stop, folder = options.worker
        _work(kind, options.seed, range(int(start), int(stop)), Path(folder))
        return 0
    begun = time.monotonic()
    summary = Summary()
    if options.coverage:
        findings = fuzz_by_coverage(kind, options.seed, options.seconds, summary, options.keep)
    else:
        numbers = range(options.first, options.first + options.inputs)
        findings = fuzz(kind, options.seed, numbers, summary)
    found: Counter[str] = Counter()
    for finding in findings:
        found[finding.what] += 1
        if found[finding.what] == 1:
            print(f"input {finding.number}: {finding.what}\n{finding.trace}", flush=True)
            if options.keep:
                print(f"kept as {keep(kind, finding)}", flush=True)
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(summary.outcomes.items()))
    print(f"{kind}, seed {options.seed}: {told}")
    print(f"{_used_by_children():.0f} s of processor time, {time.monotonic() - begun:.0f} s; ", end="")
    print(f"slowest {summary.slowest[0]:.2f} s ", end="")
    print(f"(input {summary.slowest[1]}), peak {summary.peak / 2**20:.0f} MiB, ", end="")
    print(f"{len(found)} kinds of findings")
    for what, count in found.most_common():
        print(f"  {count:6} {what}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
