"""How long planning activation memory takes, against reading the model and inferring its shapes.

    python benchmarks/memory_scale.py [MODEL...]

For each model of the zoo: seconds of `onnx.load` with shape inference of its file (the least of three
runs), and as ratios to these, taken in the same run: making the planner's problem of the graph, the
plan with its proof, checking that proof, and striped execution; beside the last three what they give.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from common import machine, on_disk, read_and_infer, timed

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

from checkers.arena_check import check  # noqa: E402 - needs the path

from byoc.memory.arena import plan_buffers  # noqa: E402
from byoc.memory.reading import CONVENTIONS, read_memory_model  # noqa: E402
from byoc.memory.report._memory_report import plan_striped  # noqa: E402
from byoc.zoo import load_model  # noqa: E402

T = TypeVar("T")

_RUNS = 3
_MODELS = ("squeezenet", "resnet50", "densenet121", "transformer_10k")
_STRIPED = 3_000  # nodes: `byoc plan-memory` leaves larger models whole


def main(names: list[str]) -> None:
    """Print the figures for some models of the zoo."""
    print(machine())
    for name in names or _MODELS:
        planned(name)


def planned(name: str) -> None:
    """Print the figures of a model."""
    with on_disk(name) as path:
        reading = min(timed(read_and_infer, path)[0] for _ in range(_RUNS))
        index = load_model(path).index
        print(f"\n{name}: {len(index.nodes)} nodes, load and infer {reading:.3f} s")
        found = shown("problem", reading, read_memory_model, index, CONVENTIONS["C"])
        made = shown("plan", reading, plan_buffers, found.problem)
        least = max(made.bound, 1)
        print(f"   {made.size} bytes, {made.size / least:.4f} of the bound, by {made.proof}")
        refused = shown("check", reading, check, made)
        print(f"   {'; '.join(refused) or 'accepted'}")
        if len(index.nodes) <= _STRIPED:
            bands = shown("striped", reading, plan_striped, index, name, 1)
            print(f"   {bands.plan.size} bytes, {bands.plan.size / least:.3f} of the bound")


def shown(what: str, reading: float, action: Callable[..., T], *arguments: object) -> T:
    """Print how long something takes, as a ratio to reading the model, and return what it gives."""
    seconds, result = timed(action, *arguments)
    print(f"  {what:9} {seconds / reading:8.1f}")
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
