"""Measurements of all models as a cost table, and its file with a description of the machine."""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from onnx import ModelProto

from byoc.costs import (
    CostFile,
    CostTable,
    GraphTasks,
    HostLink,
    MeasuredMachine,
    Measurement,
    Task,
    build_tasks,
)
from byoc.model import Model, copy_without
from byoc.onnxrt import measure_node_seconds, open_session, run_session
from byoc.profiling._sampling import Clock, Patience, Samples, measure_runs
from byoc.samples import model_samples
from byoc.support import dump_yaml, write_text

_PACKAGES = {"byoc": "onnx-byoc", "onnx": "onnx", "onnxruntime": "onnxruntime", "numpy": "numpy"}


def describe_machine(threads: int = 0) -> MeasuredMachine:
    """Describe the processor, usable cores, system and package versions of this machine.

    `threads` is the number of threads that are measured, 0 for all cores.
    """
    versions = {"python": platform.python_version()}
    for name, package in _PACKAGES.items():
        try:
            versions[name] = version(package)
        except PackageNotFoundError:
            continue
    return MeasuredMachine(
        cpu=_cpu_name(),
        cores=_count_cores(),
        threads=threads,
        os=f"{platform.system()} {platform.machine()}",
        versions=versions,
    )


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 0


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor()


@dataclass(frozen=True, eq=False)
class MeasurementRecords:
    """Measurements in seconds by task; equal tasks of different models are merged."""

    _measurements: dict[tuple[str, str, str], tuple[Task, list[float]]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of measured tasks."""
        return len(self._measurements)

    def __contains__(self, task: Task) -> bool:
        """Return whether a task was measured."""
        return task.key in self._measurements

    def add(self, task: Task, seconds: Sequence[float]) -> None:
        """Add measurements, at least one, of a task with known shapes."""
        self._measurements.setdefault(task.key, (task, []))[1].extend(seconds)

    def cheapest(self) -> float | None:
        """Return the smallest median, None without measurements."""
        return min(
            (Samples.of(seconds).median for _, seconds in self._measurements.values()), default=None
        )

    def make_table(  # noqa: PLR0913 - what stands in the file
        self,
        name: str,
        description: str,
        machine: MeasuredMachine,
        *,
        link: HostLink | None = None,
        launch: float = 0.0,
        together: float = 1.0,
        otherwise: str | None = None,
    ) -> CostTable:
        """Make the cost table: an entry for each task, sorted, without the time of a launch."""
        return CostTable(
            kind="table",
            name=name,
            description=description,
            machine=machine,
            link=link,
            launch=launch,
            together=together,
            entries=tuple(
                _make_entry(task, Samples.of(seconds), launch)
                for _, (task, seconds) in sorted(self._measurements.items())
            ),
            **{"else": otherwise},
        )


def _make_entry(task: Task, samples: Samples, launch: float) -> Measurement:
    return Measurement(
        op=task.op,
        types=task.types,
        attributes=dict(task.attributes),
        seconds=max(samples.median - launch, 0.0),
        spread=samples.spread,
        samples=samples.count,
        operations=task.work.operations,
        bytes=task.work.bytes,
    )


_ROWS = ("entries", "operators")
_DIGITS = 6  # significant, of a measured second


def write_costs(path: Path, costs: CostFile) -> None:
    """Write a cost model to a file, which is replaced as a whole or left as it was."""
    write_text(path, format_costs(costs))


def format_costs(costs: CostFile) -> str:
    """Format a cost model as YAML, fractions to six digits."""
    content = _round_floats(costs.model_dump(mode="python", by_alias=True, exclude_defaults=True))
    kind = content.pop("kind")
    rows = {name: content.pop(name) for name in _ROWS if name in content}
    lines = [dump_yaml({"kind": kind, **content}, flow=None)]
    for name, found in rows.items():
        lines.append(f"{name}:\n")
        if isinstance(found, dict):
            lines += [f"  {dump_yaml({key: value}, flow=True)[1:-2]}\n" for key, value in found.items()]
        else:
            lines += [f"- {dump_yaml(entry, flow=True)}" for entry in found]
    return "".join(lines)


def _round_floats(value: Any) -> Any:
    if isinstance(value, dict):  # attributes are looked up, and must stay exact
        return {key: item if key == "attributes" else _round_floats(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_round_floats(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() else float(f"{value:.{_DIGITS}g}")


# Measuring the host: the time of each node of a model, by onnxruntime's profiler.

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
    result = copy_without(proto)
    for i, node in enumerate(result.graph.node):
        node.name = f"{_NODE_PREFIX}{i}"
    return result
