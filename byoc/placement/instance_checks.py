"""Whether a JSON document is an instance of the benchmark: each mistake in a sentence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from byoc.errors import InputError, nearest

_MOST_DEVICES = 256
_MOST_NODES = 1_000_000
_MOST_MISTAKES = 20
# Anything larger is a slip; sums of so many stay finite.
_LARGEST = 1e200
# What their programs forgive.
_SAME_COST = 1e-6


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the file has it, times in its unit."""

    id: int
    supported: bool
    host: float
    device: float
    size: float
    color: int | None


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge as the file has it."""

    source: int
    target: int
    cost: float


def checked(document: Any, source: str) -> tuple[dict[str, float], list[Node], list[Edge]]:
    """Return the numbers of the head, the nodes in topological order, and the edges.

    Raises InputError with a line for each mistake, up to 20.
    """
    checks = _Checks()
    if not isinstance(document, dict):
        raise InputError(f"{source}: an object with nodes and edges is expected, not {_kind(document)}")
    header = {
        "maxSizePerFPGA": checks.number(document, "maxSizePerFPGA", ""),
        "maxFPGAs": checks.count(document, "maxFPGAs", "", _MOST_DEVICES),
        "maxCPUs": checks.count(document, "maxCPUs", "", _MOST_NODES),
    }
    nodes = [
        checks.node(entry, f"nodes[{number}]")
        for number, entry in enumerate(checks.entries(document, "nodes"))
    ]
    edges = [
        checks.edge(entry, f"edges[{number}]")
        for number, entry in enumerate(checks.entries(document, "edges"))
    ]
    checks.refuse(source)
    checks.ids(nodes, edges)
    checks.refuse(source)
    checks.costs(edges)
    ordered = checks.ordered(nodes, edges)
    checks.refuse(source)
    return header, ordered, edges


class _Checks:
    """Checks that gather what is wrong, and go on with something harmless."""

    def __init__(self) -> None:
        self._mistakes: list[str] = []

    def refuse(self, source: str) -> None:
        """Raise InputError if anything was wrong."""
        if not self._mistakes:
            return
        lines = [f"{source}: {mistake}" for mistake in self._mistakes[:_MOST_MISTAKES]]
        if len(self._mistakes) > _MOST_MISTAKES:
            lines.append(f"{source}: and {len(self._mistakes) - _MOST_MISTAKES} more mistakes")
        raise InputError("\n".join(lines))

    def entries(self, document: Mapping[str, Any], key: str) -> Sequence[Any]:
        entries = self._value(document, key, "")
        if entries is None:
            return []
        if not isinstance(entries, list):
            self._wrong("", key, f"a list is expected, not {_kind(entries)}")
            return []
        if len(entries) > _MOST_NODES:
            self._wrong("", key, f"{len(entries)} of them; {_MOST_NODES} is the most")
            return []
        return entries

    def node(self, entry: Any, place: str) -> Node:
        if not isinstance(entry, dict):
            self._wrong(place, "", f"an object is expected, not {_kind(entry)}")
            entry = dict.fromkeys(("id", "supportedOnFpga", "cpuLatency", "fpgaLatency"), 0)
        supported = self._flag(entry, "supportedOnFpga", place)
        if "isBackwardNode" in entry:
            self._flag(entry, "isBackwardNode", place)
        timed = supported or "fpgaLatency" in entry
        return Node(
            id=self.whole(entry, "id", place),
            supported=supported,
            host=self.number(entry, "cpuLatency", place),
            device=self.number(entry, "fpgaLatency", place) if timed else 0.0,
            size=self.number(entry, "size", place) if "size" in entry else 0.0,
            color=None if entry.get("colorClass") is None else self.whole(entry, "colorClass", place),
        )

    def edge(self, entry: Any, place: str) -> Edge:
        if not isinstance(entry, dict):
            self._wrong(place, "", f"an object is expected, not {_kind(entry)}")
            return Edge(0, 0, 0.0)
        return Edge(
            self.whole(entry, "sourceId", place),
            self.whole(entry, "destId", place),
            self.number(entry, "cost", place),
        )

    def ids(self, nodes: Sequence[Node], edges: Sequence[Edge]) -> None:
        """Every node has an id of its own, and edges name nodes."""
        first: dict[int, int] = {}
        for number, node in enumerate(nodes):
            if first.setdefault(node.id, number) != number:
                where = f"nodes[{first[node.id]}]"
                self._wrong(f"nodes[{number}]", "id", f"{node.id} is the id of {where} already")
        for number, edge in enumerate(edges):
            for key, end in (("sourceId", edge.source), ("destId", edge.target)):
                if end not in first:
                    self._wrong(f"edges[{number}]", key, f"there is no node {end}")

    def costs(self, edges: Sequence[Edge]) -> None:
        """All edges out of a node cost the same."""
        first: dict[int, int] = {}
        for number, edge in enumerate(edges):
            other = first.setdefault(edge.source, number)
            if abs(edge.cost - edges[other].cost) > _SAME_COST:
                self._wrong(
                    f"edges[{number}]",
                    "cost",
                    f"{edge.cost:g}, but edges[{other}] out of the same node, {edge.source}, costs "
                    f"{edges[other].cost:g}: what a node makes has one cost",
                )

    def ordered(self, nodes: Sequence[Node], edges: Sequence[Edge]) -> list[Node]:
        """Return the nodes in topological order (Kahn, Communications of the ACM 5, 1962)."""
        waits = {node.id: 0 for node in nodes}
        following: dict[int, list[int]] = {node.id: [] for node in nodes}
        for edge in edges:
            waits[edge.target] += 1
            following[edge.source].append(edge.target)
        order = sorted(node for node, waiting in waits.items() if not waiting)
        for node in order:  # grows as it goes
            for after in following[node]:
                waits[after] -= 1
                if not waits[after]:
                    order.append(after)
        if len(order) < len(nodes):
            circle = ", ".join(map(str, _on_a_circle(nodes, edges)))
            self._wrong("edges", "", f"they form a circle through node {circle}")
            return []
        by_id = {node.id: node for node in nodes}
        return [by_id[node] for node in order]

    def number(self, entry: Mapping[str, Any], key: str, place: str) -> float:
        value = self._value(entry, key, place)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._wrong(place, key, f"a number is expected, not {_kind(value)}")
        elif isinstance(value, float) and math.isnan(value):
            self._wrong(place, key, "NaN is not a number")
        elif value < 0:
            self._wrong(place, key, f"{_shown(value)}; 0 or more is expected")
        elif value > _LARGEST:
            self._wrong(place, key, f"{_shown(value)}; {_LARGEST:g} is the most")
        else:
            return float(value)
        return 0.0

    def whole(self, entry: Mapping[str, Any], key: str, place: str) -> int:
        value = self._value(entry, key, place)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong(place, key, f"a whole number is expected, not {_kind(value)}")
            return 0
        if abs(value) > 2**62:
            self._wrong(place, key, f"{_shown(value)} is out of range")
            return 0
        return value

    def count(self, entry: Mapping[str, Any], key: str, place: str, most: int) -> int:
        value = self.whole(entry, key, place)
        if not 0 <= value <= most:
            self._wrong(place, key, f"{_shown(value)}; 0 to {most} is expected")
            return 0
        return value

    def _flag(self, entry: Mapping[str, Any], key: str, place: str) -> bool:
        value = self._value(entry, key, place)
        if value is None:
            return False
        if not isinstance(value, bool | int) or value not in (0, 1):
            self._wrong(place, key, f"true, false, 1 or 0 is expected, not {_kind(value)}")
            return False
        return bool(value)

    def _value(self, entry: Mapping[str, Any], key: str, place: str) -> Any:
        if key not in entry:
            strange = entry.keys() - _KNOWN
            self._wrong(place, "", f"there is no {key}{nearest(key, strange)}")
        elif entry[key] is None:
            self._wrong(place, key, "null; a value is expected")
        return entry.get(key)

    def _wrong(self, place: str, key: str, what: str) -> None:
        where = ".".join(part for part in (place, key) if part)
        self._mistakes.append(f"{where}: {what}" if where else what)


_KNOWN = {
    "maxSizePerFPGA", "maxFPGAs", "maxCPUs", "nodes", "edges",
    "id", "supportedOnFpga", "cpuLatency", "fpgaLatency", "isBackwardNode", "colorClass", "size",
    "sourceId", "destId", "cost", "name", "layerId",
}  # fmt: skip


def _on_a_circle(nodes: Sequence[Node], edges: Sequence[Edge]) -> list[int]:
    """Return up to five ids of nodes that wait for one another."""
    number = {node.id: place for place, node in enumerate(nodes)}
    alone = sorted(edge.source for edge in edges if edge.source == edge.target)
    if alone:
        return alone[:1]
    ends = np.array([(number[edge.source], number[edge.target]) for edge in edges])
    graph = coo_array((np.ones(len(ends), np.int8), ends.T), shape=(len(nodes),) * 2)
    _, component = connected_components(graph.tocsr(), connection="strong")
    members: dict[int, list[int]] = {}
    for node, group in zip(nodes, component.tolist(), strict=True):
        members.setdefault(group, []).append(node.id)
    return min(sorted(ids) for ids in members.values() if len(ids) > 1)[:5]


def _kind(value: Any) -> str:
    """Describe a JSON value: what it is, and the value itself where that is short."""
    kinds = {dict: "an object", list: "a list", type(None): "null"}
    if type(value) in kinds:
        return kinds[type(value)]
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"the text {_short(repr(value))}" if isinstance(value, str) else _shown(value)


def _shown(value: float) -> str:
    """Return a number as text, briefly, however many digits it has."""
    if isinstance(value, int):
        digits = math.log10(abs(value)) if value else 0
        return f"{value}" if digits < 20 else f"a number of {int(digits) + 1} digits"
    return f"{value:g}"


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
