"""Placements as files: the device of each node, in YAML that a person can read, edit and give back.

Nodes are called by their names, so that a file survives edits elsewhere in the model; a node that was
renamed is found again by what it is and what is around it, where only one fits. What no longer fits is
told, and left to the strategy.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field

from byoc._dataclasses import dataclass
from byoc.errors import InputError, suggest_nearest
from byoc.model import GraphIndex, name_nodes, walk_graph_paths
from byoc.planning._cleaned_graphs import HOST, PinnedNode, PinnedNodes, describe_nodes, list_names
from byoc.planning._graph_plan import GraphPlan
from byoc.planning._plan_data import Plan
from byoc.support import StrictModel, dump_yaml, read_yaml, write_text
from byoc.zoo import name_source

# Ways to find a node of a model that was edited: by name, by first output, by what is around it.

Node = tuple[GraphIndex, int]
"""A node: the index of its graph, and its number there."""

# How far a signature sees: past a repeated block of most networks, and quick at 100,000 nodes.
_STEPS = 16


def identify(node: Node) -> tuple[int, int]:
    """Return the id of a node's index with its number."""
    return id(node[0]), node[1]


def find_output(index: GraphIndex, number: int, path: str) -> str:
    """Return a node's first output behind the path of its graph, empty where it has none."""
    output = next(filter(None, index.node_outputs[number]), "")
    return f"{path}/{output}" if path and output else output


@dataclass(frozen=True, eq=False)
class NodeNames:
    """The nodes of a model's graphs by what they may be called, behind the paths of their graphs.

    A path leads through the node around a body, by its name or by its first output.
    """

    index: GraphIndex

    @cached_property
    def _paths(self) -> list[tuple[GraphIndex, str]]:
        """Each graph with its paths: those through names first, then those through outputs."""
        names = list(walk_graph_paths(self.index))
        outputs = [*_walk_output_paths(self.index, "")]
        return [(index, path) for path, index in (*names, *outputs)]

    @property
    def graphs(self) -> list[GraphIndex]:
        """The graphs, bodies included."""
        return list({id(index): index for index, _ in self._paths}.values())

    def find(self, name: str) -> Node | None:
        """Return the node of a name that `name_nodes` gives: its own, or that of its first output."""
        return self._distinct.get(name)

    def find_named(self, name: str) -> Node | None:
        """Return the node that alone in its graph has a name of its own."""
        return self._own.get(name)

    def find_output(self, name: str) -> Node | None:
        """Return the node whose first output has a name."""
        return self._outputs.get(name)

    @cached_property
    def _distinct(self) -> Mapping[str, Node]:
        return _number_names((index, path, name_nodes(index, "")) for index, path in self._paths)

    @cached_property
    def _own(self) -> Mapping[str, Node]:
        return _number_names((index, path, _own_names(index)) for index, path in self._paths)

    @cached_property
    def _outputs(self) -> Mapping[str, Node]:
        return _number_names(
            (index, path, {node: find_output(index, node, "") for node in name_nodes(index, "")})
            for index, path in self._paths
        )


def _walk_output_paths(index: GraphIndex, path: str) -> Iterator[tuple[str, GraphIndex]]:
    """Yield the graphs with paths through the first outputs of the nodes around them."""
    yield path, index
    for number, bodies in index.bodies.items():
        around = find_output(index, number, path)
        for body in bodies if around else ():
            yield from _walk_output_paths(body.index, f"{around}/{body.attribute}")


def _own_names(index: GraphIndex) -> dict[int, str]:
    """Return the names that one node of a graph has, by its number; constant nodes have none here."""
    counts = Counter(node.name for node in index.nodes)
    return {
        number: node.name
        for number, node in enumerate(index.nodes)
        if node.name and counts[node.name] == 1 and number not in index.constant_nodes
    }


def _number_names(graphs: Iterator[tuple[GraphIndex, str, dict[int, str]]]) -> dict[str, Node]:
    """Return the node of each name behind a path; the first that is called so."""
    found: dict[str, Node] = {}
    for index, path, names in graphs:
        behind = f"{path}/" if path else ""
        for number, name in names.items():
            if name:
                found.setdefault(f"{behind}{name}", (index, number))
    return found


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


# Placements as files: the device of each node, in YAML that a person can read, edit and give back.

_HEAD = """\
# Where each node runs. Edit it and give it to `byoc partition --placement`: what is listed goes where it
# is said to be, what is not listed is placed anew. `outputs` and `signatures` find renamed nodes; they
# may go.
"""


class SavedPlacementFile(StrictModel):
    """The file: the device of each node by its name, in a body behind its place (`Loop_0/body/add`).

    `outputs` has the first output of a node that is called by a name of its own.
    """

    format: Literal[1]
    model: str = ""
    nodes: dict[str, str]
    outputs: dict[str, str] = Field(default_factory=dict)
    signatures: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SavedPlacement:
    """A placement that the user gave: the path of its file, and its content."""

    source: str
    file: SavedPlacementFile

    def resolve(
        self, index: GraphIndex, devices: Sequence[str], lost: Collection[str] = ()
    ) -> PinnedNodes:
        """Return the device of each node that the file decides; `devices` are the accelerators' names.

        `lost` are names of nodes that clean-up dropped, which are not missed. Raises InputError when
        the file names another device.
        """
        labels = {HOST: 0, **{name: number for number, name in enumerate(devices, 1)}}
        for node, device in self.file.nodes.items():
            if device not in labels:
                hint = f"{suggest_nearest(device, labels)}; there are {', '.join(labels)}"
                raise InputError(f"{self.source}: nodes.{node}: no device '{device}' here{hint}")
        names = NodeNames(index)
        found = self._find_named(names)
        renamed, several = self._find_renamed(found, names.graphs)
        found |= renamed
        wanted: dict[int, dict[int, PinnedNode]] = {}
        for name, (graph, number) in found.items():
            pinned = PinnedNode(name, labels[self.file.nodes[name]], self.source)
            wanted.setdefault(id(graph), {})[number] = pinned
        known = {*found, *several, *lost}
        gone = [name for name in self.file.nodes if name not in known]
        several = [name for name in several if name not in lost]
        notes = []
        if several:
            what = "not in the model by name, and several nodes are like it"
            notes.append(describe_nodes(self.source, what, several))
        if gone:
            are = "nodes are" if len(gone) > 1 else "node is"
            notes.append(f"{self.source}: {len(gone)} {are} not in the model: {list_names(gone)}")
        return PinnedNodes(wanted, notes)

    def _find_named(self, names: "NodeNames") -> dict[str, Node]:
        """Return the nodes that are named in the file: by their names, else by their first outputs.

        A name may have become another node's, or that of several, and so may an output. Where both lead
        to one node it is that; else, of what leads to several or is led to twice, what is alike by its
        signature counts first, and then names.
        """
        found: dict[str, Node] = {}
        claims: list[tuple[str, Node]] = []
        for name in self.file.nodes:
            output = self.file.outputs.get(name)
            by_name = names.find(name) if output is None else names.find_named(name)
            here = output or name
            by_output = names.find_output(here) or names.find_output(self._lead_by_outputs(here))
            if by_name is not None and (output is None or by_name == by_output):
                found[name] = by_name
            else:
                claims += [(name, node) for node in (by_name, by_output) if node is not None]
        taken = {*map(identify, found.values())}
        claims = [(name, node) for name, node in claims if identify(node) not in taken]
        for name, node in self._sort_claims(claims):
            if name not in found and identify(node) not in taken:
                found[name] = node
                taken.add(identify(node))
        return found

    def _sort_claims(self, claims: list[tuple[str, Node]]) -> list[tuple[str, Node]]:
        """Return pairs of a name and a node: those that are alike first, then names without a choice."""
        names, nodes = {name for name, _ in claims}, {identify(node) for _, node in claims}
        if len(names) == len(nodes) == len(claims):
            return claims
        signs = {id(index): sign_nodes(index) for index in {node[0] for _, node in claims}}

        def rate(claim: tuple[str, Node]) -> int:
            wanted, (index, number) = self.file.signatures.get(claim[0], ""), claim[1]
            there = signs[id(index)].get(number, "")
            alike = (wanted.rsplit("-", parts)[0] == there.rsplit("-", parts)[0] for parts in range(3))
            return next((place for place, equal in enumerate(alike) if equal), 3) if wanted else 3

        choices = Counter(name for name, _ in claims)
        return sorted(claims, key=lambda claim: (rate(claim), choices[claim[0]]))

    def _lead_by_outputs(self, name: str, stop: int = -1) -> str:
        """Return a node's name with the path to its graph by first outputs, where the file has them.

        Only what is before `stop` is looked for; a node may be called as the beginning of its output.
        """
        end = name.rfind("/", 0, stop if stop >= 0 else len(name))
        while end > 0:
            if name[:end] in self.file.outputs:
                return self._lead_by_outputs(self.file.outputs[name[:end]], end) + name[end:]
            end = name.rfind("/", 0, end)
        return name

    def _find_renamed(
        self, known: Mapping[str, Node], graphs: Sequence[GraphIndex]
    ) -> tuple[dict[str, Node], list[str]]:
        """Return the nodes of names that are gone, by their signatures, and names that several fit.

        What the node and all around it is counts first; where that changed, what it is by itself.
        """
        lost = {
            name: self.file.signatures.get(name, "") for name in self.file.nodes if name not in known
        }
        if not any(lost.values()):
            return {}, []
        named = {*map(identify, known.values())}
        fresh = {
            (id(index), node): (index, node, sign)
            for index in graphs
            for node, sign in sign_nodes(index).items()
            if (id(index), node) not in named
        }
        found: dict[str, Node] = {}
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


def save_placement(plan: Plan, path: str | Path) -> None:
    """Write where each node of a `plan` runs to a file at `path`, for `partition(placement=...)`.

    Raises InputError when the file cannot be written.
    """
    write_text(Path(path), format_placement(plan.root, name_source(plan.model.source)))


def format_placement(root: GraphPlan, model: str) -> str:
    """Return the text of the file that says where each node of a plan runs; `model` is its name."""
    nodes: dict[str, str] = {}
    outputs: dict[str, str] = {}
    signatures: dict[str, str] = {}
    for graph in root.walk():
        devices, signs = graph.device_of_node, sign_nodes(graph.index)
        for node, name in name_nodes(graph.index, graph.path).items():
            if node in devices:
                nodes[name] = devices[node]
                signatures[name] = signs[node]
                output = find_output(graph.index, node, graph.path)
                if output not in ("", name):
                    outputs[name] = output
    content = {"nodes": nodes, "outputs": outputs, "signatures": signatures}
    kept = {key: value for key, value in content.items() if value or key == "nodes"}
    return _HEAD + dump_yaml({"format": 1, "model": model, **kept})
