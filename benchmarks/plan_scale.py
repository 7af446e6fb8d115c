"""How long planning takes, against reading the model and inferring its shapes.

    python benchmarks/plan_scale.py [MODEL...] [--rules dla] [--runs 3] [--profile] [--memory]
        [--baseline CHECKOUT]

All times are processor time in this process, warm, the least of several runs. For each model:
`onnx.load` with shape inference of its file, and everything that `byoc partition` does without an
output, stage by stage, as a ratio to that. The partitioned model, which such a plan makes when it is
asked for, is timed apart, and counts in `annotate to outline`. Names are those of the zoo, and of
`models.py`: `chain` (1,000 nodes, 200 of them not supported), `random` (10,000 nodes), `layers8` and
`layers80` (a decoder of equal layers), whose ratio to each other, with loading and without, is the last
line. `int4_layers8` and `int4_layers80` are planned where they are named: int4, 80 layers of 1.1 billion
weights, of 835 MB.

`--memory` plans each model once more in a fresh process, and prints the most memory that it had.
`--profile` adds own times by room of byoc and by function. `--baseline` runs the same models in another
checkout of byoc as well, in turn with this one, and prints the ratio.
"""

import argparse
import cProfile
import io
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import onnx
from common import cpu_timed, machine, read_and_infer
from models import make_chain, make_int4_layers, make_layers, make_random_graph
from rich.console import Console

import byoc
from byoc import zoo

_GENERATED: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "chain": make_chain,
    "random": make_random_graph,
    "layers8": lambda: make_layers(8),
    "layers80": lambda: make_layers(80),
    "int4_layers8": lambda: make_int4_layers(8),
    "int4_layers80": lambda: make_int4_layers(80),
}
_DETECTORS = ("fasterrcnn_mobilenet", "detr", "ssd300_vgg16")
_MODELS = ("chain", "random", "layers8", "layers80", "transformer_10k", "transformer_100k", *_DETECTORS)
_ASKED = "partitioned model"
_CUTTING = ("Annotate", "Group", "Place", _ASKED)
_LISTED = 12


def main() -> None:
    """Print the figures of the models that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=_MODELS)
    parser.add_argument("--rules", default="dla")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--only-memory", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--only-partition", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_partition:
        print(json.dumps(time_partition(options.only_partition, options.rules, options.runs)))
        return
    if options.only_memory:
        byoc.partition(options.only_memory, rules=options.rules)
        print(read_peak())
        return
    print(machine())
    print("milliseconds of processor time; the ratio is that of all to reading and inferring")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            path = str(Path(folder) / f"{name}.onnx")
            onnx.save(_GENERATED[name]() if name in _GENERATED else zoo.load(name), path)
            if options.baseline is not None:
                compare(name, path, options.rules, options.runs, options.baseline)
                continue
            found[name] = show_stages(name, path, options.rules, options.runs)
            if options.profile:
                show_profile(path, options.rules)
            if options.memory:
                show_memory(path, options.rules)
            Path(path).unlink()
    for name in ("layers", "int4_layers"):
        if {f"{name}8", f"{name}80"} <= found.keys():
            pairs = zip(found[f"{name}8"], found[f"{name}80"], strict=True)
            loaded, rest = (many / few for few, many in pairs)
            print(f"\n{name}: 80 equal layers against 8: {loaded:.2f}, without loading {rest:.2f}")


def show_stages(name: str, path: str, rules: str, runs: int) -> tuple[float, float]:
    """Print the stages of a model's plan; return the seconds of all, and of all but loading."""
    reading, stages = float("inf"), dict[str, float]()
    for _ in range(runs):
        reading = min(reading, cpu_timed(read_and_infer, Path(path))[0])
        for stage, seconds in time_stages(path, rules).items():
            stages[stage] = min(stages.get(stage, seconds), seconds)
    whole = sum(seconds for stage, seconds in stages.items() if stage != _ASKED)
    cutting = sum(stages[stage] for stage in _CUTTING)
    print(
        f"\n{name}: reading {1e3 * reading:.0f}, all {1e3 * whole:.0f}, ratio {whole / reading:.1f}; "
        f"annotate to outline {1e3 * cutting:.0f}; what-ifs {stages['EstimateGains'] / whole:.0%}"
    )
    print("  " + ", ".join(f"{stage} {1e3 * seconds:.0f}" for stage, seconds in stages.items()))
    return whole, whole - stages["Load"]


def time_stages(path: str, rules: str) -> dict[str, float]:
    """Return the seconds of each stage of `byoc.partition` without an output, and of its report."""
    from byoc.pipeline import watch_stages  # noqa: PLC0415
    from byoc.reporting import print_report  # noqa: PLC0415 - another checkout may lack them
    from byoc.support import collect_rarely  # noqa: PLC0415

    ends = {"": time.process_time()}
    with watch_stages(lambda stage, _: ends.update({type(stage).__name__: time.process_time()})):
        result = byoc.partition(path, rules=rules)
    ends["make_report"] = time.process_time()
    found = {name: end - start for (_, start), (name, end) in pairwise(ends.items())}
    console = Console(file=io.StringIO(), width=10_000)
    found["print_report"], _ = cpu_timed(print_report, result.report, console)
    with collect_rarely():
        found[_ASKED], _ = cpu_timed(lambda: result.plan.proto)
    return found


def time_partition(path: str, rules: str, runs: int) -> float:
    """Return the seconds that `byoc.partition` takes without an output, warm, the least of some runs."""
    return min(cpu_timed(lambda: byoc.partition(path, rules=rules))[0] for _ in range(runs + 1))


def compare(name: str, path: str, rules: str, runs: int, baseline: Path) -> None:
    """Print what this checkout and another one take for a model, in turn, each in its own process."""
    least = [float("inf")] * 2
    for _ in range(2):
        for side, checkout in enumerate((Path(__file__).parents[1], baseline.absolute())):
            command = [sys.executable, __file__, "--only-partition", path, "--rules", rules]
            done = subprocess.run(
                [*command, "--runs", str(runs)],
                env={**os.environ, "PYTHONPATH": str(checkout)},
                cwd=checkout,
                stdout=subprocess.PIPE,
                check=True,
            )
            least[side] = min(least[side], json.loads(done.stdout))
    here, there = least
    print(f"{name}: {1e3 * here:.0f} here, {1e3 * there:.0f} in {baseline.name}: {here / there:.3f}")


def show_memory(path: str, rules: str) -> None:
    """Print the most memory that a fresh process has while it plans a model."""
    command = [sys.executable, __file__, "--only-memory", path, "--rules", rules]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    print(f"  memory: at most {int(done.stdout) / 1024:.0f} MiB, of Python and all libraries")


def read_peak() -> int:
    """Return the most memory that this process has had, in KiB (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def show_profile(path: str, rules: str) -> None:
    """Print own times of a run, as shares of the whole, by room of byoc and by function."""
    profile = cProfile.Profile()
    profile.runcall(byoc.partition, path, rules=rules)
    rooms, functions = Counter[str](), Counter[str]()
    for (file, _, function), (_, _, own, _, callers) in pstats.Stats(profile).stats.items():
        for (caller, _, _), (_, _, share, _) in callers.items() if file == "~" else ():
            rooms[name_room(caller)] += share  # what is built in counts where it is called
        rooms[name_room(file)] += 0 if file == "~" else own
        functions[f"{Path(file).name}: {function}"] += own
    whole = functions.total()
    for counter in (rooms, functions):
        shares = (f"{name} {own / whole:.1%}" for name, own in counter.most_common(_LISTED))
        print("  own time: " + ", ".join(shares))


def name_room(file: str) -> str:
    """Return the room of byoc that a file is in, or the package outside."""
    parts = Path(file).parts
    for package in ("byoc", "site-packages"):
        if package in parts[:-1]:
            at = len(parts) - 1 - parts[::-1].index(package)
            return ".".join(parts[at : at + 2]) if package == "byoc" else parts[at + 1]
    return "Python"


if __name__ == "__main__":
    main()
