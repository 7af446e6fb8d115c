"""Measurements of all models as a cost table, and its file with a description of the machine."""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from math import sqrt
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
from onnx import ModelProto

from byoc._dataclasses import dataclass, field
from byoc.comparison._comparison_options import Clock, Patience
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
from byoc.samples import model_samples
from byoc.support import dump_yaml, write_text

# Timing a function until its median settles, within limits.

_WIDE_SPREAD = 0.5  # a share of the median
_SHORTEST = 1e-9  # seconds; a clock may not see anything pass
_CLEARLY = 4.0  # times the noise of a ratio


@dataclass(frozen=True, slots=True)
class Samples:
    """Measurements in seconds: the median, the interquartile range, and the number of runs."""

    median: float
    spread: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Samples":
        """Summarize at least one measurement."""
        low, median, high = np.quantile(seconds, (0.25, 0.5, 0.75)).tolist()
        return cls(median, high - low, len(seconds))

    @property
    def noise(self) -> float:
        """The uncertainty of the median: the interquartile range over the root of the number of runs.

        For a normal distribution that is 1.08 times the standard error of the median.
        """
        return self.spread / sqrt(self.count)

    @property
    def is_wide(self) -> bool:
        """Whether the runs spread over more than half of their median: they are not to be relied on."""
        return self.spread > _WIDE_SPREAD * self.median


def measure_runs(
    run: Callable[[], object], patience: Patience, clock: Clock = perf_counter
) -> list[float]:
    """Measure a function; return the seconds of each run that counts."""
    return measure_in_turn([run], patience, clock)[0]


def measure_in_turn(
    runs: Sequence[Callable[[], object]],
    patience: Patience,
    clock: Clock = perf_counter,
    drop_slow: bool = False,
) -> list[list[float]]:
    """Measure several functions in turn, so that load on the machine slows all of them.

    Each round has an order of its own, from a fixed seed: what a library leaves behind, as threads that
    spin for a while or a cold cache, meets all others alike. Return the seconds of each run that counts,
    by function.
    Measuring ends when all have settled, or after a round for each run of `patience`; its `seconds` are
    for each function. With `drop_slow` a function that is clearly slower than the fastest takes no part
    in further rounds, and measuring ends when one is left.
    """
    for _ in range(patience.warmup):
        for run in runs:
            run()
    found: list[list[float]] = [[] for _ in runs]
    left = list(range(len(runs)))
    orders = np.random.default_rng(0)
    start, paused = clock(), 0.0
    for number in range(max(patience.most, 1)):
        for turn in orders.permutation(left).tolist():
            before = clock()
            if patience.pause:
                sleep(patience.pause)
                paused += clock() - before
                before = clock()
            runs[turn]()
            after = clock()
            found[turn].append(after - before)
        if number + 1 < patience.least:
            continue
        if after - start - paused >= patience.seconds * len(runs):
            break
        if drop_slow:
            left = _find_contenders(found, left)
        if (drop_slow and len(left) == 1) or all(_has_settled(found[i], patience.settled) for i in left):
            break
    return found


def compare_in_turn(one: Sequence[float], other: Sequence[float]) -> "Samples":
    """Return the ratio of two functions that were measured in turn, over their common rounds.

    Load on the machine slows both runs of a round, so ratios spread less than seconds do.
    """
    count = min(len(one), len(other))
    return Samples.of((np.array(one[:count]) / np.maximum(other[:count], _SHORTEST)).tolist())


def _find_contenders(found: Sequence[Sequence[float]], left: Sequence[int]) -> list[int]:
    """Return those of the functions in `left` that are not clearly slower than the fastest."""
    fastest = min(left, key=lambda i: float(np.median(found[i])))
    ratios = {i: compare_in_turn(found[i], found[fastest]) for i in left}
    return [i for i in left if ratios[i].median - _CLEARLY * ratios[i].noise <= 1]


def _has_settled(found: Sequence[float], part: float) -> bool:
    samples = Samples.of(found)
    return samples.noise <= part * samples.median


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
