"""Kill byoc while it writes: `python tests/fault_suite/kill.py --kills 500`.

Each round starts a process that writes a bundle, a packed bundle or a file over an older one, and kills
it (SIGKILL): at a random time while it writes, or, with `--points`, before a chosen one of its calls
that touch the disk. Then what is there must be whole, the old or the new one; and after every tenth
round one write that succeeds must leave nothing else in the folder. `--two-steps` does without the
exchange of folders in one step, as on systems that lack it: then a bundle may be missing, and the next
write must bring it back. `--partition` makes each bundle anew; else a ready one is written. What a
process wrote outlives its death even where it never reached the disk, so nothing waits for the disk.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.cutting import CHAIN, DEVICE_ONLY, cut, without_what_ifs
from helpers.support import parse

from byoc.bundle import open_bundle, stage_bundle
from byoc.samples import read_npz, write_npz
from byoc.support import _workspace as workspaces

NAMES = {"folder": "b", "packed": "b.zip", "file": "b.npz"}
VERSIONS = (0, 1)
ROUNDS_OF_A_CLEANING = 10
# The calls that Python's audit hooks tell of, before they touch the disk.
CALLS = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree")
# The most that a call is slowed down, in seconds, so that a random time hits them all alike.
SLOW = 0.002


def write(kind: str, version: int, folder: Path, partition: bool) -> None:
    """Write one of two versions of a bundle or file."""
    path = folder / NAMES[kind]
    if kind == "file":
        write_npz(path, {"x": np.full(30_000, version, np.float32)})
    elif partition:
        with without_what_ifs():
            cut(MODELS[version], path, codegen="reference", verify=False, cache=False)
    else:
        with stage_bundle(path) as fresh:
            shutil.copytree(folder.parent / f"ready{version}", fresh, dirs_exist_ok=True)


def _make_model(text: str, seed: int) -> onnx.ModelProto:
    model = parse(text)
    weight = np.random.default_rng(seed).random(4000, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "unread"))
    return model


MODELS = (_make_model(CHAIN, 0), _make_model(DEVICE_ONLY, 1))


def read_version(kind: str, folder: Path) -> int | None:
    """Return the version that is there, None when nothing is. Raises when it is not whole."""
    path = folder / NAMES[kind]
    if not path.exists():
        return None
    if kind == "file":
        (value,) = set(read_npz(path)["x"].tolist())
        return int(value)
    bundle = open_bundle(path)
    bundle.regions()
    return 0 if len(bundle.model().graph.node) > 1 else 1


def _slow_down(seed: int) -> Callable[[int], None]:
    pause = random.Random(seed)
    return lambda _: time.sleep(pause.random() * SLOW)


class Writer:
    """Starts processes that write, and kills them; says where in their writing they were."""

    def __init__(self, folder: Path, two_steps: bool, partition: bool) -> None:
        self.folder, self.two_steps, self.partition = folder, two_steps, partition

    def finish(self, kind: str, version: int, seed: int = 0) -> tuple[int, float]:
        """Write in a process of its own to the end; return the number of calls, and the seconds."""
        reader, sender = os.pipe()
        process = self._start(kind, version, _slow_down(seed), sender)
        os.close(sender)
        with os.fdopen(reader, "rb") as pipe:
            calls = len(pipe.read(1))
            began = time.monotonic()
            calls += len(pipe.read())
            seconds = time.monotonic() - began
        _, status = os.waitpid(process, 0)
        assert status == 0, f"the write failed: {status}"
        return calls, seconds

    def kill_at(self, kind: str, version: int, point: int) -> bool:
        """Kill a process before a call of a number; return whether it was killed."""

        def stop(number: int) -> None:
            if number == point:
                os.kill(os.getpid(), signal.SIGKILL)

        return self._wait(self._start(kind, version, stop))

    def kill_after(self, kind: str, version: int, seconds: float, seed: int) -> bool:
        """Kill a process after so many seconds of writing; return whether it was killed."""
        reader, sender = os.pipe()
        process = self._start(kind, version, _slow_down(seed), sender)
        os.close(sender)
        os.read(reader, 1)
        time.sleep(seconds)
        os.kill(process, signal.SIGKILL)
        os.close(reader)
        return self._wait(process)

    def _wait(self, process: int) -> bool:
        _, status = os.waitpid(process, 0)
        assert os.WIFSIGNALED(status) or status == 0, f"the write failed: {status}"
        return os.WIFSIGNALED(status)

    def _start(
        self, kind: str, version: int, on_call: Callable[[int], None], pipe: int | None = None
    ) -> int:
        process = os.fork()
        if process:
            return process
        code = 1
        try:
            os.fsync = lambda file: None
            if self.two_steps:
                workspaces._exchange_folders = lambda one, other: False
            self._watch(on_call, pipe)
            write(kind, version, self.folder, self.partition)
            code = 0
        finally:
            os._exit(code)

    def _watch(self, on_call: Callable[[int], None], pipe: int | None) -> None:
        inside, calls = os.fsencode(self.folder), 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal calls
            if event in CALLS and isinstance(arguments[0], str | bytes | Path):
                path = os.path.abspath(os.fsencode(arguments[0]))  # noqa: PTH100 - names may be bytes
                # rmtree names files relative to an open folder, the last argument.
                relative = event in ("os.remove", "os.rmdir") and arguments[-1] != -1
                if path.startswith(inside) or relative:
                    calls += 1
                    if pipe is not None:
                        os.write(pipe, b".")
                    on_call(calls)

        sys.addaudithook(hook)


def run(arguments: argparse.Namespace) -> Counter[str]:
    """Kill as often as asked; return how often which was found. Raises AssertionError at a fault."""
    found: Counter[str] = Counter()
    kinds = arguments.kinds
    with tempfile.TemporaryDirectory(prefix="byoc-kill-") as name:
        folder = Path(os.path.realpath(name)) / "out"
        folder.mkdir()
        writer = Writer(folder, arguments.two_steps, arguments.partition)
        for version, model in enumerate(MODELS):
            ready = folder.parent / f"ready{version}"
            cut(model, ready, codegen="reference", verify=False, cache=False)
        calls, seconds = {}, {}
        for kind in NAMES:
            for version in (1, *VERSIONS):  # the first one replaces nothing
                calls[kind, version], seconds[kind, version] = writer.finish(kind, version)
            found[f"calls of a {kind}"] = calls[kind, 1]
        for number in range(arguments.kills):
            kind = kinds[number % len(kinds)]
            if arguments.points or number % 2:  # else the removal of leftovers is killed, too
                workspaces.remove_leftovers(folder)
            before = read_version(kind, folder)
            version = 1 - (before or 0)
            if arguments.points:
                # The calls near the end are those at which the old and the new one change places.
                point = calls[kind, version] - number // len(kinds) % calls[kind, version]
                killed = writer.kill_at(kind, version, point)
            else:
                wait = random.Random(arguments.seed + number).random() * seconds[kind, version]
                killed = writer.kill_after(kind, version, wait, number)
            found["killed" if killed else "too late"] += 1
            found["leftovers"] += len(list(folder.iterdir())) - len(NAMES)
            after = read_version(kind, folder)
            if after is None:
                assert arguments.two_steps, f"round {number}: no {kind} is there"
                workspaces.remove_leftovers(folder)
                after = read_version(kind, folder)
                found["moved back"] += 1
            assert after in VERSIONS, f"round {number}: no {kind} is there"
            found["old" if after == before else "new"] += 1
            if number % ROUNDS_OF_A_CLEANING == ROUNDS_OF_A_CLEANING - 1:
                writer.finish("file", 1)
                names = sorted(path.name for path in folder.iterdir())
                assert names == sorted(NAMES.values()), f"round {number}: {names} are left"
                found["cleanings"] += 1
    return found


def main() -> None:
    """Run, and print what was found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=NAMES, default=["folder", "packed", "file"])
    parser.add_argument("--points", action="store_true", help="kill before chosen calls")
    parser.add_argument("--partition", action="store_true", help="partition, rather than copy a bundle")
    parser.add_argument("--two-steps", action="store_true", help="without the exchange in one step")
    sys.stdout.write(json.dumps(run(parser.parse_args())) + "\n")


if __name__ == "__main__":
    main()
