"""Measuring a codegen: units are cut out of a model, compiled, and run one at a time."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import onnx

from byoc._dataclasses import dataclass, field, replace
from byoc.bundle import RegionCompiler, WeightFile, move_weights
from byoc.codegen import Codegen, Region, can_estimate, estimate_region, read_region, to_seconds
from byoc.comparison._measured_costs import (
    Clock,
    MeasurementRecords,
    Patience,
    Samples,
    measure_runs,
)
from byoc.costs import HostLink, MeasuredWhole, Task, build_tasks, find_device_tasks
from byoc.errors import YES, InputError
from byoc.model import GraphCuts, GraphIndex, Model, OutlineGroup, RegionCut, extract_call, outline
from byoc.patterns import Unit, group_units
from byoc.rules import Target, annotate_graph
from byoc.runtime import CheckedExecutor
from byoc.samples import sample_inputs
from byoc.support import report_each, report_step
from byoc.verification import compile_and_load

_NO_TARGET = "profile"
# Seconds before each run of a whole: an application does other things between its runs, and meanwhile
# threads fall asleep, to be woken again.
_PAUSE = 0.004
# Operators of which an accelerator is likely to support at least one.
_SMALLEST = ("Identity", "Relu", "Neg", "Add", "Mul")
_SMALL, _LARGE = 2**12, 2**24

RegionCall = tuple[GraphIndex, onnx.NodeProto]
"""An outlined graph, and the call of a region in it."""


@dataclass(frozen=True, eq=False)
class PreparedRegion:
    """A region to measure: loaded, with its inputs; or the `estimate` of its compiler in seconds."""

    run: CheckedExecutor | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    estimate: float = nan

    def measure(self, patience: Patience, clock: Clock) -> list[float]:
        """Return the seconds of its runs, or the estimate alone. Raise InputError if it does not run."""
        if self.run is None:
            return [self.estimate]
        return self.run.measure(self.inputs, partial(measure_runs, patience=patience, clock=clock))


@dataclass(frozen=True, eq=False)
class MeasuredCodegen:
    """A codegen that runs here or estimates, its options, and the way to measure it."""

    codegen: Codegen
    options: Mapping[str, str] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)
    clock: Clock = perf_counter

    @property
    def name(self) -> str:
        """The codegen's name."""
        return self.codegen.name

    @cached_property
    def compiler(self) -> RegionCompiler:
        """The codegen with its options."""
        return RegionCompiler(self.codegen, self.options)

    @property
    def estimates(self) -> bool:
        """Whether the seconds are the compiler's estimates, so that nothing runs."""
        return can_estimate(self.codegen)

    @property
    def compile_options(self) -> Any:
        """The options passed to `compile`. Raise InputError if one is not valid."""
        return self.compiler.parsed_options

    def prepare(self, region: Region, proto: onnx.ModelProto) -> "PreparedRegion":
        """Compile a region, and load it unless the compiler estimates what it takes.

        Raise InputError if the codegen cannot.
        """
        if can_estimate(self.codegen):
            artifact = self.compiler.compile(region)
            options = self.compile_options
            seconds = to_seconds(estimate_region(self.codegen, region, options, artifact))
            return PreparedRegion(estimate=seconds)
        run = compile_and_load(self.compiler, region)
        return PreparedRegion(run, sample_inputs(GraphIndex.of_model(proto)))

    def measure(self, region: Region, proto: onnx.ModelProto) -> list[float]:
        """Measure the calls of a region in seconds, including the transfer of its arrays to the device.

        In a worker process they are measured there. The estimate of a compiler is the only one. Raise
        InputError if the codegen cannot compile or load it.
        """
        return self.prepare(region, proto).measure(self.patience, self.clock)


def time_units(
    model: Model,
    target: Target | None,
    device: MeasuredCodegen,
    records: MeasurementRecords,
) -> list[str]:
    """Measure the distinct units of a model that a target supports and that are not yet in `records`.

    Without a target each node is a unit. Return a sentence for each unit that cannot be measured.
    """
    chosen = _units_to_measure(model, target, records)
    problems = []
    cuts = {f"unit_{row}": (unit,) for row, (_, unit) in enumerate(chosen)}
    calls = list(zip(chosen, cut_regions(model, target, cuts).items(), strict=True))
    for (task, _), (name, call) in report_each(calls, lambda each: f"{model.source}: {each[0][0].op}"):
        try:
            records.add(task, measure_call(model, target, device, name, call))
        except InputError as error:
            problems.append(f"{task}: {error}")
    return problems


def time_whole(model: Model, target: Target | None, device: MeasuredCodegen) -> MeasuredWhole | str:
    """Measure a model that a device runs as one region, its launch and transfers included.

    Return a sentence if it cannot: the target does not support all of it, a shape is unknown, there are
    bodies, or the codegen refuses it.
    """
    units, tasks = list_units(model, target)
    if model.index.bodies or not all(unit.verdict for unit in units):
        return f"not measured as a whole: {device.name} cannot run all of it as one"
    if not all(task.sized for task in tasks):
        return "not measured as a whole: a shape is not known"
    report_step(f"{model.source}: the whole")
    try:
        (call,) = cut_regions(model, target, {"whole": units}).values()
        pausing = replace(device, patience=replace(device.patience, pause=_PAUSE))
        seconds = Samples.of(measure_call(model, target, pausing, "whole", call)).median
    except InputError as error:
        return f"not measured as a whole: {error}"
    return MeasuredWhole(model.name, tasks, seconds)


def without_crossing(
    model: Model, whole: MeasuredWhole, launch: float, link: HostLink | None
) -> MeasuredWhole:
    """Return a whole without a launch and what its inputs and outputs take over a link."""
    crossing = launch + _sum_transfers(model.index, link)
    return replace(whole, seconds=max(whole.seconds - crossing, 0.0))


def _sum_transfers(index: GraphIndex, link: HostLink | None) -> float:
    """Return the seconds that the inputs and outputs of a graph take over a link, 0 without one."""
    if link is None:
        return 0.0
    names = {*(name for name in index.inputs if not index.is_constant(name)), *index.outputs}
    sizes = [kind.bytes or 0 for name in names if (kind := index.types.get(name)) is not None]
    return sum(link.latency + size / link.bandwidth for size in sizes)


def cut_regions(
    model: Model, target: Target | None, cuts: Mapping[str, Sequence[Unit]]
) -> dict[str, RegionCall]:
    """Return for each name the outlined graph, and the call of the region that has its units."""
    if not cuts:
        return {}
    domain = target.domain if target is not None else f"byoc.{_NO_TARGET}"
    made = tuple(_make_cut(model.index, name, domain, units) for name, units in cuts.items())
    proto = outline(GraphCuts(model.index, made))
    index = GraphIndex.of_model(proto)
    calls = {node.op_type: node for node in index.nodes if node.domain == domain}
    return {name: (index, calls[name]) for name in cuts}


def measure_call(
    model: Model, target: Target | None, device: MeasuredCodegen, name: str, call: RegionCall
) -> list[float]:
    """Measure a region by itself. Raise InputError if the codegen cannot compile or load it."""
    with open_call(model, target, device, name, call) as region:
        return region.measure(device.patience, device.clock)


@contextmanager
def open_call(
    model: Model, target: Target | None, device: MeasuredCodegen, name: str, call: RegionCall
) -> Iterator[PreparedRegion]:
    """Give a region that is ready to be measured; raise as `measure_call`."""
    with TemporaryDirectory(prefix="byoc-") as folder:
        proto = extract_call(*call, model.index.type_protos)
        owner = target.name if target is not None else _NO_TARGET
        region, stored = _store_region(proto, model.folder, Path(folder), name, owner)
        yield device.prepare(region, stored)


def list_units(model: Model, target: Target | None) -> tuple[list[Unit], list[Task]]:
    """Return the units of a model, without a target its nodes, and their tasks."""
    index = model.index
    tasks = build_tasks(index)
    if target is not None:
        units = list(group_units(index, target.patterns, annotate_graph(index, target)))
    else:
        running = [i for i in range(len(index.nodes)) if tasks.task_of_node[i] >= 0]
        units = [Unit(tasks[i].op, (i,), YES, ()) for i in running]
    distinct, of = find_device_tasks(tasks, units)
    return units, [distinct[number] for number in of.tolist()]


def _units_to_measure(
    model: Model, target: Target | None, records: MeasurementRecords
) -> list[tuple[Task, Unit]]:
    """Return the distinct supported units that are not measured yet, with their tasks."""
    found: dict[Any, tuple[Task, Unit]] = {}
    for unit, task in zip(*list_units(model, target), strict=True):
        if not unit.verdict or unit.nodes[0] in model.index.bodies:
            continue
        if task.sized and not task.view and task not in records:
            found.setdefault(task.key, (task, unit))
    return list(found.values())


def _make_cut(index: GraphIndex, name: str, domain: str, units: Sequence[Unit]) -> RegionCut:
    groups = [
        OutlineGroup(unit.nodes, unit.match.make_composite(index) if unit.match is not None else None)
        for unit in units
    ]
    return RegionCut(name, domain, tuple(groups))


def _store_region(
    proto: onnx.ModelProto, source: Path | None, folder: Path, name: str, target: str
) -> tuple[Region, onnx.ModelProto]:
    """Write a region's model and weights to a folder, as in a bundle; `source` has external data."""
    with WeightFile(folder) as weights:
        stored = move_weights(proto, source, weights)
    path = folder / f"{name}.onnx"
    path.write_bytes(stored.SerializeToString(deterministic=True))
    return read_region(path, name, target), stored


def measure_launch(device: MeasuredCodegen, records: MeasurementRecords) -> float:
    """Measure the seconds of launching a region: the shortest time of any region.

    Regions of one operator on a single number are tried; earlier measurements count, too.
    """
    found = []
    for op in _SMALLEST:
        reads = ["x", "x"] if op in ("Add", "Mul") else ["x"]
        proto = onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 17]>'
            f"small (float[1] x) => (float[1] y) {{ y = {op} ({', '.join(reads)}) }}"
        )
        try:
            with TemporaryDirectory(prefix="byoc-") as folder:
                region, stored = _store_region(proto, None, Path(folder), "small", _NO_TARGET)
                found.append(Samples.of(device.measure(region, stored)).median)
        except InputError:
            continue
    known = records.cheapest()
    return min(found + ([] if known is None else [known]), default=0.0)


def measure_copies(patience: Patience, clock: Clock = perf_counter) -> HostLink:
    """Measure copying arrays as a link: the latency of a small copy, the bandwidth of a large one."""
    medians = []
    for size in (_SMALL, _LARGE):
        source, destination = np.ones(size, np.uint8), np.zeros(size, np.uint8)
        seconds = measure_runs(partial(np.copyto, destination, source), patience, clock)
        medians.append(Samples.of(seconds).median)
    small, large = medians
    rate = (_LARGE - _SMALL) / (large - small) if large > small else float("inf")
    return HostLink(bandwidth=rate, latency=small)
