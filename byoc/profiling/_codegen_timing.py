"""Measuring a codegen: units are cut out of a model, compiled, and run one at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import onnx

from byoc.bundle import RegionCompiler, WeightFile, move_weights
from byoc.codegen import Codegen, Region, read_region
from byoc.costs import HostLink, Task, build_tasks
from byoc.errors import YES, InputError
from byoc.model import (
    GraphCuts,
    GraphIndex,
    Model,
    OutlineGroup,
    RegionCut,
    extract_call,
    get_stated_types,
    outline,
)
from byoc.patterns import Unit, group_units
from byoc.profiling._measured_costs import MeasurementRecords
from byoc.profiling._sampling import Clock, Patience, Samples, measure_runs
from byoc.rules import Target, annotate_graph
from byoc.samples import sample_inputs
from byoc.support import report_step
from byoc.verification import compile_and_load

_NO_TARGET = "profile"
# Operators of which an accelerator is likely to support at least one.
_SMALLEST = ("Identity", "Relu", "Neg", "Add", "Mul")
_SMALL, _LARGE = 2**12, 2**24


@dataclass(frozen=True, eq=False)
class MeasuredCodegen:
    """A codegen that runs here, its options, and the way to measure it."""

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
    def compile_options(self) -> Any:
        """The options passed to `compile`. Raise InputError if one is not valid."""
        return self.compiler.parsed_options

    def measure(self, region: Region, proto: onnx.ModelProto) -> list[float]:
        """Measure the calls of a region in seconds, including the transfer of its arrays to the device.

        In a worker process they are measured there. Raise InputError if the codegen cannot compile or
        load it.
        """
        run = compile_and_load(self.compiler, region)
        inputs = sample_inputs(GraphIndex(proto, get_stated_types(proto)))
        measure = partial(measure_runs, patience=self.patience, clock=self.clock)
        return run.measure(inputs, measure)


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
    if not chosen:
        return []
    name = target.name if target is not None else _NO_TARGET
    domain = target.domain if target is not None else f"byoc.{_NO_TARGET}"
    cuts = {f"unit_{row}": unit for row, (_, unit) in enumerate(chosen)}
    proto = outline(
        GraphCuts(
            model.index, tuple(_make_cut(model.index, n, domain, unit) for n, unit in cuts.items())
        )
    )
    index = GraphIndex(proto, get_stated_types(proto))
    calls = {node.op_type: node for node in index.nodes if node.domain == domain}
    problems = []
    for (task, _), cut in zip(chosen, cuts, strict=True):
        report_step(f"{model.source}: {task.op}, {len(records)} measured")
        try:
            with TemporaryDirectory(prefix="byoc-") as folder:
                region_model = extract_call(index, calls[cut], model.index.type_protos)
                region, stored = _store_region(region_model, model.folder, Path(folder), cut, name)
                records.add(task, device.measure(region, stored))
        except InputError as error:
            problems.append(f"{task}: {error}")
    return problems


def _units_to_measure(
    model: Model, target: Target | None, records: MeasurementRecords
) -> list[tuple[Task, Unit]]:
    """Return the distinct supported units that are not measured yet, with their tasks."""
    index = model.index
    works = build_tasks(index)
    if target is not None:
        units: Sequence[Unit] = group_units(index, target.patterns, annotate_graph(index, target))
    else:
        running = [i for i in range(len(index.nodes)) if works.task_of_node[i] >= 0]
        units = [Unit(works[i].op, (i,), YES, ()) for i in running]
    found: dict[Any, tuple[Task, Unit]] = {}
    for unit in units:
        if not unit.verdict or unit.nodes[0] in index.bodies:
            continue
        task = (
            works.composite_task(unit.composite, unit.nodes) if unit.composite else works[unit.nodes[0]]
        )
        if task.sized and not task.view and task not in records:
            found.setdefault(task.key, (task, unit))
    return list(found.values())


def _make_cut(index: GraphIndex, name: str, domain: str, unit: Unit) -> RegionCut:
    composite = unit.match.make_composite(index) if unit.match is not None else None
    return RegionCut(name, domain, (OutlineGroup(unit.nodes, composite),))


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
