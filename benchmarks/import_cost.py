"""The processor time of starting: `import byoc` and `byoc --help`, over that of `import onnx`.

Each is a fresh process, less the time of an empty one; they take turns, and the least of several times
counts. The exit code is 1 where a ratio is above its limit.

    python benchmarks/import_cost.py
"""

import os
import subprocess
import sys
from collections.abc import Sequence

from common import machine

RUNS = 7
COMMANDS = {
    "nothing": ("-c", ""),
    "import onnx": ("-c", "import onnx"),
    "import byoc": ("-c", "import byoc"),
    "byoc --help": ("-m", "byoc", "--help"),
    "byoc --version": ("-m", "byoc", "--version"),
}
LIMITS = {"import byoc": 1.5, "byoc --help": 2.0, "byoc --version": 2.0}
"""The greatest ratio of each to `import onnx`."""


def measure_seconds(arguments: Sequence[str]) -> float:
    """Return the processor time of a process in seconds."""
    before = os.times()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def main() -> None:
    """Print the ratios, and leave with 1 where one is above its limit."""
    print(machine())
    times = [{name: measure_seconds(command) for name, command in COMMANDS.items()} for _ in range(RUNS)]
    least = {name: min(each[name] for each in times) for name in COMMANDS}
    onnx = least["import onnx"] - least["nothing"]
    ratios = {name: max(least[name] - least["nothing"], 0.0) / onnx for name in LIMITS}
    print(f"import onnx: {onnx:.3f} s")
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} times as much, at most {LIMITS[name]:g}")
    sys.exit(any(ratio > LIMITS[name] for name, ratio in ratios.items()))


if __name__ == "__main__":
    main()
