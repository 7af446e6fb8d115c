"""Checks of a benchmark instance's JSON document, with a sentence for each mistake."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from byoc.errors import InputError, suggest_nearest
from byoc.placement._form_regions import find_components

_MOST_DEVICES = 256
_MOST_NODES = 1_000_000
_MOST_MISTAKES = 20
# Anything larger is a mistake; sums of this many stay finite.
_LARGEST = 1e200
# The tolerance of the benchmark's own programs.
_SAME_COST = 1e-6


@dataclass(frozen=True, slots=True)
class InstanceNode:
    """A node of the file, times in the file's unit."""

    id: int
    supported: bool
    host: float
    device: float
    size: float
    color: int | None


@dataclass(frozen=True, slots=True)
class InstanceEdge:
    """An edge of the file."""

    source: int
    target: int
    cost: float


def check_instance(
    document: Any, source: str
) -> tuple[dict[str, float], list[InstanceNode], list[InstanceEdge]]:
    """Return the numbers of the header, the nodes sorted by id, and the edges, an acyclic graph.

    Raises InputError with a line for each mistake, up to 20.
    """
    checks = _Checks()
    if not isinstance(document, dict):
        raise InputError(
            f"{source}: an object with nodes and edges is expected, not {_describe(document)}"
        )
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
    checks.acyclic(nodes, edges)
    checks.refuse(source)
    return header, sorted(nodes, key=lambda node: node.id), edges


class _Checks:
    """Collects mistakes; each check continues with a harmless value."""

    def __init__(self) -> None:
        self._mistakes: list[str] = []

    def refuse(self, source: str) -> None:
        """Raise InputError if there was a mistake."""
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
            self._wrong("", key, f"a list is expected, not {_describe(entries)}")
            return []
        if len(entries) > _MOST_NODES:
            self._wrong("", key, f"{len(entries)} of them; {_MOST_NODES} is the most")
            return []
        return entries

    def node(self, entry: Any, path: str) -> InstanceNode:
        if not isinstance(entry, dict):
            self._wrong(path, "", f"an object is expected, not {_describe(entry)}")
            entry = dict.fromkeys(("id", "supportedOnFpga", "cpuLatency", "fpgaLatency"), 0)
        supported = self._flag(entry, "supportedOnFpga", path)
        if "isBackwardNode" in entry:
            self._flag(entry, "isBackwardNode", path)
        timed = supported or "fpgaLatency" in entry
        return InstanceNode(
            id=self.whole(entry, "id", path),
            supported=supported,
            host=self.number(entry, "cpuLatency", path),
            device=self.number(entry, "fpgaLatency", path) if timed else 0.0,
            size=self.number(entry, "size", path) if "size" in entry else 0.0,
            color=None if entry.get("colorClass") is None else self.whole(entry, "colorClass", path),
        )

    def edge(self, entry: Any, path: str) -> InstanceEdge:
        if not isinstance(entry, dict):
            self._wrong(path, "", f"an object is expected, not {_describe(entry)}")
            return InstanceEdge(0, 0, 0.0)
        return InstanceEdge(
            self.whole(entry, "sourceId", path),
            self.whole(entry, "destId", path),
            self.number(entry, "cost", path),
        )

    def ids(self, nodes: Sequence[InstanceNode], edges: Sequence[InstanceEdge]) -> None:
        """Refuse ids that occur twice, and edges that name no node."""
        first: dict[int, int] = {}
        for number, node in enumerate(nodes):
            if first.setdefault(node.id, number) != number:
                where = f"nodes[{first[node.id]}]"
                self._wrong(f"nodes[{number}]", "id", f"{node.id} is the id of {where} already")
        for number, edge in enumerate(edges):
            for key, end in (("sourceId", edge.source), ("destId", edge.target)):
                if end not in first:
                    self._wrong(f"edges[{number}]", key, f"there is no node {end}")

    def costs(self, edges: Sequence[InstanceEdge]) -> None:
        """Refuse different costs for the edges of one source."""
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

    def acyclic(self, nodes: Sequence[InstanceNode], edges: Sequence[InstanceEdge]) -> None:
        """Refuse edges that form a cycle."""
        cycle = _find_cycle(nodes, edges)
        if cycle:
            self._wrong("edges", "", f"they form a circle through node {', '.join(map(str, cycle))}")

    def number(self, entry: Mapping[str, Any], key: str, path: str) -> float:
        value = self._value(entry, key, path)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._wrong(path, key, f"a number is expected, not {_describe(value)}")
        elif isinstance(value, float) and math.isnan(value):
            self._wrong(path, key, "NaN is not a number")
        elif value < 0:
            self._wrong(path, key, f"{_format_number(value)}; 0 or more is expected")
        elif value > _LARGEST:
            self._wrong(path, key, f"{_format_number(value)}; {_LARGEST:g} is the most")
        else:
            return float(value)
        return 0.0

    def whole(self, entry: Mapping[str, Any], key: str, path: str) -> int:
        value = self._value(entry, key, path)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong(path, key, f"a whole number is expected, not {_describe(value)}")
            return 0
        if abs(value) > 2**62:
            self._wrong(path, key, f"{_format_number(value)} is out of range")
            return 0
        return value

    def count(self, entry: Mapping[str, Any], key: str, path: str, most: int) -> int:
        value = self.whole(entry, key, path)
        if not 0 <= value <= most:
            self._wrong(path, key, f"{_format_number(value)}; 0 to {most} is expected")
            return 0
        return value

    def _flag(self, entry: Mapping[str, Any], key: str, path: str) -> bool:
        value = self._value(entry, key, path)
        if value is None:
            return False
        if not isinstance(value, bool | int) or value not in (0, 1):
            self._wrong(path, key, f"true, false, 1 or 0 is expected, not {_describe(value)}")
            return False
        return bool(value)

    def _value(self, entry: Mapping[str, Any], key: str, path: str) -> Any:
        if key not in entry:
            strange = entry.keys() - _KNOWN
            self._wrong(path, "", f"there is no {key}{suggest_nearest(key, strange)}")
        elif entry[key] is None:
            self._wrong(path, key, "null; a value is expected")
        return entry.get(key)

    def _wrong(self, path: str, key: str, what: str) -> None:
        where = ".".join(part for part in (path, key) if part)
        self._mistakes.append(f"{where}: {what}" if where else what)


_KNOWN = {
    "maxSizePerFPGA", "maxFPGAs", "maxCPUs", "nodes", "edges",
    "id", "supportedOnFpga", "cpuLatency", "fpgaLatency", "isBackwardNode", "colorClass", "size",
    "sourceId", "destId", "cost", "name", "layerId",
}  # fmt: skip


def _find_cycle(nodes: Sequence[InstanceNode], edges: Sequence[InstanceEdge]) -> list[int]:
    """Return up to five ids of nodes in one strongly connected component; empty if there is no cycle."""
    loops = sorted(edge.source for edge in edges if edge.source == edge.target)
    if loops or not edges:
        return loops[:1]
    number = {node.id: position for position, node in enumerate(nodes)}
    ends = np.array([(number[edge.source], number[edge.target]) for edge in edges]).T
    count, component = find_components(len(nodes), ends[0], ends[1], "strong")
    if count == len(nodes):
        return []
    members: dict[int, list[int]] = {}
    for node, group in zip(nodes, component.tolist(), strict=True):
        members.setdefault(group, []).append(node.id)
    return min(sorted(ids) for ids in members.values() if len(ids) > 1)[:5]


def _describe(value: Any) -> str:
    """Describe a JSON value by its kind, or by itself if it is short."""
    kinds = {dict: "an object", list: "a list", type(None): "null"}
    if type(value) in kinds:
        return kinds[type(value)]
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"the text {_shorten(repr(value))}" if isinstance(value, str) else _format_number(value)


def _format_number(value: float) -> str:
    """Format a number briefly, however many digits it has."""
    if isinstance(value, int):
        digits = math.log10(abs(value)) if value else 0
        return f"{value}" if digits < 20 else f"a number of {int(digits) + 1} digits"
    return f"{value:g}"


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
