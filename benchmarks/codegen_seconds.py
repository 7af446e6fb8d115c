"""What a codegen makes of models: `python benchmarks/codegen_seconds.py CODEGEN [MODEL ...]`.

Each model is cut so that all its rules support is on the accelerator, compiled and verified, then its
bundle and plain onnxruntime (default optimizations, one thread) run in turn on the same inputs. Printed
are nodes on the accelerator, regions, what was refused, the largest error as a share of an output's
range, seconds of processor time that partitioning took with all processes that it started, and
milliseconds of processor time of a run: medians, and the median of the ratios in each round. `--rules`
are the codegen's own unless given. `--option NAME=VALUE`, several times, are the codegen's.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import machine, on_disk

import byoc
from byoc import zoo
from byoc.errors import ByocError
from byoc.onnxrt import open_session, session_runner, with_threads

LIGHT = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet"),
    *("squeezenet", "vgg19", "zfnet512"),
)


def main() -> int:
    """Print the table; return 1 if a model could not be verified."""
    parser = argparse.ArgumentParser()
    parser.add_argument("codegen")
    parser.add_argument("models", nargs="*", default=LIGHT)
    parser.add_argument("--rules")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_intermixed_args()
    print(f"{asked.codegen} {' '.join(asked.option)}, {machine()}")
    print(
        f"{'model':<20} {'nodes':>5} {'regions':>8} {'refused':>8} {'error':>8} {'compiling s':>12}"
        f" {'run ms':>7} {'onnxruntime ms':>15} {'ratio':>6}"
    )
    failed = 0
    for name in asked.models:
        try:
            with with_threads(1):
                print(_measure(name, asked), flush=True)
        except ByocError as error:
            failed += 1
            print(f"{name:<20} {error}", flush=True)
    return int(failed > 0)


def _measure(name: str, asked: argparse.Namespace) -> str:
    options = dict(given.split("=", 1) for given in asked.option)
    with on_disk(name) as path, TemporaryDirectory() as folder:
        start = _processor_seconds()
        result = byoc.partition(
            path,
            asked.rules or asked.codegen,
            output=Path(folder) / "b",
            strategy="all-supported",
            codegen=asked.codegen,
            codegen_options=options,
            cache=False,
            verify=False,
        )
        compiling = _processor_seconds() - start
        verification = byoc.verify(Path(folder) / "b", against=path)
        error = max((output.relative for output in verification.outputs), default=0.0)
        inputs = zoo.sample_inputs(name)
        times = _run_in_turn([_bundle(Path(folder) / "b", inputs), _plain(path, inputs)], asked.rounds)
    own, plain = (statistics.median(each) * 1e3 for each in times)
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    placed = sum(len(region.nodes) for region in result.plan.regions)
    refusals = result.report.refusals
    first = f"  {refusals[0].reason}" if refusals else ""
    return (
        f"{name:<20} {placed:>5} {len(result.plan.regions):>8} {len(result.report.refusals):>8}"
        f" {error:>8.1e} {compiling:>12.1f} {own:>7.1f} {plain:>15.1f} {ratio:>6.2f}"
        f"{'' if verification.passed else '  not verified'}{first}"
    )


def _run_in_turn(runs: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Return the seconds of processor time of each run, in rounds; a first round is not counted."""
    times: list[list[float]] = [[] for _ in runs]
    for number in range(rounds + 1):
        for run, own in zip(runs, times, strict=True):
            start = time.process_time()
            run()
            if number:
                own.append(time.process_time() - start)
    return times


def _bundle(path: Path, inputs: Mapping[str, Any]) -> Callable[[], object]:
    session = byoc.load(path, isolate=False)
    return lambda: session(inputs)


def _plain(path: Path, inputs: Mapping[str, Any]) -> Callable[[], object]:
    run = session_runner(open_session(path))
    return lambda: run(inputs)


def _processor_seconds() -> float:
    """Return the seconds of processor time of this process and those that it waited for."""
    return sum(os.times()[:4])


if __name__ == "__main__":
    sys.exit(main())
