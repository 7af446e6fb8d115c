"""Instances of a public benchmark: its JSON to a `Problem`, and a `Problem` to its JSON.

The benchmark is that of Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, Efficient
Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020 (github.com/msr-fiddle/
dnn-partitioning, whose README defines the format):

- `maxFPGAs` accelerators, all alike, each with `maxSizePerFPGA` bytes; `maxCPUs` cores.
- `nodes` with `id`, `supportedOnFpga`, `cpuLatency`, `fpgaLatency`, `size` in bytes on an
  accelerator, `isBackwardNode`, and `colorClass`: nodes of one class are on the same device.
- `edges` with `sourceId`, `destId` and `cost`: the time to move what the source makes between host
  and accelerator, either way, the same for all edges out of a node.

The format names no unit of time. Its instances have the magnitude of milliseconds (92 for a BERT of 24
layers on a GPU), and as such they are read: 1 is 0.001 seconds. All answers scale with the unit.

A tensor is paid for once per direction and accelerator there as here, and one goes from accelerator to
accelerator by way of the host in both, so that execution and transfer agree. What differs: their
latency lets the host do any number of nodes at once, ours one (`maxCPUs` plays no part).
"""

import heapq
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from byoc.errors import InputError
from byoc.placement.instance_checks import Edge, Node, checked
from byoc.placement.problem import UNLIMITED, Problem

_SECONDS = 1e-3
"""Seconds in the format's unit of time."""


@dataclass(frozen=True, eq=False)
class Instance:
    """What a file says, and the problem that it poses."""

    problem: Problem
    nodes: tuple[tuple[int, ...], ...]
    """The ids of the nodes that each unit stands for, rising."""
    cores: int
    """`maxCPUs`, which the problem has no place for."""
    notes: tuple[str, ...] = ()
    """Sentences on what of the instance the problem says in another way."""


def read_instance(path: Path) -> Instance:
    """Read an instance. Raises InputError, a line for each mistake, and OSError."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not JSON: the file is not UTF-8 text") from None
    return parse_instance(text, str(path))


def parse_instance(text: str, source: str) -> Instance:
    """Return the instance that a JSON text holds; `source` names it in errors.

    The order in which nodes and edges stand plays no part: units come in topological order, of those
    that may come next the one with the smallest id first. Raises InputError, a line for each mistake.
    """
    try:
        document = json.loads(text, object_pairs_hook=_without_doubles)
    except _TwiceError as error:
        raise InputError(f"{source}: key '{error.args[0]}' stands twice in one object") from None
    except RecursionError:
        raise InputError(f"{source}: not an instance: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{source}: not JSON: {error}") from None
    header, nodes, edges = checked(document, source)
    return _posed(header, nodes, edges)


class _TwiceError(Exception):
    pass


def _without_doubles(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(key)
        found[key] = value
    return found


def _posed(header: Mapping[str, float], nodes: Sequence[Node], edges: Sequence[Edge]) -> Instance:
    """Build the problem from nodes in topological order."""
    devices = int(header["maxFPGAs"])
    unit_of, tied = _units(nodes, edges)
    members: dict[int, list[Node]] = {}
    for node, unit in zip(nodes, unit_of, strict=True):
        members.setdefault(unit, []).append(node)
    order = _ordered(nodes, edges, unit_of)
    place = {unit: number for number, unit in enumerate(order)}
    at = {node.id: place[unit] for node, unit in zip(nodes, unit_of, strict=True)}
    refused = {at[node.id] for chain in tied if any(not n.supported for n in chain) for node in chain}
    seconds = np.zeros((len(order), 1 + devices))
    memory = np.zeros((len(order), devices))
    for number, unit in enumerate(order):
        every = members[unit]
        seconds[number, 0] = math.fsum(node.host for node in every) * _SECONDS
        takes = all(node.supported for node in every) and number not in refused
        seconds[number, 1:] = math.fsum(node.device for node in every) * _SECONDS if takes else np.inf
        memory[number] = math.fsum(node.size for node in every)
    tensors = [*_tensors(edges, at), *_ties(tied, at)]
    crossing = np.array([tensor[2] for tensor in tensors], np.float64)[:, np.newaxis]
    ways = np.broadcast_to(crossing * _SECONDS, (len(tensors), devices))
    problem = Problem.build(
        seconds=seconds,
        producer=[tensor[0] for tensor in tensors],
        consumers=[tensor[1] for tensor in tensors],
        is_output=np.zeros(len(tensors), np.bool_),
        to_device=ways,
        to_host=ways,
        launch=np.zeros(devices),
        size=np.array([len(members[unit]) for unit in order], np.int64),
        memory=memory,
        capacity=np.full(devices, header["maxSizePerFPGA"]),
    )
    ids = tuple(tuple(sorted(node.id for node in members[unit])) for unit in order)
    return Instance(problem, ids, int(header["maxCPUs"]), _notes(tied))


def _units(nodes: Sequence[Node], edges: Sequence[Edge]) -> tuple[list[int], list[list[Node]]]:
    """Return the unit of each node, named by its first one, and the classes that are no units.

    A class is one unit, unless units would wait for one another in a circle then (classes of training
    instances, which hold forward and backward nodes, do): the nodes of such a class stay apart.
    """
    first: dict[int, int] = {}
    number = {node.id: place for place, node in enumerate(nodes)}
    merged = [
        place if node.color is None else first.setdefault(node.color, place)
        for place, node in enumerate(nodes)
    ]
    ends = np.array([(number[e.source], number[e.target]) for e in edges], np.int64).reshape(-1, 2)
    source, target = np.array(merged, np.int64)[ends.T]
    apart = source != target
    graph = coo_array(
        (np.ones(apart.sum(), np.int8), (source[apart], target[apart])), shape=(len(nodes),) * 2
    )
    _, component = connected_components(graph.tocsr(), connection="strong")
    size = np.bincount(component[np.unique(np.array(merged, np.int64))], minlength=len(nodes) + 1)
    circular = [bool(size[component[unit]] > 1) for unit in merged]
    unit_of = [
        place if inside else unit
        for place, (unit, inside) in enumerate(zip(merged, circular, strict=True))
    ]
    classes: dict[int, list[Node]] = {}
    for node, unit, inside in zip(nodes, merged, circular, strict=True):
        if inside:
            classes.setdefault(unit, []).append(node)
    return unit_of, [chain for chain in classes.values() if len(chain) > 1]


def _ordered(nodes: Sequence[Node], edges: Sequence[Edge], unit_of: Sequence[int]) -> list[int]:
    """Return the units in topological order, the one with the smallest id first."""
    unit = {node.id: u for node, u in zip(nodes, unit_of, strict=True)}
    key: dict[int, int] = {}
    for node in nodes:
        key[unit[node.id]] = min(key.get(unit[node.id], node.id), node.id)
    between = {(unit[e.source], unit[e.target]) for e in edges if unit[e.source] != unit[e.target]}
    following: dict[int, list[int]] = {u: [] for u in key}
    waits = dict.fromkeys(key, 0)
    for source, target in between:
        following[source].append(target)
        waits[target] += 1
    ready = [(key[u], u) for u in key if not waits[u]]
    heapq.heapify(ready)
    order = []
    while ready:
        current = heapq.heappop(ready)[1]
        order.append(current)
        for after in following[current]:
            waits[after] -= 1
            if not waits[after]:
                heapq.heappush(ready, (key[after], after))
    return order


Tensor = tuple[int, list[int], float]
"""Producer, consumers, and what it costs to move."""


def _tensors(edges: Sequence[Edge], at: Mapping[int, int]) -> list[Tensor]:
    """Return what each node makes that another unit reads, in the order of the units."""
    readers: dict[int, set[int]] = {}
    cost: dict[int, float] = {}
    for edge in edges:
        cost[edge.source] = edge.cost
        if at[edge.target] != at[edge.source]:
            readers.setdefault(edge.source, set()).add(at[edge.target])
    order = sorted(readers, key=lambda node: (at[node], node))
    return [(at[node], sorted(readers[node]), cost[node]) for node in order]


def _ties(tied: Sequence[Sequence[Node]], at: Mapping[int, int]) -> list[Tensor]:
    """Return tensors that cannot be moved: they keep the units of a class on one device."""
    ties = []
    for chain in tied:
        units = sorted(at[node.id] for node in chain)
        ties += [(one, [other], math.inf) for one, other in pairwise(units)]
    return ties


def _notes(tied: Sequence[Sequence[Node]]) -> tuple[str, ...]:
    if not tied:
        return ()
    count = sum(len(chain) for chain in tied)
    return (
        f"{len(tied)} colour classes would wait for one another in a circle as one unit each: their "
        f"{count} nodes are units of their own, held together by tensors that cannot be moved",
    )


def instance_document(problem: Problem) -> dict[str, Any]:
    """Return the JSON document for a problem; the id of a unit's node is the unit's number.

    Further nodes, which take no time, stand for what the format has no word for: one for each tensor
    of a unit that makes several, in one class with it; one on the host for each graph input and
    each graph output. A tensor that cannot be moved becomes a class. Nodes of a unit are counted
    as one.

    Raises InputError, a line for each thing that the format cannot say.
    """
    wrong = _unsayable(problem)
    if wrong:
        raise InputError("\n".join(f"the benchmark's format has no {what}" for what in wrong))
    return _Document(problem).whole()


def _unsayable(problem: Problem) -> list[str]:
    devices = problem.devices
    ways = np.hstack([problem.to_device, problem.to_host])
    checks = {
        "launch cost": problem.launch.any(),
        "regions that must be connected": problem.connected.any(),
        "units that must be on an accelerator": problem.must.any(),
        "least or most nodes of a region": (problem.min_nodes > 1).any()
        or (problem.max_nodes < UNLIMITED).any(),
        "most regions of an accelerator": (problem.max_regions < UNLIMITED).any(),
        "fusions": bool(problem.fusions),
        "accelerators that differ": devices > 1
        and not (
            (problem.seconds[:, 1:] == problem.seconds[:, 1:2]).all()
            and (problem.memory == problem.memory[:, :1]).all()
            and (problem.capacity == problem.capacity[:1]).all()
        ),
        "transfers that cost more one way than the other, or to one accelerator than to another": devices
        and not (ways == ways[:, :1]).all(),
        "graph input or output that cannot be moved": devices
        and np.isinf(ways[(problem.producer < 0) | problem.is_output]).any(),
    }
    return [what for what, asked in checks.items() if asked]


class _Document:
    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._nodes: list[dict[str, Any]] = []
        self._edges: list[dict[str, Any]] = []
        self._class = list(range(problem.units))

    def whole(self) -> dict[str, Any]:
        problem = self._problem
        for unit in range(problem.units):
            supported = bool(np.isfinite(problem.seconds[unit, 1:]).all()) and problem.devices > 0
            device = float(problem.seconds[unit, 1]) / _SECONDS if supported else 0.0
            memory = float(problem.memory[unit, 0]) if problem.devices else 0.0
            self._node(float(problem.seconds[unit, 0]) / _SECONDS, device, supported, memory, unit)
        costs = problem.to_host[:, 0] if problem.devices else np.zeros(problem.tensors)
        moving = (problem.producer >= 0) & np.isfinite(costs)
        made = np.bincount(problem.producer[moving], minlength=problem.units)
        for tensor, producer in enumerate(problem.producer.tolist()):
            start, end = problem.consumer_start[tensor : tensor + 2]
            readers = problem.consumers[start:end].tolist()
            if np.isinf(costs[tensor]):
                self._tie(producer, readers)
            else:
                alone = producer >= 0 and made[producer] == 1
                self._tensor(tensor, producer, alone, readers, float(costs[tensor]) / _SECONDS)
        for node in self._nodes:
            if node["colorClass"] is not None:
                node["colorClass"] = self._class[node["colorClass"]]
            else:
                del node["colorClass"]
        return {
            "maxSizePerFPGA": self._capacity(),
            "maxFPGAs": problem.devices,
            "maxCPUs": 1,
            "nodes": self._nodes,
            "edges": self._edges,
        }

    def _capacity(self) -> float:
        capacity = min(self._problem.capacity.tolist(), default=0.0)
        # Room for everything is no limit.
        return capacity if math.isfinite(capacity) else math.fsum(self._problem.memory[:, 0])

    def _node(self, host: float, device: float, supported: bool, size: float, unit: int | None) -> int:
        self._nodes.append(
            {
                "id": len(self._nodes),
                "supportedOnFpga": supported,
                "cpuLatency": host,
                "fpgaLatency": device,
                "isBackwardNode": False,
                "colorClass": unit,
                "size": size,
            }
        )
        return len(self._nodes) - 1

    def _tensor(
        self, tensor: int, producer: int, alone: bool, readers: Sequence[int], cost: float
    ) -> None:
        if producer < 0:
            source = self._node(0.0, 0.0, False, 0.0, None)
        elif alone:
            source = producer
        else:
            source = self._node(0.0, 0.0, self._nodes[producer]["supportedOnFpga"], 0.0, producer)
            self._edge(producer, source, 0.0)
        for reader in readers:
            self._edge(source, reader, cost)
        if self._problem.is_output[tensor]:
            self._edge(source, self._node(0.0, 0.0, False, 0.0, None), cost)

    def _edge(self, source: int, target: int, cost: float) -> None:
        self._edges.append({"sourceId": source, "destId": target, "cost": cost})

    def _tie(self, producer: int, readers: Sequence[int]) -> None:
        classes = {self._class[unit] for unit in (producer, *readers)}
        self._class = [min(classes) if c in classes else c for c in self._class]
