"""Kill programs that use a cache: `python tests/fault_suite/kill_cache.py --kills 500`.

Each round starts programs on one folder that store, find, limit and clear entries, and kills each
(SIGKILL) at a random time, or with `--points` before a chosen one of its calls that touch the disk. A
program that finds an entry which is not what was stored says so. After each round every file in the
folder has to be a whole entry, and one program that is not killed must leave nothing beside the entries.
With `--partition` the programs partition a model, and what is found must make the bundle that was made
without a cache.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.cutting import DEVICE_ONLY, cut, files, without_what_ifs
from helpers.support import parse

from byoc.support.cache import CacheEntry, open_cache, read_entry

PROGRAMS = 3
KEYS = 40
LIMIT = 400_000  # bytes: less than all entries together, so that some go
CALLS = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.utime")
POINTS = 400  # calls of a program that are tried, more or less
LONGEST = 0.5  # seconds until a program is killed
KEPT = {"CACHEDIR.TAG", "entries", "limit"}


def make_entry(number: int) -> CacheEntry:
    """Return what belongs under the key of a number."""
    content = random.Random(number)
    blobs = [content.randbytes(content.randrange(30_000)) for _ in range(content.randrange(3))]
    return CacheEntry({"codegen": "killed", "number": number}, blobs)


def use_cache(folder: Path, seed: int, steps: int) -> None:
    """Store and find entries in random order. Raises AssertionError for one that is not as stored."""
    chosen = random.Random(seed)
    cache = open_cache(folder)
    for _ in range(steps):
        number = chosen.randrange(KEYS)
        expected = make_entry(number)
        found = cache.find(f"{number:064x}")
        if found is None:
            cache.store(f"{number:064x}", expected)
        else:
            assert (found.facts, list(found.blobs)) == (expected.facts, list(expected.blobs)), number
        if chosen.random() < 0.02:
            cache.set_limit(LIMIT)
        if chosen.random() < 0.005:
            cache.clear()


def partition(folder: Path, output: Path) -> None:
    """Partition a model with a cache, so that a region is compiled or found."""
    with without_what_ifs():
        cut(parse(DEVICE_ONLY), output, codegen="dla", verify=False, cache_dir=folder)


def check_folder(folder: Path) -> int:
    """Return the number of entries. Raises AssertionError for a file that is not whole."""
    cache = open_cache(folder)
    entries = cache.list_entries()
    assert len(entries) == sum(path.is_file() for path in (folder / "entries").rglob("*"))
    for entry in entries:
        with entry.path.open("rb") as file:
            read_entry(file, entry.path.parent.name + entry.path.name)
    return len(entries)


def start(arguments: argparse.Namespace, folder: Path, number: int, point: int | None) -> int:
    """Start a program that is killed before its call of number `point`; return its process."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        _kill_at(folder, point)
        if arguments.partition:
            partition(folder, folder.parent / f"bundle{number % PROGRAMS}")
        else:
            use_cache(folder, number, 100_000)
        code = 0
    finally:
        os._exit(code)


def _kill_at(folder: Path, point: int | None) -> None:
    os.fsync = lambda file: None
    inside, calls = os.fsencode(folder), 0

    def hook(event: str, given: tuple[object, ...]) -> None:
        nonlocal calls
        named = event in CALLS and isinstance(given[0], str | bytes | Path)
        if named and os.fsencode(given[0]).startswith(inside):  # type: ignore[arg-type]
            calls += 1
            if calls == point:
                os.kill(os.getpid(), signal.SIGKILL)

    if point is not None:
        sys.addaudithook(hook)


def run(arguments: argparse.Namespace) -> Counter[str]:
    """Kill as often as asked; return how often what was found. Raises AssertionError at a fault."""
    found: Counter[str] = Counter()
    chosen = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="byoc-kill-") as name:
        os.environ["XDG_DATA_HOME"] = f"{name}/data"
        folder = Path(os.path.realpath(name)) / "cache"
        open_cache(folder).set_limit(LIMIT if not arguments.partition else 1 << 30)
        if arguments.partition:
            with without_what_ifs():
                cut(
                    parse(DEVICE_ONLY), folder.parent / "plain", codegen="dla", verify=False, cache=False
                )
        number = 0
        while found["killed"] < arguments.kills:
            points = [chosen.randrange(1, POINTS) if arguments.points else None for _ in range(PROGRAMS)]
            processes = [start(arguments, folder, number + i, at) for i, at in enumerate(points)]
            number += PROGRAMS
            for process in processes:
                if not arguments.points:
                    time.sleep(chosen.random() * LONGEST)
                    os.kill(process, signal.SIGKILL)
                _, status = os.waitpid(process, 0)
                assert os.WIFSIGNALED(status) or status == 0, f"a program failed: {status}"
                found["killed" if os.WIFSIGNALED(status) else "too late"] += 1
            found["leftovers"] += len({path.name for path in folder.iterdir()} - KEPT)
            found["entries"] += check_folder(folder)
            if arguments.partition:
                partition(folder, folder.parent / "after")
                assert files(folder.parent / "after") == files(folder.parent / "plain")
            else:
                use_cache(folder, number, 20)
            open_cache(folder).store(f"{number:064x}", make_entry(number))
            left = {path.name for path in folder.iterdir()} - KEPT
            assert not left, f"round {number}: {left} are left"
            found["rounds"] += 1
    return found


def main() -> None:
    """Run, and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", action="store_true", help="kill before chosen calls")
    parser.add_argument("--partition", action="store_true", help="programs that partition a model")
    sys.stdout.write(json.dumps(run(parser.parse_args())) + "\n")


if __name__ == "__main__":
    main()
