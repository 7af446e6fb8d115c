"""One process of fuzzing by coverage, which fuzz.py starts.

`coverage_worker.py KIND SEED ROOMS SECONDS CORPUS FOLDER`
"""

import importlib
import os
import random
import sys
import time
from pathlib import Path

import atheris

sys.path[:0] = [str(Path(__file__).parents[1])]

ROOT = Path(__file__).parents[2]


def list_modules(rooms: str) -> list[str]:
    """Return the names of the modules of rooms, which are given as paths with a colon between them."""
    found = []
    for room in rooms.split(":"):
        path = ROOT / room
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        for file in files:
            parts = [part for part in file.relative_to(ROOT).with_suffix("").parts if part != "__init__"]
            found.append(".".join(parts if parts[0] == "byoc" else ("byoc", *parts)))
    return found


with atheris.instrument_imports(include=(modules := list_modules(sys.argv[3]))):
    for module in modules:
        importlib.import_module(module)
from attempts import Recorder  # noqa: E402
from kinds import KINDS  # noqa: E402
from targets import peak_bytes  # noqa: E402

_MAX_INPUT_BYTES = 1 << 17
_PLAIN_SHARE = 0.1  # of inputs that libFuzzer changes as bytes
_MAX_RESIDENT = 1 << 30  # bytes: a process grows by some KiB an input, and another goes on


def main() -> None:
    """Fuzz until the processor time or the memory is used up, and leave."""
    kind, seed, _, seconds, corpus, folder = sys.argv[1:]
    stop = time.process_time() + float(seconds)
    recorder = Recorder(kind, Path(folder), 0)

    def try_input(data: bytes) -> None:
        recorder.try_input(data)
        if time.process_time() > stop or peak_bytes() > _MAX_RESIDENT:
            with recorder:
                pass
            sys.stderr.flush()
            os._exit(0)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        chance = random.Random(number)
        if chance.random() > _PLAIN_SHARE:
            changed = KINDS[kind].mutate(data, chance)
            if len(changed) <= most:
                return changed
        return bytes(atheris.Mutate(data, most))

    flags = [
        f"-seed={int(seed) + 1}",
        f"-max_len={_MAX_INPUT_BYTES}",
        "-timeout=86400",
        "-rss_limit_mb=0",
    ]
    atheris.Setup(
        [sys.argv[0], *flags, "-len_control=0", f"-artifact_prefix={folder}/", corpus],
        try_input,
        custom_mutator=mutate,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
