"""What partitioning is worth on this CPU: bundles against all-onnxruntime and all-OpenVINO.

`python benchmarks/real_gain.py [MODEL ...] [--threads 1] [--clock processor] [--openvino-provider P]`

A MODEL is a name of the zoo or a file `.onnx`. Each is partitioned twice with the costs that come along:
`default` is what `byoc partition --rules openvino-cpu` writes, `chosen` what it writes with `--measure`.
Then both bundles and both libraries run in turn in one process, on the same inputs and number of
threads. A ratio is a bundle's time over that of the best library in the same round; the median is
printed, and what lies between the quartiles. The exit code is 1 when a median ratio is above its limit.

`--openvino-provider P` adds onnxruntime's OpenVINO provider as a third library: P is the Python of
an environment with `onnxruntime-openvino`, in which a process runs the model when its turn comes, and
says by its own clock how long that took.

`--clock processor` counts the processor's time that the process takes, all its threads together, for a
machine that others use as well. With several threads that is work, not waiting.

onnxruntime has its default optimizations, and its idle threads do not spin; OpenVINO reads the model's
file, computes in float32, and is handed arrays without a copy.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from common import machine

import byoc
from byoc import zoo
from byoc.comparison import Clock, Patience, Samples, fastest, measure_in_turn
from byoc.errors import ByocError
from byoc.model import Model
from byoc.onnxrt import open_session, session_runner, with_threads
from byoc.pipeline import partition
from byoc.samples import model_samples
from byoc.zoo import load_model

RULES = "openvino-cpu"
MODELS = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
    *("efficientnet_b0", "mobilenet_v3_large", "convnext_tiny", "vit_tiny", "bert"),
)
LIMITS = {"default": 1.05, "chosen": 1.02}
LIBRARIES = ("onnxruntime", "openvino", "provider")
PROVIDER_RUNS = Path(__file__).with_name("provider_runs.py")
CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "processor": time.process_time}

Runs = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Gain:
    """What came of a model: seconds of all contestants, ratios to the best library, the cuts."""

    model: str
    seconds: Mapping[str, float]
    ratios: Mapping[str, tuple[float, float, float]]
    regions: Mapping[str, int]
    chosen: str
    rounds: int


def main() -> int:
    """Print a row for each model, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the final runs of a model")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--openvino-provider", metavar="PYTHON", help="that has onnxruntime-openvino")
    asked = parser.parse_intermixed_args()
    told = f"{asked.threads} of them used, {asked.clock} clock"
    print(f"{machine()}, {told}; milliseconds, ratios to the better library")
    print(
        f"{'model':20}{'onnxruntime':>12}{'OpenVINO':>10}{'provider':>10}{'default':>11}{'chosen':>9}"
        f"  {'default':<24}{'chosen':<24}{'which':<15}{'regions':>8}{'rounds':>7}"
    )
    above = []
    for name in asked.models:
        try:
            gain = measured(name, asked)
        except ByocError as error:
            print(f"{name:20} {error}")
            above.append(name)
            continue
        print(_line(gain), flush=True)
        if any(gain.ratios[bundle][1] > limit for bundle, limit in LIMITS.items()):
            above.append(name)
    within = f"{len(asked.models) - len(above)} of {len(asked.models)}"
    print(f"{within} within {LIMITS['default']:g} and {LIMITS['chosen']:g}; not:", *above)
    return int(bool(above))


_WIDTHS = {"onnxruntime": 12, "openvino": 10, "provider": 10, "default": 11, "chosen": 9}


def _line(gain: Gain) -> str:
    times = "".join(
        f"{gain.seconds[name] * 1e3:{width}.2f}" if name in gain.seconds else f"{'-':>{width}}"
        for name, width in _WIDTHS.items()
    )
    ratios = "".join(
        f"{f'{middle:.3f} ({low:.3f}..{high:.3f})':<24}"
        for low, middle, high in (gain.ratios["default"], gain.ratios["chosen"])
    )
    regions = f"{gain.regions['default']}, {gain.regions['chosen']}"
    return f"{gain.model:20}{times}  {ratios}{gain.chosen:<15}{regions:>8}{gain.rounds:>7}"


@dataclass(eq=False)
class ContestClock:
    """A clock of this process in which a run in another one takes the seconds that it says."""

    own: Clock
    added: float = 0.0

    def __call__(self) -> float:
        """Return seconds."""
        return self.own() + self.added

    def run_elsewhere(self, run: Callable[[], float]) -> None:
        """Call a function that returns how many seconds are to be counted for it."""
        before = self.own()
        seconds = run()
        self.added += seconds - (self.own() - before)


@dataclass(frozen=True, eq=False)
class Case:
    """A model with its inputs, how it is run and timed, and a folder for what is written."""

    model: Model
    inputs: Mapping[str, Any]
    threads: int
    clock: ContestClock
    folder: Path

    @property
    def options(self) -> dict[str, str]:
        """The codegen's options. What is here is loaded once, so nothing is stored twice."""
        return {"threads": str(self.threads), "blob": "no"}

    @property
    def file(self) -> Path:
        """The whole model in a file."""
        if not self.model.source.startswith("zoo:"):
            return Path(self.model.source)
        path = self.folder / "whole.onnx"
        if not path.exists():
            onnx.save(zoo.load(self.model.source.removeprefix("zoo:")), path)
        return path


def measured(name: str, asked: argparse.Namespace) -> Gain:
    """Return what comes of a file or a model of the zoo. Raises ByocError where one cannot be run."""
    clock = ContestClock(CLOCKS[asked.clock])
    with TemporaryDirectory(prefix="byoc-") as place, with_threads(asked.threads):
        folder = Path(place)
        model = load_model(name if name.endswith(".onnx") else f"zoo:{name}")
        case = Case(model, dict(model_samples(model)), asked.threads, clock, folder)
        options: dict[str, Any] = {"codegen_options": case.options, "verify": False, "cache": False}
        default = partition(model.source, RULES, output=folder / "default", **options)
        best = fastest(model.source, RULES, output=folder / "chosen", clock=clock, **options)
        candidates = [each for each in best.report.measured if not each.problem]
        chosen = min(candidates, key=lambda each: abs((each.ratio or 0.0) - 1))
        runs: Runs = {
            "onnxruntime": run_onnxruntime(case),
            "openvino": run_openvino(case),
            "default": _bundle(folder / "default", case.inputs),
            "chosen": _bundle(folder / "chosen", case.inputs),
        }
        with _provider(case, asked.openvino_provider, asked.clock) as more:
            runs |= more
            patience = Patience(
                warmup=2, least=11, most=1000, seconds=asked.seconds / len(runs), settled=0.002
            )
            found = dict(zip(runs, measure_in_turn(list(runs.values()), patience, clock), strict=True))
    medians = {key: Samples.of(times).median for key, times in found.items()}
    better = np.array(found[min(set(LIBRARIES) & found.keys(), key=medians.__getitem__)])
    ratios = {key: _quartiles(np.array(found[key]) / better) for key in ("default", "chosen")}
    regions = {"default": len(default.plan.regions), "chosen": len(best.plan.regions)}
    return Gain(name, medians, ratios, regions, chosen.strategy, len(better))


def _quartiles(ratios: Any) -> tuple[float, float, float]:
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    return low, middle, high


def run_onnxruntime(case: Case) -> Callable[[], object]:
    """Return what runs the whole model on onnxruntime. Raises ByocError where it does not load."""
    run = session_runner(open_session(case.model.proto, case.model.folder))
    return lambda: run(case.inputs)


def run_openvino(case: Case) -> Callable[[], object]:
    """Return what runs the whole model on OpenVINO. Raises RuntimeError where it does not load."""
    import openvino  # noqa: PLC0415 - optional

    core = openvino.Core()
    properties = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": case.threads}
    compiled = core.compile_model(core.read_model(case.file), "CPU", properties)
    request = compiled.create_infer_request()
    given = [
        case.inputs[next(name for name in case.inputs if name in port.names)] for port in compiled.inputs
    ]
    return lambda: request.infer(given, share_inputs=True, share_outputs=True)


@contextmanager
def _provider(case: Case, python: str | None, clock: str) -> Iterator[Runs]:
    """Give the run of onnxruntime's OpenVINO provider in another process, nothing without a PYTHON."""
    if python is None:
        yield {}
        return
    inputs = case.folder / "inputs.npz"
    np.savez(inputs, **case.inputs)
    command = [python, str(PROVIDER_RUNS), str(case.file), str(inputs), str(case.threads), clock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        asking, answers = process.stdin, process.stdout

        def run() -> float:
            asking.write("\n")
            asking.flush()
            return float(answers.readline())

        first = answers.readline().strip()
        if first != "ready":
            raise ByocError(first or f"{python} cannot run {PROVIDER_RUNS.name}")
        try:
            yield {"provider": lambda: case.clock.run_elsewhere(run)}
        finally:
            asking.close()


def _bundle(path: Path, inputs: Mapping[str, Any]) -> Callable[[], object]:
    session = byoc.load(path)
    return lambda: session(inputs)


if __name__ == "__main__":
    sys.exit(main())
