"""The processor time and memory of `byoc partition MODEL -o BUNDLE`, beside what two libraries take.

    python benchmarks/command_cost.py [MODEL ...] [--rounds N] [--rules FILE]

Each command is a fresh process, whose processor time and greatest memory the operating system counts,
those of processes that it starts included. The peer opens the model in an onnxruntime session, compiles
it by OpenVINO, runs both once on the same inputs, and compares the outputs. `first` partitions, compiles
and verifies on an empty cache, `second` is the same command once more, `other` the same for another
output. They take turns, and medians are printed: seconds of the peer, and ratios to it and to `first`.
The exit code is 1 where a goal is missed.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine

MODELS = ("squeezenet", "resnet50", "bert", "ssdlite320")
MOST_FIRST, MOST_SECOND = 2.0, 0.3
"""The most that `first` may take beside the peer, and `second` beside `first`."""
MEMORY_FACTOR, MEMORY_BASE = 1.5, 150
"""The most memory: so many times the weights, and MiB on top."""
_TOLERANCE = 1e-3  # of the output's range, between two libraries in float32


def run_peer(path: str) -> None:
    """Open, compile, run and compare a model by two libraries, and say where they differ.

    Detectors of random weights give boxes in another order, which is no fault of either.
    """
    import numpy as np  # noqa: PLC0415 - the time of its imports counts
    import onnxruntime  # noqa: PLC0415
    import openvino  # noqa: PLC0415

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    inputs = {}
    for each in session.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in each.shape]
        floats = each.type == "tensor(float)"
        drawn = random.standard_normal(shape) if floats else random.integers(0, 2, shape)
        inputs[each.name] = drawn.astype(np.float32 if floats else np.int64)
    expected = session.run(None, inputs)
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    results = compiled(inputs)
    for each, right in zip(session.get_outputs(), expected, strict=True):
        found = next(value for port, value in results.items() if each.name in port.names)
        span = float(np.ptp(right)) or 1.0
        if found.shape == right.shape and np.abs(found - right).max() > _TOLERANCE * span:
            print(f"{each.name} differs by more than {_TOLERANCE} of its range", file=sys.stderr)


def measure(command: list[str]) -> tuple[float, float]:
    """Run a command; return its processor seconds and its greatest memory in MiB."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in {0, 4}:
        sys.exit(f"{' '.join(command)} left with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def compare_commands(name: str, rules: str, rounds: int, place: Path) -> bool:
    """Print the line of a model; return whether a goal is missed."""
    model, folder = place / f"{name}.onnx", place / "work"
    writing = [sys.executable, __file__, "--write", name, str(model)]
    weights = int(subprocess.run(writing, check=True, stdout=subprocess.PIPE).stdout) / 2**20
    partition = [sys.executable, "-m", "byoc", "partition", str(model), "--rules", rules]
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        command = [*partition, "--cache-dir", str(folder / "cache"), "-o"]
        for kind, line in {
            "peer": [sys.executable, __file__, "--peer", str(model)],
            "first": [*command, str(folder / "m.byoc")],
            "second": [*command, str(folder / "m.byoc")],
            "other": [*command, str(folder / "n.byoc")],
        }.items():
            found.setdefault(kind, []).append(measure(line))
    seconds = {name: statistics.median(one for one, _ in each) for name, each in found.items()}
    memory = {name: statistics.median(one for _, one in each) for name, each in found.items()}
    limit = MEMORY_FACTOR * weights + MEMORY_BASE
    first, second = seconds["first"] / seconds["peer"], seconds["second"] / seconds["first"]
    print(
        f"{model.stem:12}{seconds['peer']:8.2f}{seconds['first']:8.2f}{first:7.2f}"
        f"{seconds['second']:8.2f}{second:7.2f}{seconds['other']:8.2f}"
        f"{memory['peer']:9.0f}{memory['first']:7.0f}{memory['second']:8.0f}{limit:7.0f}",
        flush=True,
    )
    return first > MOST_FIRST or second > MOST_SECOND or memory["first"] > limit


def write_model(name: str, path: str) -> None:
    """Write a model of the zoo, and print the bytes of its initializers.

    A process of its own does it: the system counts the memory of whoever starts a process as that one's.
    """
    import onnx  # noqa: PLC0415

    from byoc import zoo  # noqa: PLC0415

    model = zoo.load(name)
    onnx.save(model, path)
    print(sum(tensor.ByteSize() for tensor in model.graph.initializer))


def main(asked: argparse.Namespace) -> int:
    """Print a line for each model; return the exit code."""
    print(f"{machine()}; seconds of the processors, memory in MiB")
    print(
        f"{'model':12}{'peer':>8}{'first':>8}{'/peer':>7}{'second':>8}{'/first':>7}{'other':>8}"
        f"{'mem peer':>9}{'first':>7}{'second':>8}{'limit':>7}"
    )
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.models or MODELS:
            missed += compare_commands(name, asked.rules, asked.rounds, Path(folder))
    return int(missed > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rules", default="openvino-cpu.yaml")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write is not None:
        write_model(*given.write)
    elif given.peer is not None:
        run_peer(given.peer)
    else:
        sys.exit(main(given))
