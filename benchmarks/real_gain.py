"""What partitioning is worth on this CPU: bundles against all-onnxruntime and all-OpenVINO.

`python benchmarks/real_gain.py [MODEL ...] [--threads 1] [--clock processor]`

Each model is partitioned twice with the costs that come along: `default` is what `byoc partition
--rules openvino-cpu` writes, `chosen` what it writes with `--measure`. Then both bundles and both
libraries run in turn in one process, on the same inputs and number of threads. A ratio is a bundle's
time over that of the better of onnxruntime and OpenVINO in the same round; the median is printed, and
what lies between the quartiles. The exit code is 1 when a median ratio is above its limit.

`--clock processor` counts the processor's time that the process takes, all its threads together, for a
machine that others use as well; use it with one thread.

onnxruntime has its default optimizations; OpenVINO reads the model's file, computes in float32, and is
handed arrays without a copy.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from common import machine

import byoc
from byoc import zoo
from byoc.comparison import fastest
from byoc.errors import ByocError
from byoc.model import Model
from byoc.onnxrt import open_session, session_runner, with_threads
from byoc.pipeline import partition
from byoc.profiling import Clock, Patience, Samples, measure_in_turn
from byoc.samples import model_samples
from byoc.zoo import load_model

RULES = "openvino-cpu"
MODELS = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
    *("efficientnet_b0", "mobilenet_v3_large", "convnext_tiny", "vit_tiny", "bert"),
)
LIMITS = {"default": 1.05, "chosen": 1.02}
_CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "processor": time.process_time}

Runs = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Gain:
    """What came of a model: seconds of all four, ratios to the better of the first two, the cuts."""

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
    parser.add_argument("--clock", choices=_CLOCKS, default="wall")
    asked = parser.parse_intermixed_args()
    told = f"{asked.threads} of them used, {asked.clock} clock"
    print(f"{machine()}, {told}; milliseconds, ratios to the better library")
    print(
        f"{'model':20}{'onnxruntime':>12}{'OpenVINO':>10}{'default':>11}{'chosen':>9}"
        f"  {'default':<24}{'chosen':<24}{'which':<15}{'regions':>8}{'rounds':>7}"
    )
    above = []
    for name in asked.models:
        try:
            gain = measured(name, asked.threads, asked.seconds, _CLOCKS[asked.clock])
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


def _line(gain: Gain) -> str:
    times = "".join(
        f"{gain.seconds[name] * 1e3:{width}.2f}"
        for name, width in (("onnxruntime", 12), ("openvino", 10), ("default", 11), ("chosen", 9))
    )
    ratios = "".join(
        f"{f'{middle:.3f} ({low:.3f}..{high:.3f})':<24}"
        for low, middle, high in (gain.ratios["default"], gain.ratios["chosen"])
    )
    regions = f"{gain.regions['default']}, {gain.regions['chosen']}"
    return f"{gain.model:20}{times}  {ratios}{gain.chosen:<15}{regions:>8}{gain.rounds:>7}"


@dataclass(frozen=True, eq=False)
class Case:
    """A model with its inputs, how it is run and timed, and a folder for what is written."""

    model: Model
    inputs: Mapping[str, Any]
    threads: int
    clock: Clock
    folder: Path

    @property
    def options(self) -> dict[str, str]:
        """The codegen's options. What is here is loaded once, so nothing is stored twice."""
        return {"threads": str(self.threads), "blob": "no"}


def measured(name: str, threads: int, seconds: float, clock: Clock) -> Gain:
    """Return what comes of a model of the zoo. Raises ByocError where it cannot be cut or run."""
    with TemporaryDirectory(prefix="byoc-") as place, with_threads(threads):
        folder = Path(place)
        model = load_model(f"zoo:{name}")
        case = Case(model, dict(model_samples(model)), threads, clock, folder)
        options: dict[str, Any] = {"codegen_options": case.options, "verify": False, "cache": False}
        default = partition(model.source, RULES, output=folder / "default", **options)
        best = fastest(model.source, RULES, output=folder / "chosen", clock=clock, **options)
        candidates = [each for each in best.report.measured if not each.problem]
        chosen = min(candidates, key=lambda each: each.seconds or 0.0)
        runs: Runs = {
            "onnxruntime": _onnxruntime(case),
            "openvino": _openvino(case),
            "default": _bundle(folder / "default", case.inputs),
            "chosen": _bundle(folder / "chosen", case.inputs),
        }
        patience = Patience(warmup=2, least=11, most=1000, seconds=seconds / len(runs), settled=0.002)
        found = dict(zip(runs, measure_in_turn(list(runs.values()), patience, clock), strict=True))
    medians = {key: Samples.of(times).median for key, times in found.items()}
    better = np.array(found[min(("onnxruntime", "openvino"), key=medians.__getitem__)])
    ratios = {key: _quartiles(np.array(found[key]) / better) for key in ("default", "chosen")}
    regions = {"default": len(default.plan.regions), "chosen": len(best.plan.regions)}
    return Gain(name, medians, ratios, regions, chosen.strategy, len(better))


def _quartiles(ratios: Any) -> tuple[float, float, float]:
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    return low, middle, high


def _onnxruntime(case: Case) -> Callable[[], object]:
    run = session_runner(open_session(case.model.proto, case.model.folder))
    return lambda: run(case.inputs)


def _openvino(case: Case) -> Callable[[], object]:
    import openvino  # noqa: PLC0415 - optional

    path = case.folder / "whole.onnx"
    onnx.save(zoo.load(case.model.source.removeprefix("zoo:")), path)
    core = openvino.Core()
    properties = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": case.threads}
    compiled = core.compile_model(core.read_model(path), "CPU", properties)
    request = compiled.create_infer_request()
    given = [
        case.inputs[next(name for name in case.inputs if name in port.names)] for port in compiled.inputs
    ]
    return lambda: request.infer(given, share_inputs=True, share_outputs=True)


def _bundle(path: Path, inputs: Mapping[str, Any]) -> Callable[[], object]:
    session = byoc.load(path)
    return lambda: session(inputs)


if __name__ == "__main__":
    sys.exit(main())
