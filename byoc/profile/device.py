"""Measuring a codegen: units are cut out of a model, compiled, and run one at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import onnx

from byoc.bundle.compile import Compiler
from byoc.bundle.regions import read_region
from byoc.bundle.weights import WeightFile, move_weights
from byoc.codegen import Codegen, Region
from byoc.costs.file import Link
from byoc.costs.task import Task, tasks
from byoc.errors import InputError
from byoc.graph.extract import call_model
from byoc.graph.index import GraphIndex, stated_types
from byoc.graph.load import Model
from byoc.graph.outline import Cut, GraphCuts, Group, outline
from byoc.patterns.group import Unit, group
from byoc.profile.records import Records
from byoc.profile.sampling import Clock, Patience, Samples, sampled
from byoc.rules.annotate import annotate
from byoc.rules.load import Target
from byoc.runtime.samples import sample_inputs
from byoc.verdict import YES
from byoc.verify.trial import compile_and_load

_PLAIN = "profile"
# Operators of which an accelerator is likely to support at least one.
_SMALLEST = ("Identity", "Relu", "Neg", "Add", "Mul")
_SMALL, _LARGE = 2**12, 2**24


@dataclass(frozen=True, eq=False)
class Device:
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
    def compiler(self) -> Compiler:
        """The codegen with its options."""
        return Compiler(self.codegen, self.options)

    @property
    def chosen(self) -> Any:
        """The options passed to `compile`. Raise InputError if one is not valid."""
        return self.compiler.chosen

    def seconds(self, region: Region, proto: onnx.ModelProto) -> list[float]:
        """Measure the calls of a region in seconds, including the transfer of its arrays.

        Raise InputError if the codegen cannot compile or load it.
        """
        run = compile_and_load(self.compiler, region)
        inputs = sample_inputs(GraphIndex(proto, stated_types(proto)))
        return sampled(lambda: run(inputs), self.patience, self.clock)


def time_units(
    model: Model,
    target: Target | None,
    device: Device,
    records: Records,
    progress: Callable[[str], None] = lambda step: None,
) -> list[str]:
    """Measure the distinct units of a model that a target supports and that are not yet in `records`.

    Without a target each node is a unit. Return a sentence for each unit that cannot be measured.
    """
    chosen = _chosen(model, target, records)
    if not chosen:
        return []
    name = target.name if target is not None else _PLAIN
    domain = target.domain if target is not None else f"byoc.{_PLAIN}"
    cuts = {f"unit_{row}": unit for row, (_, unit) in enumerate(chosen)}
    proto = outline(
        GraphCuts(model.index, tuple(_cut(model.index, n, domain, unit) for n, unit in cuts.items()))
    )
    index = GraphIndex(proto, stated_types(proto))
    calls = {node.op_type: node for node in index.nodes if node.domain == domain}
    problems = []
    for (task, _), cut in zip(chosen, cuts, strict=True):
        progress(f"{model.source}: {task.op}, {len(records)} measured")
        try:
            with TemporaryDirectory(prefix="byoc-") as folder:
                region_model = call_model(index, calls[cut], model.index.certain)
                region, stored = _stored(region_model, model.folder, Path(folder), cut, name)
                records.add(task, device.seconds(region, stored))
        except InputError as error:
            problems.append(f"{task}: {error}")
    return problems


def _chosen(model: Model, target: Target | None, records: Records) -> list[tuple[Task, Unit]]:
    """Return the distinct supported units that are not measured yet, with their tasks."""
    index = model.index
    works = tasks(index)
    if target is not None:
        units: Sequence[Unit] = group(index, target.patterns, annotate(index, target))
    else:
        running = [i for i in range(len(index.nodes)) if works.of[i] >= 0]
        units = [Unit(works[i].op, (i,), YES, ()) for i in running]
    found: dict[Any, tuple[Task, Unit]] = {}
    for unit in units:
        if not unit.verdict or unit.nodes[0] in index.bodies:
            continue
        task = works.composite(unit.composite, unit.nodes) if unit.composite else works[unit.nodes[0]]
        if task.sized and not task.view and task not in records:
            found.setdefault(task.key, (task, unit))
    return list(found.values())


def _cut(index: GraphIndex, name: str, domain: str, unit: Unit) -> Cut:
    composite = unit.match.as_composite(index) if unit.match is not None else None
    return Cut(name, domain, (Group(unit.nodes, composite),))


def _stored(
    proto: onnx.ModelProto, source: Path | None, folder: Path, name: str, target: str
) -> tuple[Region, onnx.ModelProto]:
    """Write a region's model and weights to a folder, as in a bundle; `source` has external data."""
    with WeightFile(folder) as weights:
        stored = move_weights(proto, source, weights)
    path = folder / f"{name}.onnx"
    path.write_bytes(stored.SerializeToString(deterministic=True))
    return read_region(path, name, target), stored


def launch(device: Device, records: Records) -> float:
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
                region, stored = _stored(proto, None, Path(folder), "small", _PLAIN)
                found.append(Samples.of(device.seconds(region, stored)).median)
        except InputError:
            continue
    known = records.cheapest()
    return min(found + ([] if known is None else [known]), default=0.0)


def copies(patience: Patience, clock: Clock = perf_counter) -> Link:
    """Measure copying arrays as a link: the latency of a small copy, the bandwidth of a large one."""
    medians = []
    for size in (_SMALL, _LARGE):
        source, destination = np.ones(size, np.uint8), np.zeros(size, np.uint8)
        seconds = sampled(partial(np.copyto, destination, source), patience, clock)
        medians.append(Samples.of(seconds).median)
    small, large = medians
    rate = (_LARGE - _SMALL) / (large - small) if large > small else float("inf")
    return Link(bandwidth=rate, latency=small)
