"""What running split costs: bundles with all regions on `reference` against unsplit onnxruntime.

    python benchmarks/runtime_overhead.py [MODEL...] [--runs N]

For each model of the zoo two cuts: by the rules `dla`, whose regions want NHWC, and by a rule file that
leaves what joins branches (Sum, Add, Concat) on the host, so that there are many small regions. Runs of
the bundle and of the model in plain onnxruntime take turns: with byoc's options,
and with onnxruntime's own. A ratio is that of two neighbouring runs; the median and the quartiles are
printed. On a machine that others use too the ratio of processor time is the steadier one.

Then what a region alone costs: models of 1 to 100 regions that compute nothing, a Neg on the host
between every two. From a run's processor time that of as many onnxruntime sessions of one Neg is
subtracted.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime
from common import machine

import byoc
from byoc.model import Model
from byoc.onnxrt import open_session, run_session, session_runner
from byoc.runtime import Trace
from byoc.samples import model_samples
from byoc.zoo import load_model

_MODELS = ("resnet50", "squeezenet", "shufflenet", "densenet121")
_WARM_UP = 5
_PAUSE = 0.06  # seconds; onnxruntime's own options have threads spin for 40 ms after a run
_COSTS = (
    "kind: roofline\nname: near\npeak: {default: 1.0e+12}\nbandwidth: 1.0e+12\n"
    "link: {bandwidth: 1.0e+12}\n"
)
_EMPTY_CODEGEN = """
from byoc.codegen import Artifact

class Empty:
    name = "empty"

    def compile(self, region, options):
        return Artifact({"empty": b""})

    def load(self, region, artifact):
        (read,), (made,) = region.inputs, region.outputs
        return lambda inputs: {made.name: inputs[read.name]}
"""
_EMPTY = (1, 10, 50, 100)  # regions
_MEANS, _RUNS_IN_A_MEAN = 15, 50
_TAKEN = ("Conv", "BatchNormalization", "Relu", "MaxPool", "AveragePool")

Run = Callable[[], object]
Times = list[tuple[float, float]]
"""Seconds on the wall and of processors, run by run."""


def main(names: Sequence[str], runs: int) -> None:
    """Print the figures of some models of the zoo."""
    print(f"{machine()}, onnxruntime {onnxruntime.__version__}, {runs} runs in turn")
    with TemporaryDirectory() as place:
        for name in names:
            model = load_model(f"zoo:{name}")
            for rules in ("dla", pieces(Path(place))):
                measured(model, rules, Path(place) / "bundle", runs)
        pieces(Path(place))  # writes the costs as well
        install_empty(Path(place))
        print("\nempty regions: microseconds of processor time each")
        for count in _EMPTY:
            print(f"  {count:4} regions  {measure_empty(count, Path(place)):6.1f}")


def pieces(place: Path) -> Path:
    """Write a rule file that takes what stands between two joins, and return its path."""
    (place / "near.yaml").write_text(_COSTS, encoding="utf-8")
    path = place / "pieces.yaml"
    ops = ", ".join(f"{{op: {op}}}" for op in _TAKEN)
    text = f"target: pieces\ncost_model: {place / 'near.yaml'}\ndtype: any\nops: [{ops}]\n"
    path.write_text(text, encoding="utf-8")
    return path


def measured(model: Model, rules: str | Path, output: Path, runs: int) -> None:
    """Cut a model, and print what its bundle takes against the model in one piece."""
    strategy = "all-supported"
    options = {"codegen": "reference", "verify": False, "cache": False}
    byoc.partition(model.source, rules, output=output, strategy=strategy, **options)
    session = byoc.load(output)
    given = dict(model_samples(model))
    regions = sum(stage.device != "host" for stage in session.stages)
    split = partial(session, given)
    whole = partial(run_session, open_session(model.proto, model.folder), given)
    stages = f"{len(session.stages)} segments, {regions} of them regions"
    print(f"\n{model.source}, {Path(rules).stem}: {stages}")
    times, ours = in_turn(whole, split, runs)
    print(f"  whole {middle(times):8.2f} ms, split {middle(ours):8.2f} ms")
    print(f"  split / same options               {ratio(ours, times)}")
    times, ours = in_turn(partial(plain(model).run, None, given), split, runs)
    print(f"  split / onnxruntime's own options  {ratio(ours, times)}")
    where(session, given)


def install_empty(place: Path) -> None:
    """Install a codegen for regions of one Relu, which computes nothing."""
    (place / "empty_codegen.py").write_text(_EMPTY_CODEGEN, encoding="utf-8")
    record = place / "empty_codegen-1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: empty-codegen\nVersion: 1\n", encoding="utf-8"
    )
    (record / "entry_points.txt").write_text(
        "[byoc.codegens]\nempty = empty_codegen:Empty\n", encoding="utf-8"
    )
    sys.path.insert(0, str(place))


def measure_empty(count: int, place: Path) -> float:
    """Return the microseconds that each of so many empty regions costs in a run, without the host's."""
    nodes = "".join(f"r{i} = Relu(n{i}) n{i + 1} = Neg(r{i}) " for i in range(count))
    model = _parse(f"(float[1, 4] n0) => (float[1, 4] n{count}) {{ {nodes} }}")
    path = place / "empty.yaml"
    path.write_text(
        f"target: empty\ncost_model: {place / 'near.yaml'}\ndtype: any\nops: [{{op: Relu}}]\n",
        encoding="utf-8",
    )
    options = {"codegen": "empty", "verify": False, "cache": False}
    byoc.partition(model, path, output=place / "empty", strategy="all-supported", **options)
    given = np.ones((1, 4), np.float32)
    split = partial(byoc.load(place / "empty").run, {"n0": given})
    alone = [
        partial(
            session_runner(open_session(_parse("(float[1, 4] x) => (float[1, 4] y) { y = Neg(x) }"))),
            {"x": given},
        )
        for _ in range(count)
    ]
    return (_least(split) - _least(lambda: [run() for run in alone])) / count * 1e6


def _parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')


def _least(run: Run) -> float:
    """Return the seconds of processor time of a run, the least of some means."""
    means = []
    for _ in range(_MEANS):
        start = time.process_time()
        for _ in range(_RUNS_IN_A_MEAN):
            run()
        means.append((time.process_time() - start) / _RUNS_IN_A_MEAN)
    return min(means)


def plain(model: Model) -> Any:
    """Return the model in onnxruntime with all its defaults."""
    return onnxruntime.InferenceSession(
        model.proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def in_turn(one: Run, other: Run, runs: int) -> tuple[Times, Times]:
    """Return the times of two, taken in turn; the first few runs do not count."""
    found: tuple[Times, Times] = ([], [])
    for _ in range(_WARM_UP + runs):
        for run, times in zip((one, other), found, strict=True):
            time.sleep(_PAUSE)
            wall, processors = time.perf_counter(), time.process_time()
            run()
            times.append((time.perf_counter() - wall, time.process_time() - processors))
    return found[0][_WARM_UP:], found[1][_WARM_UP:]


def middle(times: Times) -> float:
    """Return the median milliseconds on the wall."""
    return float(np.median([wall for wall, _ in times])) * 1e3


def ratio(one: Times, other: Times) -> str:
    """Return the median and the quartiles of the ratios of neighbouring runs, wall and processors."""
    pairs = zip(one, other, strict=True)
    ratios = np.array([[a / b for a, b in zip(mine, theirs, strict=True)] for mine, theirs in pairs])
    texts = []
    for column, what in enumerate(("wall", "processors")):
        low, median, high = np.quantile(ratios[:, column], (0.25, 0.5, 0.75))
        texts.append(f"{what} {median:.3f} ({low:.3f} to {high:.3f})")
    return ", ".join(texts)


def where(session: byoc.Session, given: Mapping[str, Any]) -> None:
    """Print what the stages on the host take, and what passes between the stages."""
    trace = Trace()
    session.run(given, trace)
    host = sum(event.seconds for event in trace.events if event.device == "host")
    between = trace.seconds - sum(event.seconds for event in trace.events)
    print(f"  one run: host {host * 1e3:.2f} ms, between stages {between * 1e3:.2f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=_MODELS)
    parser.add_argument("--runs", type=int, default=50)
    arguments = parser.parse_args()
    main(arguments.models, arguments.runs)
