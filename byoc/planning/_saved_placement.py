"""Placements as files: the device of each node, in YAML that a person can read, edit and give back.

Nodes are called by their names, so that a file survives edits elsewhere in the model; a node that was
renamed is found again by what it is and what is around it, where only one fits. What no longer fits is
told, and left to the strategy.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from byoc.errors import InputError, suggest_nearest
from byoc.model import GraphIndex, name_nodes, walk_graph_paths
from byoc.planning._pinned_nodes import HOST, PinnedNode, PinnedNodes, describe_nodes
from byoc.support import StrictModel, dump_yaml, read_yaml

_HEAD = """\
# Where each node runs. Edit it and give it to `byoc partition --placement`: what is listed goes where it
# is said to be, what is not listed is placed anew. `signatures` find renamed nodes; they may go.
"""
# How far a signature sees: past a repeated block of most networks, and quick at 100,000 nodes.
_STEPS = 16


class SavedPlacementFile(StrictModel):
    """The file: the device of each node by its name, in a body behind its place (`Loop_0/body/add`)."""

    format: Literal[1]
    model: str = ""
    nodes: Annotated[dict[str, str], Field(min_length=1)]
    signatures: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SavedPlacement:
    """A placement that the user gave: the path of its file, and its content."""

    source: str
    file: SavedPlacementFile

    def resolve(self, index: GraphIndex, devices: Sequence[str]) -> PinnedNodes:
        """Return the device of each node that the file decides; `devices` are the accelerators' names.

        Raises InputError when the file names another device.
        """
        labels = {HOST: 0, **{name: number for number, name in enumerate(devices, 1)}}
        for node, device in self.file.nodes.items():
            if device not in labels:
                hint = f"{suggest_nearest(device, labels)}; there are {', '.join(labels)}"
                raise InputError(f"{self.source}: nodes.{node}: no device '{device}' here{hint}")
        graphs = list(walk_graph_paths(index))
        names = {
            name: (inner, node)
            for place, inner in graphs
            for node, name in name_nodes(inner, place).items()
        }
        found = {name: names[name] for name in self.file.nodes if name in names}
        renamed, several = self._find_renamed(names, [inner for _, inner in graphs])
        found |= renamed
        wanted: dict[int, dict[int, PinnedNode]] = {}
        for name, (graph, number) in found.items():
            pinned = PinnedNode(name, labels[self.file.nodes[name]], self.source)
            wanted.setdefault(id(graph), {})[number] = pinned
        gone = [name for name in self.file.nodes if name not in found and name not in several]
        problems = {
            "not in the model by name, and several nodes are like it": several,
            "not in the model": gone,
        }
        notes = [describe_nodes(self.source, what, names) for what, names in problems.items() if names]
        return PinnedNodes(wanted, notes)

    def _find_renamed(
        self, names: Mapping[str, tuple[GraphIndex, int]], graphs: Sequence[GraphIndex]
    ) -> tuple[dict[str, tuple[GraphIndex, int]], list[str]]:
        """Return the nodes of names that are gone, by their signatures, and names that several fit.

        What the node and all around it is counts first; where that changed, what it is by itself.
        """
        lost = {
            name: self.file.signatures.get(name, "") for name in self.file.nodes if name not in names
        }
        if not any(lost.values()):
            return {}, []
        known = {(id(index), node) for name, (index, node) in names.items() if name in self.file.nodes}
        fresh = {
            (id(index), node): (index, node, sign)
            for index in graphs
            for node, sign in sign_nodes(index).items()
            if (id(index), node) not in known
        }
        found: dict[str, tuple[GraphIndex, int]] = {}
        several: set[str] = set()
        parts: tuple[Callable[[str], str], ...] = (str, lambda sign: sign.rpartition("-")[0])
        for part in parts:
            wanted: dict[str, list[str]] = {}
            for name, sign in lost.items():
                if sign and name not in found:
                    wanted.setdefault(part(sign), []).append(name)
            there: dict[str, list[tuple[int, int]]] = {}
            for key, (_, _, sign) in fresh.items():
                there.setdefault(part(sign), []).append(key)
            for sign, asking in wanted.items():
                if len(asking) == len(there.get(sign, ())) == 1:
                    index, node, _ = fresh.pop(there[sign][0])
                    found[asking[0]] = index, node
                elif there.get(sign):
                    several.update(asking)
        return found, [name for name in lost if name in several and name not in found]


def read_placement(path: Path) -> SavedPlacement:
    """Return the placement in a file. Raises InputError with a line for every mistake in it."""
    return SavedPlacement(str(path), read_yaml(path, SavedPlacementFile))


def format_placement(model: str, graphs: Iterable[tuple[GraphIndex, str, Mapping[int, str]]]) -> str:
    """Return the text of a file for some graphs: each with its place and its nodes' devices."""
    nodes: dict[str, str] = {}
    signatures: dict[str, str] = {}
    for index, place, devices in graphs:
        signs = sign_nodes(index)
        for node, name in name_nodes(index, place).items():
            if node in devices:
                nodes[name] = devices[node]
                signatures[name] = signs[node]
    return _HEAD + dump_yaml({"format": 1, "model": model, "nodes": nodes, "signatures": signatures})


def sign_nodes(index: GraphIndex) -> dict[int, str]:
    """Return signatures of nodes that do not depend on names: `Conv-NEAR-FAR`, two hashes of 12 digits.

    The first is of operator, attributes, types and the operators around it. The second has seen as far
    as 16 steps in all directions (Weisfeiler and Lehman, Nauchno-Technicheskaya Informatsia 2, 1968): it
    tells repeated blocks apart, and an edit nearby changes it.
    """
    nodes = [number for number in range(len(index.nodes)) if number not in index.constant_nodes]
    near = {number: _hash(_describe_node(index, number)) for number in nodes}
    before = {
        number: [index.producers.get(name, -1) for name in index.nodes[number].input] for number in nodes
    }
    after = {
        number: [user for name in index.nodes[number].output for user in index.consumers.get(name, ())]
        for number in nodes
    }
    far = near
    for _ in range(_STEPS):
        told = far
        far = {
            number: _hash(
                told[number],
                [told.get(other, "-") for other in before[number]],
                sorted(told.get(other, "-") for other in after[number]),
            )
            for number in nodes
        }
    return {number: f"{index.nodes[number].op_type}-{near[number]}-{far[number]}" for number in nodes}


def _describe_node(index: GraphIndex, number: int) -> tuple[object, ...]:
    node = index.nodes[number]
    around = [
        sorted(index.nodes[user].op_type for user in index.consumers.get(name, ()))
        for name in node.output
    ]
    before = [
        index.nodes[index.producers[name]].op_type if name in index.producers else "-"
        for name in node.input
    ]
    kinds = [str(index.types.get(name)) for name in (*node.input, *node.output) if name]
    attributes = sorted(
        attribute.SerializeToString(deterministic=True)
        for attribute in node.attribute
        if not attribute.HasField("g")
    )
    return node.domain, node.op_type, attributes, kinds, before, around


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]
