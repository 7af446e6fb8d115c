"""Placements as files: which node runs where, in YAML that a person can read, edit, and give back.

Nodes are called by their names, so that a file survives edits elsewhere in the model; a node that was
renamed is found again by what it is and what is around it, where only one fits. What no longer fits is
told, and left to the strategy.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from byoc.errors import InputError, nearest
from byoc.graph.index import GraphIndex
from byoc.patterns.joint import JointUnit
from byoc.placement import Problem
from byoc.yamlfile import Strict, read_yaml

HOST = "host"
_HEAD = """\
# Where each node runs. Edit it and give it to `byoc partition --placement`: what is listed goes where it
# is said to be, what is not listed is placed anew. `signatures` find renamed nodes; they may go.
"""
_MOST_TOLD = 5


class SavedFile(Strict):
    """The file: the device of each node by its name, in a body behind its place (`Loop_0/body/add`)."""

    format: Literal[1]
    model: str = ""
    nodes: Annotated[dict[str, str], Field(min_length=1)]
    signatures: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Pins:
    """Where a given placement wants nodes: what the file calls them and their device, by node number.

    `wanted` has them for each graph by the id of its index; `notes` says what did not fit.
    """

    source: str
    wanted: Mapping[int, Mapping[int, tuple[str, int]]]
    notes: list[str]

    def of(self, index: GraphIndex, units: Sequence[JointUnit], problem: Problem) -> dict[int, int]:
        """Return the device of each unit of a graph that has to be somewhere, by number.

        What cannot be as it was wanted is noted.
        """
        wanted = self.wanted.get(id(index), {})
        pins: dict[int, int] = {}
        torn: list[str] = []
        refused: list[str] = []
        for row, unit in enumerate(units):
            found = [wanted[node] for node in unit.nodes if node in wanted]
            labels = {label for _, label in found}
            if len(labels) > 1:
                torn += (name for name, _ in found)
                continue
            for label in labels:
                if label and not problem.allowed[row, label]:
                    refused += (name for name, _ in found)
                else:
                    pins[row] = label
        _tell(self.notes, self.source, "on several devices, and now run as one", torn)
        _tell(self.notes, self.source, "not taken by the device", refused)
        return pins


@dataclass(frozen=True, eq=False)
class Saved:
    """A placement that was given: what the user called it, and what it says."""

    source: str
    file: SavedFile

    def resolve(self, index: GraphIndex, devices: Sequence[str]) -> Pins:
        """Return where each node of a model is to be; `devices` are the accelerators' names.

        Raises InputError when the file names another device.
        """
        labels = {HOST: 0, **{name: number for number, name in enumerate(devices, 1)}}
        for node, device in self.file.nodes.items():
            if device not in labels:
                hint = f"{nearest(device, labels)}; there are {', '.join(labels)}"
                raise InputError(f"{self.source}: nodes.{node}: no device '{device}' here{hint}")
        graphs = list(graphs_of(index))
        names = {
            name: (inner, node)
            for place, inner in graphs
            for node, name in node_names(inner, place).items()
        }
        found = {name: names[name] for name in self.file.nodes if name in names}
        found |= self._renamed(names)
        wanted: dict[int, dict[int, tuple[str, int]]] = {}
        for name, (graph, number) in found.items():
            wanted.setdefault(id(graph), {})[number] = name, labels[self.file.nodes[name]]
        notes: list[str] = []
        gone = [name for name in self.file.nodes if name not in found]
        _tell(notes, self.source, "not in the model", gone)
        return Pins(self.source, wanted, notes)

    def _renamed(self, names: Mapping[str, tuple[GraphIndex, int]]) -> dict[str, tuple[GraphIndex, int]]:
        """Return the nodes of names that are gone: those of the same signature, where there is one."""
        lost = [name for name in self.file.nodes if name not in names]
        signs = {name: self.file.signatures.get(name) for name in lost}
        if not any(signs.values()):
            return {}
        fresh: dict[str, list[tuple[GraphIndex, int]]] = {}
        for name, (index, node) in names.items():
            if name not in self.file.nodes:
                fresh.setdefault(signature(index, node), []).append((index, node))
        once = Counter(signs.values())
        return {
            name: fresh[sign][0]
            for name, sign in signs.items()
            if sign and once[sign] == 1 and len(fresh.get(sign, ())) == 1
        }


def read_saved(path: Path) -> Saved:
    """Return the placement in a file. Raises InputError with a line for every mistake in it."""
    return Saved(str(path), read_yaml(path, SavedFile))


def saved_text(model: str, graphs: Iterable[tuple[GraphIndex, str, Mapping[int, str]]]) -> str:
    """Return the text of a file for some graphs: each with its place and its nodes' devices."""
    nodes: dict[str, str] = {}
    signatures: dict[str, str] = {}
    for index, place, devices in graphs:
        for node, name in node_names(index, place).items():
            if node in devices:
                nodes[name] = devices[node]
                signatures[name] = signature(index, node)
    content = {"format": 1, "model": model, "nodes": nodes, "signatures": signatures}
    return _HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=10_000)


def graphs_of(index: GraphIndex, place: str = "") -> Iterator[tuple[str, GraphIndex]]:
    """Yield the graphs of a model, each behind its place: `Loop_0/body`, empty for the main one."""
    yield place.rstrip("/"), index
    for number, inner in index.bodies.items():
        for body in inner:
            yield from graphs_of(body.index, body_place(index, number, body.attribute, place))


def body_place(index: GraphIndex, number: int, attribute: str, place: str = "") -> str:
    """Return the place of a node's body, for `graphs_of`: `Loop_0/body/` behind that of its graph."""
    return f"{place}{node_names(index, '')[number]}/{attribute}/"


def node_names(index: GraphIndex, place: str) -> dict[int, str]:
    """Return a name for each node of a graph that runs, distinct: its own, or its first output's.

    A name that another node has too, or another's output, is not taken; a node without either has none.
    """
    counts = Counter(node.name for node in index.nodes)
    behind = f"{place}/" if place else ""
    names: dict[int, str] = {}
    for number, node in enumerate(index.nodes):
        if number in index.constant_nodes:
            continue
        clear = counts[node.name] == 1 and index.producer.get(node.name, number) == number
        own = node.name if clear and node.name else next(filter(None, node.output), "")
        if own:
            names[number] = f"{behind}{own}"
    return names


def signature(index: GraphIndex, number: int) -> str:
    """Return what a node is, whatever its name: operator, attributes, types, neighbours."""
    node = index.nodes[number]
    around = [
        sorted(index.nodes[user].op_type for user in index.consumers.get(name, ()))
        for name in node.output
    ]
    before = [
        index.nodes[index.producer[name]].op_type if name in index.producer else "-"
        for name in node.input
    ]
    kinds = [str(index.types.get(name)) for name in (*node.input, *node.output) if name]
    attributes = sorted(
        attribute.SerializeToString(deterministic=True)
        for attribute in node.attribute
        if not attribute.HasField("g")
    )
    text = repr((node.domain, node.op_type, attributes, kinds, before, around))
    return f"{node.op_type}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _tell(notes: list[str], source: str, what: str, names: Sequence[str]) -> None:
    if names:
        told = ", ".join(f"'{name}'" for name in names[:_MOST_TOLD])
        more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
        notes.append(f"{source}: {what}: {told}{more}; placed anew")
