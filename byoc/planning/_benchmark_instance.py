"""The placement problem of an instance of the public benchmark of Tarnawski et al. (NeurIPS 2020).

The same instance asks for different things by its objective (`InstanceObjective`). In all of them a
tensor is paid for once per direction and accelerator, and travels from accelerator to accelerator by way
of the host; nodes of one colour class are one unit, which on the host runs node by node.
"""

import math
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from byoc._dataclasses import dataclass, replace
from byoc.codegen import parse_strict_json
from byoc.errors import InputError, suggest_nearest
from byoc.numerics import find_cycle, sort_topologically
from byoc.placement import UNLIMITED, Ints, Measure, Occupancy, Problem, find_components
from byoc.planning._problem_file import is_problem_document, parse_problem
from byoc.support import (
    StrictModel,
    describe_missing_file,
    make_file_error,
    read_limited,
    validate_content,
)

# Reading instances of a public placement benchmark: the file and its mistakes.
#
# The benchmark is that of Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, Efficient
# Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020 (github.com/msr-fiddle/
# dnn-partitioning, whose README defines the format):
#
# - `maxFPGAs` identical accelerators with `maxSizePerFPGA` bytes each; `maxCPUs` cores.
# - `nodes` with `id`, `supportedOnFpga`, `cpuLatency`, `fpgaLatency`, `size` in bytes on an
#   accelerator, `isBackwardNode`, and `colorClass`: nodes of one class are on the same device.
# - `edges` with `sourceId`, `destId` and `cost`: the time to move the result of the source between host
#   and accelerator, in either direction; the same for all edges of a source.
#
# The format names no unit of time. The numbers have the magnitude of milliseconds (92 for a BERT of
# 24 layers on a GPU), so 1 is read as 0.001 seconds. All results scale with the unit.

# The tolerance of the benchmark's own programs.
_SAME_COST = 1e-6
_MOST_BYTES = 1 << 28

_Number = Annotated[int, Field(strict=True, ge=-(2**62), le=2**62)]
# Anything larger is a mistake; sums of this many stay finite.
_Amount = Annotated[float, Field(strict=True, ge=0, le=1e200)]


class _InstanceObject(StrictModel):
    """An object of the file. Keys that the format does not name are ignored, as its programs do."""

    model_config = ConfigDict(alias_generator=to_camel, extra="ignore")


class InstanceNode(_InstanceObject):
    """A node of the file, times in the file's unit."""

    id: _Number
    supported_on_fpga: bool
    is_backward_node: bool = False
    cpu_latency: _Amount
    fpga_latency: _Amount | None = None
    size: _Amount = 0.0
    color_class: _Number | None = None

    @model_validator(mode="after")
    def _is_timed(self) -> "InstanceNode":
        if self.supported_on_fpga and self.fpga_latency is None:
            raise ValueError("fpgaLatency must be given, since supportedOnFpga is true")
        return self


class InstanceEdge(_InstanceObject):
    """An edge of the file."""

    source_id: _Number
    dest_id: _Number
    cost: _Amount


class InstanceFile(_InstanceObject):
    """The content of the file."""

    max_size_per_fpga: Annotated[_Amount, Field(alias="maxSizePerFPGA")]
    max_fpgas: Annotated[int, Field(alias="maxFPGAs", strict=True, ge=0, le=256)]
    max_cpus: Annotated[int, Field(alias="maxCPUs", strict=True, ge=0, le=1_000_000)]
    nodes: Annotated[tuple[InstanceNode, ...], Field(max_length=1_000_000)]
    edges: Annotated[tuple[InstanceEdge, ...], Field(max_length=1_000_000)]

    @property
    def is_training(self) -> bool:
        """Whether some nodes are of the backward pass."""
        return any(node.is_backward_node for node in self.nodes)


def read_instance_text(path: Path) -> bytes:
    """Return the content of a file. Raises InputError for a file that cannot be read."""
    try:
        with path.open("rb") as file:
            text = read_limited(file, _MOST_BYTES)
    except FileNotFoundError:
        raise InputError(describe_missing_file(path)) from None
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {why}") from None
    if len(text) > _MOST_BYTES:
        raise InputError(f"{path}: cannot be read: it has more than {_MOST_BYTES} bytes")
    return text


def parse_json_text(text: bytes, path: Path) -> Any:
    """Parse JSON; `path` is for error messages. Raises InputError for what is none."""
    try:
        return parse_strict_json(text.removeprefix(BOM_UTF8))
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from None


def validate_instance_file(content: object, path: Path) -> InstanceFile:
    """Return the instance that the content of a file describes.

    Raises InputError with a line for each mistake.
    """
    file, mistakes = validate_content(content, InstanceFile)
    if file is not None:
        mistakes = list(_find_wrong_ids(file)) or list(_find_wrong_edges(file))
    if file is None or mistakes:
        raise make_file_error(path, mistakes)
    return file


def _find_wrong_ids(file: InstanceFile) -> Iterator[str]:
    """Yield ids that occur twice, and edges that name no node."""
    first: dict[int, int] = {}
    for number, node in enumerate(file.nodes):
        if first.setdefault(node.id, number) != number:
            yield f"nodes[{number}].id: {node.id} is the id of nodes[{first[node.id]}] already"
    for number, edge in enumerate(file.edges):
        for key, end in (("sourceId", edge.source_id), ("destId", edge.dest_id)):
            if end not in first:
                yield f"edges[{number}].{key}: there is no node {end}"


def _find_wrong_edges(file: InstanceFile) -> Iterator[str]:
    """Yield different costs for the edges of one source, and a cycle."""
    position = {node.id: number for number, node in enumerate(file.nodes)}
    before: list[list[int]] = [[] for _ in file.nodes]
    first: dict[int, int] = {}
    for number, edge in enumerate(file.edges):
        before[position[edge.dest_id]].append(position[edge.source_id])
        other = first.setdefault(edge.source_id, number)
        if abs(edge.cost - file.edges[other].cost) > _SAME_COST:
            yield (
                f"edges[{number}].cost: {edge.cost:g}, but edges[{other}] out of the same node, "
                f"{edge.source_id}, costs {file.edges[other].cost:g}: what a node makes has one cost"
            )
    if cycle := sorted({file.nodes[number].id for number in find_cycle(before)}):
        yield f"edges: they form a circle through node {', '.join(map(str, cycle[:5]))}"


_SECONDS = 1e-3
"""Seconds per unit of time of the format."""
_IDLE_CORES = 256  # cores beyond the number of nodes change no optimum
_MOST_PAIRS = 1 << 22
"""The most pairs of a node and a device: each has several numbers in memory."""


class InstanceObjective(StrEnum):
    """The quantity that an instance of the benchmark is to minimise."""

    latency = "latency"
    """The time of one inference, as the benchmark counts it: the host runs any number of nodes at once;
    an accelerator runs one contiguous set of nodes in one call, in which its inputs are sent one after
    another, then the nodes run, then the results are sent."""
    throughput = "throughput"
    """The load of the busiest device, of `maxCPUs` cores and `maxFPGAs` accelerators; transfers occupy
    the accelerator at their end."""
    total = "total"
    """The sum of all costs: one inference that does one thing at a time, as `partition` counts it."""

    @property
    def measure(self) -> Measure:
        """The measure of placements."""
        measures = {"latency": Measure.makespan, "throughput": Measure.load, "total": Measure.total}
        return measures[self.value]

    @property
    def strategy(self) -> str:
        """The strategy that minimises it."""
        return {"latency": "makespan", "throughput": "throughput", "total": "launch-aware"}[self.value]


@dataclass(frozen=True, eq=False)
class PlacementInstance:
    """An instance of the benchmark: the problem, and the nodes of each unit."""

    problem: Problem
    nodes: tuple[tuple[int | str, ...], ...]
    """The ids of each unit's nodes, in rising order; the unit's name where byoc saved the problem."""
    objective: InstanceObjective
    cores: frozenset[int] = frozenset({0})
    """The devices of the problem that are the host's: 0, and a device for each core beyond the first
    where cores have loads of their own."""
    notes: tuple[str, ...] = ()
    """Sentences on parts of the instance that the problem expresses differently."""
    margin: float = 0.0
    """The share that several devices have to save, as cost models have it; 0 for public instances."""


def read_instance(
    path: Path, objective: str | None = None, max_regions: int | None = None
) -> PlacementInstance:
    """Read an instance from a file, and build the problem that it asks for.

    Without an objective an instance of training asks for throughput; others must be given one.
    `max_regions` is the largest number of regions of an accelerator: 1 makes them contiguous, and is the
    default for the latency. Raises InputError with a line for each mistake, for a file that cannot be
    read, and for an objective that does not suit the instance.
    """
    return parse_instance(read_instance_text(path), path, objective, max_regions)


def parse_instance(
    text: bytes, path: Path, objective: str | None = None, max_regions: int | None = None
) -> PlacementInstance:
    """Parse the JSON text of an instance as `read_instance` does; `path` is for error messages.

    The result does not depend on the order of nodes and edges in the text: units are in topological
    order, the smallest id first.
    """
    content = parse_json_text(text, path)
    if is_problem_document(content):
        return _read_problem(content, path, objective, max_regions)
    return _build_chosen(validate_instance_file(content, path), path, objective, max_regions)


def _read_problem(
    content: object, path: Path, name: str | None, max_regions: int | None
) -> PlacementInstance:
    """Return the instance of a problem that byoc saved; `total` is what it asks for unless named."""
    problem, units, margin = parse_problem(content, path)
    objective = _find_objective(name or InstanceObjective.total.value)
    if max_regions is not None:
        problem = replace(problem, max_regions=np.minimum(problem.max_regions, max_regions))
    return PlacementInstance(problem, tuple((unit,) for unit in units), objective, margin=margin)


def _build_chosen(
    file: InstanceFile, path: Path, name: str | None, max_regions: int | None
) -> PlacementInstance:
    objective = _choose_objective(file, path, name)
    nodes = sorted(file.nodes, key=lambda node: node.id)
    must_offload = objective is InstanceObjective.throughput and not file.max_cpus
    stranded = [node.id for node in nodes if not node.supported_on_fpga]
    if must_offload and (stranded or not file.max_fpgas):
        first = f"node {stranded[0]} runs on no accelerator" if stranded else "there is no accelerator"
        raise InputError(f"{path}: maxCPUs is 0, and {first}")
    if max_regions is None and objective is InstanceObjective.latency:
        max_regions = 1
    most = UNLIMITED if max_regions is None else min(max_regions, UNLIMITED)
    return _build_instance(file, path, nodes, objective, most)


def _choose_objective(file: InstanceFile, path: Path, name: str | None) -> InstanceObjective:
    """Return the objective of a name, or of the instance where only one suits it."""
    if name is None:
        if file.is_training:
            return InstanceObjective.throughput
        raise InputError(
            f"{path}: an instance of inference does not say what it asks for: choose the objective "
            "latency, throughput or total"
        )
    objective = _find_objective(name)
    if file.is_training and objective is InstanceObjective.latency:
        number = next(number for number, node in enumerate(file.nodes) if node.is_backward_node)
        raise InputError(
            f"{path}: nodes[{number}].isBackwardNode: the latency is that of inference, and this is an "
            "instance of training: choose the objective throughput or total"
        )
    return objective


def _find_objective(name: str) -> InstanceObjective:
    if name not in list(InstanceObjective):
        names = list(InstanceObjective)
        known = ", ".join(names)
        raise InputError(
            f"objective {name}: no such objective{suggest_nearest(name, names)}; known: {known}"
        )
    return InstanceObjective(name)


def _build_instance(
    file: InstanceFile,
    path: Path,
    nodes: Sequence[InstanceNode],
    objective: InstanceObjective,
    max_regions: int,
) -> PlacementInstance:
    """Build the problem; the devices after the accelerators are cores beyond the first.

    Of cores beyond the number of nodes, which stay idle, at most 256 are devices. Raises InputError for
    too many pairs of a node and a device.
    """
    edges = file.edges
    pipelined = objective is InstanceObjective.throughput
    cores = max(min(file.max_cpus, max(len(nodes), _IDLE_CORES)) - 1, 0) if pipelined else 0
    accelerators = file.max_fpgas
    devices = accelerators + cores
    if len(nodes) * (1 + devices) > _MOST_PAIRS:
        raise InputError(
            f"{path}: {len(nodes)} nodes and {1 + devices} devices:"
            f" more than {_MOST_PAIRS} pairs of both"
        )
    unit_of, split_classes = _assign_units(nodes, edges)
    members: list[list[InstanceNode]] = [[] for _ in range(int(unit_of.max(initial=-1)) + 1)]
    for node, unit in zip(nodes, unit_of.tolist(), strict=True):
        members[unit].append(node)
    unit_of_id = {node.id: unit for unit, group in enumerate(members) for node in group}
    # One member that is not supported keeps its whole class on the host.
    refused = {
        unit_of_id[node.id]
        for group in split_classes
        if not all(node.supported_on_fpga for node in group)
        for node in group
    }
    seconds = np.zeros((len(members), 1 + devices))
    memory = np.zeros((len(members), devices))
    for unit, group in enumerate(members):
        supported = all(node.supported_on_fpga for node in group) and unit not in refused
        on_device = math.fsum(node.fpga_latency or 0.0 for node in group) * _SECONDS
        seconds[unit, 0] = math.fsum(node.cpu_latency for node in group) * _SECONDS
        seconds[unit, 1 : 1 + accelerators] = on_device if supported else np.inf
        seconds[unit, 1 + accelerators :] = seconds[unit, 0]
        memory[unit, :accelerators] = math.fsum(node.size for node in group)
    too_large = np.flatnonzero(memory[:, :1] > file.max_size_per_fpga)
    if pipelined and not file.max_cpus and too_large.size:
        unit = int(too_large[0])
        raise InputError(
            f"{path}: maxCPUs is 0, and node {members[unit][0].id} fits no accelerator: its colour class"
            f" has {memory[unit, 0]:g} bytes, and maxSizePerFPGA is {file.max_size_per_fpga:g}"
        )
    tensors = [*_find_tensors(edges, unit_of_id), *_tie_split_classes(split_classes, unit_of_id)]
    cost = np.array([tensor[2] for tensor in tensors], np.float64)[:, np.newaxis]
    transfer = np.repeat(cost * _SECONDS, devices, axis=1)
    # Cores share the memory of the host, except for nodes that cannot be parted.
    transfer[:, accelerators:][np.isfinite(transfer[:, accelerators:])] = 0.0
    is_accelerator = np.arange(devices) < accelerators
    problem = Problem.build(
        seconds=seconds,
        producer=[tensor[0] for tensor in tensors],
        consumers=[tensor[1] for tensor in tensors],
        is_output=np.zeros(len(tensors), np.bool_),
        to_device=transfer,
        to_host=transfer,
        launch=np.zeros(devices),
        size=[len(group) for group in members],
        memory=memory,
        capacity=np.where(is_accelerator, file.max_size_per_fpga, np.inf),
        max_regions=np.where(is_accelerator, max_regions, UNLIMITED),
        must=np.full(len(members), pipelined and not file.max_cpus),
        occupies=[Occupancy.device] * devices,
        cores=UNLIMITED if objective is InstanceObjective.latency else 1,
    )
    return PlacementInstance(
        problem,
        tuple(tuple(sorted(node.id for node in group)) for group in members),
        objective,
        frozenset({0, *range(1 + accelerators, 1 + devices)}),
        _describe_split_classes(split_classes),
    )


def _assign_units(
    nodes: Sequence[InstanceNode], edges: Sequence[InstanceEdge]
) -> tuple[Ints, list[list[InstanceNode]]]:
    """Return the unit of each node, int64 (nodes,), and the classes that are split into several units.

    A class is one unit, unless contracting it would make the graph cyclic (classes of training
    instances, which hold forward and backward nodes, do): then each of its nodes is a unit. Units are
    numbered in topological order, the smallest id first.
    """
    first: dict[int, int] = {}
    number = {node.id: position for position, node in enumerate(nodes)}
    of_class = np.array(
        [
            position if node.color_class is None else first.setdefault(node.color_class, position)
            for position, node in enumerate(nodes)
        ],
        np.int64,
    )
    ends = np.array([(number[e.source_id], number[e.dest_id]) for e in edges], np.int64).reshape(-1, 2)
    source, target = of_class[ends.T]
    between = source != target
    _, component = find_components(len(nodes), source[between], target[between], "strong")
    classes_in = np.bincount(component[np.unique(of_class)], minlength=len(nodes) + 1)
    is_split = classes_in[component[of_class]] > 1
    split: dict[int, list[InstanceNode]] = {}
    for position in np.flatnonzero(is_split).tolist():
        split.setdefault(int(of_class[position]), []).append(nodes[position])
    unit_of = np.where(is_split, np.arange(len(nodes)), of_class)
    _, unit_of = np.unique(unit_of, return_inverse=True)
    count = int(unit_of.max(initial=-1)) + 1
    smallest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(smallest, unit_of, np.array([node.id for node in nodes], np.int64))
    source, target = unit_of[ends.T]
    between = source != target
    before: list[list[int]] = [[] for _ in range(count)]
    for one, other in zip(source[between].tolist(), target[between].tolist(), strict=True):
        before[other].append(one)
    order = sort_topologically(before, smallest.tolist())
    position_of = np.empty(count, np.int64)
    position_of[order] = np.arange(count)
    return position_of[unit_of], [group for group in split.values() if len(group) > 1]


InstanceTensor = tuple[int, list[int], float]
"""Producer, consumers, and the time to move it."""


def _find_tensors(edges: Sequence[InstanceEdge], unit_of_id: Mapping[int, int]) -> list[InstanceTensor]:
    """Return the results of nodes that other units read, in the order of the units."""
    readers: dict[int, set[int]] = {}
    cost: dict[int, float] = {}
    for edge in edges:
        cost[edge.source_id] = edge.cost
        if unit_of_id[edge.dest_id] != unit_of_id[edge.source_id]:
            readers.setdefault(edge.source_id, set()).add(unit_of_id[edge.dest_id])
    order = sorted(readers, key=lambda node: (unit_of_id[node], node))
    return [(unit_of_id[node], sorted(readers[node]), cost[node]) for node in order]


def _tie_split_classes(
    split_classes: Sequence[Sequence[InstanceNode]], unit_of_id: Mapping[int, int]
) -> list[InstanceTensor]:
    """Return tensors that cannot be moved, which keep the units of a class on one device."""
    ties = []
    for group in split_classes:
        units = sorted(unit_of_id[node.id] for node in group)
        ties += [(one, [other], math.inf) for one, other in pairwise(units)]
    return ties


def _describe_split_classes(split_classes: Sequence[Sequence[InstanceNode]]) -> tuple[str, ...]:
    if not split_classes:
        return ()
    count = sum(map(len, split_classes))
    return (
        f"{len(split_classes)} colour classes would wait for one another in a circle as one unit each: "
        f"their {count} nodes are units of their own, held together by tensors that cannot be moved",
    )
