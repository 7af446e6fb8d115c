"""What the cache of compiled regions saves: the same command twice, the first on an empty cache.

    python benchmarks/compile_cache.py [MODEL ...] [--codegens openvino c dla] [--isolate] [--jobs N]

Each command is a process of its own, without verification and what-ifs. The processor time it takes,
that of compilers and worker processes that it starts included, is counted as a whole and for compiling
alone: finding identical regions, looking each up in the cache, calling the codegen, storing what it
made. The ratio of the second command to the first is printed for both. The exit code is 1 where a bundle
is not the same bytes, or the second takes more than a tenth of the first's time for compiling.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import machine
from isolated_run import read_processor_seconds

import byoc
from byoc.bundle import _writing

MODELS = ("squeezenet", "shufflenet", "densenet121", "resnet50", "efficientnet_b0", "vit_tiny", "bert")
RULES = {"openvino": "openvino-cpu", "c": "dla", "dla": "dla"}
MOST = 0.1
"""The most that the second command may take for compiling, as a share of the first."""


def main(arguments: argparse.Namespace) -> int:
    """Print the figures of each model with each codegen; return the exit code."""
    print(f"{machine()}; seconds of the processors, first and second command")
    print(f"{'model':16}{'codegen':10}{'regions':>7}{'compile':>16}{'ratio':>8}{'all':>16}{'ratio':>8}")
    bad = 0
    for name in arguments.models or MODELS:
        for codegen in arguments.codegens:
            with TemporaryDirectory() as folder:
                bad += compare_commands(name, codegen, Path(folder), arguments)
    return int(bad > 0)


def compare_commands(name: str, codegen: str, folder: Path, arguments: argparse.Namespace) -> bool:
    """Run a command twice, and print what it took; return whether that is not as it should be."""
    options: dict[str, Any] = {
        "rules": RULES[codegen],
        "codegen": codegen,
        "strategy": "all-supported",
        "cache_dir": str(folder / "cache"),
        "isolate": arguments.isolate,
        "jobs": arguments.jobs,
    }
    first, second = (
        run_command({**options, "model": f"zoo:{name}", "output": str(folder / output)})
        for output in ("first", "second")
    )
    same = list_files(folder / "first") == list_files(folder / "second")
    compiling, whole = (second[key] / first[key] for key in ("compile", "whole"))
    print(
        f"{name:16}{codegen:10}{first['regions']:7.0f}"
        f"{first['compile']:8.2f}{second['compile']:8.3f}{compiling:8.3f}"
        f"{first['whole']:8.2f}{second['whole']:8.2f}{whole:8.3f}{'' if same else '  other bytes'}",
        flush=True,
    )
    return not same or compiling > MOST


def run_command(options: dict[str, Any]) -> dict[str, float]:
    """Partition in a process of its own; return its seconds by what they were for, and the regions."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, __file__, "--once", json.dumps(options)]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {**json.loads(ran.stdout), "whole": whole}


def partition_once(options: dict[str, Any]) -> None:
    """Partition a model, and print as JSON how long compiling took."""
    compile_regions, seconds = _writing.compile_regions, []

    def count_time(*given: Any) -> Any:
        start = read_all_seconds()
        try:
            return compile_regions(*given)
        finally:
            seconds.append(read_all_seconds() - start)

    _writing.compile_regions = count_time
    result = byoc.partition(**options, verify=False, what_if=False)
    print(json.dumps({"compile": sum(seconds), "regions": len(result.plan.regions)}))


def read_all_seconds() -> float:
    """Return the processor time of this process and of all that it started, ended or not."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return read_processor_seconds() + ended.ru_utime + ended.ru_stime


def list_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a bundle but for its signature and what names its own path."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".sig")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def parse_arguments(given: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--codegens", nargs="+", default=list(RULES), choices=RULES)
    parser.add_argument("--isolate", action="store_true")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--once", help=argparse.SUPPRESS)
    return parser.parse_args(given)


if __name__ == "__main__":
    asked = parse_arguments(sys.argv[1:])
    if asked.once is None:
        sys.exit(main(asked))
    partition_once(json.loads(asked.once))
