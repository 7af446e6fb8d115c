"""How long deciding takes at size, against reading the model and inferring its shapes.

    python benchmarks/plan_scale.py [MODEL...]

For each model of the zoo and some rule files: seconds of `onnx.load` with shape inference of its file,
and as ratios to these, taken in the same run: extracting the placement problem from the annotated graph,
the minimum cut with its regions, and the launch-aware strategy, with the certified gap, the share of
units that are offloaded, and the peak of memory that each solver adds. Reading and extracting are
the least of three runs each.
"""

import sys
import tracemalloc

from common import machine, on_disk, read_and_infer, timed

from byoc.costs import GraphProblem
from byoc.model import Model
from byoc.options import PlanOptions
from byoc.placement import Problem, Strategy
from byoc.placement.strategies import LaunchAware
from byoc.placement.strategies._optimizing import MinCut
from byoc.planning import GraphUnits, PlanSettings, annotate_graphs, group_graphs
from byoc.planning._graph_problem import GraphToPlace, PlacementProblems
from byoc.planning._memory_fit import Constraints
from byoc.stages import load_settings
from byoc.zoo import load_model

_RUNS = 3
_RULES = ("dla", "openvino-cpu")
_MODELS = ("transformer_10k", "transformer_100k")


def main(names: list[str]) -> None:
    """Print the figures for some models of the zoo."""
    print(machine())
    for name in names or _MODELS:
        with on_disk(name) as path:
            reading = min(timed(read_and_infer, path)[0] for _ in range(_RUNS))
            model = load_model(path)
        print(f"\n{name}: {len(model.index.nodes)} nodes, load and infer {reading:.2f} s")
        for rules in _RULES:
            decided(model, rules, reading)


def decided(model: Model, rules: str, reading: float) -> None:
    """Print the figures of a model under a rule file."""
    print(f" {rules}")
    settings = load_settings(PlanOptions(rules))
    marking, units = timed(find_units, model, settings)
    show("annotate and group", marking, reading)
    runs = [timed(build_problem, model, units, settings) for _ in range(_RUNS)]
    found = runs[0][1]
    show("extract", min(seconds for seconds, _ in runs), reading)
    for strategy in (MinCut(), LaunchAware()):
        solved(strategy, found.problem, reading)


def find_units(model: Model, settings: PlanSettings) -> GraphUnits:
    """Annotate and group the main graph of a model."""
    marks = annotate_graphs(model.index, settings.targets)
    return group_graphs(model.index, settings.targets, marks)[id(model.index)]


def build_problem(model: Model, units: GraphUnits, settings: PlanSettings) -> GraphProblem:
    """Build the placement problem of the main graph of a model without bodies."""
    graph = GraphToPlace(model.index, "", 1.0, units, {})
    capacity = tuple(device.memory for device in settings.devices)
    return PlacementProblems(graph, settings, None).build(
        Constraints(tuple({} for _ in capacity), capacity)
    )


def solved(strategy: Strategy, problem: Problem, reading: float) -> None:
    """Solve once for the time, once more for the memory, and print both."""
    seconds, placement = timed(strategy.solve, problem)
    tracemalloc.start()
    strategy.solve(problem)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    bound = placement.bound or 0.0
    gap = (placement.cost.total - bound) / placement.cost.total
    placed = (placement.labels > 0).mean()
    more = f"gap {gap:.4%}, offloaded {placed:.1%}, peak {peak / 2**20:.0f} MiB"
    show(strategy.name, seconds, reading, more)


def show(what: str, seconds: float, reading: float, more: str = "") -> None:
    """Print one line."""
    print(f"  {what:<20} {seconds:7.2f} s  ratio {seconds / reading:6.2f}  {more}")


if __name__ == "__main__":
    main(sys.argv[1:])
