"""Reading instances of a public placement benchmark: JSON to a `Problem`.

The benchmark is that of Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, Efficient
Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020 (github.com/msr-fiddle/
dnn-partitioning, whose README defines the format):

- `maxFPGAs` identical accelerators with `maxSizePerFPGA` bytes each; `maxCPUs` cores.
- `nodes` with `id`, `supportedOnFpga`, `cpuLatency`, `fpgaLatency`, `size` in bytes on an
  accelerator, `isBackwardNode`, and `colorClass`: nodes of one class are on the same device.
- `edges` with `sourceId`, `destId` and `cost`: the time to move the result of the source between host
  and accelerator, in either direction; the same for all edges of a source.

The format names no unit of time. The numbers have the magnitude of milliseconds (92 for a BERT of 24
layers on a GPU), so 1 is read as 0.001 seconds. All results scale with the unit.

As in `Problem`, a tensor is paid for once per direction and accelerator, and travels from accelerator
to accelerator by way of the host, so execution and transfer agree. One thing differs: in the benchmark's
latency the host runs any number of nodes at once, here one (`maxCPUs` has no effect).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from byoc.errors import InputError
from byoc.placement._benchmark_checks import InstanceEdge, InstanceNode, check_instance
from byoc.placement._canonical_order import sort_by_edges
from byoc.placement._form_regions import find_components
from byoc.placement._problem import Ints, Problem

_SECONDS = 1e-3
"""Seconds per unit of time of the format."""


@dataclass(frozen=True, eq=False)
class PlacementInstance:
    """An instance of the benchmark: the problem, and the nodes of each unit."""

    problem: Problem
    nodes: tuple[tuple[int, ...], ...]
    """The ids of each unit's nodes, in rising order."""
    cores: int
    """`maxCPUs`, which the problem cannot express."""
    notes: tuple[str, ...] = ()
    """Sentences on parts of the instance that the problem expresses differently."""


def read_instance(path: Path) -> PlacementInstance:
    """Read an instance from a file.

    Raises InputError with a line for each mistake, and OSError if the file cannot be read.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not JSON: the file is not UTF-8 text") from None
    return parse_instance(text, str(path))


def parse_instance(text: str, source: str) -> PlacementInstance:
    """Parse the JSON text of an instance; `source` names it in error messages.

    The result does not depend on the order of nodes and edges in the text: units are in topological
    order, the smallest id first. Raises InputError with a line for each mistake.
    """
    try:
        document = json.loads(text, object_pairs_hook=_object_without_duplicates)
    except _DuplicateKeyError as error:
        raise InputError(f"{source}: key '{error.args[0]}' stands twice in one object") from None
    except RecursionError:
        raise InputError(f"{source}: not an instance: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{source}: not JSON: {error}") from None
    return _build_instance(*check_instance(document, source))


class _DuplicateKeyError(Exception):
    pass


def _object_without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _DuplicateKeyError(key)
        result[key] = value
    return result


def _build_instance(
    header: Mapping[str, float], nodes: Sequence[InstanceNode], edges: Sequence[InstanceEdge]
) -> PlacementInstance:
    devices = int(header["maxFPGAs"])
    unit_of, split_classes = _assign_units(nodes, edges)
    members: list[list[InstanceNode]] = [[] for _ in range(int(unit_of.max(initial=-1)) + 1)]
    for node, unit in zip(nodes, unit_of.tolist(), strict=True):
        members[unit].append(node)
    unit_of_id = {node.id: unit for unit, group in enumerate(members) for node in group}
    # One member that is not supported keeps its whole class on the host.
    refused = {
        unit_of_id[node.id]
        for group in split_classes
        if not all(node.supported for node in group)
        for node in group
    }
    seconds = np.zeros((len(members), 1 + devices))
    memory = np.zeros((len(members), devices))
    for unit, group in enumerate(members):
        supported = all(node.supported for node in group) and unit not in refused
        on_device = math.fsum(node.device for node in group) * _SECONDS
        seconds[unit, 0] = math.fsum(node.host for node in group) * _SECONDS
        seconds[unit, 1:] = on_device if supported else np.inf
        memory[unit] = math.fsum(node.size for node in group)
    tensors = [*_find_tensors(edges, unit_of_id), *_tie_split_classes(split_classes, unit_of_id)]
    cost = np.array([tensor[2] for tensor in tensors], np.float64)[:, np.newaxis]
    transfer = np.broadcast_to(cost * _SECONDS, (len(tensors), devices))
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
        capacity=np.full(devices, header["maxSizePerFPGA"]),
    )
    ids = tuple(tuple(sorted(node.id for node in group)) for group in members)
    return PlacementInstance(
        problem, ids, int(header["maxCPUs"]), _describe_split_classes(split_classes)
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
            position if node.color is None else first.setdefault(node.color, position)
            for position, node in enumerate(nodes)
        ],
        np.int64,
    )
    ends = np.array([(number[e.source], number[e.target]) for e in edges], np.int64).reshape(-1, 2)
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
    order = sort_by_edges(count, (source[between], target[between]), smallest.tolist())
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
        cost[edge.source] = edge.cost
        if unit_of_id[edge.target] != unit_of_id[edge.source]:
            readers.setdefault(edge.source, set()).add(unit_of_id[edge.target])
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
