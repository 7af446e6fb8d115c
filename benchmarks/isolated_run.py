"""What isolation costs: bundles whose codegen runs in a process of its own, against the same in process.

    python benchmarks/isolated_run.py [MODEL...] [--runs N]

All that the rules `dla` take runs on `reference`. Runs take turns; a ratio is that of two neighbouring
runs, on the wall and in processor time, that of the codegen's process included. The median and the
quartiles are printed, and the seconds until the first outputs, which are loading and one run; with
isolation that includes starting a process and importing the codegen there.
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime
from common import machine
from runtime_overhead import Run, Times, middle, ratio

import byoc
from byoc.samples import model_samples
from byoc.zoo import load_model

_MODELS = ("resnet50", "squeezenet")
_WARM_UP = 3


def main(names: Sequence[str], runs: int) -> None:
    """Print the figures of some models of the zoo."""
    print(f"{machine()}, onnxruntime {onnxruntime.__version__}, {runs} runs in turn")
    with TemporaryDirectory() as folder:
        for name in names or _MODELS:
            measure_model(name, Path(folder) / name, runs)


def measure_model(name: str, output: Path, runs: int) -> None:
    """Cut a model, and print what its bundle takes isolated against in process."""
    options = {"strategy": "all-supported", "codegen": "reference", "verify": False, "cache": False}
    byoc.partition(f"zoo:{name}", "dla", output=output, **options)
    given = dict(model_samples(load_model(f"zoo:{name}")))
    times: list[Times] = []
    sessions = []
    for isolate in (False, True):
        start, processors = time.perf_counter(), read_processor_seconds()
        sessions.append(byoc.load(output, isolate=isolate))
        sessions[-1](given)
        wall, processors = time.perf_counter() - start, read_processor_seconds() - processors
        print(
            f"zoo:{name}, isolate={isolate}: {wall:.2f} s to the first outputs, {processors:.2f} s of "
            "the processors"
        )
    times = take_turns([partial(session, given) for session in sessions], runs)
    print(f"  in process {middle(times[0]):.2f} ms, isolated {middle(times[1]):.2f} ms")
    print(f"  isolated / in process  {ratio(times[1], times[0])}")


def take_turns(calls: Sequence[Run], runs: int) -> list[Times]:
    """Return the times of calls, taken in turn: on the wall, and of this process and its children."""
    found: list[Times] = [[] for _ in calls]
    for _ in range(_WARM_UP + runs):
        for call, times in zip(calls, found, strict=True):
            wall, processors = time.perf_counter(), read_processor_seconds()
            call()
            times.append((time.perf_counter() - wall, read_processor_seconds() - processors))
    return [times[_WARM_UP:] for times in found]


def read_processor_seconds() -> float:
    """Return the processor time of this process and of those that it started, in seconds.

    The clock of another process has the number that clock_getcpuclockid(3) gives on Linux.
    """
    threads = Path("/proc/self/task").iterdir()
    children = {child for each in threads for child in (each / "children").read_text().split()}
    clocks = [(~int(child) << 3) | 2 for child in children]
    return time.process_time() + sum(map(time.clock_gettime, clocks))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--runs", type=int, default=50)
    arguments = parser.parse_args()
    main(arguments.models, arguments.runs)
