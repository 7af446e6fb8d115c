"""Mutation testing of the central rooms: changes that no test notices.

    pip install -e '.[mutation]'
    python tests/mutation_suite/run.py                     # every room, 40 mutants each
    python tests/mutation_suite/run.py contracts --mutants 20 --seed 3

For each room mutants of its modules are drawn, and the room's own tests run against each: those that
reach the changed lines, the fastest first, 20 seconds of them at most. A mutant that they all pass has
survived: a test is missing, or the mutant computes the same, and then it stands with the reason in
`equivalent.yaml`. One that does not end counts as killed, and is told. Leaves with 1 when a score is
below `--least`.
"""

import os
import tempfile

os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = tempfile.mkdtemp(prefix="byoc-mutants-")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from mutation_suite.fork_server import SURVIVED, ForkServer, await_children  # noqa: E402
from mutation_suite.mutants import Mutant, sample_mutants  # noqa: E402

EQUIVALENT = Path(__file__).with_name("equivalent.yaml")
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Room:
    """Modules that are mutated, as globs, and the tests that belong to them."""

    modules: Sequence[str]
    tests: Sequence[str]

    def paths(self) -> list[str]:
        """Return the modules' paths in the repository."""
        found = {path for glob in self.modules for path in ROOT.glob(glob)}
        doors = {path for path in found if "open_door(" in path.read_text("utf-8")}
        return sorted(str(path.relative_to(ROOT)) for path in found - doors)


VERDICTS = ("annotator", "objections", "node_view", "host_nodes", "tensor_constraints")
ROOMS: Mapping[str, Room] = {
    "contracts": Room(["byoc/boundary/contracts/*.py"], ["tests/boundary"]),
    "convert": Room(["byoc/boundary/convert/*.py"], ["tests/boundary"]),
    "arena": Room(["byoc/memory/arena/*.py"], ["tests/memory"]),
    "bundle": Room(["byoc/bundle/*.py"], ["tests/bundle"]),
    "verdicts": Room([f"byoc/rules/_{name}.py" for name in VERDICTS], ["tests/rules"]),
    "scheme": Room(["byoc/rules/_quantization_scheme.py"], ["tests/rules"]),
    "solvers": Room(["byoc/placement/*.py", "byoc/placement/*/*.py"], ["tests/placement"]),
    "planning": Room(["byoc/planning/*.py"], ["tests/planning"]),
    "runtime": Room(["byoc/runtime/*.py"], ["tests/runtime"]),
    "patterns": Room(["byoc/patterns/*.py"], ["tests/patterns"]),
    "quantization": Room(["byoc/quantization/*.py"], ["tests/quantization"]),
    "verification": Room(["byoc/verification/*.py"], ["tests/verification"]),
    "outlining": Room(
        ["byoc/model/_outline.py"], ["tests/model/test_graph_outline.py", "tests/boundary"]
    ),
    "checkers": Room(["tests/checkers/*.py"], ["tests/memory"]),
}


@dataclass(frozen=True)
class RoomScore:
    """What became of a room's mutants; a score leaves equivalent ones out."""

    killed: int
    equivalent: int
    survivors: Sequence[Mutant]

    @property
    def score(self) -> float:
        """The share of mutants that were killed among those that are not equivalent."""
        judged = self.killed + len(self.survivors)
        return self.killed / judged if judged else 1.0


def read_equivalent() -> dict[Key, str]:
    """Return the reasons of the mutants that compute the same as their module."""
    entries = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) or []
    return {(e["module"], e["function"], e["before"], e["after"]): e["reason"] for e in entries}


def score_room(room: Room, options: argparse.Namespace, scratch: Path, kept: Path) -> RoomScore:
    """Run the tests of a room against mutants of its modules, and print each that survives.

    `scratch` is an empty folder, and `kept` the file that keeps what the tests reach.
    """
    paths = [path for path in room.paths() if options.only in path]
    known = read_equivalent()
    mutants = sample_mutants(ROOT, paths, options.mutants, options.seed)
    judged = [mutant for mutant in mutants if mutant.key not in known]
    server = ForkServer(ROOT, paths, room.tests, scratch)
    for test in server.record(kept):
        print(f"    fails without a mutant, left out: {test}", flush=True)
    waiting = list(judged)
    running: dict[int, Mutant] = {}
    deadlines: dict[int, float] = {}
    survivors: list[Mutant] = []
    while waiting or running:
        while waiting and len(running) < options.jobs:
            mutant = waiting.pop(0)
            tests = server.choose_tests(mutant, options.seconds)
            if not tests:
                survivors.append(mutant)
                _print_survivor(mutant, 0)
                continue
            child = server.start(mutant, tests)
            running[child] = mutant
            deadlines[child] = time.monotonic() + 20 + 10 * sum(server.records[t].seconds for t in tests)
        if running:
            child, code = await_children(deadlines)
            mutant = running.pop(child)
            del deadlines[child]
            if code == -signal.SIGKILL:
                print(f"    does not end: {mutant.path}:{mutant.line} {mutant.after}", flush=True)
            if code in SURVIVED:
                survivors.append(mutant)
                _print_survivor(mutant, len(server.choose_tests(mutant, options.seconds)))
    return RoomScore(len(judged) - len(survivors), len(mutants) - len(judged), survivors)


def _print_survivor(mutant: Mutant, tests: int) -> None:
    print(f"    {mutant.path}:{mutant.line} {mutant.function} ({mutant.operator}, {tests} tests)")
    print(f"      - {mutant.before}\n      + {mutant.after}", flush=True)


def main() -> int:
    """Score rooms and print a table; return 1 when a score is below the least."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rooms", nargs="*", choices=[*ROOMS, []], help="all by default")
    parser.add_argument("--mutants", type=int, default=40, help="for each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seconds", type=float, default=20, help="of tests against each mutant, at most"
    )
    parser.add_argument("--only", default="", help="only modules whose path contains this")
    parser.add_argument("--keep", type=Path, help="folder for what tests reach, for the next run")
    parser.add_argument("--least", type=float, default=0.85, help="the lowest score to accept")
    options = parser.parse_args()
    rows = []
    for name in options.rooms or ROOMS:
        start = time.monotonic()
        print(f"{name}: survivors", flush=True)
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"byoc-mutants-{name}-"))
        child = os.fork()  # each room in a process of its own, with its own tests in memory
        if not child:
            kept = (options.keep or scratch) / f"{name}{options.only.replace('/', '-')}.json"
            result = score_room(ROOMS[name], options, scratch, kept)
            counts = [result.killed, result.equivalent, len(result.survivors)]
            (scratch / "score").write_text(" ".join(map(str, counts)), encoding="utf-8")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"{name}: ended with status {status}")
        killed, equivalent, survived = map(int, (scratch / "score").read_text().split())
        shutil.rmtree(scratch, ignore_errors=True)
        rows.append((name, killed, survived, equivalent, time.monotonic() - start))
    rows.append(("all", *(sum(row[i] for row in rows) for i in range(1, 5))))
    print("\nroom         mutants   killed  survived  equivalent   score  seconds")
    for name, killed, survived, equivalent, took in rows:
        score = killed / max(killed + survived, 1)
        total = killed + survived + equivalent
        print(
            f"{name:12} {total:7} {killed:8} {survived:9} {equivalent:11} {score:6.1%} {took:8.0f}",
            flush=True,
        )
    shutil.rmtree(os.environ["HYPOTHESIS_STORAGE_DIRECTORY"], ignore_errors=True)
    return int(any(k < options.least * (k + s) for _, k, s, *_ in rows))


if __name__ == "__main__":
    sys.exit(main())
