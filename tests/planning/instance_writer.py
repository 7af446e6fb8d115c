"""Writing a problem as the benchmark's JSON, to test reading it by a round trip."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from byoc.errors import InputError
from byoc.placement import UNLIMITED, Problem

_SECONDS = 1e-3


def instance_document(problem: Problem) -> dict[str, Any]:
    """Return the JSON document for a problem; the id of a unit's node is the unit's number.

    Further nodes, which take no time, stand for what the format has no word for: one for each tensor
    of a unit that makes several, in one class with it; one on the host for each graph input and
    each graph output. A tensor that cannot be moved becomes a class. Nodes of a unit are counted
    as one.

    Raises InputError, a line for each thing that the format cannot say.
    """
    wrong = _inexpressible(problem)
    if wrong:
        raise InputError("\n".join(f"the benchmark's format has no {what}" for what in wrong))
    return _Document(problem).build()


def _inexpressible(problem: Problem) -> list[str]:
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

    def build(self) -> dict[str, Any]:
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
