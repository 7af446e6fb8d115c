"""Inputs a second with several in flight, against one input at a time, of the same bundle.

    python benchmarks/pipeline_throughput.py [MODEL...] [--inputs N] [--rounds N]

Each model of the zoo is placed by the strategy `throughput` on the host and on OpenVINO's CPU, one
thread each, so that each is one device as the placement counts it. Sequential runs and pipelines take
turns; ratios are those of neighbours, by the wall clock: the median, and the least and the greatest in
brackets. On a machine that does other work there is nothing to be gained, and the figures say nothing.
The most that can be gained is what the devices' work adds up to over that of the busiest.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from common import machine, timed

import byoc
from byoc.onnxrt import with_threads
from byoc.runtime import Session, Trace
from byoc.samples import model_samples
from byoc.zoo import load_model

_MODELS = ("resnet50", "shufflenet", "densenet121", "vit_tiny")
_IN_FLIGHT = (2, 4)


def main(names: list[str], inputs: int, rounds: int) -> None:
    """Print the figures of some models of the zoo."""
    print(f"{machine()}, {inputs} inputs, {rounds} rounds")
    for name in names or _MODELS:
        with TemporaryDirectory() as folder:
            session, given = open_balanced(name, Path(folder) / "bundle")
            measure_pipelines(name, session, given, inputs, rounds)


def open_balanced(name: str, bundle: Path) -> tuple[Session, Mapping[str, Any]]:
    """Place a model so that the busier device has little to do; return its session and an input."""
    byoc.partition(
        f"zoo:{name}",
        "openvino-cpu",
        output=bundle,
        strategy="throughput",
        codegen_options={"threads": "1"},
        verify=False,
    )
    with with_threads(1):
        return byoc.load(bundle), dict(model_samples(load_model(f"zoo:{name}")))


def measure_pipelines(
    name: str, session: Session, given: Mapping[str, Any], inputs: int, rounds: int
) -> None:
    """Print how many inputs a second sequential runs and pipelines finish."""
    trace = Trace()
    session(given)
    session.run(given, trace)
    load: dict[str, float] = defaultdict(float)
    for event in trace.events:
        load[event.device] += event.seconds
    found: dict[int, list[float]] = {count: [] for count in (1, *_IN_FLIGHT)}
    for _ in range(rounds):
        for count, seconds in found.items():
            seconds.append(timed(run_pipeline, session, given, inputs, count)[0])
    at_best = sum(load.values()) / max(load.values())
    loads = ", ".join(f"{device} {1000 * seconds:.2f} ms" for device, seconds in load.items())
    print(f"\n{name}: {loads}; at best {at_best:.2f} times as many inputs a second")
    for count, seconds in found.items():
        ratios = [first / each for first, each in zip(found[1], seconds, strict=True)]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"  {count} in flight: {inputs / median(seconds):8.1f} a second, {spread}")


def run_pipeline(session: Session, given: Mapping[str, Any], inputs: int, in_flight: int) -> None:
    """Run a session on the same input many times, with some in flight."""
    for _ in session.run_pipeline([given] * inputs, in_flight):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--inputs", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    main(options.models, options.inputs, options.rounds)
