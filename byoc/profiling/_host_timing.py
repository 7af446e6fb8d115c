"""Measuring the host: the time of each node of a model, by onnxruntime's profiler."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from onnx import ModelProto

from byoc.costs import GraphTasks, build_tasks
from byoc.model import Model, copy_without
from byoc.onnxrt import measure_node_seconds, open_session, run_session
from byoc.profiling._measured_costs import MeasurementRecords
from byoc.profiling._sampling import Clock, Patience, Samples, measure_runs
from byoc.samples import model_samples

_NODE_PREFIX = "byoc.node."
_RESOLUTION = 1e-6  # of the profiler, in seconds

Timer = Callable[[ModelProto, Any, Callable[[Any], object]], Mapping[str, Sequence[float]]]
"""A function with the signature of `byoc.onnxrt._onnxruntime.node_seconds`."""


@dataclass(frozen=True, eq=False)
class NodeTimes:
    """The time of each node of a model in seconds, by node number and run, without warm-up.

    `wholes` are the times of the model as onnxruntime runs it by default, optimized: one run after each
    run of the nodes, so that other load on the machine slows both.
    """

    tasks: GraphTasks
    seconds: Mapping[int, Sequence[float]] = field(default_factory=dict)
    wholes: Sequence[float] = ()

    @property
    def missing(self) -> list[int]:
        """The nodes that run and were not measured: onnxruntime replaced or did not name them."""
        running = range(len(self.tasks.index.nodes))
        return [i for i in running if self.tasks.task_of_node[i] >= 0 and i not in self.seconds]

    @property
    def total(self) -> float:
        """The sum of the nodes' median times, in seconds."""
        return sum(Samples.of(seconds).median for seconds in self.seconds.values())

    @property
    def together(self) -> float:
        """The time of the model divided by the sum of its nodes' times: the median over the runs."""
        sums = [sum(run) for run in zip(*self.seconds.values(), strict=False)]
        pairs = zip(self.wholes, sums, strict=False)
        ratios = [whole / max(nodes, _RESOLUTION) for whole, nodes in pairs]
        return float(median(ratios)) if ratios else 1.0

    def add_to(self, records: MeasurementRecords) -> int:
        """Add the measurements to the records; return the number of nodes that the records cannot cover.

        Nodes with bodies or with unknown shapes cannot be looked up; views are free and need no record.
        """
        missing = sum(not self.tasks[i].view for i in self.missing)
        for i, seconds in self.seconds.items():
            task = self.tasks[i]
            if task.sized and not task.view:
                records.add(task, seconds)
            elif not task.view:
                missing += 1
        return missing


def time_nodes(
    model: Model, patience: Patience, timer: Timer = measure_node_seconds, clock: Clock = perf_counter
) -> NodeTimes:
    """Measure each node of the main graph on the host, and the model as a whole.

    The graph runs as written, since a node fused into another has no time of its own; runs repeat until
    the time of the whole settles. Raise InputError if the model does not run, and MissingRuntimeError.
    """
    inputs = model_samples(model)
    optimized = open_session(model.proto, model.folder)
    wholes: list[float] = []

    def both(session: Any) -> None:
        run_session(session, inputs)
        before = clock()
        run_session(optimized, inputs)
        wholes.append(clock() - before)

    found = timer(
        _number_nodes(model.proto),
        model.folder,
        lambda session: measure_runs(lambda: both(session), patience, clock),
    )
    seconds = {}
    for i in range(len(model.index.nodes)):
        runs = found.get(f"{_NODE_PREFIX}{i}", ())[patience.warmup :]
        if runs:
            seconds[i] = runs
    return NodeTimes(build_tasks(model.index), seconds, wholes[patience.warmup :])


def _number_nodes(proto: ModelProto) -> ModelProto:
    """Return a copy whose nodes are named by their numbers."""
    result = copy_without(proto, "node")
    result.graph.node.extend(proto.graph.node)
    for i, node in enumerate(result.graph.node):
        node.name = f"{_NODE_PREFIX}{i}"
    return result
